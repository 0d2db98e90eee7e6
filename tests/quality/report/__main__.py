"""Writes the reproduction report: what each paper shows, on the models trained here, beside the paper's own numbers.

    python3 tests/quality/report --quire build/release/bin/quire --library build/release/lib/abi/libquire.so
    ... --check      and fails if a claim does not hold
    ... --quick      few trials and one text, into a temporary folder
    ... --only NAME  one group: dual_chunk, longheads, trained, beacon
"""
import argparse
import json
import pathlib
import sys
import tempfile

import beacon
import costs
import dual_chunk
import longheads
import trained
from measure import ROOT, Quire
from page import Page

GROUPS = {"dual_chunk": dual_chunk, "longheads": longheads, "trained": trained, "beacon": beacon}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", required=True, help="the command")
    parser.add_argument("--library", required=True, help="libquire.so, for what the command does not show")
    parser.add_argument("--out", type=pathlib.Path, help="where report.md, report.json and figures/ go (default: tests/quality)")
    parser.add_argument("--only", choices=GROUPS, action="append")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 if a claim does not hold")
    parser.add_argument("--no-figures", action="store_true", help="do without matplotlib")
    parser.add_argument("--keep", type=pathlib.Path, help="a file of measurements to go on from")
    options = parser.parse_args()
    temporary = tempfile.TemporaryDirectory()
    partial = options.quick or options.only
    out = options.out or (pathlib.Path(temporary.name) if partial else ROOT / "tests" / "quality")
    out.mkdir(parents=True, exist_ok=True)
    kept = json.loads(options.keep.read_text()) if options.keep and options.keep.exists() else {}
    quire = Quire(options.quire, options.quick, kept)
    quire.library = str(pathlib.Path(options.library).resolve())
    page = Page(out / "figures", not options.no_figures)
    page.heading("What the papers show, at one million parameters", 1)
    page.text("Written by `bash tests/quality/report.sh`. Where nothing else is said, numbers were measured with the `quire` command",
              "on the embedded model (trained on 256 tokens: 1x) and on models derived from it by `tests/quality/train`. The papers'",
              "own numbers stand beside them: compare shapes, not values. \"holds\" and \"DOES NOT HOLD\" are asserted by the slow",
              "test tier. Documents of a task are the same for every strategy, all of one length (`--same-length`).")
    page.text("Time and memory beside a table's quality are those of reading 16x, as shares of plain attention's; all of them stand",
              "together at the end.")
    if not options.only:
        costs.measure(quire)
    for name, group in GROUPS.items():
        if not options.only or name in options.only:
            group.sections(quire, page)
            if options.keep:
                options.keep.write_text(json.dumps(quire.kept))
    if not options.only:
        costs.section(quire, page)
    (out / "report.md").write_text(page.markdown())
    (out / "report.json").write_text(json.dumps({"claims": page.claims}, indent=1) + "\n")
    if partial:
        print(page.markdown())
    failed = [c["claim"] for c in page.claims if not c["holds"]]
    for claim in failed:
        print(f"does not hold: {claim}", file=sys.stderr)
    sys.exit(1 if failed and options.check else 0)


if __name__ == "__main__":
    main()
