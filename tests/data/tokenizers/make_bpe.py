#!/usr/bin/env python3
"""Makes byte_level.json and characters.json: the tokenizer.json of two small BPE tokenizers, and bpe_golden.json: what
the `tokenizers` package makes of texts with them, in several configurations.

    pip install tokenizers==0.23.3 sentencepiece
    python tests/data/tokenizers/make_bpe.py

Training is deterministic for one version of the package; tests compare with bpe_golden.json only.
"""

import json
import pathlib
import random

import tokenizers
from make import SAMPLES, TEXT
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def byte_level(use_regex=True, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def metaspace(scheme):
    return {"pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": True},
            "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": True},
            "normalizer": None}


# Name: the file, and what is different from it: members, those of "model" among them.
DIGITS = {"type": "Digits", "individual_digits": True}
CONFIGURATIONS = {
    "gpt2": ("byte_level", {}),
    "prefix": ("byte_level", {"pre_tokenizer": byte_level(prefix=True)}),
    "smollm": ("byte_level", {"pre_tokenizer": sequence(DIGITS, byte_level())}),
    "llama3": ("byte_level", {"pre_tokenizer": sequence(split(LLAMA3), byte_level(False)), "model": {"ignore_merges": True}}),
    "qwen2": ("byte_level", {"pre_tokenizer": sequence(split(LLAMA3.replace("{1,3}", "")), byte_level(False)),
                             "normalizer": {"type": "NFC"}}),
    "tekken": ("byte_level", {"pre_tokenizer": sequence(split(TEKKEN), byte_level(False)),
                              "model": {"ignore_merges": True}}),
    "mistral": ("characters", {}),
    "mistral_newer": ("characters", {"normalizer": None, "pre_tokenizer": {
        "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}}),
    "metaspace_always": ("characters", metaspace("always")),
    "metaspace_never": ("characters", metaspace("never")),
    "no_bytes": ("characters", {"model": {"byte_fallback": False}}),
    "no_bytes_apart": ("characters", {"model": {"byte_fallback": False, "fuse_unk": False}}),
}


def save(name, tokenizer, **changes):
    data = json.loads(tokenizer.to_str())
    for token in data["added_tokens"]:
        token["normalized"] = token["content"] == "<|a tool|>"
    data["model"] |= changes
    (HERE / f"{name}.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")


def make_byte_level():
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=480, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXT.split("\n") + ["\u00E9t\u00E9 " * 9, "        " * 9, "3333 " * 9], trainer)
    tokenizer.add_special_tokens(["<|start|>", "<|end|>"])
    tokenizer.add_tokens(["<|tool|>", "<|a tool|>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<|start|> $A", special_tokens=[("<|start|>", 480)])
    save("byte_level", tokenizer)


def make_characters():
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=560, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([word for line in TEXT.split("\n") for word in line.split(" ")], trainer)
    tokenizer.add_tokens(["<|tool|>", "<|a tool|>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    save("characters", tokenizer)
    path = HERE / "characters.json"
    data = json.loads(path.read_text())
    data["added_tokens"] = [token for token in data["added_tokens"] if not token["content"].startswith("<0x")]
    path.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")


def texts():
    generator = random.Random(3)
    made = SAMPLES + ["it's IT'S I'LL '\u017F", "e\u0301t\u00E9 \u1100\u1161\u11A8 \u0958 q\u0323\u0307\u0345", "1234567 \u0663\u00BD\u2167",
                      " \u180E\u200B\u3000\u2028\x85 x", "\U00011F04\U0001E4D0 \u1C89a \uA7DA", "\r\n \n\n  \n a", "<|endoftext|><|end|>",
                      "a<|tool|>b <|a tool|> c", " <|end|> the", "camelCaseWords HTMLParser", "\u0391\u0301\u0391 \U0001F600\uFE0F"]
    kinds = (range(0x20, 0x7F), range(0xA0, 0x250), range(0x300, 0x340), range(0x400, 0x460), range(0x4E00, 0x4E40),
             range(0x1F600, 0x1F640), range(0x10000, 0x30000))
    for _ in range(8):
        made.append("".join(chr(generator.choice(generator.choice(kinds))) for _ in range(8)))
    return made


def main():
    make_byte_level()
    make_characters()
    golden = {"texts": texts(), "configurations": {}}
    for name, (file, changes) in CONFIGURATIONS.items():
        data = json.loads((HERE / f"{file}.json").read_text())
        data = data | changes | {"model": data["model"] | changes.get("model", {})}
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(data))
        ids, plain, decoded = [], [], []
        for text in golden["texts"]:
            tokenizer.encode_special_tokens = False
            ids.append(tokenizer.encode(text, add_special_tokens=False).ids)
            tokenizer.encode_special_tokens = True
            plain.append(tokenizer.encode(text, add_special_tokens=False).ids)
            back = tokenizer.decode(plain[-1])
            decoded.append(None if back == text else back)  # null: the text
        same = [i for i, (a, b) in enumerate(zip(ids, plain)) if a == b]
        golden["configurations"][name] = {
            "file": file, "changes": changes, "ids": ids, "decoded": decoded,
            "plain": [None if i in same else row for i, row in enumerate(plain)]}  # null: the same ids
    (HERE / "bpe_golden.json").write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
