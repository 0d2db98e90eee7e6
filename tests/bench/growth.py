"""How the time of a token grows with the text before it, for several strategies: a table, and a picture.

    growth.py BENCH MODEL [--strategies EXPR ...] [--depths N ...] [--threads N] [--svg FILE] [--json FILE]

BENCH is quire_bench_growth. At each depth the strategies take turns. In brackets, of strategies that choose chunks: the
part of the time in which chunks are scored and the best ones taken. Pictures want matplotlib.
"""

import argparse
import json
import pathlib
import subprocess

STRATEGIES = ["full", "dca", "longheads(chunk=256, chunks=16, select=group)", "dca_topk", "streaming_llm(sinks=4, recent=4092)"]
DEPTHS = [1024, 2048, 4096, 8192, 16384, 32768]


def measured(arguments):
    """For each depth a row for each strategy: milliseconds of a generated token."""
    command = [arguments.bench, arguments.model, "--threads", arguments.threads]
    for strategy in arguments.strategies:
        command += ["--strategy", strategy]
    for depth in arguments.depths:
        command += ["--depth", depth]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as process:
        for _ in arguments.depths:
            yield [json.loads(process.stdout.readline()) for _ in arguments.strategies]


def text_of(row):
    return f"{row['ms']:.2f}" + (f" ({row['selecting_ms']:.2f})" if row["selecting_ms"] else "")


def draw(arguments, found):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for strategy in arguments.strategies:
        rows = [row for row in found if row["strategy"] == strategy]
        line, = axes.plot(arguments.depths, [row["ms"] for row in rows], marker="o", label=strategy)
        if any(row["selecting_ms"] for row in rows):
            axes.plot(arguments.depths, [row["ms"] - row["selecting_ms"] for row in rows], linestyle=":", color=line.get_color(),
                      label="the same without choosing chunks")
    axes.set(xscale="log", xlabel="tokens before", ylabel="ms a token", ylim=(0, None), title=arguments.model.stem)
    axes.set_xticks(arguments.depths, map(str, arguments.depths))
    axes.minorticks_off()
    axes.legend()
    figure.savefig(arguments.svg)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--depths", nargs="+", type=int, default=DEPTHS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--svg", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    found = []
    print("| depth | " + " | ".join(arguments.strategies) + " |\n|---:|" + "---:|" * len(arguments.strategies))
    for depth, rows in zip(arguments.depths, measured(arguments)):
        print(f"| {depth:,} | " + " | ".join(map(text_of, rows)) + " |", flush=True)
        found += rows
    if arguments.json:
        arguments.json.write_text(json.dumps({"model": arguments.model.stem, "threads": arguments.threads, "rows": found}, indent=1) + "\n")
    if arguments.svg:
        draw(arguments, found)


main()
