"""GGUF files that `quire quantize` writes of random models of every architecture, in llama.cpp and in the library.

The models have a small byte-level tokenizer.json. llama.cpp's logits at every position of a random prompt are those of
the library, which reads the same file, and with float weights also those of transformers, which reads the directory.

Needs llama-cpp-python; QUIRE_COMMAND names the command. The seed is new in every run and printed; QUIRE_SEED=n repeats
one.
"""

import json
import os
import pathlib
import random
import subprocess
import sys

import gguf
import pytest
import tokenizers

from test_tokenizers import BYTE_LEVEL, byte_level

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bindings" / "python"), str(ROOT / "tests" / "golden"), str(ROOT / "tests" / "peers" / "llama_cpp")]

import golden_format  # noqa: E402
import make_golden  # noqa: E402
import make_models  # noqa: E402
import quire  # noqa: E402
from figures import record  # noqa: E402
from quantize import quantize_by_peer  # noqa: E402
from test_llama_cpp import Peer  # noqa: E402
from test_real_model import all_logits, encode, relative  # noqa: E402

SEED = int(os.environ.get("QUIRE_SEED") or random.SystemRandom().randrange(2**31))
N_CONTEXT = 512
N_IDS = 320
# Of all logits, as norms. The programs add floats in different orders, and round rotation angles of up to 250 by some
# 1e-5; other factors of RoPE make a difference of more than 1e-2 (the last test).
TOLERANCE = 1e-4
# As test_llama_cpp.py allows with the real model: llama.cpp rounds activations to 8 bits in each product with quantised
# weights, which changes them by one part in 100 or 200. With the same weights as floats it does not.
ROUNDING = 0.1

# llama.cpp looks GELU up in a table by the gate as f16. Of those that have it the library agrees with transformers to
# TOLERANCE, and llama.cpp, 3.4e-4 off, with both to the following. transformers with such a table is 1.0e-4 from
# llama.cpp, as it is from itself in float32 (9.4e-5): rounding to f16 turns small differences into large ones.
GELU_TOLERANCE = 1e-3

LLAMA3 = {"rope_type": "llama3", **make_models.LLAMA3, "original_max_position_embeddings": 64}
LONGROPE = {"rope_type": "longrope"}  # and two lists
# name: (family, what its config.json also has, scaling of RoPE, how the tokenizer cuts texts)
CASES = {
    "llama-untied": ("Llama", dict(tie_word_embeddings=False), LLAMA3, "llama-bpe"),
    "llama-tied": ("Llama", dict(tie_word_embeddings=True), LLAMA3, "llama-bpe"),
    "llama-biases": ("Llama", dict(attention_bias=True, mlp_bias=True), None, "gpt2"),
    # GGUF calls this architecture llama, too, for which llama.cpp knows no sliding window: no prompt is longer.
    "mistral": ("Mistral", dict(sliding_window=N_CONTEXT), None, "tekken"),
    "qwen2": ("Qwen2", {}, None, "qwen2"),  # Q, K and V have biases, by this architecture
    "qwen3": ("Qwen3", dict(tie_word_embeddings=True), None, "qwen2"),  # Q and K have norms, by this architecture
    "smollm3": ("SmolLM3", dict(num_hidden_layers=4, no_rope_layer_interval=4, pad_token_id=None), None, "llama-bpe"),
    "phi3": ("Phi3", dict(pad_token_id=None), None, "llama-bpe"),
    # Both programs take the long factors: this one for the length of the prompt, llama.cpp for that of its context.
    "phi3-longrope": ("Phi3", dict(partial_rotary_factor=0.75, original_max_position_embeddings=64, pad_token_id=None),
                      LONGROPE, "llama-bpe"),
    "granite": ("Granite", dict(embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.2,
                                logits_scaling=5.0), None, "llama-bpe"),
    # Every sixth layer is without a window; attention has the scale that llama.cpp takes for granted (make_model).
    "gemma3": ("Gemma3", dict(num_hidden_layers=7, sliding_window=64, pad_token_id=None),
               {"rope_type": "linear", "factor": 8.0}, "llama-bpe"),
}


def tokenizer_json(family):
    """A vocabulary of a few sentences, with the pre-tokenizer of a family."""
    _, pre_tokenizer, _, ignore_merges = BYTE_LEVEL[family]
    empty = tokenizers.Tokenizer.from_str(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": pre_tokenizer,
        "post_processor": None, "decoder": byte_level(True),
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": ignore_merges,
                  "vocab": {}, "merges": []}}))
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=N_IDS - 10, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    empty.train_from_iterator(make_models.SENTENCES, trainer)
    return empty.to_str()


def make_model(folder, generator, name):
    """A model of random shape, whose rows are whole blocks of q8_0."""
    family, arguments, rope, tokenizer = CASES[name]
    arguments = dict(arguments)
    head_dim, n_kv_heads = generator.choice((32, 64, 96)), generator.choice((1, 2))
    n_heads = n_kv_heads * generator.choice((1, 2, 3))
    if rope is LONGROPE:
        n_pairs = int(head_dim * arguments["partial_rotary_factor"]) // 2
        rope = {**rope, "short_factor": [generator.uniform(1, 2) for _ in range(n_pairs)],
                "long_factor": [generator.uniform(1, 20) for _ in range(n_pairs)]}
    # The heads of these have a size of their own, those of the others are parts of the hidden size.
    hidden = n_heads * (generator.choice((32, 64, 128)) if family in ("Mistral", "Qwen3", "Gemma3") else head_dim)
    if family == "Gemma3":
        arguments["query_pre_attn_scalar"] = head_dim
    make_models.make_model(
        folder, generator.randrange(2**31),
        dict(vocab_size=N_IDS, hidden_size=hidden, num_attention_heads=n_heads, num_key_value_heads=n_kv_heads,
             head_dim=head_dim, intermediate_size=32 * generator.randrange(2, 9), max_position_embeddings=N_CONTEXT,
             rms_norm_eps=generator.choice((1e-5, 1e-6)), **arguments),
        rope=rope, theta=generator.choice((10000.0, 500000.0)), family=family)
    (folder / "tokenizer.model").unlink()
    (folder / "tokenizer.json").write_text(tokenizer_json(tokenizer), encoding="utf-8")


