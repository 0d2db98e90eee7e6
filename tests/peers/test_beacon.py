"""The float64 reference of Activation Beacon and the library on models, beacon weights and texts that are new.

The seed is new in every run and printed; QUIRE_SEED=n repeats one.
"""

import itertools
import json
import os
import pathlib
import random
import sys

import numpy
import pytest
import safetensors.torch
import torch

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS.parent / "bindings" / "python"), str(TESTS / "reference"), str(TESTS / "golden")]

import beacon  # noqa: E402
import golden_format  # noqa: E402
import make_models  # noqa: E402
import quire  # noqa: E402
import reference  # noqa: E402

SEED = int(os.environ.get("QUIRE_SEED") or random.SystemRandom().randrange(2**31))
TOLERANCE = 1e-5  # of the row's largest logit
MOST_TOKENS = 600
VOCABULARY = 64
MODULES = {"q": ["q_proj"], "k": ["k_proj"], "v": ["v_proj"], "o": ["o_proj"], "mlp": ["up_proj", "down_proj"]}
torch.set_num_threads(1)


def make_base(directory, generator):
    n_kv_heads = generator.choice((1, 2))
    n_heads = n_kv_heads * generator.choice((1, 2, 3))
    family = generator.choice(("Llama", "Qwen2", "Qwen3", "SmolLM3"))
    arguments = dict(
        hidden_size=n_heads * generator.choice((8, 12, 17)), num_attention_heads=n_heads, vocab_size=VOCABULARY,
        num_key_value_heads=n_kv_heads, head_dim=generator.choice((16, 24, 32, 40)),
        max_position_embeddings=generator.choice((96, 128, 160)), tie_word_embeddings=generator.random() < 0.5,
        attention_bias=generator.random() < 0.5, mlp_bias=generator.random() < 0.5, num_hidden_layers=2)
    arguments = {**make_models.random_family(generator, family, arguments), "sliding_window": None}
    make_models.make_model(directory, generator.randrange(2**31), arguments, family=family)


def make_plugin(base, directory, generator, **settings):
    """Beacon weights, of all projections or of some, that differ from the model's as much as those do from zero."""
    own = generator.choice((["q", "k", "v", "o"], ["q", "k", "v", "o", "mlp"], ["k", "v"], ["q", "o"], ["mlp"]))
    modules = [module for name in own for module in MODULES[name]]
    noise = torch.Generator().manual_seed(generator.randrange(2**31))
    model = reference.Model(base)
    hidden = model.weights["model.embed_tokens.weight"].shape[1]
    tensors = {"model.beacon_embed_tokens.weight": torch.randn(1, hidden, generator=noise) * 0.5}
    for name, tensor in sorted(model.weights.items()):
        module = name.split(".")[-2]
        if module in modules:
            changed = 0.5 * (tensor + tensor.std() * torch.randn(tensor.shape, generator=noise))
            tensors[name.replace(module, "beacon_" + module)] = changed.float()
    directory.mkdir()
    safetensors.torch.save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**settings, "beacon_param": own}))


