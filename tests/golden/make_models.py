"""Makes the tiny random models under models/ that the golden tests load.

Weights come from fixed seeds. They are scaled so that attention is peaked: with the usual tiny initialisation all
keys weigh the same, and a wrong position would hardly change a logit. Run `make_models.py` and then `make_golden.py`
and `make_strategy_golden.py`; all three need ../peers/requirements.txt.
"""

import io
import json
import pathlib
import shutil
import sys

import sentencepiece
import torch
import transformers

MODELS = pathlib.Path(__file__).parent / "models"

YARN = {"factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}
# Other factors for each pair, so that a wrong list or a wrong order shows.
LONGROPE = {"short_factor": [1.0 + 0.05 * a for a in range(16)], "long_factor": [1.0 + 0.5 * a for a in range(16)],
            "original_max_position_embeddings": 512}

# name: (arguments of the configuration, how config.json and the weights are written)
CONFIGS = {
    "mha_default": (dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=4), dict(keys="old")),
    "gqa_linear": (
        dict(hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=48, rms_norm_eps=1e-5),
        dict(keys="old", type_key="type", rope={"rope_type": "linear", "factor": 4.0}),
    ),
    "mqa_yarn_sharded": (
        dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=1, head_dim=80),
        dict(keys="new", rope={"rope_type": "yarn", **YARN}, shard="150KB"),
    ),
    "gqa_llama3_tied": (
        dict(hidden_size=72, num_attention_heads=6, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True),
        dict(keys="old", rope={"rope_type": "llama3", **LLAMA3}, theta=500000.0),
    ),
    "gqa_biases_bf16": (
        dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=96, attention_bias=True,
             mlp_bias=True),
        dict(keys="new", dtype=torch.bfloat16),
    ),
    "mha_yarn_f16": (
        dict(hidden_size=96, num_attention_heads=2, num_key_value_heads=2, head_dim=64, attention_bias=True),
        dict(keys="old", type_key="type", dtype=torch.float16, theta=500000.0,
             rope={"rope_type": "yarn", **YARN, "attention_factor": 1.25, "beta_fast": 24.0, "beta_slow": 2.0}),
    ),
    # The two that strategies are tested on: trained, as it were, at 256 and 128 positions.
    "text_256": (
        dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=24, vocab_size=320,
             max_position_embeddings=256),
        dict(keys="new"),
    ),
    "short_128": (
        dict(hidden_size=60, num_attention_heads=3, num_key_value_heads=1, head_dim=48, max_position_embeddings=128),
        dict(keys="old"),
    ),
    "mha_dynamic": (
        dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=4, head_dim=24, max_position_embeddings=256),
        dict(keys="old", type_key="type", rope={"rope_type": "dynamic", "factor": 2.0}),
    ),
    "gqa_longrope": (
        dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32),
        dict(keys="new", rope={"rope_type": "longrope", **LONGROPE}),
    ),
    "mistral_window_64": (
        dict(hidden_size=48, num_attention_heads=6, num_key_value_heads=2, head_dim=16, sliding_window=64),
        dict(family="Mistral", keys="old"),
    ),
    "qwen2_yarn": (
        dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512),
        dict(family="Qwen2", keys="old", type_key="type", rope={"rope_type": "yarn", **YARN}, theta=1000000.0,
             dtype=torch.bfloat16),
    ),
    "qwen3": (
        dict(hidden_size=48, num_attention_heads=6, num_key_value_heads=2, head_dim=24, tie_word_embeddings=True,
             max_position_embeddings=256),
        dict(family="Qwen3", keys="new", theta=1000000.0),
    ),
    # Layers that do not rotate, under a scaling with an attention factor, which they must not have.
    "smollm3_yarn": (
        dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=1, max_position_embeddings=256,
             no_rope_layers=[1, 0, 1, 0], num_hidden_layers=4, pad_token_id=None),
        dict(family="SmolLM3", keys="new", rope={"rope_type": "yarn", "factor": 4.0,
                                                 "original_max_position_embeddings": 64}),
    ),
    "phi3_window": (
        dict(hidden_size=64, num_attention_heads=4, sliding_window=64, pad_token_id=None),
        dict(family="Phi3", keys="old", dtype=torch.bfloat16),
    ),
    # Of heads of 24 dimensions 18 are rotated; the attention factor is theirs alone.
    "phi3_longrope": (
        dict(hidden_size=96, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
             partial_rotary_factor=0.75, max_position_embeddings=256, original_max_position_embeddings=64,
             pad_token_id=None),
        dict(family="Phi3", keys="old", type_key="type", rope={
            "rope_type": "longrope", "short_factor": [1.0 + 0.1 * a for a in range(9)],
            "long_factor": [1.0 + a for a in range(9)]}),
    ),
    "qwen2_window_layers": (
        dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=4,
             max_position_embeddings=256, use_sliding_window=True, sliding_window=40,
             layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"]),
        dict(family="Qwen2", keys="new"),
    ),
    # An epsilon that matters, for hidden states are kept divided by one of the factors.
    "granite": (
        dict(hidden_size=48, num_attention_heads=6, num_key_value_heads=2, rms_norm_eps=0.01,
             max_position_embeddings=256, embedding_multiplier=2.5, residual_multiplier=0.4, attention_multiplier=0.5,
             logits_scaling=3.0),
        dict(family="Granite", keys="new"),
    ),
    # A scaling of the layers without a window alone; the others have a base of their own. Hidden states are wider than
    # what comes between.
    "gemma3": (
        dict(hidden_size=72, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_hidden_layers=4,
             intermediate_size=32, max_position_embeddings=256, query_pre_attn_scalar=20, sliding_window=40, pad_token_id=None,
             layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"]),
        dict(family="Gemma3", keys="new", theta=50000.0, rope={"rope_type": "linear", "factor": 4.0}),
    ),
    # Heads as wide as those of Gemma 3 1B, 4B and 12B.
    "gemma3_large_heads": (
        dict(hidden_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=256, intermediate_size=32,
             max_position_embeddings=256, query_pre_attn_scalar=256, sliding_window=40, pad_token_id=None,
             layer_types=["sliding_attention", "full_attention"]),
        dict(family="Gemma3", keys="new", dtype=torch.bfloat16),
    ),
}

