"""Runs the tests of the Python binding.

    run.py               all, and fails also if they did not call every function of quire.h
    run.py NAME...       those that unittest knows under these names
"""

import json
import pathlib
import sys
import unittest

from quire import _ffi, _stream
from quire._library import lib

HERE = pathlib.Path(__file__).resolve().parent


def record_calls():
    """The names of the library's functions that are called from now on."""
    called = set()

    def recorder(name):
        def check(result, function, arguments):
            called.add(name)
            return result
        return check

    for name in _ffi.FUNCTIONS:
        getattr(lib, name).errcheck = recorder(name)
    _stream._next.errcheck = recorder("quire_stream_next")
    return called


def main():
    called = record_calls()
    names = sys.argv[1:]
    loader = unittest.defaultTestLoader
    tests = loader.loadTestsFromNames(names) if names else loader.discover(str(HERE))
    result = unittest.TextTestRunner(verbosity=1).run(tests)
    if not result.wasSuccessful() or result.testsRun == 0:
        return 1
    if not names:
        interface = json.loads((HERE.parent.parent / "bindings" / "interface.json").read_text(encoding="utf-8"))
        functions = {function["name"] for function in interface["functions"]}
        if never := sorted(functions - called):
            print("never called:", ", ".join(never))
            return 1
        print(f"all {len(functions)} functions of quire.h were called")
    return 0


if __name__ == "__main__":
    sys.exit(main())
