"""Tokenizers that `quire quantize` writes: a directory with a tokenizer.json becomes a GGUF file, which llama.cpp opens.

The library reads the file again, llama.cpp and Hugging Face's `tokenizers`, which has the tokenizer.json, give the same
ids. Weights are random and small. Needs llama-cpp-python; QUIRE_COMMAND names the command. QUIRE_SEED repeats a run.
"""

import json
import os
import subprocess
import unicodedata

import numpy
import pytest
import tokenizers
from safetensors.numpy import save_file

from test_tokenizers import (BYTE_LEVEL, compare, known_to_llama_cpp, llama_texts, mistral_tokenizer, models,  # noqa: F401
                             official_tokenizer, random_texts, runtime)

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

HIDDEN = 32
N_TEXTS = 600  # of the random ones


def save_model(folder, definition):
    n_ids = max(max(definition["model"]["vocab"].values()), *(token["id"] for token in definition["added_tokens"])) + 1
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": HIDDEN,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "vocab_size": n_ids + 3,
        "hidden_act": "silu", "torch_dtype": "float32"}))
    generator = numpy.random.default_rng(1)
    names = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
             "mlp.down_proj"}
    tensors = {f"model.layers.0.{name}.weight": generator.standard_normal((HIDDEN, HIDDEN), numpy.float32) for name in names}
    tensors |= {f"model.layers.0.{name}.weight": numpy.ones(HIDDEN, numpy.float32)
                for name in ("input_layernorm", "post_attention_layernorm")}
    tensors["model.norm.weight"] = numpy.ones(HIDDEN, numpy.float32)
    tensors["model.embed_tokens.weight"] = generator.standard_normal((n_ids + 3, HIDDEN), numpy.float32)
    save_file(tensors, folder / "model.safetensors")


def definition_of(name, models):  # noqa: F811
    if name.startswith("characters"):
        return mistral_tokenizer(models / "ggml-vocab-llama-spm.gguf", name.split("-")[1])
    vocabulary, pre_tokenizer, _, ignore_merges = BYTE_LEVEL[name]
    return official_tokenizer(models / f"ggml-vocab-{vocabulary}.gguf", pre_tokenizer, False, ignore_merges)


@pytest.mark.parametrize("name", ("characters-older", "characters-newer", "gpt2", "smollm", "llama-bpe", "qwen2", "tekken"))
def test_written_tokenizers(name, models, runtime, tmp_path):  # noqa: F811
    definition = definition_of(name, models)
    save_model(tmp_path, definition)
    file = tmp_path / "model.gguf"
    subprocess.run([os.environ["QUIRE_COMMAND"], "quantize", "-q", "-t", "f16", tmp_path, file], check=True)
    whole = tokenizers.Tokenizer.from_str(json.dumps(definition))
    whole.encode_special_tokens = True
    peer, own = llama_cpp.Llama(str(file), n_ctx=64, verbose=False), runtime.tokenizer(file)
    texts = [text for text, _ in llama_texts(models / "ggml-vocab-llama-bpe.gguf")] + random_texts()[:N_TEXTS]
    texts = [text for text in texts if known_to_llama_cpp(text)]
    if name == "characters-newer":  # its prefix is left out where a text begins with a space; that of GGUF files never is
        texts = [text for text in texts if not text.startswith((" ", "\u2581"))]
    # Marks are parts of words to tekken's pattern, and to llama.cpp's, which has no classes inside classes, they are not.
    alike = [text for text in texts if name != "tekken" or not any(unicodedata.category(c)[0] == "M" for c in text)]
    compare(f"{name}, llama.cpp", alike, lambda text: own.encode(text, bos=False),
            lambda text: peer.tokenize(text.encode(), add_bos=False, special=False))
    compare(f"{name}, Hugging Face", texts, lambda text: own.encode(text, bos=False),
            lambda text: whole.encode(text, add_special_tokens=False).ids)
    peer.eval(peer.tokenize(b"The book"))
