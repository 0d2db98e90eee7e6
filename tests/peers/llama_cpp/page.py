"""Writes a page of what table.sh measured, with what must be reached and is aimed at beside each ratio.

    page.py RESULTS PAGE.md [MACHINE] [--at-least RATIO]

MACHINE: a line that says what the measurements were made on. --at-least: every ratio must reach this one instead.
"""

import argparse
import json
import pathlib
import statistics

TITLES = {
    "read": "Reading, weights of each type",
    "decode": "Generating, weights of each type",
    "few_bits": "Weights of two to four bits, on an AMD EPYC of the third generation (no AVX-512); \"read\": 256 tokens",
    "real": "SmolLM2-135M-Instruct",
    "deep": "Behind long texts, one thread",
    "deep_2": "Behind long texts, two threads",
    "deepest": "Behind 131,072 tokens",
    "deep_110m": "Behind long texts, each query head with keys of its own",
    "longheads": "LongHeads, a choice for each KV head, against all keys",
    "longheads_by_depth": "LongHeads, reading a long text: 512 tokens at each depth",
    "longheads_whole": "LongHeads, reading a long text whole, against all keys",
    "longheads_deepest": "LongHeads, a choice for each KV head, behind 131,072 tokens",
    "longheads_by_head": "LongHeads, a choice for each query head, against all keys",
    "dca": "`dca` against `full`, both of the library",
    "selected_reading": "Reading 32,768 tokens: `dca_topk(reading=selected)` against `dca`, both of the library",
    "int8": "Keys and values of 8 bits",
    "start": "From opening the file (in the page cache) to the first token, packed weights kept from an earlier load",
    "first_start": "The same without packed weights",
    "together": "Four sessions at once, against one after the other",
    "neighbour": "Two threads beside a neighbour that computes on one of two cores, against one thread alone",
    "memory_mapped": "Bytes held, anonymous and mapped, where both map the file (QUIRE_LOAD_MMAP): less is better",
    "memory": "The same where the library reads the file, as it does by default",
}
# (measurement, what its rows have): must, aim
GOALS = [
    ("decode", {"model": "1.1b-bf16"}, 0.97, 1.0),
    ("decode", {"model": "1.1b-q8_0"}, 1.05, 1.15),
    ("decode", {"model": "1.1b-q4_0"}, 1.2, 1.5),
    ("decode", {"model": "1.1b-f32"}, 1.05, 1.25),
    ("read", {"model": "1.1b-f32"}, 1.8, 2.6),
    ("read", {"model": "1.1b-bf16"}, 1.8, 2.6),
    ("read", {"model": "1.1b-q8_0"}, 1.4, 2.3),
    ("read", {"model": "1.1b-q4_0"}, 1.3, 2.0),
    ("deep", {"work": "generate", "depth": 8192}, 1.8, 2.2),
    ("deep", {"work": "generate", "depth": 32768}, 2.8, 4.0),
    ("deepest", {}, 3.5, 5.0),
    ("deep", {"work": "read", "depth": 8192}, 2.0, 3.5),
    ("deep_2", {"work": "generate", "depth": 8192}, 1.8, 2.2),
    ("deep_2", {"work": "generate", "depth": 32768}, 2.8, 4.0),
    ("deep_2", {"work": "read", "depth": 8192}, 2.0, 3.5),
    ("longheads", {"work": "generate", "depth": 32768}, 4.0, 7.0),
    ("longheads_deepest", {}, 15.0, 30.0),
    ("longheads_whole", {}, 3.0, 6.0),
    ("real", {"work": "generate", "depth": 128, "model": "smollm2-q4_1"}, 1.1, 1.4),
    ("real", {"work": "generate", "depth": 8192, "model": "smollm2-q4_1"}, 1.8, 2.5),
    ("real", {"work": "read", "depth": 8192, "model": "smollm2-q4_1"}, 2.0, 3.5),
    ("deep_110m", {"work": "generate"}, 1.4, 1.8),
    ("dca", {}, 0.95, 0.98),
    ("selected_reading", {}, 2.0, 2.5),
    ("int8", {"work": "generate"}, 4.0, 6.0),
    ("start", {}, 1.0, 2.0),
    ("together", {}, 2.0, 3.0),
    ("neighbour", {}, 0.9, 1.0),
]
AT_MOST = [("memory_mapped", {}, 0.95, 0.8), ("memory", {}, 0.95, 0.8)]


