"""Writes stubs.c and table.c of the fake driver, or stubs.c of the fake NVML, from the headers of a wheel.

Usage: python generate.py cuda|nvml INCLUDE_DIRECTORY OWN_SOURCE OUTPUT_DIRECTORY

A stub answers that the call is not supported. table.c lists, for cuGetProcAddress, which symbol a base name, version
and per-thread flag mean.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "abi"))

from extract import nvml_functions, read_headers  # noqa: E402

JUMP = """#ifdef __x86_64__
#define THUNK(name) __asm__(".text\\nthunk_" #name ": jmp " #name "@PLT\\n");
#else
#define THUNK(name) __asm__(".text\\nthunk_" #name ": b " #name "\\n");
#endif
"""


def cuda(include: Path, own: str, folder: Path) -> None:
    rows = read_headers(include)
    written = set(re.findall(r"^CUresult (cu\w+)\(", own, re.MULTILINE))
    if unknown := written - {row[0] for row in rows} - {"cuda_fake_stub"}:
        raise SystemExit(f"not in the headers: {', '.join(sorted(unknown))}")
    stubs = "".join(
        f'__attribute__((weak)) int {row[0]}(void) {{ return cuda_fake_stub("{row[0]}"); }}\n'
        for row in rows
        if row[0] not in written
    )
    (folder / "stubs.c").write_text(f"int cuda_fake_stub(const char *name);\n{stubs}")
    declared = "".join(f"extern int {row[0]}();\n" for row in rows)
    entries = "".join(
        f'    {{"{base}", {version if version != "-" else 12040}, {per_thread}, "{symbol}", '
        f"(void *){symbol}, thunk_{symbol}}},\n"
        for symbol, base, version, per_thread, _ in rows
    )
    thunks = "".join(f"extern char thunk_{row[0]}[];\nTHUNK({row[0]})\n" for row in rows)
    (folder / "table.c").write_text(
        f'#include "fake.h"\n{JUMP}{declared}{thunks}const struct fake_row fake_rows[] = {{\n{entries}}};\n'
        f"const int fake_row_count = sizeof fake_rows / sizeof *fake_rows;\n"
    )


def nvml(include: Path, own: str, folder: Path) -> None:
    written = set(re.findall(r"^(?:nvmlReturn_t|const char \*) ?(nvml\w+)\(", own, re.MULTILINE))
    stubs = "".join(
        f"__attribute__((weak)) int {name}(void) {{ return 3; }}\n"
        for name in sorted(nvml_functions(include) - written)
    )
    (folder / "stubs.c").write_text(stubs)


def main() -> int:
    kind, include, own, folder = (
        sys.argv[1],
        Path(sys.argv[2]),
        Path(sys.argv[3]).read_text(),
        Path(sys.argv[4]),
    )
    folder.mkdir(parents=True, exist_ok=True)
    {"cuda": cuda, "nvml": nvml}[kind](include, own, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
