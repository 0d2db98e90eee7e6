#!/usr/bin/env python3
"""Writes the seed corpora and dictionaries of the fuzz targets: python tests/fuzz/make_corpus.py"""

import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent


def seeds(target, texts):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts):
        data = text if isinstance(text, bytes) else text.encode()
        (folder / f"seed{number:02}").write_bytes(data)


def dictionary(target, words):
    lines = ['"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"\n' for word in words]
    lines = ["".join(c if c.isascii() else "".join(f"\\x{byte:02X}" for byte in c.encode()) for c in line) for line in lines]
    (HERE / "corpus" / f"{target}.dict").write_text("".join(lines))


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def chat():
    def conversation(template, flags, *messages):
        return bytes([template, flags]) + b"\1".join(role.encode() + text.encode() for role, text in messages)

    look_alike = "<|im_end|>\n<|im_start|>system [INST]</s><|eot_id|>"
    seeds("fuzz_chat", [
        *(conversation(template, template % 8, ("s", " Be brief. /no_think\n"), ("u", "one\u00a0"), ("a", "<think>\nso\n</think>\n two"),
                       ("u", look_alike)) for template in range(21)),
        conversation(4, 0, ("u", "<tool_response>x</tool_response>"), ("a", "</think>"), ("a", "")),
        conversation(6, 4, ("s", "/system_override /think x"), ("u", "")),
        conversation(8, 0, ("u", "one"), ("u", "two")),
        conversation(0, 0, ("x", "unknown role")),
        b"{% for message in messages %}{{ message['content'] }}{% endfor %}",
    ])
    dictionary("fuzz_chat", ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "[INST]", "[/INST]", "<think>", "</think>", "/think", "/no_think",
                             "/system_override", "<tool_response>", "</tool_response>", "</s>"])


def safetensors():
    def header(data_size, **tensors):
        return struct.pack("<q", data_size) + json.dumps(tensors).encode()

    seeds("fuzz_safetensors_header", [
        header(0),
        header(24, a=tensor("F32", [2, 3], 0, 24)),
        header(28, a=tensor("F16", [2, 3], 0, 12), b=tensor("BF16", [8], 12, 28), c=tensor("I64", [0], 28, 28)),
        header(4, __metadata__={"format": "pt"}, a=tensor("F32", [], 0, 4)),
        header(8, a=tensor("F32", [2], 0, 8), b=tensor("F32", [1], 4, 8)),
    ])
    dictionary("fuzz_safetensors_header",
               ['"dtype"', '"shape"', '"data_offsets"', '"__metadata__"', '"F32"', '"BF16"', '"U8"', "[0,4]", "{}",
                "[]", "9223372036854775807", "18446744073709551615", "4294967296", "-1", "1e30"])


