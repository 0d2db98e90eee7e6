"""Writes a header of the future: quire.h, whose structs that grow have grown.

    make_header.py HEADER INTERFACE_JSON OUT            writes OUT
    make_header.py --check INTERFACE_JSON CLIENT_C      exit status 1 where the client leaves one of these structs out
"""

import json
import pathlib
import re
import sys

TAIL = "  int64_t of_the_future[2];\n"


def growing(interface):
    return [s["name"] for s in json.loads(pathlib.Path(interface).read_text(encoding="utf-8"))["structs"] if s["grows"]]


def main():
    if sys.argv[1] == "--check":
        names, client = growing(sys.argv[2]), pathlib.Path(sys.argv[3]).read_text(encoding="utf-8")
        missing = [name for name in names if not re.search(rf"^  (TAKEN|FILLED)\({name},", client, re.MULTILINE)]
        print(f"{len(names)} structs grow; not looked at: {', '.join(missing) or 'none'}")
        return 1 if missing or not names else 0
    header = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    for name in growing(sys.argv[2]):
        header, n = re.subn(rf"^}} {name};", f"{TAIL}}} {name};", header, flags=re.MULTILINE)
        if n != 1:
            raise SystemExit(f"{name} ends {n} times in {sys.argv[1]}")
    out = pathlib.Path(sys.argv[3])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(header, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