def growth(ratios, shape, train_len):
    """The ratio of each window that fits, the last of `ratios` for all further ones; where no room is left, the next
    divisor of the stride that condenses more. At most as many windows as MOST_TOKENS fill."""
    window, stride = shape
    used, room, ratio, pending = [], train_len - window, None, list(ratios)
    while len(used) * stride < MOST_TOKENS:
        ratio = pending.pop(0) if pending else ratio
        while ratio is not None and room < (stride // ratio if ratio else stride):
            ratio = next((r for r in range(max(2, ratio + 1), stride + 1) if stride % r == 0), None)
        if ratio is None:
            break
        used.append(ratio)
        room -= stride // ratio if ratio else stride
    return used


def choose_ratios(kind, generator, divisors, listed):
    """The ratios of a text's windows, and the argument that asks for them: none where the plug-in says so itself."""
    if kind == "plugin_sequence":
        return listed, ""
    if kind == "sequence":
        ratios = [generator.choice([0, *divisors]) for _ in range(generator.randrange(2, 6))]
        return ratios, "sequence=" + ".".join(f"x{ratio}" for ratio in ratios)
    ratio = {"raw": 0, "raised": 2}.get(kind, generator.choice(divisors))
    return [ratio], f"ratio={ratio}"


def scale(model, kind, generator):
    """Gives the reference a RoPE scaling; the expression's argument and term for it."""
    factor = generator.choice((2, 4))
    if kind == "pi":
        model.train_len *= factor
        model.frequencies = reference.rope_pi(model.head_dim, model.base, factor)
        return "", f" + pi(factor={factor})"
    model.frequencies = reference.rope_ntk(model.head_dim, model.base, factor)
    return f"train_len={model.train_len}", f" + ntk(factor={factor})"


def make_case(folder, kind, scheme, generator):
    """A model, a plug-in and a text: (their directories, expression, reference, ids, ratios)."""
    base, plugin = folder / "base", folder / "plugin"
    make_base(base, generator)
    stride = generator.choice((12, 24, 32))
    window = stride + (generator.choice((4, 7, 16)) if kind == "overlapping" else 0)
    divisors = [ratio for ratio in range(2, stride + 1) if stride % ratio == 0]
    listed, reserve = [0, *sorted(generator.sample(divisors, 3))], generator.randrange(40)
    make_plugin(base, plugin, generator, beacon_window=window, beacon_stride=[stride], beacon_attn=scheme,
                beacon_ratio=listed, beacon_ratio_mix="sequence" if kind == "plugin_sequence" else f"adapt-{reserve}")
    model = beacon.BeaconModel(base, plugin)
    train_len, term = scale(model, kind, generator) if kind in ("pi", "ntk") else ("", "")
    if kind == "raised":  # room for a few windows of ratio 2 and then a part of one
        model.train_len = window + generator.randrange(2, 7) * stride // 2 + generator.randrange(1, stride // 2)
        train_len = f"train_len={model.train_len}"
    n = MOST_TOKENS - generator.randrange(stride)
    if kind == "adapt":
        n = generator.randrange(window, 2 * model.train_len)
        ratios, argument = [beacon.adapt(listed, n + reserve, window, model.train_len)], ""
    else:
        ratios, argument = choose_ratios(kind, generator, divisors, listed)
    used = growth(ratios, (window, stride), model.train_len)
    n = min(n, len(used) * stride + window)  # an incomplete window at the end, or all that fits
    arguments = ", ".join(filter(None, (argument, train_len)))
    ids = golden_format.random_ids(n, VOCABULARY, generator.randrange(2**31))
    return (base, plugin), (f"beacon({arguments})" if arguments else "beacon") + term, model, ids, used or ratios


def runs(ratios):
    return ", ".join(f"{ratio} x {len(list(run))}" for ratio, run in itertools.groupby(ratios))


def logits(session, n):
    return torch.from_numpy(numpy.array(session.logits(0, n))).double()


def worst(expected, found):
    errors = (found - expected).abs().max(1).values / expected.abs().max(1).values
    assert not errors.isnan().any()
    return errors.max().item()


@pytest.fixture(scope="module")
def runtime():
    with quire.Runtime(threads=2) as runtime:
        yield runtime


KINDS = ("fixed", "raw", "raised", "adapt", "sequence", "plugin_sequence", "overlapping", "pi", "ntk")


@pytest.mark.parametrize("scheme", beacon.SCHEMES)
@pytest.mark.parametrize("kind", KINDS)
def test_beacons(kind, scheme, tmp_path, runtime):
    """Read at once, in blocks that end anywhere, one by one from somewhere on, and generated."""
    print(f"\nQUIRE_SEED={SEED}")
    generator = random.Random(f"{SEED} {kind} {scheme}")
    (base, plugin), expression, reference_model, ids, ratios = make_case(tmp_path, kind, scheme, generator)
    n, start, block = len(ids), generator.randrange(1, len(ids)), generator.randrange(2, 50)
    what = f"seed {SEED}, {expression}, {scheme}, {n} tokens, ratios {runs(ratios)}, start {start}, block {block}"
    expected = reference_model.forward(ids, ratios)
    errors = {}
    with runtime.load(base, beacon=plugin, activations="f32") as model:
        options = dict(kv_type="f32", expected_tokens=n)
        for name, size in (("whole", 0), ("blocks", block)):
            with model.session(expression, prefill_block=size, **options) as session:
                session.feed_tokens(ids)
                session.prefill(keep_logits=True)
                errors[name] = worst(expected, logits(session, n))
        with model.session(expression, **options) as session:
            session.feed_tokens(ids[:start])
            session.prefill()
            rows = []
            for token in ids[start:]:
                session.feed_tokens([token])
                session.prefill()
                rows.append(torch.from_numpy(numpy.array(session.logits())).double())
            errors["one by one"] = worst(expected[start:], torch.cat(rows))
        with model.session(expression, **options) as session:
            session.feed_tokens(ids[:start])
            with session.stream(n - start, ignore_eos=True, keep_logits=True) as stream:
                generated = [event.token for event in stream if event.kind == "token"]
            seen = session.n_tokens  # the last token may not have been read
            expected = reference_model.forward((ids[:start] + generated)[:seen], ratios)
            assert seen >= n - 1, what
            errors["generated"] = worst(expected, logits(session, seen))
    print(what, *(f"{name} {error:.1e}" for name, error in errors.items()))
    assert max(errors.values()) < TOLERANCE, (what, errors)


def test_the_comparison_can_fail(tmp_path):
    """Beacons that stand one position further must not pass."""
    generator = random.Random(f"{SEED} wrong")
    _, _, model, ids, ratios = make_case(tmp_path, "fixed", "step-expansion", generator)
    right, layout = model.forward(ids, ratios), beacon.layout

    def wrong(memory, raw, new, beacons, *rest):
        positions, visible = layout(memory, raw, new, beacons, *rest)
        positions[len(positions) - beacons:] += 1
        return positions, visible

    beacon.layout = wrong
    try:
        shifted = model.forward(ids, ratios)
    finally:
        beacon.layout = layout
    window = model.beacon_window
    assert (shifted[:window] - right[:window]).abs().max() == 0
    assert worst(right[window:], shifted[window:]) > 100 * TOLERANCE
