"""Sparse attention patterns of fine-tuning, as explicit matrices: S2, SCCA_fixed, SCCA_flow, SDA, LongMixed.

S2 is LongLoRA's (Chen et al., arXiv:2309.12307, section 3.2), the others are those of "SCCA: Shifted Cross
Chunk Attention for long contextual semantic expansion" (arXiv:2312.07305): fixed, equations 2 to 6; flow, the
pseudocode and equations 7 to 9; SDA and LongMixed, section 4. Both papers mask by slots, which lets early
queries see later keys; here a key is visible if the pattern pairs it with the query and it is not later than
it, and a query always sees itself. Keys are rotated before they are rolled, so relative positions are i - j.

Every function returns bool [n, n], [query, key]; `pattern` stacks one matrix for each head, [heads, n, n].
"""
import torch


def _grid(n):
    i = torch.arange(n)
    return i[:, None], i[None, :]


def _causal(paired, own=True):
    i, j = _grid(paired.shape[0])
    return (paired & (j <= i)) | ((i == j) if own else torch.zeros_like(paired))


def local(n, w):
    """A query's own chunk of w tokens: the heads that are not shifted."""
    i, j = _grid(n)
    return _causal(i // w == j // w)


def s2_shifted(n, group):
    """S2: groups moved by half a group. The first and the last half group stand alone."""
    i, j = _grid(n)
    half = group // 2
    return _causal((i + half) // group == (j + half) // group)


def scca_fixed(n, w):
    """SCCA_fixed, rolled head: keys move right by g = w / 2, chunk c meets [c w - g, c w + g)."""
    i, j = _grid(n)
    return _causal(i // w == (j + w // 2) // w)


def scca_flow(n, w, shift):
    """SCCA_flow, roll to the right by `shift` chunks: chunk c meets chunk c - shift; itself where there is none."""
    i, j = _grid(n)
    return _causal(i // w - shift == j // w)


def sda(n, dilation, head, reading="residue"):
    """SDA: the residue class `head` mod `dilation`. "residue": its own queries alone; "kv": every query."""
    i, j = _grid(n)
    mine = j % dilation == head % dilation
    if reading == "kv":
        return _causal(mine.expand(n, n))
    return _causal(mine & (i % dilation == head % dilation), own=False)


def pattern(name, n, w, heads=4, reading="residue"):
    """The matrices of all heads. LongMixed is the paper's table (8 SDA_2, 16 SDA_4, 8 SCCA_fixed of 32 heads,
    half of these rolled) at four heads: one SDA_2, two SDA_4, one rolled SCCA_fixed."""
    half = heads // 2
    if name == "full":
        return _causal(torch.ones(n, n, dtype=torch.bool)).expand(heads, n, n)
    if name == "s2":                                   # the second half is shifted
        return torch.stack([local(n, w) if h < half else s2_shifted(n, w) for h in range(heads)])
    if name == "scca_fixed":                           # the first half is rolled
        return torch.stack([scca_fixed(n, w) if h < half else local(n, w) for h in range(heads)])
    if name == "scca_flow":                            # four chunks a window: heads / 4 heads for each shift
        return torch.stack([scca_flow(n, w, h * 4 // heads) for h in range(heads)])
    if name == "long_mixed":
        if heads != 4:
            raise ValueError(f"the table of long_mixed is for 4 heads, not {heads}")
        return torch.stack([sda(n, 2, 0, reading), sda(n, 4, 1, reading), sda(n, 4, 2, reading), scca_fixed(n, w)])
    raise ValueError(f"unknown pattern {name}")
