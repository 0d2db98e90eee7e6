"""Why chunks can be chosen without training: which heads look at a passage while what it says is generated, and which rank
the vectors that stand for chunks give its chunk there (chunk_ranks.cc)."""

import json
import random
import statistics
import subprocess
import tempfile

from strategies import expression
from tasks import INTRO

# Strategies that see all keys as dca does, by the vectors that are judged.
VECTORS = {
    "means of 32 keys": "dca_topk",
    "bounds of 32 keys (Quest)": "dca_topk(represent=minmax)",
    "means of 128 keys": "dca_topk(chunk=128, chunks=10)",
}
LENGTHS = (12288,)
TRIALS = 5
N_TOKENS = 6      # of an answer: a space and five digits
LOOKS = 0.05      # a KV head looks at the passkey if at least so much of its attention, for one token, falls on it
BUDGET = 1 / 12   # of the chunks, as dca_topk takes


# The tasks, by what the passage stands in: filler, and paragraphs of the handbook.
TASKS = {"ranks": ("The pass key is {0}. Remember it. {0} is the pass key.\n", "The pass key is", "filler"),
         "ranks_prose": ("The special magic number for Lisbon is {0}.\n", "The special magic number for Lisbon is", "prose")}


def document(bench, task, length, trial):
    """The ids of a text and its question, where the passage stands, and the number that is asked for."""
    needle, question, _ = TASKS[task]
    draw = random.Random(f"{task} {length} {trial}")
    key = str(draw.randrange(10000, 100000))
    if task == "ranks":
        paragraphs = [bench.filler] * ((length - 120) // len(bench.filler))
    else:
        paragraphs = bench.prose(0, length - 120)
    place = int((trial + draw.random()) / TRIALS * len(paragraphs))

    def encode(text):
        return bench.tokenizer.encode(text, parse_special=True, bos=False)

    passage = encode(needle.format(key))
    before = encode(INTRO) + [token for paragraph in paragraphs[:place] for token in paragraph]
    behind = [token for paragraph in paragraphs[place:] for token in paragraph]
    return before + passage + behind + encode(question), len(before), len(before) + len(passage), key


def measure(bench, tool, model, results, over, log):
    cases = [(task, length, trial, vectors) for task in TASKS for length in LENGTHS for trial in range(TRIALS) for vectors in VECTORS]
    for task, length, trial, vectors in cases:
        if over() or results.has(task, vectors, length, trial):
            continue
        ids, begin, end, key = document(bench, task, length, trial)
        with tempfile.NamedTemporaryFile("w", suffix=".ids") as file:
            file.write(" ".join(map(str, [begin, end, *ids])))
            file.flush()
            lines = subprocess.run([tool, model, file.name, expression(VECTORS[vectors], length), str(N_TOKENS)], check=True,
                                   capture_output=True, text=True).stdout.splitlines()
        rows = [json.loads(line) for line in lines]
        answer = bench.tokenizer.decode(rows.pop())
        looking = [[r["layer"], r["kv_head"], r["token"] - len(ids), r["share"], r["attention_rank"], r["rank"]]
                   for r in rows if r["share"] >= LOOKS]
        results.add({"task": task, "strategy": vectors, "length": length, "trial": trial, "expected": key, "answer": answer,
                     "right": key in answer, "n_chunks": rows[0]["n_chunks"],
                     "n_heads": len({(r["layer"], r["kv_head"]) for r in rows}), "depth": round(begin / len(ids), 3),
                     "looking": looking})
        log(f"{task} {vectors} {length} #{trial}: {answer!r}, {len(looking)} looks")


def judge(trials):
    """Cells of a row: how the passage's chunk ranks where a head looks."""
    looks = [(look, r["n_chunks"]) for r in trials for look in r["looking"]]
    seen = [look for look, n in looks if look[5] <= BUDGET * n]
    return [str(len(trials)), str(len(looks)), f"{statistics.median(look[4] for look, _ in looks):g}",
            f"{statistics.median(look[5] for look, _ in looks):g}", f"{100 * len(seen) / len(looks):.1f} %",
            f"{100 * sum(look[3] for look in seen) / sum(look[3] for look, _ in looks):.1f} %"]


def write(page, results):
    """Rows whose answer is right: which heads look, and how their chunk ranks."""
    found = {(task, vectors, length): [r for r in results.of(task, vectors, length) if r["right"] and r["looking"]]
             for task in TASKS for length in LENGTHS for vectors in VECTORS}
    found = {key: trials for key, trials in found.items() if trials}
    if not found:
        return
    page.heading("Which heads look, and whether vectors of chunks show it")
    page.text("Passages that are asked for, read with all keys at `dca`'s distances, where the answer was right. A KV head looks at the",
              f"passage if at least {100 * LOOKS:g} % of the attention of its query heads, for one token of the answer, falls there. Then the",
              f"passage's chunk should be among those that are chosen, one in {1 / BUDGET:.0f}: `tests/quality/real/chunk_ranks.cc`.")
    page.table("text and vectors", ["trials", "looks", "median rank by attention", "median rank by vectors", "chosen",
                                    "of the attention"],
               [(f"{TASKS[task][2]} of {length // 1024}k, {vectors}", judge(trials))
                for (task, vectors, length), trials in found.items()])
    for task, (_, _, text) in TASKS.items():
        trials = [r for length in LENGTHS for r in found.get((task, next(iter(VECTORS)), length), [])]
        if trials:
            where(page, text, trials)


def where(page, text, trials):
    """The layers and heads that look."""
    by_layer, often = {}, {}
    for r in trials:
        for layer, head, *_ in r["looking"]:
            by_layer[layer] = by_layer.get(layer, 0) + 1
            often.setdefault((layer, head), set()).add((r["length"], r["trial"]))
    always = sorted(key for key, seen in often.items() if len(seen) == len(trials))
    page.text(f"In {text} {len(often)} of {trials[0]['n_heads']} KV heads look at least once, {len(always)} in every trial (layer.head): "
              f"{', '.join(f'{layer}.{head}' for layer, head in always)}. Looks by layer:")
    page.table("layer", [str(layer) for layer in sorted(by_layer)], [("looks", [str(by_layer[n]) for n in sorted(by_layer)])])
