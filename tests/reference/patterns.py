"""Relative-position matrices of the baselines and of the patterns that differ from head to head, from their formulas.

Each function gives [n, n] or [heads, n, n] distances, NaN where a key is invisible.
"""

import math

import torch

from reference import indexes, positions_full


def rerope(n, window, leaky=0):
    i, j = indexes(n)
    apart = (i - j).double()
    behind = window + (apart - window) / leaky if leaky else torch.full_like(apart, window)
    return torch.where(j <= i, torch.where(apart < window, apart, behind), math.nan)


def log_scale(n, train_len):
    """ReRoPE's factor on the logits of each query."""
    return (torch.log(torch.arange(1, n + 1, dtype=torch.float64)) / math.log(train_len)).clamp(min=1)


def self_extend(n, group, window):
    i, j = indexes(n)
    grouped = i // group + window - window // group - j // group
    return torch.where(j <= i, torch.where(i - j < window, i - j, grouped).double(), math.nan)


def lm_infinite(n, sinks, recent):
    i, j = indexes(n)
    near = torch.where(i - j < recent, (i - j).double(), math.nan)
    return torch.where(j <= i, torch.where((i - j >= recent) & (j < sinks), float(recent), near), math.nan)


def by_head(n, n_heads, sees):
    """True distances where sees(head, i, j); never a later key."""
    distances = positions_full(n)
    i, j = indexes(n)
    return torch.stack([torch.where(sees(h, i, j), distances, math.nan) for h in range(n_heads)])


def s2(n, n_heads, group):
    def sees(h, i, j):
        if h < n_heads // 2:
            return i // group == j // group
        # rolled left by half a group; what begins the text stands alone
        return (i + group // 2) // group == (j + group // 2) // group
    return by_head(n, n_heads, sees)


def rolled_right(i, j, chunk, by):
    """Whether slot group i // chunk of the sequence rolled right holds key j."""
    return (j + by) // chunk == i // chunk


def scca_fixed(n, n_heads, chunk, slot=False):
    def sees(h, i, j):
        if h >= n_heads // 2:
            return i // chunk == j // chunk
        pairs = rolled_right(i, j, chunk, chunk // 2)
        return pairs & (j + chunk // 2 <= i) if slot else pairs | (i == j)
    return by_head(n, n_heads, sees)


def scca_flow(n, n_heads, chunks, chunk, left=False, local=False, slot=False):
    def sees(h, i, j):
        shift = h // (n_heads // chunks)
        shift = (chunks - shift) % chunks if left else shift
        if shift == 0:
            return i // chunk == j // chunk
        pairs = rolled_right(i, j, chunk, shift * chunk)
        pairs = pairs & (j + shift * chunk <= i) if slot else pairs | (i == j)
        return torch.where(i // chunk < shift, i // chunk == j // chunk, pairs) if local else pairs
    return by_head(n, n_heads, sees)


def sda(n, n_heads, dilation, kv=False):
    def sees(h, i, j):
        own = j % dilation == h % dilation
        return own | (i == j) if kv else own & (i % dilation == h % dilation)
    return by_head(n, n_heads, sees)


def long_mixed(n, table):
    """table: for each head its matrix's name and numbers, such as ("sda", 4), ("rolled", 32) or ("local", 32)."""
    rows = []
    for h, (kind, *numbers) in enumerate(table):
        if kind == "sda":
            rows.append(sda(n, h + 1, *numbers)[h])
        elif kind == "shift":
            shift, chunk = numbers
            rows.append(scca_flow(n, shift + 1, shift + 1, chunk)[shift])
        else:
            rows.append(scca_fixed(n, 2, *numbers)[0 if kind == "rolled" else 1])
    return torch.stack(rows)


def below(positions, full_below):
    """The same, but queries before full_below see everything."""
    positions = positions.clone()
    positions[..., :full_below, :] = positions_full(positions.shape[-1])[:full_below]
    return positions