def goal(name, row, at_least):
    """The text of a goal, and whether it is missed."""
    median = statistics.median(row["ratios"])
    if at_least:
        return f"{at_least:g}", "" if median >= at_least else " **missed**"
    for goals, sign, reached in ((GOALS, "", median.__ge__), (AT_MOST, "at most ", median.__le__)):
        for measurement, wanted, must, aim in goals:
            if measurement == name and all(row[key] == value for key, value in wanted.items()):
                return f"{sign}{must:g}, {aim:g}", "" if reached(must) else " **missed**"
    return "", ""


def speeds(row, which):
    """Median of the tokens a second of the library (0), or of the better one of its peers (1)."""
    rounds = row.get("tokens_per_s")
    if not rounds:
        return ""
    return f"{statistics.median(r[0] if which == 0 else max(r[1:]) for r in rounds):.1f}"


def seconds_to_read(rows, which):
    """Of the text from the first row's depth to the last one's, by the trapezoidal rule; which: as speeds()."""
    at = [(row["depth"], 1 / statistics.median(r[0] if which == 0 else max(r[1:]) for r in row["tokens_per_s"])) for row in rows]
    return sum((end - begin) * (a + b) / 2 for (begin, a), (end, b) in zip(at, at[1:]))


def lines_of(name, rows, at_least):
    yield f"\n## {TITLES[name]}\n"
    yield "| model | threads | depth | work | tokens/s | the peer's | ratio (least to greatest) | must, aim |"
    yield "|---|---:|---:|---|---:|---:|---|---|"
    for row in rows:
        text, missed = goal(name, row, at_least)
        ratios = row["ratios"]
        yield (f"| {row['model']} | {row['threads']} | {row['depth']:,} | {row['work']} | {speeds(row, 0)} | {speeds(row, 1)} | "
               f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}){missed} | {text} |")
    if name == "longheads_by_depth":
        own, other = (seconds_to_read(rows, which) for which in (0, 1))
        yield (f"\nAll tokens between the first depth and the last one, integrated: {own:.0f} s; llama.cpp {other:.0f} s; "
               f"ratio {other / own:.2f} (must 3, aim 6).")
    for row in rows:
        if "seconds" in row:
            own, other = (statistics.median(pair[i] for pair in row["seconds"]) for i in (0, 1))
            yield f"\nSeconds: {own:.2f}; llama.cpp {other:.2f}."
        if "llama_cpp" in row:
            yield f"\nllama.cpp's: {statistics.median(row['llama_cpp']):.2f}."
        if "bytes" in row:
            own, other = (sum(row["bytes"][name].values()) / 2**20 for name in ("quire", "llama.cpp"))
            yield f"\nMiB that the model and the session add to the process: {own:,.0f}; llama.cpp {other:,.0f}."


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("machine", nargs="?", default="")
    parser.add_argument("--at-least", type=float)
    arguments = parser.parse_args()
    results, page = arguments.results, arguments.page
    lines = ["# Beside llama.cpp\n",
             "Written by `tests/peers/llama_cpp/page.py` from what `tests/peers/llama_cpp/table.sh` measured (the JSON files in",
             f"`{results.name}/`); `tests/peers/README.md` says how. Both programs in turn on the same GGUF file; the peer is llama.cpp, the better",
             "of its flash attention on and off in each round, unless a heading says otherwise. \"read\": 512 tokens more; \"generate\": 32.",
             arguments.machine]
    for name in TITLES:
        path = results / f"{name}.json"
        if path.exists():
            lines += lines_of(name, json.loads(path.read_text())["rows"], arguments.at_least)
    page.write_text("\n".join(lines) + "\n")


main()
