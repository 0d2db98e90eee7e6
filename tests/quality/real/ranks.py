"""Why chunks can be chosen without training: which heads look at a passkey while its answer is generated, and which rank
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


def document(bench, length, trial):
    """The ids of a passkey's text and its question, where the passkey stands, and the passkey."""
    draw = random.Random(f"ranks {length} {trial}")
    key = str(draw.randrange(10000, 100000))
    n_filler = (length - 120) // len(bench.filler)
    before = int((trial + draw.random()) / TRIALS * n_filler)

    def encode(text):
        return bench.tokenizer.encode(text, parse_special=True, bos=False)

    passage = encode(f"The pass key is {key}. Remember it. {key} is the pass key.\n")
    ids = encode(INTRO) + bench.filler * before
    begin = len(ids)
    ids += passage + bench.filler * (n_filler - before) + encode("The pass key is")
    return ids, begin, begin + len(passage), key


def measure(bench, tool, model, results, over, log):
    for length in LENGTHS:
        for trial in range(TRIALS):
            for vectors, strategy in VECTORS.items():
                if over() or results.has("ranks", vectors, length, trial):
                    continue
                ids, begin, end, key = document(bench, length, trial)
                with tempfile.NamedTemporaryFile("w", suffix=".ids") as file:
                    file.write(" ".join(map(str, [begin, end, *ids])))
                    file.flush()
                    lines = subprocess.run([tool, model, file.name, expression(strategy, length), str(N_TOKENS)], check=True,
                                           capture_output=True, text=True).stdout.splitlines()
                rows = [json.loads(line) for line in lines]
                answer = bench.tokenizer.decode(rows.pop())
                looking = [[r["layer"], r["kv_head"], r["token"] - len(ids), r["share"], r["attention_rank"], r["rank"]]
                           for r in rows if r["share"] >= LOOKS]
                results.add({"task": "ranks", "strategy": vectors, "length": length, "trial": trial, "expected": key,
                             "answer": answer, "right": key in answer, "n_chunks": rows[0]["n_chunks"],
                             "n_heads": len({(r["layer"], r["kv_head"]) for r in rows}),
                             "depth": round(begin / len(ids), 3), "looking": looking})
                log(f"ranks {vectors} {length} #{trial}: {answer!r}, {len(looking)} looks")


def write(page, results):
    """Rows whose answer is right: which heads look, and how their chunk ranks."""
    found = {(vectors, length): [r for r in results.of("ranks", vectors, length) if r["right"]]
             for vectors in VECTORS for length in LENGTHS}
    if not any(found.values()):
        return
    page.heading("Which heads look, and whether vectors of chunks show it")
    page.text(f"Passkeys read with all keys at `dca`'s distances. A KV head looks at the passkey if at least {100 * LOOKS:g} % of",
              "the attention of its query heads, for one token of the answer, falls there. Then its chunk should be among those that",
              f"are chosen ({100 * BUDGET:.0f} % of them). `tests/quality/real/chunk_ranks.cc`.")
    rows = []
    for (vectors, length), trials in found.items():
        looks = [(look, r["n_chunks"]) for r in trials for look in r["looking"]]
        if not looks:
            continue
        share = sum(look[3] for look, _ in looks)
        seen = [(look, n) for look, n in looks if look[5] <= BUDGET * n]
        exact = [look for look, n in looks if look[4] <= BUDGET * n]
        rows.append((f"{vectors}, {length // 1024}k",
                     [str(len(trials)), str(len(looks)), f"{statistics.median(look[4] for look, _ in looks):g}",
                      f"{100 * len(exact) / len(looks):.1f} %", f"{statistics.median(look[5] for look, _ in looks):g}",
                      f"{100 * len(seen) / len(looks):.1f} %", f"{100 * sum(look[3] for look, _ in seen) / share:.1f} %"]))
    page.table("vectors", ["trials", "looks", "median rank by attention", "chosen by attention", "median rank by vectors",
                           "chosen by vectors", "of the attention"], rows)
    # The layers and heads, of all trials of the default vectors.
    trials = [r for length in LENGTHS for r in found[next(iter(VECTORS)), length]]
    by_layer, heads, often = {}, set(), {}
    for r in trials:
        for layer, head, *_ in r["looking"]:
            by_layer[layer] = by_layer.get(layer, 0) + 1
            often.setdefault((layer, head), set()).add((r["length"], r["trial"]))
            heads.add((layer, head))
    if not trials or not by_layer:
        return
    always = sorted(key for key, seen in often.items() if len(seen) == len(trials))
    page.text(f"{len(heads)} of {trials[0]['n_heads']} KV heads look at least once, {len(always)} in every trial (layer.head): "
              f"{', '.join(f'{layer}.{head}' for layer, head in always)}. Looks by layer:")
    page.table("layer", [str(layer) for layer in sorted(by_layer)], [("looks", [str(by_layer[n]) for n in sorted(by_layer)])])
