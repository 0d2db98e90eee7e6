"""PEFT and the library on random LoRA adapters of random models: merged into the weights, and beside them in a session.

The seed is new in every run and printed; QUIRE_SEED=n repeats one.
"""

import math
import os
import pathlib
import random
import sys

import numpy
import peft
import pytest
import torch
import transformers

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS.parent / "bindings" / "python"), str(TESTS / "golden")]

import make_models  # noqa: E402
import quire  # noqa: E402

SEED = int(os.environ.get("QUIRE_SEED") or random.SystemRandom().randrange(2**31))
TOLERANCE = 1e-4  # of the row's largest logit
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = ATTENTION + ["gate_proj", "up_proj", "down_proj"]
torch.set_num_threads(1)

# name: (LoraConfig arguments, model arguments, RoPE base that the adapter was trained with)
CASES = {
    "llama_3_80k": (dict(r=32, lora_alpha=16, target_modules=ATTENTION, modules_to_save=["embed_tokens"]), {}, 2e8),
    "rslora_all": (dict(r=7, lora_alpha=9, target_modules=ALL, use_rslora=True), {}, None),
    "patterns": (dict(r=4, lora_alpha=8, target_modules=ALL, rank_pattern={"o_proj": 6, "^model.layers.1.mlp.up_proj": 2},
                      alpha_pattern={"layers.0.self_attn.q_proj": 3.5, "down_proj": 1}), {}, None),
    "embedding": (dict(r=5, lora_alpha=10, target_modules=["embed_tokens", "v_proj"]), {}, None),
    "lm_head": (dict(r=3, lora_alpha=3, target_modules=["lm_head", "q_proj"]), {}, None),
    "saved_norms": (dict(r=8, lora_alpha=16, target_modules=ATTENTION,
                         modules_to_save=["embed_tokens", "norm", "lm_head"]), {}, None),
    "all_linear": (dict(r=2, lora_alpha=5, target_modules="all-linear"), dict(attention_bias=True, mlp_bias=True), None),
    "some_layers": (dict(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"], layers_to_transform=[1]), {}, None),
    "tied": (dict(r=4, lora_alpha=8, target_modules=["k_proj", "embed_tokens"]), dict(tie_word_embeddings=True), None),
    "tied_saved": (dict(r=4, lora_alpha=8, target_modules=["k_proj"], modules_to_save=["embed_tokens"]),
                   dict(tie_word_embeddings=True), None),
    "qwen2": (dict(r=4, lora_alpha=8, target_modules=ALL), dict(family="Qwen2"), None),
    # "norm" is the end of q_norm and k_norm too.
    "qwen3_norms": (dict(r=4, lora_alpha=8, target_modules=ATTENTION, modules_to_save=["norm"]), dict(family="Qwen3"),
                    None),
    "qwen3_80k": (dict(r=32, lora_alpha=16, target_modules=ATTENTION, modules_to_save=["embed_tokens"]),
                  dict(family="Qwen3", attention_bias=True), 2e8),
    "smollm3": (dict(r=4, lora_alpha=8, target_modules="all-linear"),
                dict(family="SmolLM3", no_rope_layers=[0, 1], pad_token_id=None, tie_word_embeddings=False), None),
    "phi3_fused": (dict(r=4, lora_alpha=8, target_modules="all-linear"),
                   dict(family="Phi3", partial_rotary_factor=0.75, pad_token_id=None), None),
    "granite": (dict(r=4, lora_alpha=8, target_modules=[*ATTENTION, "embed_tokens"], modules_to_save=["norm", "lm_head"]),
                dict(family="Granite", embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.5,
                     logits_scaling=5.0), None),
    "gemma3": (dict(r=4, lora_alpha=8, target_modules="all-linear", modules_to_save=["norm", "embed_tokens"]),
               dict(family="Gemma3", hidden_size=64, num_hidden_layers=3, sliding_window=20, sliding_window_pattern=2,
                    query_pre_attn_scalar=30, pad_token_id=None), None),
}


@torch.no_grad()
def randomise(model, generator):
    """Changes that matter: about as large as the weights."""
    for name, parameter in model.named_parameters():
        if ".modules_to_save." in name:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.5 * noise if parameter.dim() > 1 else 0.2 * noise)
        elif "lora_" in name:
            fan = parameter.shape[0] if "lora_embedding_A" in name else parameter.shape[-1]
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(fan))


