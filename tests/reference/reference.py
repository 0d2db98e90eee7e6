"""An independent Llama in float64, written from the formulas and not from the library.

`forward` computes every logit pair by rotating the query by the relative position M[i][j] itself: there are no key
positions, no chunks and no merging of partial results. It is slow and uses memory by blocks of queries only.
"""

import json
import math
import pathlib

import safetensors.torch
import torch

BLOCK = 64  # queries at a time


class Rope:
    """Inverse frequencies (float64, head_dim / 2) and YaRN's attention factor A (logits scale by A squared)."""

    def __init__(self, theta, attention_factor=1.0):
        self.theta = theta
        self.attention_factor = attention_factor


def rope_plain(head_dim, base):
    return Rope(torch.tensor([base ** (-2 * a / head_dim) for a in range(head_dim // 2)], dtype=torch.float64))


def rope_none(head_dim):
    """Of a layer that does not rotate: every distance is as good as 0, and there is no attention factor."""
    return Rope(torch.zeros(head_dim // 2, dtype=torch.float64))


def rope_pi(head_dim, base, factor):
    return Rope(rope_plain(head_dim, base).theta / factor)


def rope_ntk(head_dim, base, factor):
    return rope_plain(head_dim, base * factor ** (head_dim / (head_dim - 2)))


def rope_yarn(head_dim, base, factor, original, beta_fast=32, beta_slow=1, attention_factor=None, variant="hf",
              truncate=True):
    def dimension(rotations):  # the pair that turns `rotations` times within the original length
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(beta_fast), dimension(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    theta = []
    for a, plain in enumerate(rope_plain(head_dim, base).theta.tolist()):
        keep = 1 - min(max((a - low) / (high - low), 0), 1)
        if variant == "hf":
            theta.append(plain * ((1 - keep) / factor + keep))
        else:
            theta.append(plain / ((1 - keep) * factor + keep))
    if attention_factor is None:
        attention_factor = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return Rope(torch.tensor(theta, dtype=torch.float64), attention_factor)


def rope_llama3(head_dim, base, factor, low, high, original):
    theta = []
    for plain in rope_plain(head_dim, base).theta.tolist():
        wavelength = 2 * math.pi / plain
        if wavelength < original / high:
            theta.append(plain)
        elif wavelength > original / low:
            theta.append(plain / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            theta.append((1 - smooth) * plain / factor + smooth * plain)
    return Rope(torch.tensor(theta, dtype=torch.float64))


def rope_dynamic_ntk(head_dim, base, factor, original, length):
    """Dynamic NTK for a text of `length` tokens."""
    ratio = max(length, original) / original
    return rope_plain(head_dim, base * (factor * ratio - (factor - 1)) ** (head_dim / (head_dim - 2)))


def rope_longrope(head_dim, base, settings, train_len, length):
    """LongRoPE for a text of `length` tokens; settings: the checkpoint's rope_parameters."""
    original = settings.get("original_max_position_embeddings", train_len)
    factors = settings["long_factor" if length > original else "short_factor"]
    factor = settings.get("factor") or train_len / original
    attention_factor = settings.get("attention_factor") or (
        math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0)
    return Rope(rope_plain(head_dim, base).theta / torch.tensor(factors, dtype=torch.float64), attention_factor)


def indexes(n):
    return torch.arange(n).unsqueeze(1), torch.arange(n).unsqueeze(0)


def positions_full(n):
    i, j = indexes(n)
    return torch.where(j <= i, (i - j).double(), math.nan)


def positions_window(positions, window):
    """What a model whose queries see `window` keys, their own included, leaves of any positions."""
    i, j = indexes(positions.shape[-1])
    return torch.where(i - j < window, positions, math.nan)


def positions_dca(n, chunk, cap, successive=True, others=True):
    """Dual Chunk Attention, eq. 2-8: intra, successive and inter-chunk query positions against j mod chunk; without
    its second or its last two parts."""
    i, j = indexes(n)
    apart = i // chunk - j // chunk
    inside = i % chunk
    inter = torch.full_like(apart, cap)
    before = (chunk + inside).clamp(max=cap) if successive else inter
    query = torch.where(apart == 0, inside, torch.where(apart == 1, before, inter))
    visible = (j <= i) & (others | (apart == 0))
    return torch.where(visible, (query - j % chunk).double(), math.nan)


def dca_preset(preset, train_len, local=None):
    """(chunk, cap) of a named preset."""
    if preset == "paper":
        return 3 * train_len // 4, train_len - 1
    if preset == "vllm":
        return train_len - local, train_len
    window = {"chunkllama": 8, "chunkllama_flashdec": 16, "chunkqwen": 16, "chunkllama_ppl": 4}[preset]
    return 3 * train_len // 4 - train_len // window, 3 * train_len // 4


def positions_streaming_llm(n, sinks, recent):
    """What a cache of `sinks` first and `recent` last keys shows, positions counted inside the cache."""
    matrix = torch.full((n, n), math.nan, dtype=torch.float64)
    for i in range(n):
        cache = [j for j in range(i) if j < sinks or j >= i - recent] + [i]
        matrix[i, cache] = torch.arange(len(cache) - 1, -1, -1, dtype=torch.float64)
    return matrix


class CloseCall(Exception):
    """A selection hangs on the last digits of two scores."""


class LongHeads:
    """The relative positions of "LongHeads" (eq. 1-3) for one layer: they depend on its queries, keys and values.

    forced: how many of the last chunks every query takes besides the first (2: previous and own; 1: own).
    sharing: "head", or "group", "layer" (one choice by the sum of the scores) or "first_layer" (its choice in all).
    pick: "best" or "worst". first: the first chunk is "forced", "free" or "never" taken.
    distances: a matrix that gives the chosen keys their positions, instead of packing them.
    needed_margin: the least difference between the last chunk taken and the first one left out, in units of the
    scores' standard deviation; a closer one, which less precision may turn over, raises CloseCall. smallest_margin:
    the least one that was seen."""

    def __init__(self, chunk, chunks, begin, forced=2, sharing="head", pick="best", first="forced", distances=None):
        self.chunk, self.chunks, self.begin, self.forced = chunk, chunks, begin, forced
        self.sharing, self.pick, self.first, self.distances = sharing, pick, first, distances
        self.chosen = None  # by the first layer
        self.needed_margin, self.smallest_margin = 0.0, math.inf

    def represent(self, q, k, v, rope, multiplier):
        """rep_c of each complete chunk: q, k, v [n, d] of one head, unrotated; the result [n // chunk, d]."""
        local = torch.arange(self.chunk, dtype=torch.float64)
        scale = rope.attention_factor**2 * multiplier
        vectors = []
        for c in range(len(q) // self.chunk):
            rows = slice(c * self.chunk, (c + 1) * self.chunk)
            queries, keys = rotate(q[rows], local, rope), rotate(k[rows], local, rope)
            outputs = torch.softmax(queries @ keys.T * scale, dim=-1) @ v[rows]
            vectors.append(torch.softmax(outputs.mean(0) @ keys.T * scale, dim=-1) @ keys)
        return torch.stack(vectors) if vectors else q.new_zeros(0, q.shape[1])

    def choose(self, scores, own):
        """The chunks of a query in chunk `own`, ascending; scores of the complete chunks before it."""
        if own + 1 <= self.chunks:
            return list(range(own + 1))
        sign = 1 if self.pick == "worst" else -1
        between = list(range(0 if self.first == "free" else 1, own + 1 - self.forced))
        between.sort(key=lambda c: (sign * scores[c].item(), c))
        taken = self.chunks - self.forced - (self.first == "forced")
        if 0 < taken < len(between):
            margin = (scores[between[taken - 1]] - scores[between[taken]]).abs()
            self.smallest_margin = min(self.smallest_margin, (margin / scores[: own].std()).item())
            if self.smallest_margin < self.needed_margin:
                raise CloseCall
        return sorted([0] * (self.first == "forced") + between[:taken] + list(range(own + 1 - self.forced, own + 1)))

    def scores(self, q, k, v, rope, multiplier):
        """[heads, n, n // chunk] of each query and complete chunk."""
        group = q.shape[1] // k.shape[1]
        return torch.stack([q[:, h] @ self.represent(q[:, h], k[:, h // group], v[:, h // group], rope, multiplier).T
                            for h in range(q.shape[1])])

    def __call__(self, q, k, v, rope, multiplier):
        """[heads, n, n] positions from q [n, heads, d], k and v [n, kv_heads, d]."""
        n, heads, _ = q.shape
        group = heads // k.shape[1]
        scores = self.scores(q, k, v, rope, multiplier)
        if self.sharing in ("group", "layer"):
            sharers = group if self.sharing == "group" else heads
            scores = scores.view(-1, sharers, *scores.shape[1:]).sum(1).repeat_interleave(sharers, 0)
        if self.sharing != "first_layer" or self.chosen is None:
            self.chosen = {(h, i): self.choose(scores[h, i], i // self.chunk)
                           for h in range(heads) for i in range(self.begin, n)}
        dense = positions_full(n) if self.distances is None else self.distances
        positions = dense.repeat(heads, 1, 1)
        for h in range(heads):
            for i in range(self.begin, n):
                own, offset = divmod(i, self.chunk)
                row = torch.full((n,), math.nan, dtype=torch.float64)
                chosen = self.chosen[h, i]
                for place, c in enumerate(chosen):
                    keys = torch.arange(c * self.chunk, min((c + 1) * self.chunk, i + 1))
                    packed = (len(chosen) - 1) * self.chunk + offset - (place * self.chunk + keys % self.chunk)
                    row[keys] = packed.double() if self.distances is None else dense[i, keys]
                positions[h, i] = row
        return positions


class DcaTopK(LongHeads):
    """Chunks chosen by their keys at the distances of Dual Chunk Attention; forced are the first and the last two.

    At most `chunks` chunks, or where that is more one in `one_in` (0: never). bounds: by the least and the greatest of
    each channel of a chunk's keys (Quest), else by their mean. Where heads choose together, what is summed is each
    head's softmax of its scores over the chunks before the query's own."""

    def __init__(self, chunk, chunks, one_in, period, cap, bounds=False, sharing="group"):
        super().__init__(chunk, chunks, chunk * chunks, sharing=sharing)
        self.least, self.one_in, self.period, self.cap, self.bounds = chunks, one_in, period, cap, bounds

    def choose(self, scores, own):
        self.chunks = max(self.least, (own + 1) // self.one_in if self.one_in else 0)
        return super().choose(scores, own)

    def scores(self, q, k, v, rope, multiplier):
        n, heads, _ = q.shape
        group, n_chunks = heads // k.shape[1], n // self.chunk
        whole = n_chunks * self.chunk
        scale = rope.attention_factor**2 * multiplier
        own = torch.arange(n) // self.chunk
        result = []
        for h in range(heads):
            keys = k[:, h // group]
            if self.bounds:
                scores = self.products_with_bounds(q[:, h], keys, n_chunks, rope) * scale
            else:
                logits = pair_logits(q[:, h], keys, self.distances.nan_to_num(), rope) * multiplier
                scores = logits[:, :whole].view(n, n_chunks, self.chunk).mean(2)
            if self.sharing != "head":
                earlier = torch.arange(n_chunks) < own[:, None]
                scores = torch.softmax(scores.masked_fill(~earlier, -math.inf), dim=-1).nan_to_num()
            result.append(scores)
        return torch.stack(result)

    def products_with_bounds(self, q, k, n_chunks, rope):
        """The most that a key inside the bounds could make: q, k [n, d] of one head, unrotated."""
        n, d = q.shape
        turned = rotate(k, torch.arange(n).double() % self.period, rope)[:n_chunks * self.chunk].view(n_chunks, -1, d)
        least, greatest = turned.min(1).values, turned.max(1).values
        scores = torch.empty(n, n_chunks, dtype=torch.float64)
        for c in range(n_chunks):
            at = self.distances[:, c * self.chunk] + c * self.chunk % self.period  # where queries stand
            seen = rotate(q, at.nan_to_num(), rope)
            scores[:, c] = torch.maximum(seen * least[c], seen * greatest[c]).sum(1)
        return scores

    def __call__(self, q, k, v, rope, multiplier):
        self.distances = positions_dca(len(q), self.period, self.cap)
        return super().__call__(q, k, v, rope, multiplier)


def rotate(x, positions, rope):
    """R(p) of each row of x [n, d], without the attention factor; dimensions behind the pairs of rope stay."""
    half = len(rope.theta)
    angles = positions[:, None] * rope.theta[None]
    first, second, rest = x[:, :half], x[:, half:2 * half], x[:, 2 * half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin(), rest], 1)


def logit_scale(n, train_len, slope):
    """m squared of each query, m = max(1, 1 + slope ln((i + 1) / train_len)): DCA's optional length scaling."""
    lengths = torch.arange(1, n + 1, dtype=torch.float64)
    return (1 + slope * torch.log(lengths / train_len)).clamp(min=1) ** 2


class Model:
    """A Hugging Face directory in float64: Llama, Mistral, Qwen2, Qwen3, SmolLM3, Phi3, Granite or Gemma3."""

    def __init__(self, directory):
        directory = pathlib.Path(directory)
        config = json.loads((directory / "config.json").read_text())
        weights = {}
        for file in sorted(directory.glob("*.safetensors")):
            weights.update({k: v.double() for k, v in safetensors.torch.load_file(file).items()})
        self.n_layers = config["num_hidden_layers"]
        self.n_query_heads = config["num_attention_heads"]
        self.n_kv_heads = config.get("num_key_value_heads") or self.n_query_heads
        family = config["architectures"][0].removesuffix("ForCausalLM")
        self.is_gemma = family == "Gemma3"
        self.head_dim = config.get("head_dim") or (
            128 if family == "Qwen3" else config["hidden_size"] // self.n_query_heads)
        self.intermediate_size = config["intermediate_size"]
        self.vocab_size = config["vocab_size"]
        self.eps = config["rms_norm_eps"]
        self.train_len = config["max_position_embeddings"]
        types = config.get("layer_types") or []
        if self.is_gemma and not types:
            types = [("sliding" if (layer + 1) % config.get("sliding_window_pattern", 6) else "full") + "_attention"
                     for layer in range(self.n_layers)]
        slides = family in ("Mistral", "Phi3") or "sliding_attention" in types  # then in all layers or some
        self.window = config.get("sliding_window") if slides else None
        # Where the window is of some layers only, those see all keys inside it, whatever the others see.
        self.window_layers = set()
        if "full_attention" in types:
            self.window_layers = {layer for layer, kind in enumerate(types) if kind == "sliding_attention"}
        self.nope_layers = set()  # in these nothing is rotated
        if family == "SmolLM3":
            rotates = config.get("no_rope_layers") or [
                (layer + 1) % config.get("no_rope_layer_interval", 4) for layer in range(self.n_layers)]
            self.nope_layers = {layer for layer in range(self.n_layers) if not rotates[layer]}
        self.scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        self.window_base = None  # of the layers with a window, where they have another and no scaling
        if self.is_gemma:
            self.window_base = self.scaling.get("sliding_attention", {}).get("rope_theta") or config.get(
                "rope_local_base_freq", 10000.0)
            self.scaling = self.scaling.get("full_attention", self.scaling)
            if slides and "full_attention" not in types:
                self.scaling = {"rope_theta": self.window_base}
        self.base = self.scaling.get("rope_theta") or config.get("rope_theta") or (
            {"SmolLM3": 2000000.0, "Gemma3": 1000000.0}.get(family, 10000.0))
        partial = self.scaling.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1
        self.rotary_dim = int(self.head_dim * partial)  # the first dimensions of a head; the others are not rotated
        self.original_len = config.get("original_max_position_embeddings") or self.train_len  # where RoPE has none
        self.is_fused = family == "Phi3"
        # Factors of Granite and Gemma; of the others they are the usual ones.
        self.embedding_multiplier = config["hidden_size"]**0.5 if self.is_gemma else config.get("embedding_multiplier", 1)
        self.residual_multiplier = config.get("residual_multiplier", 1)
        self.attention_multiplier = config.get("attention_multiplier", 1 if family == "Granite" else self.head_dim**-0.5)
        if self.is_gemma:
            self.attention_multiplier = config["query_pre_attn_scalar"]**-0.5
        self.logits_scaling = config.get("logits_scaling", 1)
        self.set_weights(weights)
        self.rope_type = self.scaling.get("rope_type") or self.scaling.get("type") or "default"
        # Dynamic NTK is the one type whose max_position_embeddings is not the end.
        self.longest = math.inf if self.rope_type == "dynamic" else self.train_len

    def set_weights(self, weights):
        """Under the names of the checkpoint. Phi3 has q, k and v in one tensor, gate and up in another."""
        self.weights = dict(weights)
        if not self.is_fused:
            return
        q, kv = self.n_query_heads * self.head_dim, self.n_kv_heads * self.head_dim
        parts = {"self_attn.qkv_proj": [("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)],
                 "mlp.gate_up_proj": [(f"mlp.{name}_proj", self.intermediate_size) for name in ("gate", "up")]}
        for layer in range(self.n_layers):
            prefix = f"model.layers.{layer}."
            for fused, names in parts.items():
                rows = self.weights.pop(f"{prefix}{fused}.weight").split([n for _, n in names])
                self.weights.update({f"{prefix}{name}.weight": part for (name, _), part in zip(names, rows)})

    def positions(self, n):
        """Plain attention as the checkpoint has it."""
        if self.window and not self.window_layers:
            return positions_window(positions_full(n), self.window)
        return positions_full(n)

    def rope(self, length):
        """The checkpoint's own frequencies, for a text of `length` tokens."""
        s, kind = self.scaling, self.rope_type
        original = s.get("original_max_position_embeddings", self.original_len)
        if kind == "linear":
            return rope_pi(self.rotary_dim, self.base, s["factor"])
        if kind == "llama3":
            return rope_llama3(self.rotary_dim, self.base, s["factor"], s["low_freq_factor"], s["high_freq_factor"],
                               original)
        if kind == "yarn":
            return rope_yarn(self.rotary_dim, self.base, s["factor"], original, s.get("beta_fast") or 32,
                             s.get("beta_slow") or 1, s.get("attention_factor"), truncate=s.get("truncate", True))
        if kind == "dynamic":
            return rope_dynamic_ntk(self.rotary_dim, self.base, s["factor"], self.train_len, length)
        if kind == "longrope":
            return rope_longrope(self.rotary_dim, self.base, {**s, "original_max_position_embeddings": original},
                                 self.train_len, length)
        if kind != "default":
            raise ValueError(f"rope_type {kind} has no reference")
        return rope_plain(self.rotary_dim, self.base)

    def linear(self, x, name):
        y = x @ self.weights[name + ".weight"].T
        return y + self.weights[name + ".bias"] if name + ".bias" in self.weights else y

    def norm(self, x, name):
        weight = self.weights[name + ".weight"] + (1 if self.is_gemma else 0)
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) * weight

    def norm_heads(self, q, k, name):
        """Queries and keys [n, heads, d] as they are rotated."""
        if name + "q_norm.weight" not in self.weights:
            return q, k
        return self.norm(q, name + "q_norm"), self.norm(k, name + "k_norm")

    def rope_in(self, layer, rope):
        if layer in self.window_layers and self.window_base:
            return rope_plain(self.rotary_dim, self.window_base)
        return rope_none(self.head_dim) if layer in self.nope_layers else rope

    @torch.no_grad()
    def forward(self, ids, positions, rope=None, scale=None):
        """Logits [n, vocab] of the ids. positions: [n, n], [heads, n, n] or [layers, heads, n, n], NaN where a key
        is invisible, or a function of a layer's (q, k, v, rope, attention multiplier) that gives [heads, n, n]; scale: a factor for each
        query's attention logits, or None."""
        rope = rope or self.rope(len(ids))
        n = len(ids)
        if not callable(positions):
            positions = positions.expand(self.n_layers, self.n_query_heads, n, n)
        scale = torch.ones(n, dtype=torch.float64) if scale is None else scale
        embedding = self.weights["model.embed_tokens.weight"]
        x = embedding[torch.as_tensor(ids, dtype=torch.long)] * self.embedding_multiplier
        for layer in range(self.n_layers):
            name = f"model.layers.{layer}."
            y = self.norm(x, name + "input_layernorm")
            of_layer, scale_of_layer = positions if callable(positions) else positions[layer], scale
            if layer in self.window_layers:
                of_layer = positions_window(positions_full(n), self.window).expand(self.n_query_heads, n, n)
                scale_of_layer = torch.ones_like(scale)
            y = self.attention(y, name + "self_attn.", of_layer, self.rope_in(layer, rope), scale_of_layer)
            if self.is_gemma:
                y = self.norm(y, name + "post_attention_layernorm")
            x = x + y * self.residual_multiplier
            y = self.norm(x, name + ("pre_feedforward_layernorm" if self.is_gemma else "post_attention_layernorm"))
            gate = self.linear(y, name + "mlp.gate_proj")
            gate = torch.nn.functional.gelu(gate, approximate="tanh") if self.is_gemma else torch.nn.functional.silu(gate)
            y = self.linear(gate * self.linear(y, name + "mlp.up_proj"), name + "mlp.down_proj")
            if self.is_gemma:
                y = self.norm(y, name + "post_feedforward_layernorm")
            x = x + y * self.residual_multiplier
        x = self.norm(x, "model.norm")
        return x @ self.weights.get("lm_head.weight", embedding).T / self.logits_scaling

    def attention(self, x, name, positions, rope, scale):
        n, d = x.shape[0], self.head_dim
        q = self.linear(x, name + "q_proj").view(n, self.n_query_heads, d)
        k = self.linear(x, name + "k_proj").view(n, self.n_kv_heads, d)
        v = self.linear(x, name + "v_proj").view(n, self.n_kv_heads, d)
        q, k = self.norm_heads(q, k, name)
        q[..., 2 * len(rope.theta):] /= rope.attention_factor**2  # a factor of what is rotated only
        group = self.n_query_heads // self.n_kv_heads
        if callable(positions):
            positions = positions(q, k, v, rope, self.attention_multiplier)
        out = torch.empty_like(q)
        for h in range(self.n_query_heads):
            for begin in range(0, n, BLOCK):
                rows = slice(begin, min(begin + BLOCK, n))
                logits = pair_logits(q[rows, h], k[:, h // group], positions[h, rows], rope)
                logits = logits * scale[rows, None] * self.attention_multiplier
                weights = torch.softmax(logits, dim=-1)
                out[rows, h] = weights.nan_to_num() @ v[:, h // group]  # a query that sees nothing: 0
        return self.linear(out.reshape(n, -1), name + "o_proj")


def pair_logits(q, k, distance, rope):
    """(R(M[i][j]) q_i) . k_j A^2 for a block of queries; -inf where M is NaN. Pair a is (x[a], x[a + r/2]) of the first r
    dimensions; the others are not rotated."""
    half = len(rope.theta)
    seen = (~distance.isnan()).any(0).nonzero()
    if len(seen) == 0:
        return torch.full_like(distance, -math.inf)
    last = int(seen.max()) + 1  # keys beyond are invisible to the whole block
    visible = distance[:, :last]
    # cos and sin once per distinct distance of the block
    distinct, which = torch.unique(visible.nan_to_num(), return_inverse=True)
    products = torch.zeros_like(visible)
    for a, theta in enumerate(rope.theta.tolist()):
        (q1, q2), (k1, k2) = (q[:, a, None], q[:, a + half, None]), (k[:last, a], k[:last, a + half])
        products.addcmul_(torch.cos(distinct * theta)[which], q1 * k1 + q2 * k2)
        products.addcmul_(torch.sin(distinct * theta)[which], q1 * k2 - q2 * k1)
    products += q[:, 2 * half:] @ k[:last, 2 * half:].T
    logits = torch.full_like(distance, -math.inf)
    logits[:, :last] = torch.where(visible.isnan(), -math.inf, products * rope.attention_factor**2)
    return logits
