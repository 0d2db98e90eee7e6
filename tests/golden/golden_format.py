"""The file format of golden logits, and the seeded prompts; README.md describes it for readers."""

import random

import safetensors.torch
import torch


def random_ids(n, vocab_size, seed):
    """n ids, without the control ids 0 to 2. Python's generator is the same in every version."""
    generator = random.Random(seed)
    return [generator.randrange(3, vocab_size) for _ in range(n)]


def columns(row, vocab_size, n_columns):
    """The logits that are kept of a row: evenly spread, starting elsewhere in every row."""
    return [(7 * row + c * (vocab_size // n_columns)) % vocab_size for c in range(n_columns)]


def add_rows(tensors, name, logits, n_columns):
    n, vocab_size = logits.shape
    assert vocab_size % n_columns == 0, (vocab_size, n_columns)
    picked = torch.tensor([columns(i, vocab_size, n_columns) for i in range(n)])
    tensors[f"{name}.logits"] = logits.gather(1, picked).float().contiguous()
    tensors[f"{name}.max_abs"] = logits.abs().max(1).values.float().contiguous()


def save(tensors, path, metadata=None):
    safetensors.torch.save_file(tensors, path, metadata=metadata)
