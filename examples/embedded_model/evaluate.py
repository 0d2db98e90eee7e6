#!/usr/bin/env python3
"""Evaluate the embedded model with a small, independent PyTorch implementation of the methods.

    python evaluate.py --self-test      attention code against relative-position matrices
    python evaluate.py --passkey        passkey accuracy at 1x .. 16x the window
    python evaluate.py --perplexity     perplexity of heldout.txt at 1x .. 32x
    python evaluate.py --facts          questions about facts inside the window
    python evaluate.py --check-hf       transformers' LlamaForCausalLM gives the same logits; bf16 cost

A method is a list of parts. For a block of queries, a part is a range of keys with the position
that the queries and the keys take in it; one softmax runs over all parts. Everything is float32.
"""
import argparse
import math
import pathlib
import time

import numpy as np
import sentencepiece
import torch

import model
import tasks

HERE = pathlib.Path(__file__).resolve().parent
L = model.WINDOW


class Method:
    """Attention by parts; block = how many queries are done at once."""
    block = 256

    def parts(self, i, n):
        raise NotImplementedError

    def __call__(self, q, k, v):
        n, out = q.shape[2], []
        for begin in range(0, n, self.block):
            i = torch.arange(begin, min(begin + self.block, n))
            scores, values = [], []
            for j, qpos, kpos, visible in self.parts(i, n):
                s = model.rotate(q[:, :, i], qpos) @ model.rotate(k[:, :, j], kpos).mT
                scores.append(s.masked_fill(~visible, float("-inf")))
                values.append(v[:, :, j])
            p = torch.softmax(torch.cat(scores, -1) * model.D ** -0.5, -1)
            out.append(p @ torch.cat(values, 2))
        return torch.cat(out, 2)

    def matrix(self, n):
        """M[i][j]: the relative position query i gives key j, -1 where it is not visible."""
        m = torch.full((n, n), -1)
        for begin in range(0, n, self.block):
            i = torch.arange(begin, min(begin + self.block, n))
            for j, qpos, kpos, visible in self.parts(i, n):
                sub = m[i[:, None], j[None]]
                assert (sub[visible.expand_as(sub)] == -1).all(), "a key is counted twice"
                m[i[:, None], j[None]] = torch.where(visible, qpos[:, None] - kpos[None], sub)
        return m


class Full(Method):
    def parts(self, i, n):
        j = torch.arange(0, i[-1] + 1)
        yield j, i, j, j[None] <= i[:, None]


