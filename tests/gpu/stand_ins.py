"""What tests of the runners share: the runners, loaded by path, and programs and a library that stand for real ones."""

import importlib.util
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The program that runners start is the benchmark's: there is one of that name here, too.
sys.path.insert(0, str(ROOT / "bench"))


def load(name: str, path: Path):
    """Both runners are called run.py, so they are loaded by path."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def program_writer(folder):
    """Writes a Python program into the folder; returns the command that runs it."""

    def write(text: str, name: str = "program.py") -> list[str]:
        path = folder / name
        path.write_text("import json, os, sys, time\n" + textwrap.dedent(text))
        return [sys.executable, str(path)]

    return write


def library_in(folder):
    """A file that stands for the library; the loader refuses it with a message and the program runs on."""
    path = folder / "libfake.so"
    path.write_text("not a library")
    return path
