"""That quire.hpp compiles wherever it promises to, is generated where it says so, and leaves out nothing of quire.h.

    check_header.py SOURCE_DIR OBJECT...

Compiles each header of include/quire by itself and all together, as C++17 to C++23, with and without exceptions, with
gcc and clang as far as they are installed. The objects are the tests' own: inline functions that nobody uses are not in
them, so the functions of C that they need are those that the tests call through quire.hpp.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

STANDARDS = ["c++17", "c++20", "c++2b"]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Wsign-conversion", "-Werror"]
COMPILERS = ["g++", "clang++"]
RANGE = """#include <quire/quire.hpp>
#include <quire/quire.hpp>
#if __cplusplus >= 202002L
#include <ranges>
#include <span>
static_assert(std::ranges::input_range<quire::Stream>);
static_assert(std::is_convertible_v<std::span<int>, quire::Span<const int>>);
static_assert(!std::is_convertible_v<std::span<const int>, quire::Span<int>>);
const quire::StreamOptions options{.max_tokens = 64, .stop_strings = {"the end"}};
#endif
"""


def compilations(include):
    """(compiler, standard, further options, source)."""
    everything = RANGE + "int main() {}\n"
    for compiler in filter(shutil.which, COMPILERS):
        for standard in STANDARDS:
            yield compiler, standard, [], everything
        yield compiler, "c++17", ["-fno-exceptions", "-fno-rtti"], everything
    first = next(filter(shutil.which, COMPILERS), None)
    if first:
        for path in sorted((include / "quire").glob("*.hpp")):
            yield first, "c++17", [], f"#include <quire/{path.name}>\nint main() {{}}\n"


def compile_all(include):
    n, failures = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for compiler, standard, options, source in compilations(include):
            path = pathlib.Path(folder) / "alone.cc"
            path.write_text(source)
            command = [compiler, f"-std={standard}", *options, *WARNINGS, "-fsyntax-only", f"-I{include}", str(path)]
            result = subprocess.run(command, capture_output=True, text=True)
            n += 1
            if result.returncode != 0:
                failures.append(f"{' '.join(command)}\n{source}\n{result.stderr}")
    return n, failures


def coverage(source, objects):
    """Functions that the header leaves out, and those that the tests do not call through it."""
    functions = {f["name"] for f in json.loads((source / "bindings" / "interface.json").read_text())["functions"]}
    headers = "".join(path.read_text() for path in (source / "include" / "quire").glob("*.hpp"))
    used = set(re.findall(r"\bquire_\w+", re.sub(r"//.*", "", headers)))
    symbols = subprocess.run(["nm", "-u", *objects], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"^ +U (quire_\w+)$", symbols, re.MULTILINE))
    return [f"quire.hpp does not use {name}" for name in sorted(functions - used)] + \
           [f"the tests do not call {name}" for name in sorted(functions - needed)]


def main():
    source, objects = pathlib.Path(sys.argv[1]), sys.argv[2:]
    generated = subprocess.run([sys.executable, str(source / "bindings" / "cpp" / "generate.py"), "--check"],
                               capture_output=True, text=True)
    failures = [generated.stdout + generated.stderr] if generated.returncode else []
    failures += coverage(source, objects)
    n, failed = compile_all(source / "include")
    failures += failed
    print(f"{n} compilations, {len(failures)} failures")
    print("\n".join(failures))
    return 1 if failures else 0 if n else 77


if __name__ == "__main__":
    sys.exit(main())
