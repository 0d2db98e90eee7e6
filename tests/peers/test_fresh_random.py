"""transformers, the float64 reference and the library on models and prompts that nobody has seen before.

The seed is new in every run and printed; QUIRE_SEED=n repeats one.
"""

import itertools
import json
import os
import pathlib
import random
import shutil
import sys

import numpy
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS.parent / "bindings" / "python"), str(TESTS / "reference"), str(TESTS / "golden")]

import golden_format  # noqa: E402
import make_golden  # noqa: E402
import make_models  # noqa: E402
import quire  # noqa: E402
import reference  # noqa: E402
import strategy_cases  # noqa: E402

SEED = int(os.environ.get("QUIRE_SEED") or random.SystemRandom().randrange(2**31))
TOLERANCE = 1e-5      # of all logits, as norms
ROW_TOLERANCE = 1e-4  # of the row's largest logit: rows that nearly cancel are less well conditioned
torch.set_num_threads(1)


ROPES = ("default", "linear", "yarn", "dynamic", "longrope", "llama3")


def random_rope(generator, kind, train_len, rotary_dim):
    """Settings of a RoPE type for a model of max_position_embeddings train_len; None: no scaling."""
    def factors(most):
        return [generator.uniform(1, most) for _ in range(rotary_dim // 2)]

    settings = {
        "default": {}, "linear": {"factor": generator.uniform(1.5, 8)},
        "yarn": {"factor": generator.uniform(1.5, 8), "original_max_position_embeddings": train_len},
        "dynamic": {"factor": generator.uniform(1, 4)},
        "longrope": {"original_max_position_embeddings": train_len // 2, "short_factor": factors(2),
                     "long_factor": factors(32)},
        "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": train_len}}
    return {"rope_type": kind, **settings[kind]} if kind != "default" else None


def random_model(directory, generator, family, rope=None):
    """A model of random shape; the keyword arguments are those of make_models.make_model."""
    train_len = generator.choice((96, 128, 160, 256))
    head_dim = generator.choice((16, 24, 32, 40, 48, 64, 80, 96, 128))
    n_kv_heads = generator.choice((1, 2, 3))
    n_heads = n_kv_heads * generator.choice((1, 2, 4))
    arguments = dict(
        hidden_size=n_heads * generator.choice((8, 12, 17)), num_attention_heads=n_heads,
        num_key_value_heads=n_kv_heads, head_dim=head_dim, intermediate_size=generator.randrange(40, 150),
        num_hidden_layers=generator.choice((1, 2, 3)), max_position_embeddings=train_len,
        tie_word_embeddings=generator.random() < 0.5, attention_bias=generator.random() < 0.5,
        mlp_bias=generator.random() < 0.5, rms_norm_eps=generator.choice((1e-5, 1e-6)))
    rotary_dim, kind = head_dim, rope or generator.choice(ROPES)
    if family == "Phi3":
        # Its heads are parts of the hidden size, and what it was trained for stands outside of the settings of RoPE.
        arguments.update(partial_rotary_factor=generator.choice((1.0, 0.75, 0.5)), pad_token_id=None,
                         hidden_size=n_heads * head_dim, original_max_position_embeddings=train_len // 2)
        rotary_dim = int(head_dim * arguments["partial_rotary_factor"])
        kind = "default" if kind == "default" else "longrope"  # it has no other
    make_models.make_model(
        directory, generator.randrange(2**31), make_models.random_family(generator, family, arguments),
        keys=generator.choice(("old", "new")),
        rope=random_rope(generator, kind, train_len, rotary_dim),
        type_key=generator.choice(("type", "rope_type")), theta=generator.choice((10000.0, 500000.0)),
        dtype=generator.choice((torch.float32, torch.float16, torch.bfloat16)), family=family)
    return (directory / "config.json").read_text()


def library_logits(directory, strategy, ids):
    with quire.Runtime(threads=2) as runtime, runtime.load(directory, activations="f32") as model:
        with model.session(strategy, kv_type="f32", overflow="extrapolate", expected_tokens=len(ids)) as session:
            cut = len(ids) // 3  # two calls, to be no different from one
            session.feed_tokens(ids[:cut])
            session.feed_tokens(ids[cut:])
            session.prefill(keep_logits=True)
            return torch.from_numpy(numpy.array(session.logits(0, len(ids)))).double()


def row_errors(actual, expected):
    return (actual - expected).abs().max(1).values / expected.abs().max(1).values


def assert_close(actual, expected, what):
    errors = row_errors(actual, expected)
    assert not errors.isnan().any(), what
    assert errors.max() < ROW_TOLERANCE, f"{what}: {errors.max():.2e} at position {errors.argmax()}"
    error = (actual - expected).norm() / expected.norm()
    print(f"{what.split(',')[0]}: {error:.1e}, worst row {errors.max():.1e}")
    assert error < TOLERANCE, f"{what}: {error:.2e}"


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("family", make_models.FAMILIES)
def test_plain_attention(family, rope, tmp_path):
    print(f"\nQUIRE_SEED={SEED}")
    generator = random.Random(f"{SEED} plain {family} {rope}")
    config = random_model(tmp_path / "model", generator, family, rope)
    n = generator.randrange(2, 700)
    ids = golden_format.random_ids(n, 64, generator.randrange(2**31))
    peer = make_golden.transformers_logits(tmp_path / "model", ids)
    model = reference.Model(tmp_path / "model")
    ours = model.forward(ids, model.positions(n))
    actual = library_logits(tmp_path / "model", "full", ids)
    assert_close(ours, peer, f"reference against transformers, seed {SEED}, {config}")
    assert_close(actual, peer, f"library against transformers, seed {SEED}, {config}")
    assert_close(actual, ours, f"library against reference, seed {SEED}, {config}")


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("family", make_models.FAMILIES)
def test_strategies(family, number, tmp_path):
    print(f"\nQUIRE_SEED={SEED}")
    generator = random.Random(f"{SEED} strategy {family} {number}")
    config = random_model(tmp_path / "model", generator, family)
    model = reference.Model(tmp_path / "model")
    n = generator.randrange(300, 700)
    prompts = (golden_format.random_ids(n, 64, generator.randrange(2**31)) for _ in itertools.count())
    for case in generator.sample(strategy_cases.all_cases(model), 6):
        case = strategy_cases.in_window(case, None if model.window_layers else model.window)
        ids, expected = strategy_cases.expected_logits(model, prompts, case)
        actual = library_logits(tmp_path / "model", case.expression, ids)
        assert_close(actual, expected, f"{case.expression}, seed {SEED}, {config}")


@pytest.mark.parametrize("family", ("Gemma3", "Mistral"))
def test_the_text_part_of_a_larger_model(family, tmp_path):
    """...3ForConditionalGeneration: images have parts of their own, which are left alone."""
    print(f"\nQUIRE_SEED={SEED}")
    generator = random.Random(f"{SEED} larger {family}")
    random_model(tmp_path / "text", generator, family)
    text = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "text", dtype=torch.float32)
    vision = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                  patch_size=14)
    tied = text.config.tie_word_embeddings
    if family == "Gemma3":
        config = transformers.Gemma3Config(text_config=text.config, vision_config=transformers.SiglipVisionConfig(**vision),
                                           mm_tokens_per_image=4, tie_word_embeddings=tied)
    else:
        config = transformers.Mistral3Config(text_config=text.config, tie_word_embeddings=tied,
                                             vision_config=transformers.PixtralVisionConfig(**vision))
    whole = getattr(transformers,
                    type(config).__name__.replace("Config", "ForConditionalGeneration"))(config)
    whole.model.language_model.load_state_dict(text.model.state_dict())
    if not text.config.tie_word_embeddings:
        whole.lm_head.load_state_dict(text.lm_head.state_dict())
    whole.save_pretrained(tmp_path / "whole", max_shard_size="100kB")
    if family == "Mistral":  # as where the larger model's setting is left at its default: a head that is there counts
        path = tmp_path / "whole" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))
    for file in ("tokenizer.model", "tokenizer_config.json"):
        shutil.copy(tmp_path / "text" / file, tmp_path / "whole" / file)
    ids = golden_format.random_ids(generator.randrange(50, 300), 64, generator.randrange(2**31))
    expected = make_golden.transformers_logits(tmp_path / "text", ids)
    actual = library_logits(tmp_path / "whole", "full", ids)
    assert_close(actual, expected, f"part of a larger model, seed {SEED}, {text.config}")


