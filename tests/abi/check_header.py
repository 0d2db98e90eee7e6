"""quire.h alone compiles as every C and C++ it promises, without a warning or a padding byte; no line is too long.

    check_header.py INCLUDE_DIR

Uses gcc and clang, as far as they are installed. Exit status 77: neither is.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

C = ["c99", "c11", "c17", "c2x"]
CXX = ["c++11", "c++14", "c++17", "c++20", "c++2b"]
WARNINGS = ["-Wall", "-Wextra", "-pedantic", "-Wpadded", "-Wshadow", "-Wundef", "-Werror"]
MOST_COLUMNS = 100  # as include/.clang-format says; clang-format leaves comments as they are
COMPILERS = [("gcc", C), ("g++", CXX), ("clang", C), ("clang++", CXX)]


def main():
    include = pathlib.Path(sys.argv[1])
    header = (include / "quire" / "quire.h").read_text()
    included = re.findall(r"^\s*#\s*include\s*(\S+)", header, re.MULTILINE)
    failures = [] if included == ["<stddef.h>", "<stdint.h>"] else [f"quire.h includes {included}"]
    failures += [f"quire.h line {number} has {len(line)} columns; at most {MOST_COLUMNS}"
                 for number, line in enumerate(header.splitlines(), 1) if len(line) > MOST_COLUMNS]
    n_compiled = 0
    with tempfile.TemporaryDirectory() as folder:
        for compiler, standards in COMPILERS:
            if not shutil.which(compiler):
                continue
            source = pathlib.Path(folder) / ("alone.cc" if compiler.endswith("+") else "alone.c")
            source.write_text("#include <quire/quire.h>\n#include <quire/quire.h>\nint main(void) { return 0; }\n")
            for standard in standards:
                command = [compiler, f"-std={standard}", *WARNINGS, "-fsyntax-only", f"-I{include}", str(source)]
                result = subprocess.run(command, capture_output=True, text=True)
                n_compiled += 1
                if result.returncode != 0:
                    failures.append(f"{' '.join(command)}\n{result.stderr}")
    print(f"{n_compiled} compilations, {len(failures)} failures")
    print("\n".join(failures))
    if n_compiled == 0:
        return 77
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
