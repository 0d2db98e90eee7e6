"""Tests of beacon.py on a small model with random weights: python3 -m pytest beacon_test.py"""

import json

import pytest
import safetensors.torch
import torch

import beacon
import reference

HID, HEADS, KV, D, FFN, LAYERS, VOCAB, W = 24, 4, 2, 8, 40, 2, 50, 8
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV, "head_dim": D, "hidden_size": HID, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64, "rope_theta": 10000.0, "beacon_window": W, "beacon_stride": [W], "eos_token_id": 2,
}


@pytest.fixture(name="directory", scope="module")
def make_directory(tmp_path_factory):
    shapes = {"model.embed_tokens": (VOCAB, HID), "lm_head": (VOCAB, HID), "model.norm": (HID,)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        shapes.update({layer + "input_layernorm": (HID,), layer + "post_attention_layernorm": (HID,),
                       layer + "mlp.gate_proj": (FFN, HID), layer + "mlp.up_proj": (FFN, HID),
                       layer + "mlp.down_proj": (HID, FFN)})
        for name in ("self_attn.", "self_attn.beacon_"):
            shapes.update({layer + name + "q_proj": (HEADS * D, HID), layer + name + "k_proj": (KV * D, HID),
                           layer + name + "v_proj": (KV * D, HID), layer + name + "o_proj": (HID, HEADS * D)})
    shapes["model.beacon_embed_tokens"] = (1, HID)
    g = torch.Generator().manual_seed(5)
    folder = tmp_path_factory.mktemp("model")
    tensors = {name + ".weight": torch.randn(*shape, generator=g) for name, shape in shapes.items()}
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def text(n):
    return torch.randint(3, VOCAB, (n,), generator=torch.Generator().manual_seed(n)).tolist()


def seen(visible):
    return [row.nonzero().flatten().tolist() for row in visible]


def test_golden_step_expansion():
    positions, visible = beacon.layout(4, 0, 4, 2, 2, "step-expansion")
    assert positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 6, 8]
    assert seen(visible) == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6, 7],
                             [0, 1, 2, 3, 4, 5, 8], [0, 1, 2, 3, 4, 5, 6, 7, 9]]


def test_golden_of_1024():
    positions, visible = beacon.layout(384, 0, 1024, 128, 8, "step-expansion")
    assert positions[384] == 384 and positions[1407] == 1407
    assert positions[1408:].tolist() == list(range(392, 1409, 8))
    assert visible.sum(1)[[1023, 1024, 1151]].tolist() == [1408, 393, 1409]


def test_golden_other_schemes():
    positions, visible = beacon.layout(4, 0, 4, 2, 2, "segmentation")
    assert positions[8:].tolist() == [6, 6] and seen(visible)[4:] == [[0, 1, 2, 3, 4, 5, 8], [0, 1, 2, 3, 6, 7, 9]]
    positions, visible = beacon.layout(4, 0, 4, 2, 2, "full-coverage")
    assert positions[8:].tolist() == [8, 8]
    assert seen(visible)[4:] == [[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 3, 4, 5, 6, 7, 9]]


def test_layout_of_a_last_token():
    positions, visible = beacon.layout(4, 3, 1, 2, 2, "step-expansion")
    assert positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 6, 8]
    assert seen(visible) == [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 8], [0, 1, 2, 3, 4, 5, 6, 7, 9]]


def test_capacities_and_adapt():
    ratios = [0, 2, 4, 8, 16, 32, 64, 128]
    want = [4096, 7168, 13312, 25600, 50176, 99328, 197632, 394240]
    assert [beacon.capacity(r, 1024, 4096) for r in ratios] == want
    assert [beacon.adapt(ratios, n, 1024, 4096) for n in (4096, 4097, 101024, 400000)] == [0, 2, 64, 128]


