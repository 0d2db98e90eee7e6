"""Activation Beacon v1 (arXiv:2401.03462) in float64, written from the paper's equations and not from the library.

A text is fed window by window. The tokens that complete a window are followed, in the same pass, by S / alpha beacon
tokens with projections of their own; their keys and values then stand for the window's first S tokens. Ratio 0 keeps
those tokens' own keys and values instead. Keys are stored unrotated: at every pass, positions are indexes in
[memory | raw tokens | new tokens], and a beacon stands right behind the last token it sees.
"""

import dataclasses
import json
import math
import pathlib

import safetensors.torch
import torch

import reference

SCHEMES = ("step-expansion", "segmentation", "full-coverage")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def layout(memory, raw, new, beacons, ratio, scheme):
    """Positions and visibility of one pass over `new` tokens and `beacons` beacon tokens (Section 2.2).

    memory, raw: the entries before them, of the memory and of this window. The results: the keys' positions
    [memory + raw + new + beacons], of which the last new + beacons are the queries', and visible [queries, keys].
    """
    tokens = raw + new
    place = torch.arange(1, beacons + 1)
    if scheme == "step-expansion":
        first, last, behind = torch.zeros_like(place), place * ratio, place * ratio
    elif scheme == "segmentation":
        first, last, behind = (place - 1) * ratio, place * ratio, torch.full_like(place, ratio)
    elif scheme == "full-coverage":
        first, last, behind = torch.zeros_like(place), torch.full_like(place, tokens), torch.full_like(place, tokens)
    else:
        raise ValueError(f"scheme {scheme!r} is none of {SCHEMES}")
    positions = torch.cat([torch.arange(memory + tokens), memory + behind])
    visible = torch.zeros(new + beacons, memory + tokens + beacons, dtype=torch.bool)
    visible[:, :memory] = True
    window = torch.arange(tokens)
    visible[:new, memory:memory + tokens] = window[None] <= torch.arange(raw, tokens)[:, None]
    visible[new:, memory:memory + tokens] = (window[None] >= first[:, None]) & (window[None] < last[:, None])
    visible[new:, memory + tokens:] = torch.eye(beacons, dtype=torch.bool)
    return positions, visible


def capacity(ratio, window, train_len):
    """How many tokens fit when every window is condensed by `ratio` and no position is past the trained ones."""
    return (train_len - window) * ratio + window if ratio else train_len


def adapt(ratios, expected, window, train_len):
    """The ratio of beacon_ratio_mix adapt-F for a text that will have `expected` tokens, the reserve F included."""
    fit = [r for r in ratios if capacity(r, window, train_len) >= expected]
    return min(fit, key=lambda r: capacity(r, window, train_len)) if fit else max(ratios)


@dataclasses.dataclass
class Cache:
    """What is left of the text so far: for each layer unrotated keys and values [entries, kv heads, head_dim]."""

    memory: list   # of each layer: (keys, values)
    raw: list      # the present window's tokens
    n_memory: int = 0
    n_raw: int = 0
    n_windows: int = 0