def make_adapter(base, directory, arguments, seed):
    """Saves a random adapter of the model in `base`; returns the network that has it."""
    torch.manual_seed(seed)
    network = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    network = peft.get_peft_model(network, peft.LoraConfig(task_type="CAUSAL_LM", **arguments)).eval()
    randomise(network, torch.Generator().manual_seed(seed))
    network.save_pretrained(directory)


def peft_logits(base, adapters, theta, ids):
    """Of the saved adapters, read anew; several with weights are one combination."""
    config = transformers.AutoConfig.from_pretrained(base)
    if theta:
        config.rope_parameters = {**config.rope_parameters, "rope_theta": theta}
    network = transformers.AutoModelForCausalLM.from_pretrained(base, config=config, dtype=torch.float32)
    network = peft.PeftModel.from_pretrained(network, adapters[0]).eval()
    for number, adapter in enumerate(adapters[1:]):
        network.load_adapter(adapter, adapter_name=f"more{number}")
    network.base_model.set_adapter(list(network.peft_config))
    with torch.no_grad():
        return network(torch.tensor([ids])).logits[0].double().numpy()


def quire_logits(model, ids, **options):
    with model.session(kv_type="f32", **options) as session:
        session.feed_tokens(ids)
        session.prefill(keep_logits=True)
        return numpy.asarray(session.logits(0, len(ids)), dtype=float)


def worst(expected, found):
    return (numpy.abs(expected - found).max(axis=1) / numpy.abs(expected).max(axis=1)).max()


def make_base(directory, generator, arguments):
    n_kv_heads = generator.choice((1, 2))
    shape = dict(hidden_size=generator.choice((40, 64, 72)), num_attention_heads=2 * n_kv_heads,
                 num_key_value_heads=n_kv_heads, head_dim=generator.choice((16, 24, 32)), vocab_size=320)
    arguments = {**shape, **arguments}
    make_models.make_model(directory, generator.randrange(2**31), arguments, family=arguments.pop("family", "Llama"))


@pytest.fixture(scope="module")
def runtime():
    with quire.Runtime(threads=2) as runtime:
        yield runtime


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_adapter(name, tmp_path, runtime):
    arguments, model_arguments, theta = CASES[name]
    print(f"QUIRE_SEED={SEED}")
    generator = random.Random(f"{SEED} {name}")
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    make_base(base, generator, model_arguments)
    make_adapter(base, adapter, arguments, generator.randrange(2**31))
    ids = [generator.randrange(3, 320) for _ in range(60)]
    expected = peft_logits(base, [adapter], theta, ids)
    strategy = f"full + base(theta={theta})" if theta else "full"
    with runtime.load(base, activations="f32") as model:
        plain = quire_logits(model, ids, strategy=strategy)
        found = quire_logits(model, ids, strategy=strategy, adapters=[quire.Adapter(model, adapter)])
    with runtime.load(base, merge=[adapter], activations="f32") as model:
        merged = quire_logits(model, ids, strategy=strategy)
    assert worst(expected, plain) > 0.05  # the adapter matters
    print(f"{name}: per session {worst(expected, found):.1e}, merged {worst(expected, merged):.1e}")
    assert worst(expected, found) < TOLERANCE
    assert worst(expected, merged) < TOLERANCE


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_two_adapters(tmp_path, runtime):
    generator = random.Random(f"{SEED} two")
    base, first, second = tmp_path / "base", tmp_path / "first", tmp_path / "second"
    make_base(base, generator, {})
    make_adapter(base, first, dict(r=4, lora_alpha=8, target_modules=ALL), generator.randrange(2**31))
    make_adapter(base, second, dict(r=3, lora_alpha=2, target_modules=ATTENTION), generator.randrange(2**31))
    ids = [generator.randrange(3, 320) for _ in range(60)]
    expected = peft_logits(base, [first, second], None, ids)
    with runtime.load(base, activations="f32") as model:
        both = [quire.Adapter(model, first), quire.Adapter(model, second)]
        assert worst(expected, quire_logits(model, ids, adapters=both)) < TOLERANCE
        assert worst(expected, quire_logits(model, ids, adapters=both[:1])) > 0.01
    with runtime.load(base, merge=[first, second], activations="f32") as model:
        assert worst(expected, quire_logits(model, ids)) < TOLERANCE
