#!/usr/bin/env python3
"""Stage 2, for LongHeads: train the model on so that its chunk scores find the chunks it attends to.

    python longheads.py        (after train.py; resume: run it again)

Still at 256 tokens, with the loss and data of stage 1. Beside that loss, the scores by which LongHeads selects
chunks (un-rotated query times representation) learn to predict where the head's plain attention goes: a
cross-entropy with the attention mass of the candidate chunks as its target. The chunks of the batch's other
documents take part with mass 0, so that a score separates from many chunks and not only from eight.
"""
import argparse
import pathlib
import shutil

import train  # first: it restarts Python with the allocator settings
import corpus
import evaluate
import model

import torch

CHUNK = 32


class Selecting(train.Causal):
    """Plain attention that also adds up the selection loss; weight [documents, t] counts the queries."""

    def __init__(self, t, strength):
        super().__init__(t)
        self.strength = strength
        own, chunk = torch.arange(t)[:, None] // CHUNK, torch.arange(t // CHUNK)[None]
        self.candidate = (chunk >= 1) & (chunk <= own - 2)      # neither first, previous nor own

    def __call__(self, q, k, v):
        scores = self.rope(q) @ self.rope(k).mT * model.D ** -0.5 + self.mask
        p = torch.softmax(scores, -1, dtype=torch.bfloat16)
        if torch.is_grad_enabled():
            self.loss = self.loss + self.selection(q.float(), k.float(), v.float(), p.detach())
        return p @ v

    @torch.autocast("cpu", enabled=False)
    def selection(self, q, k, v, p):
        docs, heads, t, _ = q.shape
        mass = p.unflatten(-1, (-1, CHUNK)).sum(-1, dtype=torch.float32) * self.candidate
        reps = evaluate.representations(q, k, v, CHUNK)                   # [docs, heads, chunks, D]
        every = reps.transpose(0, 1).flatten(1, 2)                        # of all documents, by head
        s = (q @ every.mT[None] * model.D ** -0.5).unflatten(-1, (docs, -1))
        me = torch.arange(docs)
        hidden = torch.zeros(docs, t, docs, t // CHUNK)
        hidden[me, :, me] = torch.where(self.candidate, 0.0, float("-inf"))   # its own: candidates only
        total = torch.logsumexp((s + hidden[:, None]).flatten(-2), -1)
        mine = s[me, :, :, me]                                            # [docs, heads, t, chunks]
        each = (mass * (total[..., None] - mine)).sum(-1)                 # cross-entropy times the mass
        return self.strength * (each * self.weight[:, None]).sum() / (train.TOKENS * heads * model.LAYERS)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--start", type=pathlib.Path, default=train.HERE / "model")
    args.add_argument("--out", type=pathlib.Path, default=train.HERE / "longheads")
    args.add_argument("--steps", type=int, default=800)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--threads", type=int, default=1)
    args.add_argument("--strength", type=float, default=4.0, help="weight of the selection loss")
    args.add_argument("--rate", type=float, default=0.15, help="learning rates at first, relative to stage 1")
    args.add_argument("--fresh", action="store_true", help="ignore a checkpoint")
    args = args.parse_args()
    data = train.setup(args.seed, args.threads)
    net = model.load_hf(args.start).train().requires_grad_(True)
    trainer = train.Trainer(net, data, args.seed + 1000)
    trainer.attend[model.WINDOW] = Selecting(model.WINDOW, args.strength)
    ckpt = corpus.CACHE / f"longheads-{args.steps}-{args.seed}.pt"
    for step in range(0 if args.fresh else trainer.resume(ckpt), args.steps):
        scale = args.rate * min(1.0, (step + 1) / 20) * (args.steps - step) / args.steps
        trainer.step(step, model.WINDOW, train.MIX_FULL, scale, step % 25 == 0 or step == args.steps - 1)
        if (step + 1) % 250 == 0 or step + 1 == args.steps:
            trainer.save(ckpt, step + 1)
    model.save_hf(net, args.out)
    for name in ("generation_config.json", "tokenizer.model", "tokenizer_config.json"):
        if args.out.resolve() != (train.HERE / "model").resolve():
            shutil.copyfile(train.HERE / "model" / name, args.out / name)


if __name__ == "__main__":
    main()
