"""Runs clients and libraries of earlier versions with those of today: README.md.

    run.py clients LIBRARY MODEL              the stored clients, with this library
    run.py library MODEL CLIENT_C TEXT_MODEL FUTURE_CLIENT
                                              programs of today, with the stored library
    run.py future LIBRARY TEXT_MODEL FUTURE_CLIENT
                                              the client of the future, with this library

Exit status 77: nothing could be run here.
"""

import lzma
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SONAME = "libquire.so.0"


def run(command, library):
    """With `library`, a file, as libquire.so.0: exit status, what was printed, what went to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / SONAME).symlink_to(library)
        environment = {**os.environ, "LD_LIBRARY_PATH": folder, "QUIRE_LIBRARY": str(library), "QUIRE_CUDA_PLUGIN": "none"}
        result = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True, timeout=280)
    return result.returncode, result.stdout, result.stderr


def clients(library, model):
    """Whether any ran, and what went wrong."""
    ran, failures = 0, []
    for script in sorted(HERE.glob("*/*/run")):
        name = str(script.parent.relative_to(HERE))
        expected = (script.parent.parent / "expected.txt").read_text()
        status, printed, complaints = run([script, model], library)
        if status == 77:
            print(f"{name}: skipped: {printed.strip()}")
            continue
        ran += 1
        print(f"{name}: exit status {status}")
        if (status, printed, complaints) != (0, expected, ""):
            failures.append(f"{name}: exit status {status}\n{printed}{complaints}expected\n{expected}")
    return ran, failures


def old_library(model, client, text_model, future_client):
    ran, failures = 0, []
    if platform.machine() != "x86_64":
        print("the stored library is for x86-64")
        return ran, failures
    for packed in sorted(HERE.glob("*/libquire.so.xz")):
        version = packed.parent.name
        expected = (packed.parent / "expected.txt").read_text()
        with tempfile.TemporaryDirectory() as folder:
            library = pathlib.Path(folder) / "libquire.so"
            library.write_bytes(lzma.decompress(packed.read_bytes()))
            found = run([client, model], library)
            failures += future(library, text_model, future_client)[1]
        ran += 1
        print(f"library {version}: the client's exit status is {found[0]}")
        if found != (0, expected, ""):
            failures.append(f"{version}: the client: {found}; expected\n{expected}")
    return ran, failures


def future(library, model, client, *exact):
    with tempfile.TemporaryDirectory() as folder:
        status, printed, complaints = run([client, model, folder, *exact], library)
    return 1, [f"the client of the future: exit status {status}\n{printed}{complaints}"] if status else []


def main():
    what, *arguments = sys.argv[1:]
    if what == "library":
        ran, failures = old_library(*arguments)
    else:
        library = pathlib.Path(arguments[0]).resolve()
        ran, failures = clients(library, arguments[1]) if what == "clients" else future(library, *arguments[1:], "exact")
    print("\n".join(failures))
    if failures:
        return 1
    return 0 if ran else 77


if __name__ == "__main__":
    sys.exit(main())
