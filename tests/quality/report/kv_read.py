"""How much of the KV cache a token reads under longheads: which chunks do the heads choose?

    python3 tests/quality/report/kv_read.py --library build/release/lib/abi/libquire.so

Writes kv_read.json beside this file. The library does not count what it reads, so this is the embedded model again, in
float32 numpy, with the choices of every query, layer and head at hand. Query heads that share a KV head share what they
read: the union of their chunks counts once. The report compares the perplexities of both, which agree if the choices do.
"""
import argparse
import json
import os
import pathlib
import sys

import numpy as np

from longheads import COMBINATION, passkey_lines
from measure import LONGHEADS, ROOT, WINDOW, heldout_texts

OUT = pathlib.Path(__file__).with_name("kv_read.json")
LENGTHS = (2, 4, 8, 16)
TRIALS = 2        # passkey documents of each length
KV_BYTES = 2      # f16, the command's default
SCORED_BYTES = 4  # representations are float32


def read_safetensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    types = {"F32": np.float32, "F16": np.float16}
    return {name: np.frombuffer(data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]],
                                types[t["dtype"]]).reshape(t["shape"]).astype(np.float32) for name, t in header.items()}


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


class Choice:
    """longheads(chunk=, chunks=): packed, or at the distances of Dual Chunk Attention with chunks of `dual` keys."""

    def __init__(self, chunks, dual=None, chunk=32):
        self.l, self.k, self.dual = chunk, chunks, dual

    def chosen(self, scores):
        """[n, chunks]: the chunks of each query; forced are the first, the previous and its own."""
        n, m = scores.shape
        own, c = np.arange(n)[:, None] // self.l, np.arange(m)[None]
        free = (c >= 1) & (c <= own - 2)
        order = np.argsort(np.where(free, -scores, np.inf), axis=1, kind="stable")  # ties: the lower chunk
        best = np.zeros_like(free)
        np.put_along_axis(best, order[:, :self.k - 3], True, axis=1)
        selected = (c == 0) | (c == own) | (c == own - 1) | (best & free)
        return np.where(np.arange(n)[:, None] < self.k * self.l, c <= own, selected)

    def query_positions(self, rows, c, slots_behind):
        """Where queries stand as chunk c sees them: distances count from its keys' own positions (key_positions)."""
        if self.dual is None:
            return slots_behind * self.l + rows % self.l
        cap = min(WINDOW - 1, 2 * self.dual - 1)
        inside, apart = rows % self.dual, rows // self.dual - c * self.l // self.dual
        return np.where(apart == 0, inside, np.where(apart == 1, np.minimum(self.dual + inside, cap), cap))

    def key_positions(self, n):
        return np.arange(n) % (self.dual or self.l)