def gguf_header():
    def text(value):
        return struct.pack("<Q", len(value)) + value

    def key(name, kind, value):
        return text(name) + struct.pack("<I", kind) + value

    def tensor(name, dims, kind, offset):
        return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)

    def header(data_size, keys, tensors, version=3):
        return (struct.pack("<q", data_size) + b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) +
                b"".join(keys) + b"".join(tensors))

    scalars = [key(bytes([97 + i]), i, struct.pack("<" + "BbHhIif?"[i], 1)) for i in range(8)]
    scalars += [key(b"n", 10, struct.pack("<Q", 5)), key(b"o", 11, struct.pack("<q", -5)), key(b"p", 12, struct.pack("<d", 2))]
    arrays = [key(b"general.architecture", 8, text(b"llama")),
              key(b"tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 3) + text(b"a") + text(b"") + text(b"\xff")),
              key(b"tokenizer.ggml.scores", 9, struct.pack("<IQ3f", 6, 3, 0, -1, 2)),
              key(b"tokenizer.ggml.token_type", 9, struct.pack("<IQ3i", 5, 3, 1, 2, 3))]
    seeds("fuzz_gguf_header", [
        header(0, [], []), header(0, scalars, [], 2), header(0, arrays, []),
        header(300, [key(b"general.alignment", 4, struct.pack("<I", 64))],
               [tensor(b"token_embd.weight", [32, 2], 2, 0), tensor(b"blk.0.attn_q.weight", [8], 0, 64)]),
        header(1000, arrays, [tensor(b"a", [256, 2], 12, 0), tensor(b"b", [], 0, 288), tensor(b"c", [4, 0], 1, 320)]),
        *[header(4096, *parts) for parts in gguf_models(key, text, tensor)],
    ])
    words = ["GGUF", "general.alignment", "general.architecture", "tokenizer.ggml.tokens", "llama", "mistral", "mistral3",
             "qwen2", "qwen3", "smollm3", "phi3", "granite", "gemma3", "none", "linear", "yarn", "longrope", "</s>", "<|im_end|>",
             "<|fim_pad|>",
             "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight", "output.weight", "blk.0.attn_q.bias", "blk.0.attn_q_norm.weight"]
    keys = ["attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
            "attention.sliding_window", "attention.sliding_window_pattern", "attention.scale", "attention.causal", "rope.dimension_count", "rope.freq_base", "rope.freq_base_swa",
            "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
            "rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_attn_factor",
            "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_beta_fast", "expert_count", "vocab_size"]
    factors = [f"granite.{name}" for name in ("embedding_scale", "residual_scale", "attention.scale", "logit_scale")]
    tokens = ["bos", "eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"]
    dictionary("fuzz_gguf_header", words + factors + ["llama." + name for name in keys] + [
        f"tokenizer.ggml.{name}_token_id" for name in tokens])


def gguf_models(key, text, tensor):
    """(keys, tensors) of small models of each architecture."""
    def u32(name, value):
        return key(name.encode(), 4, struct.pack("<I", value))

    def f32(name, value):
        return key(name.encode(), 6, struct.pack("<f", value))

    def string(name, value):
        return key(name.encode(), 8, text(value.encode()))

    for architecture in ("llama", "mistral3", "qwen2", "qwen3", "smollm3", "phi3", "granite", "gemma3"):
        a = architecture + "."
        keys = [string("general.architecture", architecture), u32(a + "block_count", 2), u32(a + "embedding_length", 32),
                u32(a + "context_length", 256), u32(a + "feed_forward_length", 64), u32(a + "attention.head_count", 4),
                f32(a + "attention.layer_norm_rms_epsilon", 1e-5), u32(a + "vocab_size", 20)]
        norms = [f"blk.{layer}.attn_{which}_norm.weight" for layer in (0, 1) for which in "qk"]
        if architecture == "gemma3":
            norms += [f"blk.{layer}.post_{block}_norm.weight" for layer in (0, 1) for block in ("attention", "ffw")]
        has_norms = architecture in ("qwen3", "gemma3")
        tensors = [tensor(name.encode(), [8], 0, 32 * i) for i, name in enumerate(norms)] if has_norms else []
        yield keys, tensors
        if architecture == "granite":
            yield keys + [f32(a + "embedding_scale", 12), f32(a + "residual_scale", 0.22), f32(a + "attention.scale", 0.125),
                          f32(a + "logit_scale", 8)], tensors
        if architecture == "gemma3":
            yield keys + [u32(a + "attention.sliding_window", 64), u32(a + "attention.sliding_window_pattern", 2),
                          f32(a + "rope.freq_base_swa", 2e4)], tensors
        yield keys + [string(a + "rope.scaling.type", "yarn"), f32(a + "rope.scaling.factor", 4),
                      u32(a + "rope.scaling.original_context_length", 64), f32(a + "rope.scaling.yarn_log_multiplier", 1),
                      key(b"tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 3) + text(b"</s>") + text(b"<|im_end|>")
                          + text(b"a")), u32("tokenizer.ggml.eos_token_id", 1)], tensors
        yield keys + [key((a + "attention.head_count_kv").encode(), 9, struct.pack("<IQ2i", 5, 2, 2, 2)),
                      u32(a + "attention.sliding_window", 64), f32(a + "rope.freq_base", 1e6)], tensors + [
                          tensor(b"rope_freqs.weight", [4], 0, 256)]


def model_config():
    base = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    scalings = [
        {"type": "linear", "factor": 4.0}, {"type": "vanilla_ntk", "factor": 2},
        {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096, "beta_fast": 32, "truncate": False},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192},
        {"type": "dynamic", "factor": 2.0},
    ]
    seeds("fuzz_model_config", [json.dumps(config) for config in [base] + [
        {**base, "rope_scaling": scaling} for scaling in scalings] + [
        {**base, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "head_dim": 32,
         "num_key_value_heads": 2, "eos_token_id": [2, 3], "bos_token_id": 1, "tie_word_embeddings": True,
         "rms_norm_eps": 1e-5, "max_position_embeddings": 131072},
        {**base, "head_dim": 4, "original_max_position_embeddings": 64, "rope_scaling":
         {"type": "su", "short_factor": [1.0, 1.5], "long_factor": [2.0, 8]}},
        {**base, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "num_key_value_heads": 2,
         "sliding_window": 4096},
        {**base, "dual_chunk_attention_config":
         {"chunk_size": 1024, "local_size": 128, "original_max_position_embeddings": 1024}},
        {**base, "beacon_window": 1024, "beacon_stride": [1024], "beacon_attn": "step-expansion",
         "beacon_ratio": [0, 2, 4, 8, 16, 32, 64, 128], "beacon_ratio_mix": "adapt-1024",
         "beacon_param": ["q", "k", "v", "o"], "beacon_attend_previous": True, "beacon_stride_mix": "step-random"},
        {**base, "beacon_window": 96, "beacon_stride": [32], "beacon_attn": "segmentation", "beacon_ratio": [8],
         "beacon_ratio_mix": "sequence", "beacon_param": ["mlp"]},
        {**base, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_key_value_heads": 2,
         "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0},
        {**base, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 8,
         "layer_types": ["full_attention", "full_attention"]},
        {**base, "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "no_rope_layers": [1, 0]},
        {**base, "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "no_rope_layer_interval": 2},
        {**base, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "partial_rotary_factor": 0.5},
        {**base, "architectures": ["GraniteForCausalLM"], "model_type": "granite", "embedding_multiplier": 12,
         "residual_multiplier": 0.22, "attention_multiplier": 0.125, "logits_scaling": 8},
        {**base, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_key_value_heads": 2,
         "query_pre_attn_scalar": 256, "sliding_window": 64, "sliding_window_pattern": 2, "rope_local_base_freq": 1e4,
         "hidden_activation": "gelu_pytorch_tanh", "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {**base, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_key_value_heads": 2,
         "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
             "full_attention": {"rope_type": "default", "rope_theta": 1e6},
             "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}]])
    dictionary("fuzz_model_config",
               ['"rope_scaling"', '"rope_parameters"', '"rope_theta"', '"rope_type"', '"factor"', '"head_dim"',
                '"num_key_value_heads"', '"eos_token_id"', '"attention_factor"', '"mscale"', '"mscale_all_dim"',
                '"original_max_position_embeddings"', '"sliding_window"', '"MistralForCausalLM"', '"mistral"',
                '"dual_chunk_attention_config"', '"chunk_size"', '"local_size"', '"short_factor"', '"long_factor"',
                '"beacon_window"', '"beacon_stride"', '"beacon_attn"', '"beacon_ratio"', '"beacon_ratio_mix"',
                '"beacon_param"', '"full-coverage"', '"adapt-16"', '"retrieval_method"',
                '"dynamic"', '"longrope"', '"quantization_config"', "null", "NaN", "1e999",
                '"Qwen2ForCausalLM"', '"qwen2"', '"Qwen3ForCausalLM"', '"qwen3"', '"SmolLM3ForCausalLM"', '"smollm3"',
                '"Phi3ForCausalLM"', '"phi3"', '"partial_rotary_factor"', '"GraniteForCausalLM"', '"granite"', '"Gemma3ForCausalLM"',
                '"gemma3_text"', '"query_pre_attn_scalar"', '"sliding_window_pattern"', '"rope_local_base_freq"',
                '"full_attention"', '"hidden_activation"',
                '"embedding_multiplier"', '"residual_multiplier"', '"attention_multiplier"', '"logits_scaling"',
                '"use_sliding_window"', '"max_window_layers"', '"layer_types"', '"sliding_attention"',
                '"no_rope_layers"', '"no_rope_layer_interval"'])


def adapter_config():
    base = {"peft_type": "LORA", "r": 32, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
            "bias": "none", "lora_dropout": 0.05, "base_model_name_or_path": "x/y", "task_type": "CAUSAL_LM"}
    seeds("fuzz_adapter_config", [json.dumps(config) for config in [
        base, {**base, "modules_to_save": ["embed_tokens", "norm"], "use_rslora": True},
        {**base, "target_modules": "all-linear", "exclude_modules": ["lm_head"], "layers_to_transform": [0, 2]},
        {**base, "rank_pattern": {"o_proj": 8, "^model.layers.1.mlp.up_proj": 4}, "alpha_pattern": {"q_proj": 2.5}},
        {**base, "use_dora": True}, {**base, "init_lora_weights": "pissa"}]])
    dictionary("fuzz_adapter_config",
               ['"peft_type"', '"LORA"', '"r"', '"lora_alpha"', '"target_modules"', '"modules_to_save"',
                '"rank_pattern"', '"alpha_pattern"', '"layers_to_transform"', '"use_rslora"', '"use_dora"',
                '"exclude_modules"', '"init_lora_weights"', '"fan_in_fan_out"', '"bias"', '"q_proj"',
                '"self_attn.q_proj"', '"^q_proj"', '"all-linear"', "null", "true", "1e999", "-1", "{}", "[]"])


def adapter_tensors():
    """For the model of fuzz_adapter_tensors.cc: hidden 8, 2 heads of 6, one of keys and values, 10 between, 12 words."""
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": "all-linear"}
    query, down = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
    low_rank = {f"{query}.lora_A.weight": [2, 8], f"{query}.lora_B.weight": [12, 2]}
    more = {f"{down}.lora_A.weight": [2, 10], f"{down}.lora_B.weight": [8, 2]}
    embedding = {"model.embed_tokens.lora_embedding_A": [2, 12], "model.embed_tokens.lora_embedding_B": [8, 2],
                 "model.embed_tokens.base_layer.weight": [12, 8]}
    norms = {"model.norm.modules_to_save.weight": [8], "model.layers.0.input_layernorm.weight": [8]}

    def text(first, patch, shapes):
        header, end = {}, 0
        for name, shape in shapes.items():
            begin, end = end, end + 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[f"base_model.model.{name}"] = tensor("F32", shape, begin, end)
        return first + json.dumps({**config, **patch}) + "\n" + json.dumps(header)

    seeds("fuzz_adapter_tensors", [
        text("\0", {}, low_rank), text("\x01", {}, {**low_rank, **more, **norms}),
        text("\0", {"target_modules": ["q_proj"], "layers_to_transform": [0]}, low_rank),
        text("\0", {}, embedding), text("\x01", {}, {**embedding, "model.embed_tokens.weight": [12, 8]}),
        text("\0", {"modules_to_save": ["lm_head"]}, {**low_rank, "lm_head.weight": [12, 8]}),
        text("\x01", {}, {"lm_head.lora_A.weight": [2, 8], "lm_head.lora_B.weight": [12, 2]}),
        text("\0", {"rank_pattern": {"down_proj": 1}}, {**low_rank, **more}),
        text("\0", {}, {f"{query}.lora_magnitude_vector": [12]}), text("\0", {}, {f"{query}.lora_B.bias": [12]}),
    ])
    dictionary("fuzz_adapter_tensors",
               ["base_model.model.", "model.layers.0.", "model.layers.1.", "self_attn.q_proj", "self_attn.o_proj",
                "mlp.up_proj", "model.embed_tokens", "lm_head", "model.norm", ".input_layernorm", ".lora_A.weight",
                ".lora_B.weight", ".lora_embedding_A", ".lora_embedding_B", ".lora_magnitude_vector", ".lora_A.bias",
                ".modules_to_save.weight", ".base_layer.weight", ".weight", '"dtype"', '"shape"', '"data_offsets"',
                '"BF16"', '"I32"', "[2,8]", "[12,2]", "[12,8]", "[0,64]", '"target_modules"', '"modules_to_save"',
                '"rank_pattern"', '"layers_to_transform"', '"q_proj"', '"use_rslora"'])


def shard_index():
    files = {f"model.layers.{i}.mlp.up_proj.weight": f"model-0000{i % 3}-of-00003.safetensors" for i in range(5)}
    seeds("fuzz_shard_index", [json.dumps(index) for index in [
        {"metadata": {"total_size": 128}, "weight_map": files}, {"weight_map": {}}, {"weight_map": {"a": ".safetensors"}},
        {"weight_map": {"a": "../s.safetensors"}}, {"weight_map": {"a": "s\0.safetensors", "b": "s.bin"}},
        {"weight_map": {"a": 1, "b": None}}, {"weight_map": []}]])
    dictionary("fuzz_shard_index",
               ['"weight_map"', '"metadata"', ".safetensors", '"a":"s.safetensors"', "/", "\\\\", "\\u0000", "null", "{}",
                "[]"])


def strategy():
    expressions = [
        "full", "full + none", "full + pi(factor=4)", "dca", "dca(chunk=72, cap=99)", "dca(preset=vllm, local=16)",
        "dca(preset=chunkllama, logit_scale=yarn_0.1) + ntk(factor=2)", "streaming_llm(sinks=4, recent=60)",
        "full + yarn(factor=4, original=1024, beta_fast=32, beta_slow=1, attention_factor=1.1, variant=pose, "
        "truncate=0)",
        "full + llama3(factor=8, low=1, high=4, original=8192)", "full + base(theta=1e6) + pi(factor=2.5)",
        "full(train_len=8192, kv_chunk=64)",
    ]
    methods = [
        "rerope(window=512, leaky=8, log_n=0)", "self_extend(group=8, window=256)", "lm_infinite(sinks=10, recent=100)",
        "s2(group=64)", "scca_fixed(chunk=64, full_below=200, mask=slot)", "scca_flow(chunks=2, chunk=48)",
        "scca_flow(chunks=4, chunk=48, roll=left, wrap=local)", "sda(dilation=2)", "sda(dilation=4, reading=kv)",
        "long_mixed(heads=sda2x8.sda4x16.rolledx4.localx4, chunk=64)", "long_mixed(reading=kv, mask=slot)",
        "long_mixed(heads=full.shift2.sda3.localx29, chunk=32)",
        "longheads(positions=dca, chunk=16, chunks=5, dca_chunk=53, dca_cap=60)",
        "longheads(chunk=32, chunks=6, begin=240, forced=paper, init=full)",
        "longheads(chunk=16, chunks=5, select=group, pick=worst, first=never)",
    ]
    # The first byte: trained length (0 to 7), and bits that say what the model has (fuzz_strategy.cc); 0x40: beacons.
    special = [(0xA0, "auto"), (0x20, "auto + pi(factor=2)"), (0x10, "full + dynamic_ntk(factor=2, length=9000)"),
               (0x50, "dca(ignore_window=1) + longrope(length=600, original=512, attention_factor=1.2)"),
               (0x40, "beacon(ratio=8)"), (0x60, "beacon"), (0x55, "beacon(ignore_window=1)"),
               (0x44, "beacon(window=48, stride=16, sequence=x2.x0.x8, attn=segmentation) + pi(factor=2)"),
               (0x43, "beacon(window=6, stride=6, ratio=2, attn=full_coverage, growth=stop)"),
               (0x60, "beacon(reserve=100, growth=raise)")]
    inputs = [bytes([i % 16]) + text.encode() for i, text in enumerate(expressions)]
    inputs += [bytes([mode]) + text.encode() for mode, text in special]
    # A model trained for 2048 tokens; 32 heads, which the length of the input chooses.
    inputs += [(b"\0" + text.encode()).ljust(-(-(len(text) + 1) // 8) * 8) for text in methods]
    alone = [(0, "pi(factor=4)"), (0, "base(theta=1e6) + none"), (8, "yarn(factor=2) + base(theta=2e4)"),
             (0x20, "dynamic_ntk(factor=2)"), (0, "pi(factor=2) + dca")]
    inputs += [bytes([mode]) + text.encode() for mode, text in alone]
    seeds("fuzz_strategy", inputs)
    dictionary("fuzz_strategy",
               ["full", "dca", "streaming_llm", "auto", "dynamic_ntk", "longrope", "length=", "ignore_window=1", "none",
                "beacon", "lm_infinite", "long_mixed", "longheads", "rerope", "s2", "scca_fixed", "scca_flow", "sda",
                "self_extend", "window=", "stride=", "ratio=", "sequence=x2.x0.x4", "reserve=", "growth=stop",
                "attn=segmentation", "attn=full_coverage", "leaky=", "log_n=0", "group=", "full_below=", "mask=slot",
                "roll=left", "wrap=local", "dilation=", "reading=kv", "heads=", "sda2x8", ".rolled", ".local",
                ".shift2", "positions=dca", "dca_chunk=", "dca_cap=", "chunks=", "begin=", "forced=paper", "init=full",
                "select=group", "pick=worst", "first=never", "pi", "ntk", "yarn", "llama3", "base", "chunk=", "cap=",
                "preset=", "paper", "chunkqwen", "local=", "logit_scale=", "sinks=", "recent=", "factor=", "original=",
                "theta=", "train_len=", "kv_chunk=", "variant=", "truncate=", "beta_fast=", " + ", "(", ")", ", ",
                "1e30", "-1", "9223372036854775807", "nan", "inf"])


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def message(field, data):
    return varint(field << 3 | 2) + varint(len(data)) + data


def number(field, value):
    return varint(field << 3) + varint(value)


def piece(text, kind=1, score=0.0):
    return message(1, message(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score) + number(3, kind))


def charsmap():
    """One block of a double array: "a" -> "x", "ab" -> "yz"."""
    units = [0x80000000] * 256
    units[0] = (0 ^ 1) << 10
    a, ab = 1 ^ ord("a"), 4 ^ ord("b")
    units[a] = ord("a") | (a ^ 4) << 10 | 0x100
    units[4] = 0x80000000
    units[ab] = ord("b") | (ab ^ 8) << 10 | 0x100
    units[8] = 0x80000000 | 2
    return struct.pack("<I256I", 1024, *units) + b"x\0yz\0"


def tokenizer_model():
    words = [piece("<unk>", 2), piece("<s>", 3), piece("</s>", 3)]
    letters = [piece(letter, 1, -index) for index, letter in enumerate("▁thebokaxyz1")]
    text = b"".join(words + letters + [piece("th", 1, -0.5), piece("the", 1, -0.6), piece("##", 4)])
    byte_pieces = b"".join(piece(f"<0x{value:02X}>", 6) for value in range(256))
    unigram, bpe = message(2, number(3, 1)), message(2, number(3, 2))
    seeds("fuzz_tokenizer_model", [
        text + unigram, text + bpe, text + byte_pieces + message(2, number(3, 2) + number(35, 1)),
        text + unigram + message(3, message(2, charsmap()) + number(3, 0) + number(4, 0)),
        text + bpe + message(3, number(5, 0)) + message(4, message(1, b"x")), text.replace(b"<s>", b"the") + bpe,
    ])


def tokenizer_json():
    """Lines as fuzz_tokenizer_json.cc reads them: H to P choose one of the file's nine members, in the order of names."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}

    def split(regex, behavior="Isolated", **more):
        parts = [{"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior} | more, byte_level]
        return "N " + json.dumps({"type": "Sequence", "pretokenizers": parts}) + "\n"

    nfc = 'K {"type":"NFC"}\n'
    small = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<s>": 3}, "merges": ["a b"]},
             "added_tokens": [{"id": 3, "content": "<s>", "special": True}],
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}, "decoder": {"type": "ByteLevel"}}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    seeds("fuzz_tokenizer_json", [
        "\0" + json.dumps(small), "\0{", "\1\nthe book's pages 123\n\n  x", "\2\nthe book <unk> \u65e5\u672c",
        "\1" + split(r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+") + "JK true\n\nit's 1234",
        "\1" + split("(a+)+[bc]") + "\naaaaaaaaaaaaaaaaaaa", "\1" + split("[a-f]", "MergedWithNext", invert=True) + "\nthe cab",
        "\1" + split("x*", "Contiguous") + nfc + "\nxxe\u0301x\u0344", "\1" + split("\\u0061{,3}", "Removed") + "\naaaab",
        "\1" + nfc + "\nq\u0307\u0323 \u1100\u1161\u11a8 \u0958", '\1N {"type":"Digits"}\n\n12',
        "\2K null\nN " + json.dumps(metaspace) + "\n\na  b", "\2JF false\n\n\U0001F600\u65e5", "\1JLH\n\nthe",
        '\1JLH ["zz","a"]\n\nthe', '\1JOH 7\n\nx', '\1HH {"id":5,"content":"x"}\n\nx', '\1M {"type":"ByteLevel"}\n\nx',
        '\1I {"type":"Fuse"}\n\nx', '\2K {"type":"Replace","pattern":{"String":"a"},"content":"bbb"}\n\naab <|tool|> a',
    ])
    dictionary("fuzz_tokenizer_json",
               ['"type"', '"ByteLevel"', '"Split"', '"Regex"', '"String"', '"Digits"', '"Metaspace"', '"Sequence"', '"NFC"', '"Prepend"',
                '"Replace"', '"Isolated"', '"Removed"', '"invert":true', "\\\\p{L}+", "\\\\s+(?!\\\\S)", "(?:", "(?=", "{1,3}", "null",
                "true", "<|tool|>", "<|end|>", "\u0301", "\u2581"])


def gguf_tokenizer():
    """Lines as fuzz_gguf_tokenizer.cc reads them: key, place, what to do, value."""
    seeds("fuzz_gguf_tokenizer", [
        "\0\n the other\n\n  \u00e9<|end|><|tool|>", "\1\nthe book <s> \u65e5", "\0@@@\n\nx", "\1A@A\n\nx",
        *(f"{which}{key}{place}{action}{value}\n\nthe the" for which, key, place, action, value in (
            ("\0", "@", "a", "B", "1"), ("\0", "A", "b", "A", ""), ("\0", "C", "c", "B", "x y"), ("\0", "E", "d", "B", "tekken"),
            ("\0", "F", "e", "B", "5"), ("\0", "G", "f", "A", "the"), ("\1", "@", "g", "B", "0"), ("\1", "D", "h", "B", "nan"),
            ("\1", "E", "i", "B", "3"), ("\1", "F", "j", "B", "-1"), ("\1", "B", "k", "B", "t5"), ("\1", "G", "l", "C", "<s>"))),
    ])
    dictionary("fuzz_gguf_tokenizer", ["gpt2", "llama", "gpt-2", "qwen2", "tekken", "falcon", "deepseek-coder", "<0x41>", "\u2581",
                                       "<|end|>", "-1", "6", "inf"])


def tokenizer_text():
    seeds("fuzz_tokenizer_text", [
        "\0the book <x><x> a", "\0caf\u00e9 \U0001F600  \n", b"\0\xe2\x82", "\x01ab\ncd\n\x10\x20\x30",
        "\x01\n\n\xc3\xa9x", "\x01\ufffd\nthe\n" + "".join(map(chr, range(40, 100))),
        '\x02{"add_bos_token":false,"bos_token":"<s>"}\n{"<y>":482}\n<y>a<y>',
        '\x02{"added_tokens_decoder":{"480":{"content":"<z>","special":true,"lstrip":true,"rstrip":true}}}\n\n a <z> b',
    ])
    dictionary("fuzz_tokenizer_text",
               ['"added_tokens_decoder"', '"content"', '"special"', '"lstrip"', '"rstrip"', '"bos_token"',
                '"eos_token"', '"add_prefix_space"', '"additional_special_tokens"', '"480"', "true", "null", "<x>",
                "<s>"])


def special_tokens():
    # A line for each token, its first byte the flags 1 special, 2 lstrip, 4 rstrip, 8 older file; then the text.
    prefixes = "".join(f"@{'a' * n}\n" for n in (1, 2, 3, 5, 8, 13))
    seeds("fuzz_special_tokens", [
        "A<x>\n@<x><x>\n\nthe <x><x><x> book <s> a</s>", prefixes + "\naaaaaaaaaaaaaaab aaaa",
        "B<l>\nD<r>\nF <b>\n\na  <l> b <r>\n c  <b>  ", "Hab\nHba\nHab\n@b\n\nabababbab", "A\1\nA \n\n \n  a\n",
        "@ab\n@bc\n@bcd\n@abcde\n\nabcdabcdeabc", b"A\xc3\xa9\n@\xc3\n\n\xc3\xa9\xc3\xa9e\xcc\x81", "\n<s>",
    ])
    dictionary("fuzz_special_tokens", ["<s>", "</s>", "<x>", "aaaa", "  ", "the", "@", "A", "H"])


def sampler_chain():
    """The numbers of fuzz_sampler_chain.cc, in its order."""
    def word(n):
        return bytes((n & 255, n >> 8))

    def step(kind, value, n=0, *more):
        return bytes((kind - 1, value)) + word(n) + b"".join(more)

    def chain(steps, logits, shape=0, lists=b"", top=5):
        return bytes((len(logits) - 1, shape, 7, top, 1, len(steps))) + b"".join(steps) + lists + bytes(logits)

    def tokens(*ids):
        return bytes((len(ids),)) + b"".join(word(i) for i in ids)

    temperature, top_k, top_p, min_p, typical = step(1, 90), step(2, 0, 2), step(3, 4), step(4, 6), step(5, 3)
    penalties = step(6, 120, 10, bytes((50, 1, 30, 0)))
    dry = step(7, 80, 0, bytes((175,)), word(1))
    some, equal = [100, 132, 90, 101, 60, 140, 139, 20], [100] * 9
    seeds("fuzz_sampler_chain", [
        b"", chain([], some, 1), chain([temperature], some), chain([temperature, top_k, top_p, min_p], some),
        chain([typical], some + equal), chain([top_k, top_p], equal, 1), chain([min_p, typical], list(range(12)) + some),
        chain([penalties, temperature], some, 8, tokens(1, 2, 1, 5)),
        chain([dry, penalties], some, 8 | 16, tokens(1, 2, 3, 1, 2, 3, 1, 2) + bytes(8 * (1,))),
        chain([temperature], some, 4, tokens(0, 1, 5)), chain([top_p], some, 4, tokens(*range(8))),
        chain([step(1, 2), step(1, 2)], list(range(12)), 1),
        chain([temperature, top_p], some, 2, b"\2" + word(1) + b"\3" + word(2) + b"\4"),
    ])
def session():
    """Each strategy, then: feed 30 tokens, generate, read on, cut, feed text, generate under a chain of changes."""
    feed = bytes([0, 30]) + bytes(range(3, 33))
    generate = bytes([4, 4, 12, 0])
    read = bytes([6, 11]) * 2
    text = bytes([2, 0, 0, 0, 0, 20]) + b"the road of the maps"
    calls = [
        feed + generate + read,
        feed + generate + read + bytes([10, 24]) + text + bytes([4, 1, 9, 7]) + read + bytes([12, 255, 1, 1]),
        feed + feed + feed + feed + generate + bytes([6, 3, 8, 6, 2]) + bytes([4, 2, 3, 0]) + read + bytes([12, 4, 1, 1]),
        bytes([13, 90]) + generate + bytes([6, 5, 9, 1]) + feed + bytes([9, 0, 11, 1]) + generate + read,
        bytes([2, 0, 0, 9, 1, 20]) + b"the road of the maps" + generate + read + bytes([14, 11, 0, 15, 0]) + feed,
        bytes([3, 6, 0, 1, 1, 1, 1, 1, 1, 3, 4, 1, 60, 1, 1, 1, 1]) + generate + read + bytes([10, 9]) + feed + generate + read,
    ]
    seeds("fuzz_session", [bytes([strategy, how, 15]) + part for part in calls
                           for strategy, how in ((0, 3), (1, 2 + 16 + 64), (2, 32 + 64), (3, 1), (4, 3 + 16), (6, 3))])


def model_load():
    """Models as fuzz_model_load.cc makes them: five bytes, then damages: what, part, and their arguments."""
    whole = [bytes((architecture, how, architecture, 10 - architecture, 0))
             for architecture in range(7) for how in (0, 1, 2 | 8, 4, 16, 1 | 32)]
    one, parts = bytes((0, 0, 3, 8, 0)), bytes((3, 32, 9, 0, 0))
    huge, far, eight = b"\x0c", b"\x0b", bytes((8 + 17,))
    tensors = [bytes((0, 0, kind, place)) for kind, place in ((6, 3), (7, 4), (7, 9), (9, 2))]
    tensors += [bytes((0, 0, 0, 5)) + far, bytes((0, 0, 0, 5)) + eight, bytes((0, 0, 0, 7, 0)), bytes((0, 0, 1, 0, 1)) + huge,
                bytes((0, 0, 2, 0)) + huge, bytes((0, 0, 3, 1)), bytes((0, 0, 4, 6, 99 + 17)), bytes((0, 0, 4, 6, 26 + 17)),
                bytes((0, 0, 5, 8, 4)) + b"x.yz", bytes((0, 0, 8, 2, 5)), bytes((0, 0, 9, 3, 127))]
    keys = [bytes((3, 0, kind, place)) + value
            for kind, value in ((0, huge), (1, b"\x09"), (2, b"\x05qwen2"), (3, b"\x03a btwo"), (4, b"\x07\x01"), (5, b""), (6, b""), (7, huge + b"\x08"))
            for place in (0, 4, 8, 11, 13, 14)]
    others = [bytes((6, 0, 16)), bytes((7, 0)) + huge, bytes((8, 0, 4 + 17)), bytes((9, 0, 7, 8)), bytes((11, 0, 0, 0)), bytes((11, 0, 2, 0))]
    splits = [bytes((10, part, which)) + number for part in (0, 1) for which in (0, 1) for number in (b"\x00", b"\x01", huge, b"\x13")]
    after = [bytes((0, how, 3, 8, bits, 200 + 17, 100)) for how in (0, 32) for bits in (32, 64, 128)]
    expressions = [bytes((0, 128, behavior, 0)) + text.encode() for behavior, text in enumerate((
        r" ?\p{L}+|\s+", "(a+)+[bc]", r"[^\r\n\p{L}]?\p{L}+", r"(?:\s+\s+)+x|y", "x*", "a(", r"(?:\p{L}+)*\d|.", "(?=a*b)a"))]
    seeds("fuzz_model_load", whole + [one + damage for damage in tensors + keys + others] + [parts + damage for damage in splits]
          + after + expressions)


if __name__ == "__main__":
    safetensors()
    chat()
    gguf_header()
    model_config()
    adapter_config()
    sampler_chain()
    session()
    model_load()
    adapter_tensors()
    shard_index()
    strategy()
    tokenizer_model()
    tokenizer_json()
    gguf_tokenizer()
    tokenizer_text()
    special_tokens()
