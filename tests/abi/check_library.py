"""What libquire.so exports, needs and asks of a host process.

    check_library.py LIBRARY SOURCE_DIR [--sanitized]

- exported symbols: exactly those of lib/abi/symbols.txt, which are exactly those that quire.h declares;
- every one of them is called by the C99 test;
- SONAME, and libraries needed, within a list (a sanitized build needs the sanitizers' besides: not checked);
- nothing that would surprise a host: no exit, no signal handlers, no writing to stdout or stderr, no OpenMP.
"""

import pathlib
import re
import subprocess
import sys

SONAME = "libquire.so.0"
NEEDED = {"libsentencepiece.so.0", "libhwy.so.1", "libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6",
          "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
UNWANTED = re.compile(r"^(exit|_exit|_Exit|quick_exit|abort|atexit|on_exit|signal|sigaction|bsd_signal|setlocale|fork|system|"
                      r"printf|vprintf|puts|putchar|perror|__printf_chk|__vprintf_chk|stdout|stderr|_ZSt4cout|_ZSt4cerr|"
                      r"_ZSt4clog|GOMP_.*|omp_.*|__kmpc_.*)$")


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


def dynamic_section(library):
    text = run("readelf", "-dW", library)
    return re.findall(r"\(SONAME\).*\[(.*)\]", text), set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))


def main():
    library, source = sys.argv[1], pathlib.Path(sys.argv[2])
    sanitized = "--sanitized" in sys.argv[3:]
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
    if not sanitized:
        failures += [f"needs {name}" for name in sorted(needed - NEEDED)]
        failures += unwanted(library)
    print(f"{len(declared)} functions; {len(failures)} failures")
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
