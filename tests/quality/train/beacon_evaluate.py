"""What beacons carry: passkeys, facts and perplexity of the embedded model with a beacon plug-in.

Every number has its controls. own: the beacons of the text itself; other: the beacons of another text of the same kind
and length, put in their place; none: only the last window's tokens; sliding: plain attention to the last 256 tokens,
BOS and the question among them. Only keys and facts that stand wholly before the last window (64 tokens) are asked for.
"""
import json
import math

from beacon_streaming import EMBEDDED, L, RATIOS, RESERVE, W, model, naive
import evaluate

import numpy as np
import sentencepiece
import torch

MULTIPLES = (1, 2, 4, 8, 16)
SWEEP_TOKENS = 448           # the longest text that ratio 2 condenses within the trained positions
CONTROLS = ("own", "other", "none")
SEED = 11                    # the data of training and of its choices had other seeds


def ratio_for(n):
    return naive.adapt(RATIOS, n + RESERVE, W, L)


def last_window(net, ids, ratio, control):
    """Logits of the last window of ids [B, n], n a multiple of W, read with one of CONTROLS."""
    memory = None
    for at in range(0, ids.shape[1] - W, W):
        _, memory = net.window(ids[:, at:at + W], memory, ratio, tokens=False)
    if control == "other":
        memory = [[part.roll(1, 0) for part in layer] for layer in memory]
    return net.logits(net.window(ids[:, -W:], None if control == "none" else memory, ratio)[0])


def sliding(net, ids):
    """Logits of the last window of ids [B, n], of plain attention to BOS and the last 255 tokens."""
    context = torch.cat((ids[:, :1], ids[:, ids.shape[1] - L + 1:]), 1)
    return net.base(context, evaluate.METHODS["full"], last=W)


def answered(net, documents, n, ratio):
    """{control: (answers wholly right, answer tokens right), in %} of documents (ids of n tokens, answer's range)."""
    right = {}
    for begin in range(0, len(documents), 50):
        part = documents[begin:begin + 50]
        ids = torch.tensor([d for d, _, _ in part])
        for control in (*CONTROLS, "sliding"):
            logits = sliding(net, ids) if control == "sliding" else last_window(net, ids, ratio, control)
            best = logits.argmax(-1)
            for row, (document, first, end) in enumerate(part):
                got = best[row, first - 1 - (n - W):end - 1 - (n - W)].tolist()
                right.setdefault(control, []).append([a == b for a, b in zip(got, document[first:end])])
    return {c: (100 * np.mean([all(r) for r in rows]), 100 * np.mean(sum(rows, []))) for c, rows in right.items()}


def before_last_window(document, first, end, n):
    """Whether the answer [first, end) is in the last window and what it repeats is not."""
    answer = document[first:end]
    shown = any(document[at:at + len(answer)] == answer for at in range(n - W - len(answer) + 1, first))
    return first > n - W and end <= n and not shown


def passkeys(data, n, trials):
    """Documents of n tokens; the answer is the five digits, without the space before them."""
    rng, out = np.random.default_rng([SEED, n, 1]), []
    while len(out) < trials:
        prompt, answer = data.passkey(n, rng)
        document = prompt + answer
        if before_last_window(document, len(document) - 5, len(document), n):
            out.append((document + [2] * (n - len(document)), len(document) - 5, len(document)))
    return out


def facts(data, n, trials, digits):
    """Questions of doc_facts whose answers are numbers, or are none."""
    rng, out = np.random.default_rng([SEED, n, 2]), []
    numerals = {data.sp.piece_to_id(c) for c in "0123456789"}
    while len(out) < trials:
        document, weights = data.doc_facts(n, rng)
        answers = [i for i, w in enumerate(weights) if w == 5.0]
        first = answers[0]
        end = next(i for i in range(first, len(weights)) if weights[i] != 5.0)
        is_number = document[end - 1] in numerals
        first += is_number and document[first] not in numerals
        if is_number == digits and before_last_window(document, first, end, n):
            out.append(((document + [2] * n)[:n], first, end))
    return out


def perplexity(net, text, n):
    """{control: perplexity} of the second half of texts of n tokens."""
    count, ratio, total = max(8, min(48, 16384 // n)), ratio_for(n), {}
    rows = [[1] + text[at:at + n - 1] for at in np.linspace(0, len(text) - n, count).astype(int)]
    ids, memory, begin = torch.tensor(rows), None, n // 2
    for at in range(0, n, W):
        window = ids[:, at:at + W]
        variants = {"own": memory, "none": None}
        variants["other"] = memory and [[part.roll(1, 0) for part in layer] for layer in memory]
        for control in CONTROLS if at >= begin else ():
            logits = net.logits(net.window(window, variants[control], ratio)[0])[:, :W if at + W < n else W - 1]
            total.setdefault(control, []).append(torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), ids[:, at + 1:at + W + 1].flatten(), reduction="none"))
        _, memory = net.window(window, memory, ratio, tokens=False)
    total["sliding"] = [evaluate.sliding(net.base, row, True)[begin + 1 - L // 2:] for row in ids]
    return {control: math.exp(torch.cat(x).mean()) for control, x in total.items()}


def cells(result):
    return " | ".join(f"{result[c][0]:.0f} ({result[c][1]:.0f})" for c in (*CONTROLS, "sliding"))


@torch.no_grad()
def run(net, data_class, path):
    sp = sentencepiece.SentencePieceProcessor(model_file=str(EMBEDDED / "model" / "tokenizer.model"))
    held_out = (EMBEDDED / "heldout.txt").read_text()
    data, text, table = data_class(sp, held_out.split("\n")), sp.encode(held_out), []
    print("% of answers right, in brackets % of their tokens; controls: see beacon_evaluate.py\n\n"
          f"| what | tokens | ratio | {' | '.join((*CONTROLS, 'sliding'))} |\n|---|---|---|---|---|---|---|")

    def answers(what, n, ratio, documents):
        result = answered(net, documents, n, ratio)
        table.append({"what": what, "tokens": n, "ratio": ratio, "trials": len(documents), **result})
        print(f"| {what} | {n} | {ratio} | {cells(result)} |", flush=True)
    for ratio in RATIOS[1:]:
        answers("passkey, by ratio", SWEEP_TOKENS, ratio, passkeys(data, SWEEP_TOKENS, 100))
    for n in (L * m for m in MULTIPLES):
        trials = 100 if n <= 1024 else 50
        answers("passkey", n, ratio_for(n), passkeys(data, n, trials))
        answers("fact, number", n, ratio_for(n), facts(data, n, trials, True))
        answers("fact, word", n, ratio_for(n), facts(data, n, trials, False))
    for n in (L * m for m in MULTIPLES):
        result = perplexity(net, text, n)
        table.append({"what": "perplexity", "tokens": n, "ratio": ratio_for(n), **result})
        print(f"| perplexity | {n} | {ratio_for(n)} | "
              + " | ".join(f"{result[c]:.2f}" for c in (*CONTROLS, "sliding")) + " |", flush=True)
    if path:
        path.write_text(json.dumps(table, indent=1) + "\n")