@pytest.mark.parametrize("family", make_models.FAMILIES)
def test_positions(family, tmp_path):
    """position_ids with gaps, as PoSE trains with."""
    print(f"\nQUIRE_SEED={SEED}")
    generator = random.Random(f"{SEED} positions {family}")
    config = random_model(tmp_path / "model", generator, family)
    model = reference.Model(tmp_path / "model")
    n = generator.randrange(20, 300)
    ids = golden_format.random_ids(n, 64, generator.randrange(2**31))
    at = [0]
    while len(at) < n:
        at.append(at[-1] + (generator.randrange(1, 400) if generator.random() < 0.05 else 1))
    difference = torch.tensor(at)[:, None] - torch.tensor(at)[None, :]
    plain = model.positions(n)  # who sees whom
    expected = model.forward(ids, torch.where(plain.isnan(), plain, difference.to(plain.dtype)))
    with quire.Runtime(threads=2) as runtime, runtime.load(tmp_path / "model", activations="f32") as loaded:
        with loaded.session("full", kv_type="f32", overflow="extrapolate", expected_tokens=n) as session:
            cut = n // 3
            session.feed_tokens(ids[:cut], at[:cut])
            session.feed_tokens(ids[cut:], at[cut:])
            session.prefill(keep_logits=True)
            actual = torch.from_numpy(numpy.array(session.logits(0, n))).double()
    assert_close(actual, expected, f"positions, seed {SEED}, {config}")