SENTENCES = """A quire is a gathering of pages in a book. The reader turns the leaves one by one and remembers the first.
Rain fell on the harbour all night, and in the morning the boats lay still under a pale sky.
She counted the steps to the lighthouse: one hundred and ninety-nine, and one more for luck.
Every chapter began with a map, and every map left out the road that they had taken.
He wrote long letters about short journeys, and short letters about the war.
The bakers of the old town rise before the bells and sleep before the lamps are lit.
""".splitlines()


def tokenizer_model(vocab_size):
    """A SentencePiece BPE model; the larger one has byte fallback."""
    out = io.BytesIO()
    large = vocab_size > 256
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 4 if large else [s.lower() for s in SENTENCES] * 4), model_writer=out,
        model_type="bpe", vocab_size=vocab_size, byte_fallback=large, character_coverage=1.0,
        num_threads=1, minloglevel=2, normalization_rule_name="identity", unk_surface=" \u2047 ", hard_vocab_limit=True)
    return out.getvalue()


FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3", "Phi3", "Granite", "Gemma3")


def random_family(generator, family, arguments):
    """`arguments` of a random Llama as those of another family, with random settings of its own."""
    arguments = dict(arguments)
    if family in ("Mistral", "Qwen2", "Phi3"):
        arguments.pop("attention_bias", None)
    if family in ("Mistral", "Qwen2", "Qwen3", "Phi3"):
        arguments.pop("mlp_bias", None)
    train_len = arguments["max_position_embeddings"]
    if family in ("Mistral", "Phi3"):
        arguments["sliding_window"] = generator.choice((None, 1, generator.randrange(2, 2 * train_len)))
    if family in ("Qwen2", "Qwen3"):  # in all layers, in some or, by one key or another, in none
        arguments.update(sliding_window=generator.choice((None, 1, generator.randrange(2, 2 * train_len))),
                         use_sliding_window=generator.random() < 0.7,
                         max_window_layers=generator.randrange(arguments["num_hidden_layers"] + 1))
    if family == "SmolLM3":
        arguments.update(no_rope_layer_interval=generator.choice((1, 2, 3, 4)), pad_token_id=None)
        if generator.random() < 0.5:
            arguments["no_rope_layers"] = [generator.randrange(2) for _ in range(arguments["num_hidden_layers"])]
        if generator.random() < 0.5:  # in those that do not rotate
            arguments.update(use_sliding_window=True, sliding_window=generator.randrange(1, train_len))
    if family == "Granite":
        arguments.update(embedding_multiplier=generator.uniform(0.5, 12), residual_multiplier=generator.uniform(0.2, 1),
                         attention_multiplier=generator.uniform(0.5, 2) / arguments["head_dim"]**0.5,
                         logits_scaling=generator.uniform(0.5, 16))
    if family == "Gemma3":
        arguments.pop("mlp_bias", None)
        # transformers wants whole multiples, though heads have a size of their own.
        arguments.update(hidden_size=arguments["hidden_size"] * arguments["num_attention_heads"],
                         query_pre_attn_scalar=generator.randrange(4, 400), pad_token_id=None,
                         sliding_window=generator.choice((1, generator.randrange(2, 2 * train_len))),
                         sliding_window_pattern=generator.randrange(1, 4))
    return arguments