def make_case(folder, name):
    """The directory of a random model, and a random prompt."""
    print(f"\nQUIRE_SEED={SEED}")
    generator = random.Random(f"{SEED} {name}")
    make_model(folder / "model", generator, name)
    ids = golden_format.random_ids(generator.randrange(150, 250), N_IDS, generator.randrange(2**31))
    return folder / "model", ids


def quantize(model, recipe):
    file = model.parent / f"{recipe}.gguf"
    subprocess.run([os.environ["QUIRE_COMMAND"], "quantize", "-q", "-t", recipe, model, file], check=True)
    return file


def peer_tolerance(name):
    return GELU_TOLERANCE if CASES[name][0] == "Gemma3" else TOLERANCE


def peer_logits(file, ids):
    with Peer(file, N_CONTEXT) as peer:
        return peer.logits(ids)


@pytest.fixture(scope="module")
def runtime():
    with quire.Runtime(threads=2) as made:
        yield made


@pytest.mark.parametrize("name", CASES)
def test_floats(name, runtime, tmp_path):
    folder, ids = make_case(tmp_path, name)
    file = quantize(folder, "f32")
    truth = make_golden.transformers_logits(folder, ids).numpy()
    with runtime.load(file) as model, Peer(file, N_CONTEXT) as peer:
        for sentence in make_models.SENTENCES:
            assert encode(model, sentence) == peer.encode(sentence)
        own, other = all_logits(model, ids), peer.logits(ids)
    errors = dict(llama_cpp_and_quire=relative(other, own), quire_and_transformers=relative(own, truth),
                  llama_cpp_and_transformers=relative(other, truth))
    print(f"{name}: " + ", ".join(f"{names} {error:.1e}" for names, error in errors.items()))
    record(name, seed=SEED, positions=len(ids), **errors)
    assert errors["quire_and_transformers"] < TOLERANCE
    assert max(errors.values()) < peer_tolerance(name)


@pytest.mark.parametrize("name", CASES)
def test_q8_0(name, runtime, tmp_path):
    folder, ids = make_case(tmp_path, name)
    file, floats = quantize(folder, "q8_0"), tmp_path / "floats.gguf"
    quantize_by_peer(file, floats, "ALL_F32")
    with runtime.load(file, activations="f32") as model:
        own = all_logits(model, ids)
    rounded, exact = relative(peer_logits(file, ids), own), relative(peer_logits(floats, ids), own)
    print(f"{name}: llama.cpp and quire {rounded:.1e}, without rounding of activations {exact:.1e}")
    record(name, seed=SEED, positions=len(ids), llama_cpp_and_quire=rounded, without_rounding_of_activations=exact)
    assert exact < peer_tolerance(name)
    assert rounded < ROUNDING


# What llama.cpp calls mixtures of types.
@pytest.mark.parametrize("mixture", ["MOSTLY_Q2_K", "MOSTLY_Q3_K_M", "MOSTLY_IQ4_NL", "MOSTLY_IQ4_XS"])
def test_mixtures_of_few_bits(mixture, runtime, tmp_path):
    print(f"\nQUIRE_SEED={SEED}")
    generator = random.Random(f"{SEED} {mixture}")
    make_models.make_model(
        tmp_path / "model", generator.randrange(2**31),
        dict(vocab_size=N_IDS, hidden_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
             intermediate_size=512, max_position_embeddings=N_CONTEXT, rms_norm_eps=1e-5, tie_word_embeddings=False))
    (tmp_path / "model" / "tokenizer.model").unlink()
    (tmp_path / "model" / "tokenizer.json").write_text(tokenizer_json("gpt2"), encoding="utf-8")
    ids = golden_format.random_ids(200, N_IDS, generator.randrange(2**31))
    file, floats = tmp_path / "mixture.gguf", tmp_path / "floats.gguf"
    quantize_by_peer(quantize(tmp_path / "model", "f32"), file, mixture)
    quantize_by_peer(file, floats, "ALL_F32")
    types = {tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors}
    assert mixture.removeprefix("MOSTLY_").removesuffix("_M") in types
    with runtime.load(file, activations="f32") as model:
        own = all_logits(model, ids)
    with runtime.load(file) as model:
        rounded = relative(all_logits(model, ids), own)
    exact, theirs = relative(peer_logits(floats, ids), own), relative(peer_logits(file, ids), own)
    print(f"{mixture} ({', '.join(sorted(types))}): {exact:.1e}; with rounded activations {rounded:.1e}, llama.cpp's "
          f"{theirs:.1e}")
    record(mixture, seed=SEED, positions=len(ids), without_rounding_of_activations=exact, rounded_activations=rounded,
           llama_cpp_and_quire=theirs)
    assert exact < TOLERANCE
    assert rounded < ROUNDING and theirs < ROUNDING


def test_the_comparison_can_fail(tmp_path):
    """A file without the model's scaling of RoPE must not pass."""
    folder, ids = make_case(tmp_path, "llama-tied")
    truth = make_golden.transformers_logits(folder, ids).numpy()
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config["rope_parameters"]["rope_theta"]}
    (folder / "config.json").write_text(json.dumps(config))
    assert relative(peer_logits(quantize(folder, "f32"), ids), truth) > 100 * TOLERANCE