class DCA(Method):
    """Dual Chunk Attention, preset `paper`: chunks of s = floor(3L/4), positions capped at C = L-1."""

    def __init__(self, s=3 * L // 4, cap=L - 1):
        self.s, self.cap, self.block = s, cap, s

    def parts(self, i, n):
        s, chunk = self.s, int(i[0]) // self.s
        r = i - chunk * s
        j = torch.arange(chunk * s, i[-1] + 1)                       # own chunk
        yield j, r, j % s, j[None] <= i[:, None]
        if chunk >= 1:                                               # the chunk before
            j = torch.arange((chunk - 1) * s, chunk * s)
            yield j, (s + r).clamp(max=self.cap), j % s, torch.ones(len(i), len(j), dtype=torch.bool)
        if chunk >= 2:                                               # all earlier chunks
            j = torch.arange(0, (chunk - 1) * s)
            yield j, torch.full_like(i, self.cap), j % s, torch.ones(len(i), len(j), dtype=torch.bool)


class StreamingLLM(Method):
    """The first S tokens and the R most recent ones; positions are places inside that cache."""

    def __init__(self, sinks=4, recent=L - 5):
        self.sinks, self.recent = sinks, recent

    def parts(self, i, n):
        j = torch.arange(max(0, int(i[0]) - self.recent), i[-1] + 1)
        gap = i[:, None] - j[None]
        yield j, i, j, (gap >= 0) & (gap <= self.recent)
        j = torch.arange(0, min(self.sinks, n))
        yield j, i.clamp(max=self.sinks + self.recent), j, i[:, None] - j[None] > self.recent


def representations(q, k, v, chunk):
    """rep_c [b, heads, chunks, D] of the complete chunks (LongHeads, equations 1 and 2)."""
    at, scale = torch.arange(chunk), model.D ** -0.5
    q, k, v = (x[:, :, : x.shape[2] // chunk * chunk].unflatten(2, (-1, chunk)) for x in (q, k, v))
    q, k = model.rotate(q, at), model.rotate(k, at)
    mean = (torch.softmax(q @ k.mT * scale, -1) @ v).mean(-2, keepdim=True)
    return (torch.softmax(mean @ k.mT * scale, -1) @ k).squeeze(-2)


class LongHeads(Method):
    """`keep` chunks a query and head: first, previous, own, and those that score best; then side by side."""

    def __init__(self, chunk=32, keep=L // 32):
        self.chunk, self.keep = chunk, keep

    def select(self, scores, own):
        """Chunks of queries in chunk `own`, in order; scores [..., own - 1] are those of chunks 0 to own - 2."""
        if own < self.keep:
            return torch.arange(own + 1).expand(*scores.shape[:-1], -1)
        best = scores[..., 1:].topk(self.keep - 3).indices.sort().values + 1
        forced = [torch.full_like(best[..., :1], c) for c in (0, own - 1, own)]
        return torch.cat((forced[0], best, *forced[1:]), -1)

    def __call__(self, q, k, v):
        n, size, reps, out = q.shape[2], self.chunk, representations(q, k, v, self.chunk), []
        pad = (0, 0, 0, -n % size)
        k, v = (torch.nn.functional.pad(x, pad).unflatten(2, (-1, size)) for x in (k, v))
        k, at = model.rotate(k, torch.arange(size)), torch.arange(size)
        for own in range(k.shape[2]):
            raw = q[:, :, own * size: (own + 1) * size]                        # [b, h, x, D]
            x = at[: raw.shape[2]]
            picked = self.select(raw @ reps[:, :, : max(0, own - 1)].mT, own)  # [b, h, x, slots]
            slots = picked.shape[-1]
            where = picked.flatten(2)[..., None, None].expand(-1, -1, -1, size, model.D)
            keys, values = (y.gather(2, where).unflatten(2, picked.shape[2:]) for y in (k, v))
            turned = torch.stack([model.rotate(raw, (slots - 1 - u) * size + x) for u in range(slots)], 3)
            scores = (turned[..., None, :] @ keys.mT).squeeze(-2)              # [b, h, x, slots, t]
            scores[..., -1, :].masked_fill_(at[None] > x[:, None], float("-inf"))
            p = torch.softmax(scores.flatten(3) * model.D ** -0.5, -1)
            out.append((p[..., None, :] @ values.flatten(3, 4)).squeeze(-2))
        return torch.cat(out, 2)


METHODS = {"full": Full(), "dca": DCA(), "streaming_llm": StreamingLLM(), "longheads": LongHeads()}


def self_test():
    golden = [[0], [1, 0], [2, 1, 0], [3, 2, 1, 0], [4, 3, 2, 1, 0], [5, 4, 3, 2, 1, 0],
              [6, 5, 4, 3, 2, 1, 0], [7, 6, 5, 4, 3, 2, 1, 0], [8, 7, 6, 5, 4, 3, 2, 1, 0],
              [9, 8, 7, 6, 5, 4, 3, 2, 1, 0], [9, 8, 7, 6, 5, 4, 4, 3, 2, 1, 0],
              [9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0]]                  # the paper's figure, s=6, C=9
    m = DCA(6, 9).matrix(12)
    assert all(m[i, : i + 1].tolist() == row for i, row in enumerate(golden))
    m = StreamingLLM(2, 3).matrix(9)
    assert m[8].tolist() == [5, 4, -1, -1, -1, 3, 2, 1, 0] and m[6].tolist()[:7] == [5, 4, -1, 3, 2, 1, 0]
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 700, model.D, generator=g) for _ in range(3))
    half, theta = model.D // 2, model.inv_freq()
    test_longheads(q[..., :300, :], k[..., :300, :], v[..., :300, :])
    for name, method in METHODS.items():
        if name == "longheads":
            continue
        m = method.matrix(700)
        scores = torch.zeros(2, 3, 700, 700, dtype=torch.float64)
        for a in range(half):                                        # straight from the definition
            qa, qb, ka, kb = (x.double() for x in (q[..., a], q[..., a + half], k[..., a], k[..., a + half]))
            same = qa[..., None] * ka[..., None, :] + qb[..., None] * kb[..., None, :]
            cross = qb[..., None] * ka[..., None, :] - qa[..., None] * kb[..., None, :]
            angle = m.double() * theta[a]
            scores += same * angle.cos() - cross * angle.sin()
        # R(M) applied to q turns (a, b) to (a cos - b sin, b cos + a sin), hence the signs above.
        scores = scores.masked_fill(m < 0, float("-inf")) * model.D ** -0.5
        want = torch.softmax(scores, -1) @ v.double()
        err = (method(q, k, v) - want).abs().max().item()
        print(f"{name}: largest difference from the matrix form {err:.1e}")
        assert err < 1e-4 and m.max() <= (699 if name == "full" else L - 1)


def test_longheads(q, k, v):
    """Query by query, straight from the definition."""
    scores = torch.tensor([9.0, 1, 5, 3, 8, 2])
    assert LongHeads(4, 4).select(scores, 7).tolist() == [0, 4, 6, 7]
    assert LongHeads(4, 5).select(scores, 7).tolist() == [0, 2, 4, 6, 7]
    size, keep, n = 16, 5, q.shape[2]
    method, reps = LongHeads(size, keep), representations(q, k, v, size)
    got, worst = method(q, k, v), 0.0
    for i in range(0, n, 7):
        own, x = divmod(i, size)
        for h in range(q.shape[1]):
            order = sorted(range(1, own - 1), key=lambda c: -(q[0, h, i] @ reps[0, h, c]).item())
            chunks = sorted({0, max(0, own - 1), own, *order[: keep - 3]}) if own >= keep else range(own + 1)
            j = torch.cat([torch.arange(c * size, min((c + 1) * size, i + 1)) for c in chunks])
            pos = torch.cat([torch.arange(size) + u * size for u in range(len(chunks))])[: len(j)]
            s = (model.rotate(q[0, h, i][None], pos[-1:]) @ model.rotate(k[0, h, j], pos).mT)[0] * model.D ** -0.5
            worst = max(worst, (got[0, h, i] - torch.softmax(s, -1) @ v[0, h, j]).abs().max().item())
    print(f"longheads: largest difference from the definition {worst:.1e}")
    assert worst < 1e-4


@torch.no_grad()
def passkey(net, data, lengths, trials, seed):
    """A trial counts if every answer token is the most likely one after the correct ones."""
    print(f"passkey accuracy in %, {trials} trials a cell\n\n| tokens | " + " | ".join(METHODS) + " |\n|---|" + "---|" * len(METHODS))
    for n in lengths:
        rng = np.random.default_rng([seed, n])
        docs = [data.passkey(n, rng) for _ in range(trials)]
        ids = torch.tensor([p + a for p, a in docs])
        width, row = len(docs[0][1]), []
        for method in METHODS.values():
            right, batch = 0, max(1, 4096 // n)
            for b in range(0, trials, batch):
                guess = net(ids[b: b + batch, :-1], method, last=width).argmax(-1)
                right += (guess == ids[b: b + batch, -width:]).all(1).sum().item()
            row.append(f"{100 * right / trials:.0f}")
        print(f"| {n} ({n // L}x) | " + " | ".join(row) + " |", flush=True)


def losses(net, ids, method):
    logits = net(ids[None, :-1], method)[0]
    return torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none")


def sliding(net, ids, bos):
    """Loss of every token from 128 on: windows of 256, stride 128 (with `bos`: BOS + 255 tokens)."""
    out = []
    for begin in range(0, len(ids) - L + 1, L // 2):
        window = ids[begin: begin + L]
        if bos and begin:
            window = torch.cat((ids[:1], window[1:]))
        out.append(losses(net, window, METHODS["full"])[L // 2 - 1:])
    return torch.cat(out)


@torch.no_grad()
def perplexity(net, sp, lengths, most):
    text = sp.encode((HERE / "heldout.txt").read_text())
    columns = ["sliding", "sliding, BOS", *METHODS, *(f"{m}/sliding, BOS" for m in METHODS)]
    print("perplexity on heldout.txt, targets 128..n, mean over segments of n tokens (BOS + n-1)\n\n"
          "| tokens | segments | " + " | ".join(columns) + " |\n|---|---|" + "---|" * len(columns))
    for n in lengths:
        count = max(1, min(len(text) // (n - 1), most // n))
        starts = np.linspace(0, len(text) - n, count).astype(int)
        total = {}
        for at in starts:
            ids = torch.tensor([1] + text[at: at + n - 1])
            got = {"sliding": sliding(net, ids, False), "sliding, BOS": sliding(net, ids, True)}
            for name, method in METHODS.items():
                if name != "full" or n <= 4096:
                    got[name] = losses(net, ids, method)[L // 2 - 1:]
            for name, x in got.items():
                total.setdefault(name, []).append(x.mean().item())
        p = {k: math.exp(sum(x) / len(x)) for k, x in total.items()}
        cells = [f"{p[c]:.2f}" if c in p else f"{p[c.split('/')[0]] / p['sliding, BOS']:.3f}" if c.split("/")[0] in p
                 else "not run" for c in columns]
        print(f"| {n} ({n // L}x) | {count} | " + " | ".join(cells) + " |", flush=True)


@torch.no_grad()
def facts(net, sp, trials, seed):
    """Facts among held-out prose, by kind of question, 256 tokens."""
    data = tasks.Builder(sp, (HERE / "heldout.txt").read_text().split("\n"))
    rng, right, seen = np.random.default_rng(seed), {}, {}
    while min(list(seen.values()) + [0 if len(seen) < 5 else trials]) < trials:
        ids, w = data.doc_facts(L, rng)
        at = [i for i, x in enumerate(w) if x == 5.0]
        runs = [at[0]] + [b for a, b in zip(at, at[1:]) if b != a + 1]
        first = runs[0]
        length = next(i for i in range(first, len(w)) if w[i] != 5.0) - first
        asked = sp.decode(ids[:first]).rsplit("\n", 1)[-1]
        kind = ("pass key" if "pass key" in asked else "lives in" if "live?" in asked else
                "'s" if "'s" in asked else "X of Y" if " of " in asked else "the X")
        if seen.get(kind, 0) >= trials:
            continue
        guess = net(torch.tensor([ids[: first + length - 1]]), METHODS["full"], last=length).argmax(-1)[0]
        seen[kind] = seen.get(kind, 0) + 1
        right[kind] = right.get(kind, 0) + int(guess.tolist() == ids[first: first + length])
    print("facts inside the window, % right: " + ", ".join(f"{k} {100 * right[k] / seen[k]:.0f}" for k in sorted(seen)))


@torch.no_grad()
def check_hf(net, sp, folder):
    import transformers
    hf = transformers.LlamaForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    ids = torch.tensor([[1] + sp.encode((HERE / "heldout.txt").read_text()[:4000])[:255]])
    diff = (hf(ids).logits - net(ids, METHODS["full"])).abs().max().item()
    print(f"transformers {transformers.__version__}: largest logit difference {diff:.1e}, "
          f"{sum(p.numel() for p in hf.parameters())} parameters")
    low = model.TinyLlama()
    low.load_state_dict({k: x.bfloat16().float() for k, x in net.state_dict().items()})
    text = sp.encode((HERE / "heldout.txt").read_text())
    both = [[losses(m, torch.tensor([1] + text[a: a + 255]), METHODS["full"]).mean().item()
             for a in range(0, 50 * 255, 255)] for m in (net, low)]
    print("perplexity of 50 windows, f32 weights %.4f, bf16-rounded %.4f" %
          tuple(math.exp(sum(b) / len(b)) for b in both))


def main():
    args = argparse.ArgumentParser()
    for flag in ("self-test", "passkey", "perplexity", "facts", "check-hf"):
        args.add_argument("--" + flag, action="store_true")
    args.add_argument("--trials", type=int, default=100)
    args.add_argument("--seed", type=int, default=7)
    args.add_argument("--max", type=int, default=None, help="longest text in tokens")
    args.add_argument("--tokens", type=int, default=65536, help="tokens of held-out text a length")
    args.add_argument("--model", type=pathlib.Path, default=HERE / "model")
    args.add_argument("--threads", type=int, default=1)
    args = args.parse_args()
    torch.set_num_threads(args.threads)
    if args.self_test:
        self_test()
    sp = sentencepiece.SentencePieceProcessor(model_file=str(HERE / "model" / "tokenizer.model"))
    net = model.load_hf(args.model)
    lengths, start = [L << e for e in range(6)], time.time()
    if args.passkey:
        data = tasks.Builder(sp, (HERE / "heldout.txt").read_text().split("\n"))
        passkey(net, data, [n for n in lengths if n <= (args.max or 16 * L)], args.trials, args.seed)
    if args.facts:
        facts(net, sp, args.trials, args.seed)
    if args.perplexity:
        perplexity(net, sp, [n for n in lengths if n <= (args.max or 32 * L)], args.tokens)
    if args.check_hf:
        check_hf(net, sp, args.model)
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
