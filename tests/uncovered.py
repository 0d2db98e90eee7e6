"""Lists what a gcovr JSON report says was not covered: by file the lines that never ran, and the branches never taken.

    uncovered.py REPORT.json
"""

import json
import sys


def branches(line):
    """The number of the line's branches that were never taken, and of all its branches."""
    counted = [branch for branch in line["branches"] if not branch.get("gcovr/excluded")]
    return sum(branch["count"] == 0 for branch in counted), len(counted)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        report = json.load(file)
    for source in sorted(report["files"], key=lambda entry: entry["file"]):
        with open(source["file"], encoding="utf-8") as file:
            text = file.read().splitlines()
        found = []
        for line in source["lines"]:
            if line.get("gcovr/excluded") or line.get("gcovr/noncode"):
                continue
            missed, total = branches(line)
            if line["count"] == 0:
                found.append((line["line_number"], "never runs"))
            elif missed:
                found.append((line["line_number"], f"{missed} of {total} branches never taken"))
        if found:
            print(source["file"])
            for number, what in sorted(set(found)):
                print(f"  {number}: {what}: {text[number - 1].strip()}")


if __name__ == "__main__":
    main()
