"""Reads the headers of CUDA wheels and writes cuda.tsv: facts about every symbol of the driver library.

Usage: python libvgpu/abi/extract.py [--write FILE] INCLUDE_DIRECTORY [INCLUDE_DIRECTORY ...]

Columns: symbol, base name and CUDA version with which cuGetProcAddress finds it (``-`` where the headers do not say),
``1`` for the variant for per-thread default streams, and one letter for each parameter:
``i`` 32-bit integer or enum, ``l`` 64-bit integer, ``p`` pointer or handle, ``f`` float, ``s`` structure by value.
The table holds no text of the headers. Each CUDA release only adds symbols, so the headers of the newest release
suffice; older directories are read to check that.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

__all__ = ["Symbol", "nvml_functions", "prototypes", "read_headers", "render"]

Symbol = tuple[str, str, str, str, str]
PROTOTYPE = re.compile(r"CUresult\s+(cu[A-Z]\w*)\s*\((.*?)\)\s*;", re.DOTALL)
TYPEDEF = re.compile(r"PFN_(cu\w+?)_v(\d+)(_pt[ds][sz])?\)\s*\(")
NAME = re.compile(r"(cu\w+?)(?:_v(\d+))?(_pt[ds][sz])?")
NVML = re.compile(r"\b(nvml[A-Z]\w*)\s*\(")
HEADER = "symbol\tbase\tversion\tper_thread\tparameters"
# what __builtin_classify_type answers in C
LETTERS = {(1, 4): "i", (3, 4): "i", (1, 8): "l", (5, 8): "p", (8, 4): "f"}


def prototypes(include: Path) -> dict[str, list[str]]:
    """Types of the parameters of each function that cuda.h declares, old versions included."""
    text = preprocess("#include <cuda.h>\n", include)
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)", "", text)
    found = {}
    for match in PROTOTYPE.finditer(text):
        words = [] if match[2].strip() in ("", "void") else match[2].split(",")
        found[match[1]] = [re.sub(r"\b\w+$", "", " ".join(word.split())).strip() for word in words]
    return found


def nvml_functions(include: Path) -> set[str]:
    """Names of all functions that nvml.h declares, older versions included."""
    source = "#include <nvml.h>\n"
    without_older = preprocess(source, include)
    return set(
        NVML.findall(without_older + preprocess(source, include, "NVML_NO_UNVERSIONED_FUNC_DEFS"))
    )


def preprocess(source: str, include: Path, *defined: str) -> str:
    names = ("__CUDA_API_VERSION_INTERNAL", *defined)
    command = ["gcc", "-E", "-P", *(f"-D{name}" for name in names), f"-I{include}", "-x", "c", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def letters(types: set[str], include: Path) -> dict[str, str]:
    """The letter of each type, as the compiler sees it."""
    lines = "".join(
        f'{{ typedef {name} T; T x = {{0}}; (void)x; printf("%d %d\\n", __builtin_classify_type(x),'
        f" (int)sizeof(T)); }}\n"
        for name in sorted(types)
    )
    source = f"#include <cuda.h>\n#include <stdio.h>\nint main(void) {{\n{lines}return 0; }}\n"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "classify")
        subprocess.run(
            [
                "gcc",
                "-w",
                "-D__CUDA_API_VERSION_INTERNAL",
                f"-I{include}",
                "-x",
                "c",
                "-",
                "-o",
                program,
            ],
            input=source,
            text=True,
            check=True,
        )
        answers = subprocess.run(
            [program], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    pairs = [tuple(map(int, line.split())) for line in answers]
    return {name: LETTERS.get(pair, "s") for name, pair in zip(sorted(types), pairs, strict=True)}


def read_headers(include: Path) -> list[Symbol]:
    """One row a symbol, sorted."""
    declared = prototypes(include)
    letter = letters({kind for kinds in declared.values() for kind in kinds}, include)
    versions: dict[tuple[str, str], set[int]] = defaultdict(set)
    for match in TYPEDEF.finditer((include / "cudaTypedefs.h").read_text()):
        versions[match[1], match[3] or ""].add(int(match[2]))
    symbols: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for name in declared:
        match = NAME.fullmatch(name)
        assert match is not None
        symbols[match[1], match[3] or ""].append((int(match[2] or 1), name))
    rows = []
    for (base, suffix), names in symbols.items():
        known = sorted(versions.get((base, suffix), ()))
        told = map(str, known) if len(known) == len(names) else ["-"] * len(names)
        for (_, name), version in zip(sorted(names), told, strict=True):
            kinds = "".join(letter[kind] for kind in declared[name])
            rows.append((name, base, version, "1" if suffix else "0", kinds or "-"))
    return sorted(rows)


def render(rows: list[Symbol]) -> str:
    return "\n".join([HEADER, *("\t".join(row) for row in rows)]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Facts about the symbols of the CUDA driver library."
    )
    parser.add_argument(
        "include", nargs="+", type=Path, help="folders of cuda.h and cudaTypedefs.h, newest last"
    )
    parser.add_argument(
        "--write", type=Path, help="where the table goes (default: standard output)"
    )
    chosen = parser.parse_args()
    newest = read_headers(chosen.include[-1])
    names = {row[0] for row in newest}
    for older in chosen.include[:-1]:
        if missing := sorted(set(prototypes(older)) - names):
            print(f"{older}: not in the newest headers: {', '.join(missing)}", file=sys.stderr)
            return 1
    if chosen.write:
        chosen.write.write_text(render(newest))
    else:
        sys.stdout.write(render(newest))
    return 0


if __name__ == "__main__":
    sys.exit(main())
