"""Position indices for training on short windows: PoSE and RandPos.

PoSE (Zhu et al., "PoSE: Efficient Context Window Extension of LLMs via Positional Skip-wise Training",
arXiv:2309.10400, section 3.2, equations 3 to 5). RandPos is its control (section 4): after Ruoss et al.,
arXiv:2305.16843.
"""
import torch


def skipped_positions(lengths, skips):
    """Positions of consecutive chunks, each moved on by its skip (equations 3 and 4).

    Chunk i holds lengths[i] tokens and starts skips[i] after where it would stand without skips. Skips do not
    decrease, so positions rise strictly. Returns int64 [sum of lengths].
    """
    if any(b < a for a, b in zip([0, *skips], skips)):
        raise ValueError(f"skips must start at 0 or more and not decrease, got {list(skips)}")
    moved = torch.repeat_interleave(torch.tensor(skips), torch.tensor(lengths))
    return torch.arange(sum(lengths)) + moved


def pose_chunks(length, target, n_chunks, generator):
    """Draws (lengths, skips): a random division of the window, u_0 = 0 and u_i ~ U{u_(i-1) .. target - length}."""
    if not 1 <= n_chunks <= length <= target:
        raise ValueError(f"expected 1 <= chunks <= length <= target, got {n_chunks}, {length}, {target}")
    cuts = (torch.randperm(length - 1, generator=generator)[: n_chunks - 1] + 1).sort().values.tolist()
    lengths = [b - a for a, b in zip([0, *cuts], [*cuts, length])]
    skips = [0]
    while len(skips) < n_chunks:
        skips.append(int(torch.randint(skips[-1], target - length + 1, (), generator=generator)))
    return lengths, skips


def pose_positions(length, target, n_chunks=2, generator=None):
    """Positions of one training window of `length` tokens that imitate a text of `target` tokens.

    int64 [length], strictly rising, from 0 to at most target - 1. Inside a chunk they are consecutive; between
    the chunks lies a random gap, so that over many windows every relative position below `target` is seen.
    """
    return skipped_positions(*pose_chunks(length, target, n_chunks, generator))


def random_positions(length, target, generator=None):
    """RandPos: `length` of the `target` positions, drawn without replacement and sorted. int64 [length]."""
    return torch.randperm(target, generator=generator)[:length].sort().values
