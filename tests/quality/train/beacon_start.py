"""Where beacon training starts: beacons that already say which tokens stand before them.

Copies of the ordinary projections carry nothing: a beacon's key and value stand for tokens that it has not gathered,
no query attends to them, and no gradient says what they should hold. So, as the base model's own weights start near an
induction circuit, each head of layer 0 reads one of the four tokens before the beacon, its output projection keeps them
apart, and the keys and values of the layers above are least squares of those of the token right before the beacon.
"""
import math

from beacon_streaming import W, train  # noqa: F401  first: it restarts Python
import model

import numpy as np
import torch

GAIN = 0.7      # size of what layer 0 writes, relative to the beacon's embedding
FIT_MIX = {"text": 1, "copy_random": 1, "keys": 1}


def set_query(weight, h, query, u):
    """Changes head h's rows of the query projection so that u gives `query` [D], by the least change."""
    rows = slice(h * model.D, (h + 1) * model.D)
    weight[rows] += torch.outer(query - weight[rows] @ u, u) / u.dot(u)


def looking_back(keys, distance, query):
    """A query [D] (unrotated, from `query` on) of the place behind keys [B, W, D] that attends `distance` back."""
    turned, best = model.rotate(keys, torch.arange(W)), torch.nn.Parameter(query.clone())
    adam = torch.optim.Adam([best], lr=0.5)
    with torch.enable_grad():
        for _ in range(200):
            logits = model.rotate(best[None], torch.tensor([W])) @ turned.mT * model.D ** -0.5
            each = torch.logsumexp(logits, -1) - logits[..., W - distance]
            adam.zero_grad()
            (each.mean() + 1e-4 * best.square().sum()).backward()
            adam.step()
    return best.detach()


@torch.no_grad()
def gather(net, data):
    """Layer 0: heads 0 and 1 read one and two back as in the base model; 2 and 3 learn three and four back."""
    layer, (wq, wo) = net.base.model.layers[0], (net.own[0], net.own[3])
    y = layer.input_layernorm(net.base.model.embed_tokens.weight[3:])
    mean_key = layer.self_attn.k_proj(y).mean(0).unflatten(0, (model.KV, model.D))
    u = layer.input_layernorm(net.embed)[0]
    size = layer.self_attn.v_proj(y).square().mean().sqrt() * math.sqrt(model.HID)
    turn = torch.linalg.qr(torch.randn(model.HID, model.HID, generator=torch.Generator().manual_seed(0)))[0]
    wo.copy_(turn * (GAIN * net.embed.norm() / size))
    ids = torch.from_numpy(data.batch(W, W * 8, {"text": 1}, np.random.default_rng(0))[0])
    keys = layer.self_attn.k_proj(layer.input_layernorm(net.base.model.embed_tokens(ids)))
    keys = keys.unflatten(-1, (model.KV, model.D)).transpose(1, 2)
    for h in (2, 3):
        kv = h * model.KV // model.HEADS
        guess = model.rotate(mean_key[kv][None], torch.tensor([-1 - h]))[0]
        set_query(wq, h, guess / guess.norm() * 22, u)
    for h in (2, 3):
        query = (wq @ u)[h * model.D:(h + 1) * model.D]
        set_query(wq, h, looking_back(keys[:, h * model.KV // model.HEADS], 1 + h, query), u)


@torch.no_grad()
def fit(net, data, seed):
    """Layers 1 to 3: at ratio 1 a beacon's keys and values are the nearest to those of the token it stands for."""
    rng = np.random.default_rng([seed, 10**6])
    for i in range(1, model.LAYERS):
        rows, wants = [], ([], [])
        for _ in range(6):
            ids = torch.from_numpy(data.batch(W, W * 128, FIT_MIX, rng)[0])
            net.probe = {}
            net.window(ids, None, 1, tokens=False)
            rows.append(net.probe[i].flatten(0, 1))
            for out, want in zip(wants, net.teach(ids)[1][i]):
                out.append(want.transpose(1, 2).flatten(0, 1).flatten(1))
        x = torch.cat(rows).double()
        gram = x.T @ x + 1e-3 * len(x) * torch.eye(x.shape[1])
        for place, want in zip((1, 2), wants):
            net.own[4 * i + place].copy_(torch.linalg.solve(gram, x.T @ torch.cat(want).double()).T)
    net.probe = None
