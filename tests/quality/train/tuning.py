"""What the training scripts share: rotary attention with any positions, the training loop, saving.

Import this module first: the embedded model's train.py restarts Python with allocator settings under which
torch is several times faster on a CPU.
"""
import json
import pathlib
import shutil
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
EMBEDDED = HERE.parents[2] / "examples" / "embedded_model"
MODELS = HERE.parent / "models"
sys.path.insert(0, str(EMBEDDED))

import train  # noqa: E402  first of the embedded model's modules: it restarts Python
import model  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

BASE = EMBEDDED / "model"
TOKENS = train.TOKENS                              # of one step, whatever the window


def inv_freq(factor=1.0, theta=model.CONFIG["rope_theta"]):
    """RoPE's frequencies under Position Interpolation by `factor` (arXiv:2306.15595) and with base `theta`."""
    return theta ** (-torch.arange(0, model.D, 2, dtype=torch.float64) / model.D) / factor


class Rotary:
    """RoPE with a table for given positions [t] or [rows, t] (half-split layout)."""

    def __init__(self, freq, positions):
        angle = positions.double()[..., None] * freq
        angle = angle if angle.ndim == 2 else angle[:, None]            # [rows, heads = 1, t, D / 2]
        self.cos = torch.cat((angle.cos(), angle.cos()), -1).float()
        self.sin = torch.cat((-angle.sin(), angle.sin()), -1).float()

    def __call__(self, x):
        return x * self.cos + torch.roll(x, model.D // 2, -1) * self.sin


class Attention:
    """Causal attention in float32: interpolated positions lie so close that bfloat16 scores cannot tell them apart.

    `visible` [heads, t, t] restricts it; a query that sees no key in a head gets zeros from that head.
    """

    def __init__(self, freq, positions, visible=None):
        self.rotary, self.visible = Rotary(freq, positions), visible
        if visible is not None:
            self.some = visible.any(-1, keepdim=True)
            self.bias = torch.zeros(visible.shape).masked_fill(~visible & self.some, float("-inf"))

    def __call__(self, q, k, v):
        with torch.autocast("cpu", enabled=False):
            q, k, v = self.rotary(q.float()), self.rotary(k.float()), v.float()
            if self.visible is None:
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias) * self.some


class FullTuning:
    """Muon for the layers' matrices and AdamW for the rest, as in the model's own training."""

    def __init__(self, net, rate):
        self.rate, self.params = rate, list(net.parameters())
        self.muon = train.Muon([p for n, p in net.named_parameters() if p.ndim == 2 and "layers" in n])
        self.adam = torch.optim.AdamW([p for n, p in net.named_parameters() if p.ndim == 1 or "layers" not in n],
                                      lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, foreach=True)

    def step(self, scale):
        self.muon.step(0.02 * self.rate * scale)
        for group in self.adam.param_groups:
            group["lr"] = 3e-3 * self.rate * scale
        self.adam.step()


class AdapterTuning:
    """AdamW on what is trainable: the adapter at `rate`, replaced modules at a tenth of it."""

    def __init__(self, net, rate):
        self.params = [p for p in net.parameters() if p.requires_grad]
        lora = [p for n, p in net.named_parameters() if p.requires_grad and "lora_" in n]
        rest = [p for n, p in net.named_parameters() if p.requires_grad and "lora_" not in n]
        self.rates = [rate, rate / 10]
        self.adam = torch.optim.AdamW([{"params": lora}, {"params": rest}], lr=0.0, betas=(0.9, 0.95),
                                      weight_decay=0.0, foreach=True)

    def step(self, scale):
        for group, rate in zip(self.adam.param_groups, self.rates):
            group["lr"] = rate * scale
        self.adam.step()


def fit(name, net, tuning, steps, draw, seed):
    """Trains `steps` steps; draw(rng) gives ids, weights [rows, t + 1] and the attention of the step."""
    started = time.process_time()
    net.train()
    for step in range(steps):
        ids, w, attend = draw(np.random.default_rng([seed, step]))
        ids, weight = torch.from_numpy(ids), torch.from_numpy(w)[:, 1:].flatten()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = net(ids[:, :-1], attend)
        each = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        for p in tuning.params:
            p.grad = None
        ((each * weight).sum() / TOKENS).backward()
        tuning.step(min(1.0, (step + 1) / 20, (steps - step) / (0.6 * steps)))
        if step % 25 == 0 or step == steps - 1:
            text, answer = each.detach()[weight == 1].mean(), each.detach()[weight == 5]
            print(f"{name} step {step} text {text:.3f} answer {f'{answer.mean():.4f}' if len(answer) else 'none'} "
                  f"cpu {time.process_time() - started:.0f} s", flush=True)
    net.eval()
    return net


def save_model(net, folder, rope_scaling, window):
    """A Hugging Face directory in bfloat16, with the embedded model's tokenizer."""
    model.save_hf(net, folder, torch.bfloat16)
    config = json.loads((folder / "config.json").read_text())
    config.update(rope_scaling=rope_scaling, max_position_embeddings=window)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for file in ("generation_config.json", "tokenizer.model"):
        shutil.copyfile(BASE / file, folder / file)
    tokenizer = json.loads((BASE / "tokenizer_config.json").read_text())
    tokenizer["model_max_length"] = window
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=2) + "\n")


def base_model():
    return model.load_hf(BASE).requires_grad_(True)