class Model:
    def __init__(self, folder):
        config = json.loads((folder / "config.json").read_text())
        self.w = read_safetensors(folder / "model.safetensors")
        self.layers, self.heads = config["num_hidden_layers"], config["num_attention_heads"]
        self.kv_heads, self.d, self.eps = config["num_key_value_heads"], config["head_dim"], config["rms_norm_eps"]
        angles = np.arange(8 * WINDOW)[:, None] * config["rope_theta"] ** (-2 * np.arange(self.d // 2) / self.d)
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def rotate(self, x, positions):
        half = self.d // 2
        a, b, cos, sin = x[..., :half], x[..., half:], self.cos[positions], self.sin[positions]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[name + ".weight"]

    def representations(self, q, k, v, l):
        """[complete chunks, d] of one head (Lu et al. 2024, eq. 1 and 2)."""
        m = len(q) // l
        q, k, v = (x[:m * l].reshape(m, l, self.d) for x in (q, k, v))
        q, k = self.rotate(q, np.arange(l)), self.rotate(k, np.arange(l))
        mean = (softmax(q @ k.transpose(0, 2, 1) / np.sqrt(self.d)) @ v).mean(1, keepdims=True)
        return (softmax(mean @ k.transpose(0, 2, 1) / np.sqrt(self.d)) @ k)[:, 0]

    def attention(self, q, k, v, chosen, choice):
        """One head: q, k, v [n, d], unrotated."""
        n, l = len(q), choice.l
        behind = chosen[:, ::-1].cumsum(1)[:, ::-1] - 1  # chosen chunks after this one
        keys = self.rotate(k, choice.key_positions(n))
        logits = np.full((n, choice.k, l), -np.inf, np.float32)
        # A query has at most k chunks, and before `begin` it has all of at most k.
        parts = []
        for c in range(chosen.shape[1]):
            rows = np.flatnonzero(chosen[:, c])
            span = slice(c * l, min((c + 1) * l, n))
            turned = self.rotate(q[rows], choice.query_positions(rows, c, behind[rows, c]))
            part = turned @ keys[span].T / np.sqrt(self.d)
            part[np.arange(span.start, span.stop)[None] > rows[:, None]] = -np.inf
            logits[rows, behind[rows, c], :span.stop - span.start] = part
            parts.append((rows, behind[rows, c], span))
        weights = softmax(logits.reshape(n, -1)).reshape(logits.shape)
        out = np.zeros((n, self.d), np.float32)
        for rows, place, span in parts:
            out[rows] += weights[rows, place, :span.stop - span.start] @ v[span]
        return out

    def forward(self, ids, choice):
        """(logits [n, vocabulary], bytes that each token reads [n], keys that each reads of a KV head [n])"""
        n, l, group = len(ids), choice.l, self.heads // self.kv_heads
        own, m = np.arange(n) // l, -(-n // l)
        size = np.minimum(np.arange(m)[None] * l + l, np.arange(n)[:, None] + 1) - np.arange(m)[None] * l
        size = np.maximum(size, 0)  # keys of each chunk that a query may see
        keys_read, scored = np.zeros(n), np.where(np.arange(n) >= choice.k * l, own, 0) * self.heads * self.layers
        x = self.w["model.embed_tokens.weight"][ids]
        for layer in range(self.layers):
            name = f"model.layers.{layer}."
            y = self.norm(x, name + "input_layernorm")
            q, k, v = ((y @ self.w[f"{name}self_attn.{p}_proj.weight"].T).reshape(n, -1, self.d) for p in "qkv")
            out = np.empty((n, self.heads, self.d), np.float32)
            read = np.zeros((self.kv_heads, n, m), bool)
            for h in range(self.heads):
                head = q[:, h], k[:, h // group], v[:, h // group]
                scores = np.zeros((n, m), np.float32)
                scores[:, :n // l] = head[0] @ self.representations(*head, l).T
                chosen = choice.chosen(scores)
                read[h // group] |= chosen
                out[:, h] = self.attention(*head, chosen, choice)
            keys_read += (read * size).sum((0, 2))
            x = x + out.reshape(n, -1) @ self.w[name + "self_attn.o_proj.weight"].T
            y = self.norm(x, name + "post_attention_layernorm")
            gate, up = (y @ self.w[f"{name}mlp.{p}_proj.weight"].T for p in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.w[name + "mlp.down_proj.weight"].T
        logits = self.norm(x, "model.norm") @ self.w["lm_head.weight"].T
        read_bytes = keys_read * 2 * self.d * KV_BYTES + scored * self.d * SCORED_BYTES
        return logits, read_bytes, keys_read / (self.layers * self.kv_heads)


def losses(logits, ids):
    logits = logits[:-1].astype(np.float64)
    top = logits.max(-1)
    return np.log(np.exp(logits - top[:, None]).sum(-1)) + top - logits[np.arange(len(logits)), ids[1:]]


def measure(model, choice, texts, documents):
    loss, on_text, keys, on_key = ({m: [] for m in LENGTHS} for _ in range(4))
    for ids in texts:  # a token never sees a later one: the longest text holds the shorter ones
        logits, read, n_keys = model.forward(ids, choice)
        nll = losses(logits, ids)
        for m in LENGTHS:
            n = m * WINDOW
            loss[m].append(nll[n - n // 2 - 1:n - 1].mean())
            on_text[m].append(read[n // 2:n].mean())
            keys[m].append(n_keys[n // 2:n].mean())
    for m in LENGTHS:
        for ids, n_answer in documents[m]:
            on_key[m].append(model.forward(ids, choice)[1][-n_answer:].mean())
    return {"perplexity": {m: round(float(np.exp(np.mean(loss[m]))), 3) for m in LENGTHS},
            **{name: {m: round(float(np.mean(values[m]))) for m in LENGTHS}
               for name, values in (("text_bytes", on_text), ("text_keys", keys), ("passkey_bytes", on_key))}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libquire.so, for its tokenizer")
    os.environ["QUIRE_LIBRARY"] = str(pathlib.Path(parser.parse_args().library).resolve())
    sys.path.insert(0, str(ROOT / "bindings" / "python"))
    import quire
    with quire.Runtime() as runtime, runtime.load(str(LONGHEADS[1])) as loaded:
        tokenizer = loaded.tokenizer
        texts = [np.array(tokenizer.encode(t)[:LENGTHS[-1] * WINDOW]) for t in heldout_texts()]
        documents = {}
        for m in LENGTHS:
            documents[m] = []
            for trial in range(TRIALS):
                lines, place = passkey_lines(m, trial)
                asked = len(tokenizer.encode("".join(lines)))
                ids = tokenizer.encode("".join(lines) + " " + lines[place].split()[4][:5])
                documents[m].append((np.array(ids), len(ids) - asked + 1))  # from the question's last token on
    model = Model(LONGHEADS[1])
    key_bytes = model.layers * model.kv_heads * 2 * model.d * KV_BYTES  # of a token, in all layers and heads
    result = {"all_keys": {"text_bytes": {m: round(key_bytes * (3 * m * WINDOW / 4 + 0.5)) for m in LENGTHS},
                           "text_keys": {m: 3 * m * WINDOW // 4 for m in LENGTHS},
                           "passkey_bytes": {m: round(key_bytes * np.mean([len(d) - a / 2 for d, a in documents[m]]))
                                             for m in LENGTHS}}}
    for expression, (chunks, dual) in COMBINATION.items():
        result[expression] = measure(model, Choice(chunks, dual), texts, documents)
        print(expression, result[expression], file=sys.stderr, flush=True)
    OUT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
