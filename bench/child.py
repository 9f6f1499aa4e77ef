"""Runs one program in a child process, with or without the preloaded library, under a time limit.

The parent survives whatever the child does: a crash, a hang or garbage on stdout becomes an `Outcome`.
What the lines mean is left to the callers (`bench/run.py`, `tests/gpu/run.py`).
"""

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

# Seconds between the request for a stack dump and the kill.
DUMP_GRACE_S = 3.0
STDERR_LINES = 25


@dataclasses.dataclass
class Outcome:
    """How a child ended and what it said."""

    returncode: int | None
    timed_out: bool
    lines: list[dict]
    stderr: str
    wall_s: float

    @property
    def failure(self) -> str | None:
        """None after a clean end; otherwise one phrase that says how the child ended."""
        if self.timed_out:
            return f"no end after {self.wall_s:.0f} s"
        if self.returncode is not None and self.returncode < 0:
            try:
                return f"killed by {signal.Signals(-self.returncode).name}"
            except ValueError:
                return f"killed by signal {-self.returncode}"
        return None if self.returncode == 0 else f"exit code {self.returncode}"

    def events(self, kind: str) -> list[dict]:
        """The lines whose "event" is `kind`, in order."""
        return [line for line in self.lines if line.get("event") == kind]

    def stderr_tail(self, count: int = STDERR_LINES) -> list[str]:
        """The last `count` non-empty lines of stderr."""
        return [line for line in self.stderr.splitlines() if line.strip()][-count:]


def settings(parser: argparse.ArgumentParser, given: list[str]) -> dict[str, str]:
    """What `--option FT_KEY=VALUE` asks for, by key; exits with one line for anything else."""
    for text in given:
        if not text.startswith("FT_") or "=" not in text:
            parser.error(f"--option {text}: allowed is FT_KEY=VALUE")
    return dict(text.split("=", 1) for text in given)


def environment(
    preload: Path | None,
    options: dict[str, str],
    extra: dict[str, str] | None = None,
    *,
    compiled: bool = False,
) -> dict[str, str]:
    """The child's environment. Without `preload` it is stock: no LD_PRELOAD and no FT_* left of the parent's. `compiled`: its packages have their byte code beside them."""
    env = {
        key: value for key, value in os.environ.items() if not key.startswith("FT_") and key != "LD_PRELOAD"
    }
    # A hang is then ended by SIGABRT, which prints the Python stack of every thread.
    env.update(PYTHONFAULTHANDLER="1", PYTHONUNBUFFERED="1")
    if compiled:
        env.pop("PYTHONPYCACHEPREFIX", None)
    else:
        # Where the installed packages lie without byte code, each process would compile them anew.
        env.setdefault(
            "PYTHONPYCACHEPREFIX", os.path.join(tempfile.gettempdir(), "flextensor-bench-bytecode")
        )
    env.update(extra or {})
    if preload is not None:
        env["LD_PRELOAD"] = str(Path(preload).resolve())
        env.update(options)
    return env


def parse_line(text: str) -> dict | None:
    """A JSON object, or None for any other text the program may print."""
    text = text.strip()
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _stop(process: subprocess.Popen) -> None:
    """Asks for a stack dump, then ends the child's whole process group."""
    try:
        os.kill(process.pid, signal.SIGABRT)
        process.wait(DUMP_GRACE_S)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass
    _end_group(process)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        # Stuck in the kernel (a driver call that never returns): the caller goes on without it.
        pass


def _end_group(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def run(command: list[str], *, limit_s: float, env: dict[str, str]) -> Outcome:
    """Runs `command` to its end or for at most `limit_s` seconds."""
    began = time.monotonic()
    lines: list[dict] = []
    with tempfile.TemporaryFile("w+", errors="replace") as stderr:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=True,
        )

        def collect() -> None:
            for text in process.stdout:
                line = parse_line(text)
                if line is not None:
                    lines.append(line)

        reader = threading.Thread(target=collect, daemon=True)
        reader.start()
        timed_out = False
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            _stop(process)
        except BaseException:
            # The parent itself is being stopped: leave no child behind.
            _end_group(process)
            raise
        # A grandchild may hold the pipe open after the program has ended.
        _end_group(process)
        reader.join(5)
        stderr.seek(0)
        text = stderr.read()
    return Outcome(process.returncode, timed_out, list(lines), text, time.monotonic() - began)


def read_report(path: Path) -> dict | None:
    """The run report, or None when there is none or it cannot be read."""
    try:
        value = json.loads(Path(path).read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def field(report: dict | None, *keys: str):
    """A nested value of a report; None where any key is missing. A list is searched through its first element."""
    value = report
    for key in keys:
        if isinstance(value, list):
            value = value[0] if value else None
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value
