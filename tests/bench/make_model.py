#!/usr/bin/env python3
"""Writes a model of random bf16 weights as a Hugging Face directory, for the benchmarks.

    make_model.py DIRECTORY TOKENIZER_MODEL [110m|1.1b|llama-2-7b|llama-3-8b|gemma-3-1b [LAYERS]]

LAYERS: fewer than the shape has, for a look at its kernels that takes little time. Speed does not depend on the values, so one block of random numbers is repeated. Standard library only.
"""
import array
import json
import pathlib
import random
import shutil
import struct
import sys

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "intermediate_size": 2048,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}

# What differs from CONFIG (110 million weights). 1.1b: TinyLlama's shape. The vocabulary of Llama 3 is cut to that of the tokenizer.
SHAPES = {
    "110m": {},
    "1.1b": {"hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
             "intermediate_size": 5632, "tie_word_embeddings": False},
    "llama-2-7b": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
                   "head_dim": 128, "intermediate_size": 11008, "tie_word_embeddings": False},
    "llama-3-8b": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                   "head_dim": 128, "intermediate_size": 14336, "tie_word_embeddings": False,
                   "max_position_embeddings": 8192, "rope_theta": 500000.0},
    "gemma-3-1b": {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 1152,
                   "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
                   "intermediate_size": 6912, "vocab_size": 262144, "max_position_embeddings": 32768,
                   "rms_norm_eps": 1e-6, "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh",
                   "query_pre_attn_scalar": 256, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
                   "sliding_window": 512, "sliding_window_pattern": 6},
}


def bf16_bytes(values):
    """The upper halves of the float32 values, little endian."""
    words = array.array("H", struct.pack(f"<{len(values)}f", *values))[1::2]
    return words.tobytes()


def tensors(config):
    """Name and shape of every tensor, norms included."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    key = config["num_key_value_heads"] * config["head_dim"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        yield prefix + "self_attn.q_proj.weight", (query, hidden)
        yield prefix + "self_attn.k_proj.weight", (key, hidden)
        yield prefix + "self_attn.v_proj.weight", (key, hidden)
        yield prefix + "self_attn.o_proj.weight", (hidden, query)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        if config["model_type"].startswith("gemma"):
            for norm in ("q_norm", "k_norm"):
                yield prefix + f"self_attn.{norm}.weight", (config["head_dim"],)
            for norm in ("pre_feedforward", "post_feedforward"):
                yield prefix + norm + "_layernorm.weight", (hidden,)
        yield prefix + "mlp.gate_proj.weight", (ffn, hidden)
        yield prefix + "mlp.up_proj.weight", (ffn, hidden)
        yield prefix + "mlp.down_proj.weight", (hidden, ffn)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def element_count(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def write_weights(path, config):
    header, offset = {}, 0
    for name, shape in tensors(config):
        end = offset + 2 * element_count(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = random.Random(1)
    block = bf16_bytes([generator.gauss(0, 0.03) for _ in range(1 << 18)])
    ones = bf16_bytes([1.0])
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape in tensors(config):
            left = 2 * element_count(shape)
            if len(shape) == 1:
                file.write(ones * shape[0])
                continue
            while left > 0:
                file.write(block[:left])
                left -= len(block)


def main():
    if len(sys.argv) not in (3, 4, 5) or (len(sys.argv) > 3 and sys.argv[3] not in SHAPES):
        sys.exit(__doc__)
    config = CONFIG | SHAPES[sys.argv[3] if len(sys.argv) > 3 else "110m"]
    if len(sys.argv) == 5:
        config |= {"num_hidden_layers": int(sys.argv[4])}
    directory = pathlib.Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(sys.argv[2], directory / "tokenizer.model")
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_weights(directory / "model.safetensors", config)


if __name__ == "__main__":
    main()
