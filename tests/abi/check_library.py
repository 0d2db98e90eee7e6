"""What libquire.so exports, needs and asks of a host process.

    check_library.py LIBRARY SOURCE_DIR [--instrumented]

- exported symbols: exactly those of lib/abi/symbols.txt, which are exactly those that quire.h declares;
- every one of them is called by the C99 test;
- SONAME, and libraries needed: of the C and C++ runtime alone (instrumented builds, for sanitizers or coverage, need more: not checked);
- what others wrote is inside and hidden: no symbol that could meet a host's copy of the same library, no protobuf at all;
- nothing that keeps the library from being unloaded (unique symbols);
- nothing that runs when the library is opened (but for the one entry of the C runtime's own);
- nothing that would surprise a host: no exit, no signal handlers, no writing to stdout or stderr, no OpenMP;
- no reading of numbers by the host's locale, which may have a comma where files and expressions have a point.
"""

import pathlib
import re
import subprocess
import sys

SONAME = "libquire.so.0"
NEEDED = {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# Imported names of libraries other than the runtime's; and all names of protobuf.
OF_OTHERS = re.compile(r"sentencepiece|Darts|3hwy|google|protobuf|ZSTD_|XXH")
UNWANTED = re.compile(r"^(exit|_exit|_Exit|quick_exit|abort|atexit|on_exit|signal|sigaction|bsd_signal|setlocale|fork|system|"
                      r"printf|vprintf|puts|putchar|perror|__printf_chk|__vprintf_chk|stdout|stderr|_ZSt4cout|_ZSt4cerr|"
                      r"_ZSt4clog|GOMP_.*|omp_.*|__kmpc_.*|strto(d|f|ld)|atof|sscanf|__isoc(99|23)_sscanf)$")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def differences(what, found, expected):
    return [f"{what}: unexpected {name}" for name in sorted(found - expected)] + \
           [f"{what}: missing {name}" for name in sorted(expected - found)]


def exported(library):
    symbols = [line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    return {symbol.split("@")[0] for symbol in symbols}


def unwanted(library):
    symbols = [line.split()[-1].split("@")[0] for line in run("nm", "-D", "--undefined-only", library).splitlines()]
    return [f"the library calls {symbol}" for symbol in symbols if UNWANTED.match(symbol)]


def of_others(library):
    lines = run("nm", "-D", library).splitlines()
    failures = [f"the dynamic symbol table has {line.split()[-1]}" for line in lines if OF_OTHERS.search(line)]
    symbols = [line.split() for line in run("nm", library).splitlines()]
    failures += [f"contains {symbol[-1]}" for symbol in symbols if "protobuf" in symbol[-1]]
    return failures + [f"{symbol[-1]} is unique in the process" for symbol in symbols if symbol[-2] == "u"]


def dynamic_section(library):
    text = run("readelf", "-dW", library)
    return re.findall(r"\(SONAME\).*\[(.*)\]", text), set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))


def initialisers(library):
    sizes = re.findall(r"\sINIT_ARRAY\s+\S+\s+\S+\s+(\S+)", run("readelf", "-SW", library))
    entries = sum(int(size, 16) for size in sizes) // 8
    return [f"{entries} functions run when the library is opened; expected 1"] if entries > 1 else []


def main():
    library, source = sys.argv[1], pathlib.Path(sys.argv[2])
    instrumented = "--instrumented" in sys.argv[3:]
    listed = set(re.findall(r"^(quire_\w+) \d+\.\d+$", (source / "lib/abi/symbols.txt").read_text(), re.MULTILINE))
    header = (source / "include/quire/quire.h").read_text()
    declared = set(re.findall(r"^QUIRE_API [\w* ]*?\b(quire_\w+)\(", header, re.MULTILINE))
    tests = "".join(path.read_text() for path in sorted((source / "tests/abi").glob("*.c")))
    called = set(re.findall(r"\b(quire_\w+)\b", tests))

    failures = differences("nm -D against lib/abi/symbols.txt", exported(library), listed)
    failures += differences("quire.h against lib/abi/symbols.txt", declared, listed)
    failures += [f"tests/abi/*.c never call {name}" for name in sorted(declared - called)]
    soname, needed = dynamic_section(library)
    if soname != [SONAME]:
        failures.append(f"SONAME {soname}; expected {SONAME}")
    if not instrumented:
        failures += [f"needs {name}" for name in sorted(needed - NEEDED)]
        failures += unwanted(library) + of_others(library) + initialisers(library)
    print(f"{len(declared)} functions; {len(failures)} failures")
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
