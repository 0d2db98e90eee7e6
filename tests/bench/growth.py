"""How the time of a token grows with the text before it, for several strategies: a table, and a picture.

    growth.py QUIRE MODEL [--strategies EXPR ...] [--depths N ...] [--threads N] [--svg FILE] [--json FILE]

QUIRE is the command, which fills the cache at random (`quire bench`). At each depth the strategies take turns. Pictures
want matplotlib.
"""

import argparse
import json
import pathlib
import subprocess

STRATEGIES = ["full", "dca", "longheads(chunk=256, chunks=16, select=group)", "dca_topk", "streaming_llm(sinks=4, recent=4092)"]
DEPTHS = [1024, 2048, 4096, 8192, 16384, 32768]


def milliseconds(arguments, strategy, depth):
    """Of a decoded token: the median of the repeats."""
    command = [arguments.quire, "bench", "-m", arguments.model, "-s", strategy, "--depth", depth, "-p", 0, "-n", 32, "-r", 3,
               "--threads", arguments.threads, "--json"]
    result = json.loads(subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout)
    return 1000 / result["rows"][0]["decode"]["tokens_per_second"]["median"]


def draw(arguments, found):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for strategy, times in found.items():
        axes.plot(arguments.depths, times, marker="o", label=strategy)
    axes.set(xscale="log", xlabel="tokens before", ylabel="ms a token", ylim=(0, None), title=arguments.model.stem)
    axes.set_xticks(arguments.depths, map(str, arguments.depths))
    axes.minorticks_off()
    axes.legend()
    figure.savefig(arguments.svg)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--depths", nargs="+", type=int, default=DEPTHS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--svg", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    found = {strategy: [] for strategy in arguments.strategies}
    print("| depth | " + " | ".join(found) + " |\n|---|" + "---|" * len(found))
    for depth in arguments.depths:
        for strategy, times in found.items():
            times.append(milliseconds(arguments, strategy, depth))
        print(f"| {depth:,} | " + " | ".join(f"{times[-1]:.2f}" for times in found.values()) + " |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"model": arguments.model.stem, "depths": arguments.depths,
                                              "milliseconds": found}, indent=1) + "\n")
    if arguments.svg:
        draw(arguments, found)


main()
