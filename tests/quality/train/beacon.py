#!/usr/bin/env python3
"""Train an Activation Beacon v1 plug-in (arXiv:2401.03462) for the embedded model, whose own weights stay frozen.

    python3 tests/quality/train/beacon.py               ../models/beacon; needs examples/embedded_model/corpus.py's text
    python3 tests/quality/train/beacon.py --evaluate    passkeys, facts and perplexity with the beacons of the text, of
                                                        another text, with none, and of a sliding window
    python3 tests/quality/train/beacon.py --check       the batched forward pass against tests/reference/beacon.py

Window and stride 64, ratios 2 to 32, step-expansion (--scheme for the others). The loss is the next token's, of all
windows but the first, which see earlier windows only through beacons; gradients go through all earlier windows'
beacons, without truncation. The first 480 steps have 256 tokens, ratios from 1 up, and the plain model as a guide: the
attention to a beacon should be the plain attention to the tokens that it stands for. Then texts grow to 1,024 tokens.
"""
import argparse
import pathlib
import time

from beacon_streaming import L, RATIOS, ROOT, W, Streaming, check, fits, load, save, EMBEDDED, naive, train
import beacon_start
import model
import tasks

import numpy as np
import torch
import torch.nn.functional as F

OUT = ROOT / "tests" / "quality" / "models" / "beacon"
GUIDED = [[1], [1, 2], [2, 4], [2, 4, 8]]     # ratios of each quarter of the guided steps, at 256 tokens
FREE = [                                      # (tokens, ratio) of each half of the other steps
    [(256, 2), (384, 2), (384, 4), (512, 4), (512, 8)],
    [(448, 2), (512, 4), (768, 4), (768, 8), (1024, 8), (1024, 16), (768, 32)],
]
MIX = {"text": 0.2, "far_copy": 0.1, "keys": 0.2, "facts": 0.15, "passkey": 0.35}


class Data(tasks.Builder):
    """The embedded model's documents, and two that need what an earlier window said."""

    def doc_keys(self, n, rng):
        """Codes of names, most of them numbers, in the first part; asked for again and again in another order."""
        names = rng.permutation(len(tasks.NAMES))
        ids, pairs, end = [1], [], int(n * rng.uniform(0.4, 0.8))
        for i in names:
            value = str(int(rng.integers(10, 10 ** int(rng.integers(2, 6)) + 10))) if rng.random() < 0.8 else \
                self.words[int(rng.integers(len(self.words)))]
            pair = (self.line(f"The code of {tasks.NAMES[i]} is"), self.mid(value), self.line(".\n"))
            if len(ids) + sum(map(len, pair)) > end:
                break
            pairs.append(pair)
            ids += sum(pair, [])
        w = [0.0] * len(ids)
        while pairs and len(ids) < n:
            for i in rng.permutation(len(pairs)):
                a, b, c = pairs[i]
                ids += a + b + c
                w += [0.0] * len(a) + [5.0] * len(b) + [0.0] * len(c)
        return ids[:n], w[:n]

    def doc_far_copy(self, n, rng):
        """English, then the same again and again, with a period of a window to half the document."""
        period = int(rng.integers(W, max(W + 1, n // 2)))
        base = np.array(self.text(period, rng))
        return [1] + np.tile(base, n // period + 2)[:n - 1].tolist(), [0.0] * (period + 1) + [1.0] * (n - 1 - period)


def draw(step, args, rng):
    """(length, ratio of each window) of a step; after the guided ones sometimes a mixture of ratios."""
    if step < args.guided:
        stage = GUIDED[4 * step // args.guided]
        return L, [stage[int(rng.integers(len(stage)))]] * (L // W)
    stage = FREE[2 * (step - args.guided) // (args.steps - args.guided)]
    n, ratio = stage[int(rng.integers(len(stage)))]
    if rng.random() < 0.15:
        mixed = rng.choice(RATIOS, size=n // W).tolist()
        if fits(mixed):
            return n, mixed
    return n, [ratio] * (n // W)


def losses(net, ids, ratios, guided):
    """Cross-entropies [B, n - W] of the tokens after the first window, ids [B, n + 1]; also sets net.missed."""
    memory, hidden, net.missed = None, [], torch.zeros(())
    taught = net.teach(ids[:, :-1])[0] if guided else None
    for i, ratio in enumerate(ratios):
        at = slice(i * W, (i + 1) * W)
        teacher = [p[:, :, at, :(i + 1) * W] for p in taught] if guided and i else None
        x, memory = net.window(ids[:, at], memory, ratio, tokens=i > 0, teacher=teacher)
        if i:
            hidden.append(x)
    logits = net.logits(torch.cat(hidden, 1)).float()
    return F.cross_entropy(logits.flatten(0, 1), ids[:, W + 1:].flatten(), reduction="none")


def fit(args):
    data = train.setup(args.seed, 1)
    data.__class__ = Data
    net = Streaming(model.load_hf(EMBEDDED / "model"), args.scheme)
    beacon_start.gather(net, data)
    beacon_start.fit(net, data, args.seed)
    muon = train.Muon(net.matrices())
    adam = torch.optim.AdamW([net.embed], lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)
    cpu, seen = time.process_time(), []
    for step in range(args.steps):
        rng = np.random.default_rng([args.seed, step])
        n, ratios = draw(step, args, rng)
        ids, w = data.batch(n + 1, args.tokens // n * (n + 1), MIX, rng)
        ids, weight = torch.from_numpy(ids), torch.from_numpy(w)[:, W + 1:].flatten()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            each = losses(net, ids, ratios, step < args.guided)
        loss = (each * weight).sum() / weight.sum() + args.strength * net.missed
        for p in net.parameters():
            p.grad = None
        loss.backward()
        scale = train.learning_rate(step, args.steps)
        muon.step(0.02 * scale)
        adam.param_groups[0]["lr"] = 3e-3 * scale
        adam.step()
        seen.append([each.detach()[weight == x].mean().item() for x in (5, 1)] + [net.missed.detach().item()])
        if step % 50 == 49 or step == args.steps - 1:
            answer, other, missed = np.nanmean(seen, 0)
            print(f"step {step} answer {answer:.3f} text {other:.3f} attention {missed:.3f} "
                  f"cpu {time.process_time() - cpu:.0f}", flush=True)
            seen = []
    save(net, args.out)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--steps", type=int, default=1200)
    args.add_argument("--guided", type=int, default=480, help="of these, with the plain model's attention as a guide")
    args.add_argument("--strength", type=float, default=0.5, help="weight of the guide")
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--tokens", type=int, default=4096, help="of a step")
    args.add_argument("--scheme", choices=naive.SCHEMES, default=naive.SCHEMES[0])
    args.add_argument("--out", type=pathlib.Path, default=OUT)
    args.add_argument("--evaluate", action="store_true")
    args.add_argument("--check", action="store_true")
    args.add_argument("--json", type=pathlib.Path, help="also write the evaluation there")
    args = args.parse_args()
    torch.set_num_threads(1)
    if args.check:
        check(load(args.out), args.out)
    elif args.evaluate:
        import beacon_evaluate
        beacon_evaluate.run(load(args.out), Data, args.json)
    else:
        fit(args)


if __name__ == "__main__":
    main()
