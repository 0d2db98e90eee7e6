#!/usr/bin/env python3
"""Fine-tuning under sparse attention: S2, SCCA_fixed, SCCA_flow and LongMixed at twice the window.

    python sparse_lora.py              trains the four adapters into ../models, then measures

Setting of SCCA (arXiv:2312.07305, section 5) at this size: Position Interpolation by 2, windows of twice the
model's, cut into four chunks (of 128 tokens), and LongLoRA's recipe (arXiv:2309.12307, section 3.3): LoRA on
q, k, v and o, embeddings and norms trained too. The patterns are explicit matrices (patterns.py); the last rows
of the tables show full attention with the same adapters, which is how LongLoRA infers.
"""
import argparse

import tuning  # first: it restarts Python with the allocator settings
import adapters
import measure
import model
import patterns

import torch
import train

FACTOR = 2
WINDOW = model.WINDOW * FACTOR
CHUNK = WINDOW // 4
FREQ = tuning.inv_freq(FACTOR)
NAMES = ["s2", "scca_fixed", "scca_flow", "long_mixed"]


def sparse(name):
    """Attention of n tokens under a pattern; the chunk stays that of training."""
    return lambda n: tuning.Attention(FREQ, torch.arange(n), patterns.pattern(name, n, CHUNK))


def fine_tune(name, data, args):
    torch.manual_seed(args.seed)
    net = adapters.wrap(tuning.base_model(), args.rank, 2 * args.rank, ["embed_tokens", *adapters.NORMS])
    attend = sparse(name)(WINDOW)

    def draw(rng):
        return *data.batch(WINDOW + 1, tuning.TOKENS // WINDOW * (WINDOW + 1), train.MIX_FULL, rng), attend
    tuning.fit(name, net, tuning.AdapterTuning(net, args.rate), args.steps, draw, args.seed)
    adapters.save(net, tuning.MODELS / name)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--only", choices=[*NAMES, "full"], help="full: the same recipe under full attention")
    args.add_argument("--measure", action="store_true", help="train nothing")
    args.add_argument("--steps", type=int, default=300)
    args.add_argument("--rank", type=int, default=8)
    args.add_argument("--rate", type=float, default=1e-2)
    args.add_argument("--seed", type=int, default=1)
    args = args.parse_args()
    data = train.setup(args.seed, 1)
    names = [args.only] if args.only else NAMES
    for name in [] if args.measure else names:
        fine_tune(name, data, args)
    text, heldout = measure.text_and_tasks(data.sp)
    rows = {"plain": (tuning.base_model(), measure.full(tuning.inv_freq())),
            "PI 2, not trained": (tuning.base_model(), measure.full(FREQ))}
    rows |= {f"{n}, not trained": (tuning.base_model(), sparse(n)) for n in names}
    tuned = {n: adapters.load(tuning.MODELS / n) for n in names}
    rows |= {n: (tuned[n], sparse(n)) for n in names}
    rows |= {f"{n}, full attention": (tuned[n], measure.full(FREQ)) for n in names}
    measure.table(rows, heldout, text, [model.WINDOW, WINDOW])


if __name__ == "__main__":
    main()
