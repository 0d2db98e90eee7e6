#!/usr/bin/env python3
"""Train the 1,024-piece SentencePiece BPE tokenizer; writes model/tokenizer.model."""
import io
import pathlib
import random

import sentencepiece

import corpus
import tasks

OUT = pathlib.Path(__file__).resolve().parent / "model"


def lines():
    """The prose, plus enough passkey and fact sentences that they tokenize compactly."""
    text = (corpus.CACHE / "train.txt").read_text().split("\n")
    rng = random.Random(1)
    rng.shuffle(text)
    size = 0
    for line in text:
        if line:
            size += len(line)
            yield line
        if size > 6_000_000:
            break
    for _ in range(4000):
        for line in (tasks.PREFIX, tasks.FILLER, tasks.key_line(rng.randrange(10000, 100000)),
                     tasks.SUFFIX):
            yield line.rstrip("\n")


def main():
    OUT.mkdir(exist_ok=True)
    blob = io.BytesIO()                       # not a file prefix: that would be stored in the model
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines(), model_writer=blob, model_type="bpe",
        vocab_size=1024, byte_fallback=True, split_digits=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, add_dummy_prefix=True, character_coverage=1.0,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, max_sentence_length=20000, num_threads=1,
        minloglevel=1)
    (OUT / "tokenizer.model").write_bytes(blob.getvalue())
    sp = sentencepiece.SentencePieceProcessor(model_file=str(OUT / "tokenizer.model"))
    for line in (tasks.PREFIX, tasks.FILLER, tasks.key_line(12345), tasks.SUFFIX, " 12345"):
        print(len(sp.encode(line)), repr(line), sp.encode(line, out_type=str))


if __name__ == "__main__":
    main()
