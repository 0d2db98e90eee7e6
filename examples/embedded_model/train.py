#!/usr/bin/env python3
"""Train the embedded model on a CPU: 3,300 steps of 4,096 tokens, never past position 255.

    python corpus.py && python tokenizer.py && python train.py        (resume: run train.py again)

The schedule counts steps, not minutes, and every batch is drawn from a generator seeded with
(seed, step), so a resumed run sees the same data.
"""
import argparse
import os
import pathlib
import sys
import time

if os.environ.get("MALLOC_MMAP_MAX_") != "0":          # keep freed blocks: page faults cost 2x else
    os.environ.update(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(1 << 40),
                      MALLOC_TOP_PAD_=str(1 << 28))
    os.execv(sys.executable, [sys.executable] + sys.argv)

import numpy as np
import sentencepiece
import torch
import torch.nn.functional as F

import corpus
import model
import tasks

HERE = pathlib.Path(__file__).resolve().parent
TOKENS = 4096
MIX_SHORT = {"copy_random": 0.5, "copy_text": 0.1, "text": 0.4}
MIX_MIDDLE = {"copy_random": 0.2, "copy_text": 0.15, "text": 0.35, "passkey": 0.15, "facts": 0.15}
MIX_FULL = {"text": 0.37, "passkey": 0.23, "facts": 0.22, "copy_text": 0.11, "copy_random": 0.07}


def stage(step, steps):
    """(sequence length, mix): 1/6 of the steps at 64 tokens, 1/5 at 128, the rest at 256."""
    if step < steps // 6:
        return 64, MIX_SHORT
    if step < steps // 6 + steps // 5:
        return 128, MIX_MIDDLE
    return model.WINDOW, MIX_FULL


def learning_rate(step, steps):
    """Short warm-up, flat, then linear to zero over the last 45 %."""
    return min(1.0, (step + 1) / 20, max(0.0, (steps - step) / (0.45 * steps)))


class Muon:
    """Momentum, orthogonalised by five Newton-Schulz steps; equal shapes are stacked."""

    def __init__(self, params, momentum=0.95):
        self.groups = {}
        for p in params:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.buf = {s: torch.zeros(len(ps), *s) for s, ps in self.groups.items()}
        self.momentum = momentum

    def step(self, lr):
        for shape, params in self.groups.items():
            grad, buf = torch.stack([p.grad for p in params]), self.buf[shape]
            buf.mul_(self.momentum).add_(grad)
            x = grad + self.momentum * buf
            x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
            tall = shape[0] > shape[1]
            x = x.mT if tall else x
            for _ in range(5):
                a = x @ x.mT
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
            x = x.mT if tall else x
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            for p, u in zip(params, x):
                p.data.add_(u, alpha=-lr * scale)


class Causal:
    """Plain RoPE attention of the training window.

    Before a step `weight` becomes what each query's loss counts and `loss` 0; a subclass may add to `loss`.
    """

    def __init__(self, t):
        angle = torch.arange(t, dtype=torch.float64)[:, None] * model.inv_freq()[None]
        self.cos = torch.cat((angle.cos(), angle.cos()), -1).float()
        self.sin = torch.cat((-angle.sin(), angle.sin()), -1).float()
        self.mask = torch.full((t, t), float("-inf"), dtype=torch.bfloat16).triu(1)

    def rope(self, x):
        return (x * self.cos + torch.roll(x, model.D // 2, -1) * self.sin).to(x.dtype)

    def __call__(self, q, k, v):
        # Spelled out: at this size it is faster on a CPU than scaled_dot_product_attention.
        scores = self.rope(q) @ self.rope(k).mT * model.D ** -0.5 + self.mask
        return torch.softmax(scores, -1, dtype=torch.bfloat16) @ v


class Trainer:
    """One optimiser step at a time; Muon for the layers' matrices, AdamW for the rest."""

    def __init__(self, net, data, seed):
        self.net, self.data, self.seed = net, data, seed
        self.muon = Muon([p for n, p in net.named_parameters() if p.ndim == 2 and "layers" in n])
        self.adam = torch.optim.AdamW([p for n, p in net.named_parameters() if p.ndim == 1 or "layers" not in n],
                                      lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0, foreach=True)
        self.attend, self.started, self.cpu = {}, time.time(), time.process_time()

    def step(self, step, n, mix, scale, log):
        attend = self.attend.setdefault(n, Causal(n))
        ids, w = self.data.batch(n + 1, TOKENS // n * (n + 1), mix, np.random.default_rng([self.seed, step]))
        ids, w = torch.from_numpy(ids), torch.from_numpy(w)
        attend.weight, attend.loss = w[:, 1:], torch.zeros(())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.net(ids[:, :-1], attend)
        each = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        weight = w[:, 1:].flatten()
        loss = (each * weight).sum() / TOKENS + attend.loss
        for p in self.net.parameters():
            p.grad = None
        loss.backward()
        self.muon.step(0.02 * scale)
        for group in self.adam.param_groups:
            group["lr"] = 3e-3 * scale
        self.adam.step()
        if log:
            answer, other = each.detach()[weight == 5], each.detach()[weight == 1]
            print(f"step {step} len {n} loss {loss.item():.3f} text {other.mean():.3f} answer "
                  f"{answer.mean() if len(answer) else float('nan'):.4f} attention {attend.loss.item():.3f} "
                  f"wall {time.time() - self.started:.0f} cpu {time.process_time() - self.cpu:.0f}", flush=True)

    def save(self, path, step):
        torch.save({"net": self.net.state_dict(), "adam": self.adam.state_dict(), "muon": self.muon.buf,
                    "step": step}, path)

    def resume(self, path):
        """The next step to do: 0, or where the checkpoint was written."""
        if not path.exists():
            return 0
        saved = torch.load(path, weights_only=True)
        self.net.load_state_dict(saved["net"])
        self.adam.load_state_dict(saved["adam"])
        self.muon.buf = saved["muon"]
        print("resumed at step", saved["step"])
        return saved["step"]


def setup(seed, threads):
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    torch.set_flush_denormal(True)
    sp = sentencepiece.SentencePieceProcessor(model_file=str(HERE / "model" / "tokenizer.model"))
    data = tasks.Builder(sp, (corpus.CACHE / "train.txt").read_text().split("\n"))
    print(f"{len(data.stream)} tokens of text, {len(data.sentences)} sentences", flush=True)
    return data


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--steps", type=int, default=3300)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--threads", type=int, default=1)
    args.add_argument("--out", type=pathlib.Path, default=HERE / "model")
    args.add_argument("--fresh", action="store_true", help="ignore a checkpoint")
    args = args.parse_args()
    data = setup(args.seed, args.threads)
    net = model.TinyLlama()
    model.init_recall_circuits(net, args.seed)
    trainer = Trainer(net, data, args.seed)
    ckpt = corpus.CACHE / f"checkpoint-{args.steps}-{args.seed}.pt"
    for step in range(0 if args.fresh else trainer.resume(ckpt), args.steps):
        n, mix = stage(step, args.steps)
        trainer.step(step, n, mix, learning_rate(step, args.steps), step % 25 == 0 or step == args.steps - 1)
        if (step + 1) % 250 == 0 or step + 1 == args.steps:
            trainer.save(ckpt, step + 1)
    model.save_hf(net, args.out)


if __name__ == "__main__":
    main()
