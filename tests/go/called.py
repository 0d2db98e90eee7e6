"""Checks that the tests called every function of quire.h through the binding.

    called.py INTERFACE.json FOLDER_OF_THE_BINDING COVERAGE_PROFILE

The profile is what `go test -coverprofile` writes: a call counts if the statement that it stands in was run.
"""

import json
import pathlib
import re
import sys

# Go's collector counts references; a second one to the same handle would be given back by nobody.
UNUSED = re.compile(r"quire_\w+_retain")


def blocks(profile):
    """By file: (begin, end, run), begin and end as (line, column)."""
    found = {}
    for line in profile.read_text().splitlines()[1:]:
        match = re.fullmatch(r".*/(\S+\.go):(\d+)\.(\d+),(\d+)\.(\d+) \d+ (\d+)", line)
        name, *numbers = match.groups()
        a, b, c, d, count = map(int, numbers)
        found.setdefault(name, []).append(((a, b), (c, d), count > 0))
    return found


def calls(folder):
    """Each call of C in the binding: function, file, (line, column)."""
    for path in sorted(folder.glob("*.go")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            for match in re.finditer(r"\bC\.(quire_\w+)\(", line):
                yield match[1], path.name, (number, match.start() + 1)


def main():
    interface, folder, profile = map(pathlib.Path, sys.argv[1:])
    wanted = {f["name"] for f in json.loads(interface.read_text())["functions"]}
    covered, called = blocks(profile), set()
    for name, file, place in calls(folder):
        around = [block for block in covered.get(file, []) if block[0] <= place < block[1]]
        if around and max(around)[2]:  # the innermost one begins last
            called.add(name)
    missing = {name for name in wanted - called if not UNUSED.fullmatch(name)}
    print(f"{len(called & wanted)} of {len(wanted)} functions were called")
    if missing or len(called & wanted) < 100:
        print("not called:", ", ".join(sorted(missing)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
