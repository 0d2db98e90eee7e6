#!/usr/bin/env python3
"""Llama-3-80K's recipe at this size: LoRA and an enlarged RoPE base, trained on long retrieval data.

    python long_lora.py                trains ../models/long_lora, then measures

"Extending Llama-3's Context Ten-Fold Overnight" (arXiv:2404.19553, section 2): LoRA of rank 32, alpha 16 on q, k,
v and o, the input embedding trained whole, RoPE's base times 400 (500K to 200M there, 1e4 to 4e6 here), and data
that ask about single and several places of a long text. Its base weights were quantised to 4 bits while training;
here they stay float32. adapter_config.json has no place for the base: rope.json beside it says it.
"""
import argparse
import json

import tuning  # first: it restarts Python with the allocator settings
import adapters
import measure
import model
import retrieval

import corpus
import torch
import train

THETA = 400 * model.CONFIG["rope_theta"]
WINDOW = 8 * model.WINDOW
FREQ = tuning.inv_freq(theta=THETA)
OUT = tuning.MODELS / "long_lora"
MIX = {"text": 0.3, "passkey": 0.2, "facts": 0.2, "multi_key": 0.15, "topics": 0.1, "copy_text": 0.05}


def fine_tune(data, args):
    torch.manual_seed(args.seed)
    net = adapters.wrap(tuning.base_model(), 32, 16, ["embed_tokens"])
    attend = {n: tuning.Attention(FREQ, torch.arange(n)) for n in (256, 512, 1024, 2048)}

    def draw(rng):
        n = (256, 512, 1024, 2048, 2048, 2048)[int(rng.integers(6))]
        return *data.batch(n + 1, tuning.TOKENS // n * (n + 1), MIX, rng), attend[n]
    tuning.fit("long_lora", net, tuning.AdapterTuning(net, args.rate), args.steps, draw, args.seed)
    adapters.save(net, OUT)
    rope = {"rope_theta": THETA, "max_position_embeddings": WINDOW}
    (OUT / "rope.json").write_text(json.dumps(rope, indent=2) + "\n")


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--measure", action="store_true", help="train nothing")
    args.add_argument("--steps", type=int, default=400)
    args.add_argument("--rate", type=float, default=1e-2)
    args.add_argument("--seed", type=int, default=1)
    args = args.parse_args()
    sp = train.setup(args.seed, 1).sp
    data = retrieval.Builder(sp, (corpus.CACHE / "train.txt").read_text().split("\n"))
    if not args.measure:
        fine_tune(data, args)
    text, heldout = measure.text_and_tasks(sp)
    rows = {"plain": (tuning.base_model(), measure.full(tuning.inv_freq())),
            "base 4e6, not trained": (tuning.base_model(), measure.full(FREQ)),
            "long_lora": (adapters.load(OUT), measure.full(FREQ)),
            "long_lora with base 1e4": (adapters.load(OUT), measure.full(tuning.inv_freq()))}
    lengths = [model.WINDOW << e for e in range(4)]
    measure.table(rows, heldout, text, lengths)
    held = retrieval.Builder(sp, (tuning.EMBEDDED / "heldout.txt").read_text().split("\n"))
    print("\nright answers in %, 25 documents a cell, 1x to 8x\n\n| | keys of several names | topics of sections |\n"
          "|---|---|---|")
    for name, (net, attention) in rows.items():
        cells = [" ".join(f"{measure.questions(net, kind, attention, n):.0f}" for n in lengths)
                 for kind in (held.doc_multi_key, held.doc_topics)]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