class BeaconModel(reference.Model):
    """A model directory with a beacon plug-in: a directory too, or nothing (copies of the ordinary tensors)."""

    def __init__(self, directory, plugin=None, dtype=torch.float64, window=None, stride=None):
        super().__init__(directory)
        config = json.loads((pathlib.Path(plugin or directory) / "config.json").read_text())
        self.beacon_window = window or config["beacon_window"]
        self.beacon_stride = stride or (config.get("beacon_stride") or [self.beacon_window])[0]
        self.scheme = config.get("beacon_attn", SCHEMES[0])
        if plugin is not None:
            for file in sorted(pathlib.Path(plugin).glob("*.safetensors")):
                self.weights.update(safetensors.torch.load_file(file))
        eos = config.get("eos_token_id", 2)
        eos = eos[0] if isinstance(eos, list) else eos
        self.weights.setdefault("model.beacon_embed_tokens.weight", self.weights["model.embed_tokens.weight"][[eos]])
        for name in list(self.weights):
            layer, _, projection = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")
            if projection in PROJECTIONS:
                self.weights.setdefault(name.replace(projection, "beacon_" + projection), self.weights[name])
        self.weights = {name: w.to(dtype) for name, w in self.weights.items()}
        self.dtype = dtype
        self.frequencies = self.rope(0)   # a condensed text never leaves the trained window

    def empty(self):
        def nothing():
            return [(torch.zeros(0, self.n_kv_heads, self.head_dim, dtype=self.dtype),) * 2
                    for _ in range(self.n_layers)]
        return Cache(nothing(), nothing())

    def mixed(self, x, new, name):
        """The projection `name` of `new` tokens and the beacons' own of the rows behind them."""
        own = name.rpartition(".")
        own = f"{own[0]}.beacon_{own[2]}"
        if own + ".weight" not in self.weights:
            return self.linear(x, name)
        return torch.cat([self.linear(x[:new], name), self.linear(x[new:], own)])

    def attention(self, x, new, name, earlier, positions, visible, rope):
        """The attention's output [queries, hidden], and the queries' unrotated keys and values."""
        n, d, group = len(x), self.head_dim, self.n_query_heads // self.n_kv_heads
        q = self.mixed(x, new, name + "q_proj").view(n, self.n_query_heads, d)
        k = self.mixed(x, new, name + "k_proj").view(n, self.n_kv_heads, d)
        v = self.mixed(x, new, name + "v_proj").view(n, self.n_kv_heads, d)
        q, k = self.norm_heads(q, k, name)
        keys, values = torch.cat([earlier[0], k]), torch.cat([earlier[1], v])
        at, out = positions.to(torch.float64), torch.empty_like(q)
        for h in range(self.n_query_heads):
            turned_q = reference.rotate(q[:, h], at[-n:], rope).to(self.dtype)
            turned_k = reference.rotate(keys[:, h // group], at, rope).to(self.dtype)
            logits = turned_q @ turned_k.T * rope.attention_factor**2 / math.sqrt(d)
            out[:, h] = torch.softmax(logits.masked_fill(~visible, -math.inf), -1) @ values[:, h // group]
        return self.mixed(out.reshape(n, -1), new, name + "o_proj"), k, v

    @torch.no_grad()
    def step(self, cache, ids, ratio, scheme):
        """Logits [ids, vocab] of tokens of one window; completing it condenses its first S tokens by `ratio`."""
        if cache.n_raw + len(ids) > self.beacon_window:
            raise ValueError("a step may not pass the end of its window")
        if cache.n_memory + cache.n_raw + len(ids) > self.train_len:
            raise ValueError(f"position {cache.n_memory + cache.n_raw + len(ids) - 1} is past the trained "
                             f"{self.train_len}: the ratio is too small for this text")
        complete, new, stride = cache.n_raw + len(ids) == self.beacon_window, len(ids), self.beacon_stride
        beacons = stride // ratio if complete and ratio else 0
        if beacons * ratio != (stride if beacons else 0):
            raise ValueError(f"ratio {ratio} does not divide the stride {stride}")
        positions, visible = layout(cache.n_memory, cache.n_raw, new, beacons, ratio, scheme)
        x = torch.cat([self.weights["model.embed_tokens.weight"][torch.as_tensor(ids, dtype=torch.long)],
                       self.weights["model.beacon_embed_tokens.weight"].expand(beacons, -1)])
        for layer in range(self.n_layers):
            name = f"model.layers.{layer}."
            earlier = [torch.cat(pair) for pair in zip(cache.memory[layer], cache.raw[layer])]
            y, k, v = self.attention(self.norm(x, name + "input_layernorm"), new, name + "self_attn.", earlier,
                                     positions, visible, self.rope_in(layer, self.frequencies))
            x = x + y
            y = self.norm(x, name + "post_attention_layernorm")
            gate = torch.nn.functional.silu(self.linear(y, name + "mlp.gate_proj"))
            x = x + self.mixed(gate * self.mixed(y, new, name + "mlp.up_proj"), new, name + "mlp.down_proj")
            self.keep(cache, layer, k, v, new, complete, ratio)
        cache.n_raw += new
        if complete:
            cache.n_memory += beacons if ratio else stride
            cache.n_raw -= stride
            cache.n_windows += 1
        head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        return self.norm(x[:new], "model.norm") @ head.T

    def keep(self, cache, layer, k, v, new, complete, ratio):
        """Adds a step's keys and values [new + beacons, ...] to the raw ones, and condenses a complete window."""
        raw = [torch.cat([old, added[:new]]) for old, added in zip(cache.raw[layer], (k, v))]
        if complete:
            condensed = (k[new:], v[new:]) if ratio else [r[:self.beacon_stride] for r in raw]
            cache.memory[layer] = [torch.cat(pair) for pair in zip(cache.memory[layer], condensed)]
            raw = [r[self.beacon_stride:] for r in raw]
        cache.raw[layer] = raw

    def forward(self, ids, ratios, scheme=None, one_by_one=False):
        """Logits [n, vocab]. ratios: of each window, the last for all that follow; or one number for all."""
        ratios = [ratios] if isinstance(ratios, int) else list(ratios)
        cache, rows, done = self.empty(), [], 0
        while done < len(ids):
            size = 1 if one_by_one else self.beacon_window - cache.n_raw
            ratio = ratios[min(cache.n_windows, len(ratios) - 1)]
            rows.append(self.step(cache, ids[done:done + size], ratio, scheme or self.scheme))
            done += size
        return torch.cat(rows)
