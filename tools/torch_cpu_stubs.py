"""Makes stand-ins for the NVIDIA libraries that a CUDA build of torch wants at import.

Job: let CI without a GPU import the same torch version that a GPU machine runs, without gigabytes of
libraries that it could not use. Each stand-in holds exactly the symbols that torch's libraries leave
undefined, under the versions that they name; every function returns 999. Never put the folder on the
library path of a machine with a GPU: the tests assert that torch sees none.

Usage: torch_cpu_stubs.py TORCH_LIB_FOLDER OUTPUT_FOLDER [SONAME_TO_LEAVE_ALONE ...]
"""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

# Unversioned symbols say nothing about their library, so they go by the prefix that each library's interface
# uses.
PREFIXES = {
    "libcuda.so": "cu",
    "libcudnn.so": "cudnn",
    "libcufft.so": "cufft",
    "libcufile.so": "cuFile",
    "libcupti.so": "cupti",
    "libcurand.so": "curand",
    "libcusparseLt.so": "cusparseLt",
    "libnccl.so": "nccl",
    "libnvshmem_host.so": "nvshmem",
}
NVIDIA = re.compile(r"lib(cu|nv|nccl)")


@dataclass
class Symbols:
    """What a set of ELF files asks of the libraries outside the set."""

    needed: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)
    unversioned: set[str] = field(default_factory=set)
    by_version: dict[str, set[str]] = field(default_factory=dict)
    versions_of: dict[str, set[str]] = field(default_factory=dict)


def readelf(*arguments: str) -> str:
    """The output of one readelf call."""
    return subprocess.run(["readelf", "-W", *arguments], check=True, text=True, stdout=subprocess.PIPE).stdout


def collect(objects: list[Path]) -> Symbols:
    """Reads needed libraries, undefined symbols and their versions from `objects`."""
    found = Symbols()
    for path in objects:
        found.needed.update(re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", str(path))))
        collect_symbols(path, found)
        library = None
        for line in readelf("-V", str(path)).splitlines():
            if match := re.search(r"\bFile: (\S+)", line):
                library = match[1]
            elif library and (match := re.search(r"\bName: (\S+)", line)):
                found.versions_of.setdefault(library, set()).add(match[1])
    found.unversioned -= found.defined
    return found


def collect_symbols(path: Path, found: Symbols) -> None:
    """Adds the dynamic symbols of one file; weak undefined ones may stay undefined."""
    for line in readelf("--dyn-syms", str(path)).splitlines():
        columns = line.split()
        if len(columns) < 8 or columns[4] not in ("GLOBAL", "WEAK"):
            continue
        name, _, version = columns[7].partition("@")
        version = version.lstrip("@")
        if columns[6] != "UND":
            found.defined.add(name)
        elif columns[4] == "GLOBAL" and version:
            found.by_version.setdefault(version, set()).add(name)
        elif columns[4] == "GLOBAL":
            found.unversioned.add(name)


def prefix_of(soname: str) -> str:
    """The name prefix of a library's unversioned symbols, or an empty text."""
    return next((prefix for library, prefix in PREFIXES.items() if soname.startswith(library)), "")


def build(soname: str, plain: set[str], versions: dict[str, set[str]], output: Path) -> None:
    """Compiles one stand-in."""
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "stub.c"), Path(folder, "stub.map")
        names = sorted(plain.union(*versions.values()))
        source.write_text(
            "".join(f"int {name}(void) {{ return 999; }}\n" for name in names) + "int stub_marker;\n"
        )
        command = ["gcc", "-w", "-s", "-shared", "-fPIC", "-Os", "-fno-builtin", f"-Wl,-soname,{soname}"]
        if versions:
            blocks = (
                f"{version} {{ global: {'; '.join(sorted(members))}; }};\n"
                for version, members in versions.items()
            )
            script.write_text("".join(blocks))
            command.append(f"-Wl,--version-script={script}")
        subprocess.run([*command, "-o", str(output / soname), str(source)], check=True)


def main(library_folder: str, output_folder: str, *left_alone: str) -> None:
    """Builds every stand-in that the files of `library_folder` need."""
    folder, output = Path(library_folder), Path(output_folder)
    output.mkdir(parents=True, exist_ok=True)
    objects = sorted(folder.glob("*.so*")) + sorted(folder.parent.glob("_C*.so"))
    found = collect(objects)
    present = {path.name for path in objects} | set(left_alone)
    wanted = [name for name in found.needed if NVIDIA.match(name) and name not in present]
    remaining = set(found.unversioned)
    # The longest prefix first: "cudnn..." must not fall to the driver's "cu".
    for soname in sorted(wanted, key=lambda name: (-len(prefix_of(name)), name)):
        prefix = prefix_of(soname)
        plain = {name for name in remaining if prefix and name.startswith(prefix)}
        remaining -= plain
        versions = {
            v: found.by_version[v] for v in sorted(found.versions_of.get(soname, ())) if v in found.by_version
        }
        build(soname, plain, versions, output)
        print(f"{soname}: {len(plain)} plain, {sum(map(len, versions.values()))} versioned")


if __name__ == "__main__":
    main(*sys.argv[1:])
