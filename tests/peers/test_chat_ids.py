"""Ids of conversations: the library beside the models' own programs, where [INST] is a token and where it is text.

Mistral's ids are those of mistral-common, which carries its tokenizers: SentencePiece models of versions 1, 3 and 7, and
Tekken, of which a tokenizer.json is made. Llama 2's vocabulary is llama.cpp's (test_tokenizers.py); its ids are those of
Meta's program, which encodes a question with its answer as one text, and of transformers' apply_chat_template with a
tokenizer.json of the older form, as these checkpoints have. QUIRE_SEED repeats a run.
"""

import base64
import json
import os
import pathlib
import random

import mistral_common
import pytest
import quire
import tokenizers
import transformers
from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

import chat_templates
from test_tokenizers import TEKKEN, metadata, mistral_tokenizer, models, sequence, split  # noqa: F401

SEED = int(os.environ.get("QUIRE_SEED") or random.randrange(1 << 31))
N_CONVERSATIONS = 300
DATA = pathlib.Path(mistral_common.__file__).parent / "data"
# Control tokens of other families, and text that looks like marks where those are text.
WORDS = ["Hello", "world", "naïve", "日本語", "🙂", "e\u0301", " ", "  ", "\n", "\n\n", "\t", "x = 1;", "    return", "42", "...",
         "<|im_end|>", "<|eot_id|>", "[IN", "ST]", "<<SY", "S>>", "< s>", "{{ messages }}", "'", '"', "\u3000", "\\n"]


@pytest.fixture(scope="module")
def runtime():
    with quire.Runtime(threads=1) as made:
        yield made


def some_text(source):
    """Not empty, and without white space at its ends: references differ in what they do with such texts."""
    while not (text := "".join(source.choice(WORDS) for _ in range(source.choice([1, 2, 4, 9]))).strip()):
        pass
    return text


def some_conversation(source):
    """Ends with a question."""
    roles = ["user", "assistant"] * source.randint(0, 3) + ["user"]
    return [(role, some_text(source)) for role in ["system"] * (source.random() < 0.5) + roles]


def compare(name, ours, theirs):
    print(f"QUIRE_SEED={SEED}")
    source, n_ids = random.Random(f"{SEED} {name}"), 0
    for _ in range(N_CONVERSATIONS):
        conversation = some_conversation(source)
        found, expected = ours(conversation), theirs(conversation)
        assert found == expected, (conversation, found, expected)
        n_ids += len(found)
    print(f"{name}: {N_CONVERSATIONS} conversations, {n_ids} ids, no difference")


def tekken_json(path):
    """tokenizer.json of a tekken.json file: tokens are byte strings, and merges lead to them by rank."""
    data = json.loads(path.read_text())
    n_special = data["config"]["default_num_special_tokens"]
    n_tokens = data["config"]["default_vocab_size"] - n_special
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    alphabet = {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    ranks = {base64.b64decode(token["token_bytes"]): rank for rank, token in enumerate(data["vocab"][:n_tokens])}
    merges = []
    for token in ranks:
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    spell = lambda token: "".join(alphabet[byte] for byte in token)  # noqa: E731
    named = {token["rank"]: token["token_str"] for token in data.get("special_tokens") or []}
    names = [named.get(i, f"<SPECIAL_{i}>") for i in range(n_special)]
    for i, name in enumerate(tekken_marks(path)):
        names[i] = name
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0", "normalizer": None, "pre_tokenizer": sequence(split(TEKKEN), byte_level),
        "post_processor": None, "decoder": byte_level,
        "added_tokens": [{"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, name in enumerate(names)],
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": {name: i for i, name in enumerate(names)} |
                           {spell(token): rank + n_special for token, rank in ranks.items()},
                  "merges": [f"{spell(left)} {spell(right)}" for left, right in merges]}}


def tekken_marks(path):
    """The texts of its first special tokens."""
    tokenizer = MistralTokenizer.from_file(path).instruct_tokenizer.tokenizer
    return [tokenizer.id_to_piece(i) for i in range(20)]


def mistral_ids(tokenizer):
    kinds = {"system": SystemMessage, "user": UserMessage, "assistant": AssistantMessage}
    return lambda conversation: tokenizer.encode_chat_completion(ChatCompletionRequest(
        messages=[kinds[role](content=text) for role, text in conversation])).tokens


MISTRAL = {
    "mistral-v1": "tokenizer.model.v1",
    "mistral-v3": "mistral_instruct_tokenizer_240323.model.v3",
    "mistral-v7": "mistral_instruct_tokenizer_241114.model.v7",
    "mistral-v3-tekken": "tekken_240718.json",
    "mistral-v7-tekken": "tekken_240911.json",
    "mistral-small-3": "tekken_240911.json",
}


@pytest.mark.parametrize("name", MISTRAL)
def test_mistral(name, runtime, tmp_path):
    path = DATA / MISTRAL[name]
    if path.suffix == ".json":
        (tmp_path / "tokenizer.json").write_text(json.dumps(tekken_json(path)))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
        data = json.loads(path.read_text())  # version 7 has the tokens of version 3
        data["config"]["version"] = "v3" if name == "mistral-v3-tekken" else "v7"
        path = tmp_path / "tekken.json"
        path.write_text(json.dumps(data))
    else:
        (tmp_path / "tokenizer.model").write_bytes(path.read_bytes())
    ours, theirs = runtime.tokenizer(tmp_path), MistralTokenizer.from_file(path)
    needs_system = name == "mistral-small-3"  # mistral-common has no system message of its own

    def with_system(conversation):
        return conversation if not needs_system or conversation[0][0] == "system" else [("system", "Be brief."), *conversation]

    compare(name, lambda c: ours.encode_chat(with_system(c), template=name), lambda c: mistral_ids(theirs)(with_system(c)))


@pytest.mark.parametrize("name", ("llama2", "llama2-stripped", "zephyr"))
def test_llama2_vocabulary(name, models, runtime):  # noqa: F811
    path = models / "ggml-vocab-llama-spm.gguf"
    ours = runtime.tokenizer(path)
    whole = tokenizers.Tokenizer.from_str(json.dumps(mistral_tokenizer(path, "older")))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=whole, bos_token="<s>", eos_token="</s>",
                                                  chat_template=dict(chat_templates.rendered())[name])

    def jinja_ids(conversation):
        ids = theirs.apply_chat_template([{"role": role, "content": text} for role, text in conversation],
                                         add_generation_prompt=True, tokenize=True)
        return ids if isinstance(ids, list) else list(ids["input_ids"])

    def meta_ids(conversation):
        """llama/generation.py of Meta's repository: each question with its answer is one text of SentencePiece's."""
        turns = [text for role, text in conversation if role != "system"]
        if conversation[0][0] == "system":
            turns[0] = f"<<SYS>>\n{conversation[0][1]}\n<</SYS>>\n\n{turns[0]}"
        ids = []
        for question, answer in zip(turns[::2], [*turns[1::2], None]):
            text = f"[INST] {question.strip()} [/INST]" + (f" {answer.strip()} " if answer is not None else "")
            ids += [1, *ours.encode(text, bos=False), *([2] if answer is not None else [])]
        return ids

    compare(f"{name}, transformers", lambda c: ours.encode_chat(c, template=name), jinja_ids)
    if name != "zephyr":  # which has no program but this
        compare(f"{name}, Meta's program", lambda c: ours.encode_chat(c, template=name), meta_ids)
