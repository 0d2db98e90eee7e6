"""The Llama architecture of the embedded model, small enough to read in one go.

Parameter names are those of Hugging Face checkpoints, so that state_dict() is the checkpoint.
"""
import json
import math

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_cache": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "torch_dtype": "float32",
}
HID, HEADS, KV, D, FFN, LAYERS = 128, 4, 2, 32, 352, 4
WINDOW = CONFIG["max_position_embeddings"]


def inv_freq():
    return CONFIG["rope_theta"] ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)


def rotate(x, pos):
    """RoPE, half-split layout: x [..., T, D], pos [T] integer positions."""
    angle = pos.to(torch.float64)[:, None] * inv_freq()[None, :]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., : D // 2], x[..., D // 2:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HID))

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]) * self.weight


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(HID, HEADS * D, bias=False)
        self.k_proj = nn.Linear(HID, KV * D, bias=False)
        self.v_proj = nn.Linear(HID, KV * D, bias=False)
        self.o_proj = nn.Linear(HEADS * D, HID, bias=False)

    def forward(self, x, attend):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, HEADS, D).transpose(1, 2)
        k = self.k_proj(x).view(b, t, KV, D).transpose(1, 2)
        v = self.v_proj(x).view(b, t, KV, D).transpose(1, 2)
        k = k.repeat_interleave(HEADS // KV, 1)      # query head h reads KV head h div 2
        v = v.repeat_interleave(HEADS // KV, 1)
        return self.o_proj(attend(q, k, v).transpose(1, 2).reshape(b, t, HEADS * D))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(HID, FFN, bias=False)
        self.up_proj = nn.Linear(HID, FFN, bias=False)
        self.down_proj = nn.Linear(FFN, HID, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()
        self.self_attn, self.mlp = Attention(), MLP()

    def forward(self, x, attend):
        x = x + self.self_attn(self.input_layernorm(x), attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], HID)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = RMSNorm()


class TinyLlama(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Inner()
        self.lm_head = nn.Linear(HID, CONFIG["vocab_size"], bias=False)

    def forward(self, ids, attend, last=None):
        """Logits of every position, or of the `last` ones only. attend(q, k, v) sees raw q and k."""
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, attend)
        if last is not None:
            x = x[:, -last:]
        return self.lm_head(self.model.norm(x))


def init_recall_circuits(net, seed):
    """Random weights, nudged so that the heads of an induction circuit exist from the start.

    * every embedding shares one constant component (channel 0), read by layer 0 and recency heads;
    * layer 0, head h: with RoPE, the constant makes the key h + 1 positions back the best match, and
      head 0 writes a sketch of the previous token into the residual stream;
    * layer 0, and KV head 1 of the others: the constant prefers recent keys, through one slow pair
      whose wave falls over three quarters of the window;
    * layer 1, KV head 0: queries sketch the current token and keys read "my previous token",
      on most rotary pairs, fast and slow; values copy the token found towards lm_head.
    All of it is trainable; it saves the hundreds of steps in which copying is not yet discovered.
    """
    g = torch.Generator().manual_seed(seed)

    def normal(*shape, std):
        return torch.randn(*shape, generator=g) * std

    with torch.no_grad():
        for name, p in net.named_parameters():
            if p.ndim == 2:
                std = {"o_proj": 0.02, "down_proj": 0.02}.get(name.split(".")[-2], 1 / math.sqrt(p.shape[1]))
                p.copy_(normal(*p.shape, std=std))
        emb = normal(CONFIG["vocab_size"], HID, std=0.7)
        emb[:, 0] = 1.5
        net.model.embed_tokens.weight.copy_(emb)
        head = emb / math.sqrt(HID) * 0.5
        head[:, 0] = 0
        net.lm_head.weight.copy_(head)

        pairs = list(range(3, 16)) + list(range(19, 32))
        sketch = torch.linalg.qr(normal(HID, HID, std=1.0))[0]   # orthonormal rows
        sketch[:, 0] = 0
        read, write = sketch[:D], sketch[D: 2 * D]

        comb, wave = torch.zeros(D), torch.zeros(D)
        comb[:4], comb[4:8], wave[8] = 2.5, 1.2, 3.8              # quick pairs; one of 628 tokens
        falling = rotate(wave[None], torch.tensor([0.75 * WINDOW - math.pi / inv_freq()[8]]))[0]
        a0 = net.model.layers[0].self_attn                        # head h: the token h + 1 back
        for h in range(HEADS):
            a0.q_proj.weight[h * D:(h + 1) * D] *= 0.3
            a0.q_proj.weight[h * D:(h + 1) * D, 0] = rotate(comb[None], torch.tensor([-1 - h]))[0] + wave
        a0.k_proj.weight *= 0.1
        a0.k_proj.weight[:D, 0] = a0.k_proj.weight[D:, 0] = comb + falling
        a0.v_proj.weight[:D] = read
        a0.o_proj.weight[:, :D] = write.T * 2

        for layer in net.model.layers[1:]:                        # recency heads
            a = layer.self_attn
            for p in (a.q_proj, a.k_proj, a.v_proj):
                p.weight[:, 0] = 0
            for h in (2, 3):
                a.q_proj.weight[h * D:(h + 1) * D, 0] = wave
            a.k_proj.weight[D:, 0] = falling
        a1 = net.model.layers[1].self_attn                        # induction heads (0 and 1)
        a1.k_proj.weight[:D] = 0
        a1.k_proj.weight[pairs] = write[pairs] * 2.2
        for h in (0, 1):
            rows = [h * D + c for c in pairs]
            a1.q_proj.weight[h * D:(h + 1) * D] = 0
            a1.q_proj.weight[rows] = read[pairs] * 2.2
        copy = sketch[2 * D: 3 * D]
        a1.v_proj.weight[:D] = copy
        for h in (0, 1):
            a1.o_proj.weight[:, h * D:(h + 1) * D] = copy.T


def save_hf(net, folder, dtype=torch.float32):
    from safetensors.torch import save_file
    folder.mkdir(parents=True, exist_ok=True)
    config = dict(CONFIG, torch_dtype=str(dtype).split(".")[-1])
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {k: v.detach().to(dtype).contiguous() for k, v in net.state_dict().items()}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def load_hf(folder):
    from safetensors.torch import load_file
    net = TinyLlama()
    net.load_state_dict({k: v.float() for k, v in load_file(str(folder / "model.safetensors")).items()})
    return net.eval()
