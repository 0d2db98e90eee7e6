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
import dual_chunk
import longheads
import trained
from measure import BASE, LONGHEADS, MODELS, ROOT, Quire
from page import Page

GROUPS = {"dual_chunk": dual_chunk, "longheads": longheads, "trained": trained, "beacon": beacon}
COSTS = {"full": (BASE, "full"), "dca": (BASE, "dca"), "rerope": (BASE, "rerope"), "self_extend": (BASE, "self_extend(group=32)"),
         "streaming_llm": (BASE, "streaming_llm"), "lm_infinite": (BASE, "lm_infinite"), "longheads": (LONGHEADS, "longheads"),
         "longheads(positions=dca)": (LONGHEADS, "longheads(positions=dca)"),
         "s2": (BASE, "s2(train_len=512)"), "scca_fixed": (BASE, "scca_fixed(train_len=512)"),
         "scca_flow": (BASE, "scca_flow(train_len=512)"), "sda": (BASE, "sda"), "long_mixed": (BASE, "long_mixed"),
         "beacon(ratio=8)": ((*BASE, "--beacon", MODELS / "beacon"), "beacon(ratio=8)")}


def costs(quire, page, multiple=16):
    page.heading("Time and memory")
    page.text(f"Reading about {multiple} windows with the embedded model: most memory of the KV cache, and time as a ratio to `full` in",
              "the same session, the best of four texts on two cores. (At one million parameters attention is most of the work;",
              "the patterns that differ from head to head are computed head by head.)")
    runs = {name: quire.cost(weights, expression, multiple) for name, (weights, expression) in COSTS.items()}
    base = runs["full"]
    page.table("strategy", ["KV memory, kB", "of full", "time to read, of full"],
               [(f"`{n}`", [f"{r['kv_bytes_peak'] / 1000:.0f}", f"{r['kv_bytes_peak'] / base['kv_bytes_peak']:.2f}",
                            f"{r['seconds_per_token'] / base['seconds_per_token']:.2f}"]) for n, r in runs.items()])


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
    page.text("Written by `bash tests/quality/report.sh`. Every number was measured with the `quire` command on the embedded model",
              "(trained on 256 tokens: 1x) and on models derived from it by `tests/quality/train`. The papers' own numbers stand",
              "beside them: compare shapes, not values. \"holds\" and \"DOES NOT HOLD\" are asserted by the slow test tier.")
    for name, group in GROUPS.items():
        if not options.only or name in options.only:
            group.sections(quire, page)
            if options.keep:
                options.keep.write_text(json.dumps(quire.kept))
    if not options.only:
        costs(quire, page)
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