@torch.no_grad()
def randomise(model, seed):
    """Peaked attention, biases that matter, norm weights around 1."""
    generator = torch.Generator().manual_seed(seed)
    is_gemma = model.config.model_type.startswith("gemma")  # norms of 1 + w, embeddings that are multiplied
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            parameter.copy_(0.2 * noise if is_gemma else 1 + 0.2 * noise)
        elif name.endswith("bias"):
            parameter.copy_(0.3 * noise)
        elif "embed_tokens" in name:
            parameter.copy_(noise / parameter.shape[1] ** 0.5 if is_gemma else noise)
        else:
            gain = 1.5 if "q_proj" in name or "k_proj" in name or "qkv_proj" in name else 1.0
            parameter.copy_(noise * gain / parameter.shape[1] ** 0.5)


WINDOW_THETA = 7000.0  # of Gemma's layers with a window


def by_kind_of_layer(theta, rope):
    return {"full_attention": {"rope_theta": theta, **(rope or {"rope_type": "default"})},
            "sliding_attention": {"rope_type": "default", "rope_theta": WINDOW_THETA}}


def write_config(directory, keys, rope, type_key, theta):
    """Rewrites the RoPE keys of config.json as files in the wild have them."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config.pop("rope_parameters", None)
    config.pop("rope_scaling", None)
    if keys == "new" and config["model_type"].startswith("gemma"):
        config["rope_parameters"] = by_kind_of_layer(theta, rope)
    elif keys == "new":
        config["rope_parameters"] = {"rope_theta": theta, **(rope or {"rope_type": "default"})}
    else:
        config["rope_theta"] = theta
        config["rope_scaling"] = None
        if config["model_type"].startswith("gemma"):
            type_key = "rope_type"  # transformers overlooks the other one there
        if rope:
            config["rope_scaling"] = {type_key if k == "rope_type" else k: v for k, v in rope.items()}
        config["torch_dtype"] = config.pop("dtype", "float32")
        if config["model_type"].startswith("gemma"):
            config.update(rope_local_base_freq=WINDOW_THETA, sliding_window_pattern=config.pop("_sliding_window_pattern"))
            del config["layer_types"]
    path.write_text(json.dumps(config, indent=2) + "\n")


def make_model(directory, seed, arguments, keys="new", rope=None, type_key="rope_type", theta=10000.0,
               dtype=torch.float32, shard="1GB", family="Llama"):
    """Writes one model directory: config, weights, tokenizer."""
    vocab_size = arguments.get("vocab_size", 64)
    settings = dict(vocab_size=vocab_size, intermediate_size=80, num_hidden_layers=2, max_position_embeddings=2048,
                    bos_token_id=1, eos_token_id=2)
    if family == "Gemma3":
        parameters, configuration = by_kind_of_layer(theta, rope), transformers.Gemma3TextConfig
    else:
        parameters = {"rope_theta": theta, **(rope or {"rope_type": "default"})}
        configuration = getattr(transformers, family + "Config")
    config = configuration(**{**settings, **arguments}, rope_parameters=parameters)
    torch.manual_seed(seed)
    model = getattr(transformers, family + "ForCausalLM")(config)
    randomise(model, seed)
    shutil.rmtree(directory, ignore_errors=True)
    model.to(dtype).save_pretrained(directory, max_shard_size=shard)
    write_config(directory, keys, rope, type_key, theta)
    (directory / "generation_config.json").unlink(missing_ok=True)
    (directory / "tokenizer.model").write_bytes(tokenizer_model(vocab_size))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>",
                    "unk_token": "<unk>", "tokenizer_class": "LlamaTokenizer"}, indent=2) + "\n")


def main(names=()):
    for seed, (name, (arguments, writing)) in enumerate(CONFIGS.items(), start=1):
        if names and name not in names:
            continue
        make_model(MODELS / name, seed, arguments, **writing)
        size = sum(f.stat().st_size for f in (MODELS / name).iterdir())
        print(f"{name}: {size / 1e3:.0f} kB in {sorted(f.name for f in (MODELS / name).iterdir())}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
