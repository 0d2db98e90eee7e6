"""Measures PyTorch on the shapes of quire_bench_device, to stand beside it: a Llama model of random bf16 weights, with
torch.nn.functional.scaled_dot_product_attention (FlashAttention, on a GPU that has it).

    torch_peer.py [--shape NAME] [--layers N] [--depth N]... [--prefill N]... [--device cuda] [--json FILE]

Needs torch. A row has the names of quire_bench_device's. A token over keys and values of a depth is one CUDA graph, so
that Python costs nothing in it: the median of 48. A prompt is read at once, with logits of its last token only: the best
of 3, or one of 65,536 tokens and more. The time of attention alone is beside it, once a layer. Nothing is rotated: made of
PyTorch's operations that would take longer than it has to.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

import torch
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
from make_model import CONFIG, SHAPES

N_TOKENS = 48


class Llama:
    """One layer's weights serve all layers: they are too large for a cache to keep."""

    def __init__(self, config, device):
        self.n_layers, self.width = config["num_hidden_layers"], config["head_dim"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        hidden, ffn = config["hidden_size"], config["intermediate_size"]

        def weight(n, k):
            return torch.randn(n, k, device=device, dtype=torch.bfloat16) * 0.03

        self.norm = torch.ones(hidden, device=device, dtype=torch.bfloat16)
        self.qkv = weight((self.heads + 2 * self.kv_heads) * self.width, hidden)
        self.o = weight(hidden, self.heads * self.width)
        self.gate_up, self.down = weight(2 * ffn, hidden), weight(hidden, ffn)
        self.head = weight(config["vocab_size"], hidden)

    def split(self, qkv):
        """[n, all heads] as queries, keys and values [1, heads, n, width]."""
        heads = qkv.view(qkv.shape[0], -1, self.width).transpose(0, 1).unsqueeze(0)
        return heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)

    def attend(self, q, k, v, causal):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=self.heads != self.kv_heads)

    def layer(self, x, cache):
        """cache: keys and values in front of x, whose last place is for those of x; or None."""
        q, k, v = self.split(functional.linear(self.rms_norm(x), self.qkv))
        if cache is not None:
            for old, new in zip(cache, (k, v)):
                old[:, :, -1:].copy_(new)
            k, v = cache
        out = self.attend(q, k, v, cache is None)
        x = x + functional.linear(out.squeeze(0).transpose(0, 1).reshape(x.shape[0], -1), self.o)
        gate, up = functional.linear(self.rms_norm(x), self.gate_up).chunk(2, dim=-1)
        return x + functional.linear(functional.silu(gate) * up, self.down)

    def rms_norm(self, x):
        return functional.rms_norm(x, (x.shape[-1],), self.norm, 1e-5)

    def logits(self, x, caches):
        for i in range(self.n_layers):
            x = self.layer(x, caches[i] if caches else None)
        return functional.linear(self.rms_norm(x[-1:]), self.head)


def seconds(device, work, runs):
    times = []
    for _ in range(runs):
        finish(device)
        start = time.perf_counter()
        work()
        finish(device)
        times.append(time.perf_counter() - start)
    return times


def finish(device):
    if device == "cuda":
        torch.cuda.synchronize()


def decode(model, hidden, depth, device):
    size = (1, model.kv_heads, depth + 1, model.width)
    caches = [[torch.randn(size, device=device, dtype=torch.bfloat16) for _ in range(2)] for _ in range(model.n_layers)]
    x = torch.randn(1, hidden, device=device, dtype=torch.bfloat16)
    work = lambda: model.logits(x, caches)
    for _ in range(2):
        work()
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        work = graph.replay
    return {"what": "decode", "n_tokens": depth, "ms": 1e3 * statistics.median(seconds(device, work, N_TOKENS))}


def prefill(model, hidden, n, device):
    x = torch.randn(n, hidden, device=device, dtype=torch.bfloat16)
    q, k, v = model.split(functional.linear(x, model.qkv))
    model.logits(x[:64], None)
    runs = 3 if n < 65536 else 1
    whole = min(seconds(device, lambda: model.logits(x, None), runs))
    attention = min(seconds(device, lambda: model.attend(q, k, v, True), runs))
    flops = 2 * model.heads * model.width * n * n  # of the pairs that a causal mask leaves
    return {"what": "prefill", "n_tokens": n, "ms": 1e3 * whole, "attention_ms_per_layer": 1e3 * attention,
            "attention_flops_per_s": flops / attention}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama-2-7b")
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--depth", type=int, action="append", default=[])
    parser.add_argument("--prefill", type=int, action="append", default=[])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    config = CONFIG | SHAPES[options.shape]
    config["num_hidden_layers"] = options.layers or config["num_hidden_layers"]
    report = {"shape": options.shape, "layers": config["num_hidden_layers"], "torch": torch.__version__, "rows": []}
    with torch.inference_mode():
        model = Llama(config, options.device)
        for measure, sizes in ((decode, options.depth), (prefill, options.prefill)):
            for size in sizes:
                report["rows"].append(measure(model, config["hidden_size"], size, options.device))
                print(json.dumps(report["rows"][-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
