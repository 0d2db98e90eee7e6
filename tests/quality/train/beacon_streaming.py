"""Activation Beacon v1 for batches of documents: the frozen embedded model and the tensors of its plug-in.

The slow reference is tests/reference/beacon.py, whose layout (positions, who sees what) is used here too; `check`
compares the two.
"""
import importlib.util
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
EMBEDDED = ROOT / "examples" / "embedded_model"
sys.path[:0] = [str(EMBEDDED), str(ROOT / "tests" / "reference")]

import train  # noqa: E402  first: it restarts Python with the allocator settings
import model  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

spec = importlib.util.spec_from_file_location("beacon_reference", ROOT / "tests" / "reference" / "beacon.py")
naive = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = naive
spec.loader.exec_module(naive)

W, L = 64, model.WINDOW
RATIOS = [0, 2, 4, 8, 16, 32]
RESERVE = 16                       # tokens: the F of beacon_ratio_mix adapt-F
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


class Streaming(torch.nn.Module):
    """A window at a time. A memory has, for each layer, keys [B, KV, m, D] rotated at their index, and values."""

    def __init__(self, base, scheme="step-expansion"):
        super().__init__()
        self.base, self.scheme = base.requires_grad_(False), scheme
        w = base.state_dict()
        self.embed = torch.nn.Parameter(w["model.embed_tokens.weight"][[2]].clone())
        self.own = torch.nn.ParameterList(
            torch.nn.Parameter(w[f"model.layers.{i}.self_attn.{name}.weight"].clone())
            for i in range(model.LAYERS) for name in PROJECTIONS)
        angle = torch.arange(L + W, dtype=torch.float64)[:, None] * model.inv_freq()[None]
        self.cos = torch.cat((angle.cos(), angle.cos()), -1).float()
        self.sin = torch.cat((-angle.sin(), angle.sin()), -1).float()
        self.masks, self.teachers = {}, {}
        self.probe = None          # {}: keep what the beacons' projections of each layer read
        self.missed = 0.0          # of the windows since it was set to 0: see miss()

    def published(self):
        """The trained tensors under their published names."""
        names = [f"model.layers.{i}.self_attn.beacon_{p}.weight" for i in range(model.LAYERS) for p in PROJECTIONS]
        return dict(zip(["model.beacon_embed_tokens.weight", *names], [self.embed, *self.own]))

    def matrices(self):
        """What training changes; the last layer's beacons are never queries of anything, so not its q and o."""
        return [p for j, p in enumerate(self.own) if j not in (4 * model.LAYERS - 4, 4 * model.LAYERS - 1)]

    def rope(self, x, at):
        return (x * self.cos[at] + torch.roll(x, model.D // 2, -1) * self.sin[at]).to(x.dtype)

    def layout(self, m, t, beacons, ratio):
        key = (m, t, beacons, ratio)
        if key not in self.masks:
            at, visible = naive.layout(m, 0, t, beacons, ratio, self.scheme)
            self.masks[key] = at, torch.zeros(visible.shape).masked_fill(~visible, float("-inf")).bfloat16()
        return self.masks[key]

    @torch.no_grad()
    def teach(self, ids):
        """The plain model's attention probabilities [B, HEADS, n, n] of each layer, and its (k, v) [B, KV, n, D]."""
        seen, kv, causal = [], [], self.teachers.setdefault(ids.shape[1], train.Causal(ids.shape[1]))

        def attend(q, k, v):
            scores = causal.rope(q) @ causal.rope(k).mT * model.D ** -0.5 + causal.mask
            seen.append(torch.softmax(scores, -1, dtype=scores.dtype))
            kv.append((k[:, ::2], v[:, ::2]))
            return seen[-1] @ v
        self.base(ids, attend, last=1)
        return seen, kv

    def project(self, i, y, u):
        """Queries, keys and values of layer i: y [B, t, HID] of tokens, u [B, beacons, HID] of beacons."""
        a, own = self.base.model.layers[i].self_attn, self.own[4 * i:4 * i + 3]
        for name, weight, heads in zip(PROJECTIONS, own, (model.HEADS, model.KV, model.KV)):
            rows = getattr(a, name)(y)
            if u.shape[1]:
                rows = torch.cat((rows, F.linear(u, weight)), 1)
            yield rows.unflatten(-1, (heads, model.D)).transpose(1, 2)

    def window(self, ids, memory, ratio, tokens=True, teacher=None):
        """Hidden states [B, t, HID] of a window's tokens and the memory after it (None: an incomplete window).

        tokens: False where only the memory is wanted. teacher: the plain model's attention of each layer, of these
        queries to all tokens so far."""
        t, m = ids.shape[1], memory[0][0].shape[2] if memory else 0
        beacons = W // ratio if t == W and ratio else 0
        at, mask = self.layout(m, t, beacons, ratio)
        x, z = self.base.model.embed_tokens(ids), self.embed.expand(len(ids), beacons, -1)
        kept, after = slice(t, None) if ratio else slice(0, t), []
        for i, layer in enumerate(self.base.model.layers):
            y, u = layer.input_layernorm(x), layer.input_layernorm(z)
            if self.probe is not None:
                self.probe[i] = u
            q, k, v = self.project(i, y, u)
            new = (self.rope(k[:, :, kept], torch.arange(m, m + k[:, :, kept].shape[2])), v[:, :, kept])
            q, k = self.rope(q, at[m:]), self.rope(k, at[m:])
            if memory:
                k, v = torch.cat((memory[i][0], k), 2), torch.cat((memory[i][1], v), 2)
                new = [torch.cat(pair, 2) for pair in zip(memory[i], new)]
            after.append(new)
            if i == model.LAYERS - 1 and not tokens:
                break
            group = model.HEADS // model.KV
            scores = q @ k.repeat_interleave(group, 1).mT * model.D ** -0.5 + mask
            o = torch.softmax(scores, -1, dtype=scores.dtype) @ v.repeat_interleave(group, 1)
            o = o.transpose(1, 2).flatten(2)
            x = x + layer.self_attn.o_proj(o[:, :t])
            if teacher and i and memory:
                self.missed = self.missed + self.miss(scores[:, :, :t, :m + t], teacher[i], m)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            if i + 1 < model.LAYERS and beacons:
                z = z + F.linear(o[:, t:], self.own[4 * i + 3])
                z = z + layer.mlp(layer.post_attention_layernorm(z))
        return x, after if t == W else None

    def miss(self, scores, want, m):
        """How far the tokens' attention to the memory is from the plain model's: a cross-entropy.

        scores [B, HEADS, t, m + t]; want [B, HEADS, t, all tokens so far], whose mass on the tokens that a memory
        entry stands for is the entry's target."""
        t = scores.shape[2]
        far = want[..., :-t].float().unflatten(-1, (m, -1)).sum(-1)
        each = torch.logsumexp(scores.float(), -1, keepdim=True) - scores[..., :m].float()
        return (far * each).sum() / (len(scores) * t * model.HEADS)

    def logits(self, x):
        return self.base.lm_head(self.base.model.norm(x))


def fits(ratios):
    """Whether every window's tokens stay within the trained positions."""
    m = 0
    for ratio in ratios:
        if m + W > L:
            return False
        m += W // ratio if ratio else W
    return True


def save(net, folder):
    from safetensors.torch import save_file
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: p.detach().float().contiguous() for name, p in net.published().items()}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    config = json.loads((EMBEDDED / "model" / "config.json").read_text())
    config.update(beacon_window=W, beacon_stride=[W], beacon_attn=net.scheme, beacon_attend_previous=True,
                  beacon_ratio=RATIOS, beacon_ratio_mix=f"adapt-{RESERVE}", beacon_param=["q", "k", "v", "o"])
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(folder):
    from safetensors.torch import load_file
    config = json.loads((folder / "config.json").read_text())
    net = Streaming(model.load_hf(EMBEDDED / "model"), config["beacon_attn"])
    saved = load_file(str(folder / "model.safetensors"))
    with torch.no_grad():
        for name, p in net.published().items():
            p.copy_(saved[name])
    return net.requires_grad_(False)


@torch.no_grad()
def check(net, folder):
    """The batched forward pass in float32 against the reference in float64."""
    slow = naive.BeaconModel(EMBEDDED / "model", folder)
    ids = torch.randint(3, 1024, (2, 470), generator=torch.Generator().manual_seed(1))
    for ratios in ([4] * 8, [16, 2, 0, 8, 32, 2, 2, 4], [32] * 8):
        memory, rows = None, []
        for i, ratio in enumerate(ratios):
            x, memory = net.window(ids[:, i * W:(i + 1) * W], memory, ratio)
            rows.append(net.logits(x))
        got = torch.cat(rows, 1)
        worst = max((got[b] - slow.forward(ids[b].tolist(), ratios)).abs().max().item() for b in (0, 1))
        print(f"ratios {ratios}: largest difference from the reference {worst:.1e}")
        assert worst < 1e-3
