"""Compares the ABI that quire.h describes with tests/abi/baseline.abi, by libabigail.

    check_abi.py CC SOURCE_DIR            compare; exit status 77 where abidiff is not installed
    check_abi.py CC SOURCE_DIR --update   write the baseline: `cmake --build DIR --target abi_baseline`

Any difference is a failure. Until 1.0 the ABI may change: then update the baseline in the same commit, which shows the
change to its reader. From 1.0 on it may only grow.

The types come from a stub library of quire.h's functions with empty bodies, so that nothing of the C++ behind them is
seen. That libquire.so has the same functions is seen by the compiler, which reads quire.h before their definitions, and
by check_library.py.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

DECLARATION = re.compile(r"^QUIRE_API ([\w ]*?\w[ *]*)\b(quire_\w+)\(([^;]*)\);", re.MULTILINE)


def build_stub(compiler, source, folder):
    header = (source / "include/quire/quire.h").read_text()
    lines = ['#include "quire/quire.h"']
    for result, name, parameters in DECLARATION.findall(header):
        body = "{}" if result.strip() == "void" else "{ return 0; }"
        lines.append(f"{result.strip()} {name}({parameters}) {body}")
    (folder / "stub.c").write_text("\n".join(lines) + "\n")
    library = folder / "libquire.so.0"
    subprocess.run([compiler, "-std=c99", "-g", "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libquire.so.0",
                    f"-I{source / 'include'}", "stub.c", "-o", str(library)], check=True, cwd=folder)
    return library


def describe(library, baseline):
    text = subprocess.run(["abidw", "--no-show-locs", "--no-corpus-path", "--no-comp-dir-path", "--no-elf-needed",
                           "--no-architecture", "--type-id-style", "hash", str(library)],
                          check=True, capture_output=True, text=True).stdout
    baseline.write_text(text)


def main():
    compiler, source = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    baseline = source / "tests/abi/baseline.abi"
    if not shutil.which("abidiff"):
        print("abidiff is not installed (Debian package abigail-tools)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        library = build_stub(compiler, source, pathlib.Path(folder))
        if "--update" in sys.argv[3:]:
            describe(library, baseline)
            return 0
        result = subprocess.run(["abidiff", "--no-architecture", "--no-corpus-path", str(baseline), str(library)],
                                capture_output=True, text=True)
    print(result.stdout + result.stderr)
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