@pytest.mark.parametrize("kind", ("dynamic", "longrope"))
def test_frequencies_by_length(kind):
    """The reference against transformers' own functions, on both sides of the original length."""
    generator = random.Random(f"{SEED} {kind}")
    head_dim, original, longest = generator.choice((16, 64, 128)), 256, 256 if kind == "dynamic" else 4096
    settings = {"rope_type": kind, "rope_theta": 10000.0, "factor": generator.uniform(1, 16)}
    if kind == "longrope":
        settings.update(original_max_position_embeddings=original, **{
            key: [generator.uniform(1, 64) for _ in range(head_dim // 2)] for key in ("short_factor", "long_factor")})
    config = transformers.LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, max_position_embeddings=longest,
                                      rope_parameters=dict(settings))
    for length in (1, original - 1, original, original + 1, generator.randrange(original, 4096)):
        theta, factor = ROPE_INIT_FUNCTIONS[kind](config, seq_len=length)
        ours = (reference.rope_dynamic_ntk(head_dim, 10000.0, settings["factor"], original, length)
                if kind == "dynamic" else reference.rope_longrope(head_dim, 10000.0, settings, longest, length))
        assert torch.allclose(ours.theta, theta.double(), rtol=1e-5, atol=0), f"seed {SEED}, length {length}"
        assert abs(ours.attention_factor - factor) < 1e-6, f"seed {SEED}, length {length}"


def test_the_comparison_can_fail(tmp_path):
    """A distance that is off by one for one far chunk must not pass."""
    generator = random.Random(f"{SEED} wrong")
    random_model(tmp_path / "model", generator, "Llama")
    model = reference.Model(tmp_path / "model")
    ids = golden_format.random_ids(300, 64, 1)
    positions = reference.positions_full(300)
    wrong = torch.where(positions >= 64, positions - 1, positions)
    errors = row_errors(model.forward(ids, wrong), model.forward(ids, positions))
    assert errors[:64].max() == 0
    assert errors[64:].median() > 10 * ROW_TOLERANCE
