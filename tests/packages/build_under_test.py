"""What the tests of packages have in common: the build that they look at, and running commands."""

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["QUIRE_BUILD"])
MODEL = SOURCE / "examples/embedded_model/model"
TEXT = SOURCE / "examples/quickstart.txt"


def run(*command, **options):
    """The output of a command. Where it fails, what it wrote is part of the error."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}")
    return done.stdout


def need(*tools):
    """Ends the test as skipped where one of the tools is missing."""
    for tool in tools:
        if not shutil.which(tool):
            print(f"skipped: there is no {tool}")
            sys.exit(77)


@functools.lru_cache
def cached(name):
    """A variable of the build's configuration."""
    match = re.search(rf"^{name}:\w*=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE)
    return match.group(1) if match else None


VERSION = re.search(r"^project\(quire VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text(), re.MULTILINE).group(1)
MAJOR, MINOR, PATCH = VERSION.split(".")
LIBRARY = BUILD / "lib/abi" / f"libquire.so.{VERSION}"
PLUGIN = BUILD / "lib/abi/libquire-cuda.so"
COMMAND = BUILD / "bin/quire"


def binaries():
    """The binaries of this build by the names of their bills of materials."""
    return {"libquire": LIBRARY, "quire": COMMAND} | ({"libquire-cuda": PLUGIN} if PLUGIN.exists() else {})


def bill(binary):
    return json.loads((BUILD / "sbom" / f"{binary}.spdx.json").read_text())


def files_below(folder):
    """Names of the files and links in a folder, relative to it."""
    return {str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if path.is_symlink() or path.is_file()}
