#!/usr/bin/env python3
"""PoSE and its comparisons: eight times the window, with Position Interpolation by 8.

    python pose.py                     trains pose, full_length and rand_pos into ../models, then measures
    python pose.py --only pose         trains one; --measure trains nothing

PoSE: arXiv:2309.10400, section 3.2 (the positions: positions.py). Every run changes all weights and has the same
steps of the same number of tokens: 16 windows of 256 tokens (pose, rand_pos) or 2 texts of 2048 (full_length).
As in the paper, the second chunk of a text window is taken from anywhere later in the text (its v_i); documents
with a question keep their content together (v_i = 0), or the answer would be lost.
"""
import argparse

import tuning  # first: it restarts Python with the allocator settings
import measure
import model
import positions

import torch
import train

WINDOW, FACTOR = model.WINDOW, 8
TARGET = WINDOW * FACTOR
FREQ = tuning.inv_freq(FACTOR)
SCALING = {"type": "linear", "factor": float(FACTOR)}       # as in the published PoSE checkpoints
MIX = train.MIX_FULL


def pose_batch(data, rng):
    """16 windows: positions in two chunks with a gap, and text whose second chunk was moved on."""
    g = torch.Generator().manual_seed(int(rng.integers(2 ** 62)))
    ids, w = data.batch(WINDOW + 1, tuning.TOKENS // WINDOW * (WINDOW + 1), MIX, rng)
    rows = []
    for row in range(len(ids)):
        lengths, skips = positions.pose_chunks(WINDOW, TARGET, 2, g)
        rows.append(positions.skipped_positions(lengths, skips))
        if (w[row, 1:] == 1).all():                        # text: its second chunk comes from later
            later = data.text(TARGET + 1, rng)
            v = int(rng.integers(TARGET - WINDOW + 1))
            ids[row, 1: lengths[0]] = later[: lengths[0] - 1]
            ids[row, lengths[0]:] = later[lengths[0] - 1 + v: WINDOW + v]
    return ids, w, tuning.Attention(FREQ, torch.stack(rows))


def rand_pos_batch(data, rng):
    g = torch.Generator().manual_seed(int(rng.integers(2 ** 62)))
    ids, w = data.batch(WINDOW + 1, tuning.TOKENS // WINDOW * (WINDOW + 1), MIX, rng)
    rows = [positions.random_positions(WINDOW, TARGET, g) for _ in ids]
    return ids, w, tuning.Attention(FREQ, torch.stack(rows))


def full_length_batch(data, rng):
    ids, w = data.batch(TARGET + 1, tuning.TOKENS // TARGET * (TARGET + 1), MIX, rng)
    return ids, w, tuning.Attention(FREQ, torch.arange(TARGET))


BATCHES = {"pose": pose_batch, "full_length": full_length_batch, "rand_pos": rand_pos_batch}


def train_one(name, data, args):
    net = tuning.base_model()
    tuning.fit(name, net, tuning.FullTuning(net, args.rate), args.steps, lambda rng: BATCHES[name](data, rng), args.seed)
    tuning.save_model(net, tuning.MODELS / name, SCALING, TARGET)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--only", choices=BATCHES)
    args.add_argument("--measure", action="store_true")
    args.add_argument("--steps", type=int, default=400)
    args.add_argument("--rate", type=float, default=0.5, help="learning rates, relative to the model's own training")
    args.add_argument("--seed", type=int, default=1)
    args = args.parse_args()
    data = train.setup(args.seed, 1)
    names = [args.only] if args.only else list(BATCHES)
    for name in [] if args.measure else names:
        train_one(name, data, args)
    text, heldout = measure.text_and_tasks(data.sp)
    rows = {"plain": (tuning.base_model(), measure.full(tuning.inv_freq())),
            "PI 8, not trained": (tuning.base_model(), measure.full(FREQ))}
    rows |= {n: (model.load_hf(tuning.MODELS / n), measure.full(FREQ)) for n in names}
    measure.table(rows, heldout, text, [WINDOW << e for e in range(5)])


if __name__ == "__main__":
    main()
