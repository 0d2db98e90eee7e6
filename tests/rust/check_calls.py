"""Whether the test programs called every function of quire.h: log_calls.sh wrote what they called.

    check_calls.py INTERFACE_JSON LOG_DIR
"""

import json
import pathlib
import re
import sys

# "normal symbol" is what a program calls; the library's own calls do not go through the dynamic linker.
CALL = re.compile(r"binding file \S*/(?:binding|conformance|growth)-\w+ \[0\] to \S*libquire\.so\S* \[0\]: normal symbol `(\w+)'")


def main():
    interface, logs = map(pathlib.Path, sys.argv[1:])
    functions = {function["name"] for function in json.loads(interface.read_text(encoding="utf-8"))["functions"]}
    called = set()
    for log in logs.glob("calls.*"):
        called.update(CALL.findall(log.read_text(encoding="utf-8", errors="replace")))
    missing = sorted(functions - called)
    print(f"{len(called)} of {len(functions)} functions of quire.h were called")
    if missing:
        print("not called:", *missing)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