def test_short_text_is_plain_attention(directory):
    model, plain = beacon.BeaconModel(directory), reference.Model(directory)
    for n in (1, W - 1, W):
        want = plain.forward(text(n), plain.positions(n))
        assert (model.forward(text(n), 2) - want).abs().max() < 1e-12


def test_ratio_0_is_plain_attention(directory):
    model, plain = beacon.BeaconModel(directory), reference.Model(directory)
    want = plain.forward(text(29), plain.positions(29))
    assert (model.forward(text(29), 0) - want).abs().max() < 1e-12
    with pytest.raises(ValueError, match="past the trained 64"):
        model.forward(text(65), 0)


def test_beacons_change_what_follows(directory):
    """The first window is plain; the next ones see its beacons only, and the tail is raw."""
    model, n = beacon.BeaconModel(directory), 2 * W + 3
    ids = text(n)
    raw, condensed = model.forward(ids, 0), model.forward(ids, 4)
    assert (raw - condensed)[:W].abs().max() < 1e-12 and (raw - condensed)[W:].abs().amax(1).min() > 1e-3
    cache = model.empty()
    for begin in range(0, n, W):
        model.step(cache, ids[begin:begin + W], 4, beacon.SCHEMES[0])
    assert (cache.n_memory, cache.n_raw, cache.n_windows) == (2 * W // 4, 3, 2)
    assert [len(k) for k, _ in cache.memory] == [4] * LAYERS and [len(k) for k, _ in cache.raw] == [3] * LAYERS
    assert (model.forward(ids[:-1], 4) - condensed[:-1]).abs().max() < 1e-12


@pytest.mark.parametrize("scheme", beacon.SCHEMES)
@pytest.mark.parametrize("ratios", [2, [4, 0, 8, 2]])
@pytest.mark.parametrize("stride", [W, W // 2])
def test_token_by_token(directory, scheme, ratios, stride):
    if stride < W and ratios != 2:
        ratios = [4, 0, 2]
    model = beacon.BeaconModel(directory, stride=stride)
    ids = text(4 * W + 5)
    once, single = (model.forward(ids, ratios, scheme, one_by_one=o) for o in (False, True))
    assert (once - single).abs().max() < 1e-12


def test_missing_beacon_tensors_are_copies(directory, tmp_path):
    weights = safetensors.torch.load_file(directory / "model.safetensors")
    safetensors.torch.save_file({k: v for k, v in weights.items() if "beacon" not in k}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model, w = beacon.BeaconModel(tmp_path), "model.layers.1.self_attn."
    assert torch.equal(model.weights[w + "beacon_k_proj.weight"], model.weights[w + "k_proj.weight"])
    eos = model.weights["model.embed_tokens.weight"][2]
    assert torch.equal(model.weights["model.beacon_embed_tokens.weight"][0], eos)
    separate = beacon.BeaconModel(tmp_path, plugin=directory)
    assert torch.equal(separate.forward(text(20), 2), beacon.BeaconModel(directory).forward(text(20), 2))


def test_layer_0_memory(directory):
    """In layer 0 every beacon has the keys and values of the one beacon embedding."""
    model = beacon.BeaconModel(directory)
    cache = model.empty()
    model.step(cache, text(W), 4, beacon.SCHEMES[0])
    y = model.norm(model.weights["model.beacon_embed_tokens.weight"], "model.layers.0.input_layernorm")
    for got, name in zip(cache.memory[0], ("beacon_k_proj", "beacon_v_proj")):
        want = model.linear(y, "model.layers.0.self_attn." + name).view(1, KV, D)
        assert (got - want).abs().max() < 1e-12 and len(got) == 2
    assert (cache.memory[1][0][0] - cache.memory[1][0][1]).abs().max() > 1e-3


def test_bad_input(directory):
    model = beacon.BeaconModel(directory)
    with pytest.raises(ValueError, match="does not divide"):
        model.forward(text(W), 3)
    with pytest.raises(ValueError, match="scheme 'none'"):
        model.forward(text(W), 2, "none")
