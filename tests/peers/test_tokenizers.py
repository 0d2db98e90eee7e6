"""BPE tokenizers beside Hugging Face's `tokenizers` and llama.cpp.

The vocabularies, texts and ids are llama.cpp's, from the source package of llama-cpp-python, which is fetched when the
tests run (QUIRE_LLAMA_SOURCE names a file that is there already). From each vocabulary a tokenizer.json is made, with the
official pre-tokenizer of its family; `tokenizers` and the library load the same file. Where llama-cpp-python is
installed, which builds llama.cpp, that is asked as well.

The random texts are new in every run; the seed is printed, and QUIRE_SEED=n repeats one.
"""

import functools
import io
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import unicodedata

import pytest
import sentencepiece
import tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bindings" / "python"))

import quire  # noqa: E402
from figures import record  # noqa: E402

SEED = int(os.environ.get("QUIRE_SEED") or random.SystemRandom().randrange(2**31))
N_RANDOM = int(os.environ.get("QUIRE_RANDOM_TEXTS") or 4000)
PACKAGE = "llama-cpp-python==0.3.36"
SEPARATOR = "\n__ggml_vocab_test__\n"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


DIGITS = {"type": "Digits", "individual_digits": True}
# Family: the vocabulary file, the pre-tokenizer, whether there is NFC, ignore_merges.
BYTE_LEVEL = {
    "gpt2": ("gpt-2", byte_level(True), False, False),
    "smollm": ("starcoder", sequence(DIGITS, byte_level(True)), False, False),
    "command-r": ("command-r", sequence(DIGITS, byte_level(True)), True, False),
    "llama-bpe": ("llama-bpe", sequence(split(LLAMA3), byte_level(False)), False, True),
    "qwen2": ("qwen2", sequence(split(QWEN2), byte_level(False)), True, False),
    "qwen35": ("qwen35", sequence(split(QWEN35), byte_level(False)), True, False),
    "tekken": ("llama-bpe", sequence(split(TEKKEN), byte_level(False)), False, True),
}
WITH_IDS = ("gpt-2", "llama-bpe", "qwen2", "qwen35", "command-r", "deepseek-coder", "falcon", "mpt", "refact", "starcoder",
            "llama-spm", "phi-3")
TYPES = {"control": 3, "user": 4, "unused": 5, "byte": 6}


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """The folder of llama.cpp's vocabularies."""
    folder = tmp_path_factory.mktemp("llama")
    source = os.environ.get("QUIRE_LLAMA_SOURCE")
    if not source:
        fetched = subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", PACKAGE, "-d", folder],
            capture_output=True, text=True)
        if fetched.returncode != 0:
            pytest.skip(f"{PACKAGE} cannot be fetched: {fetched.stderr[-300:]}")
        source = next(folder.glob("*.tar.gz"))
    with tarfile.open(source) as archive:
        for member in archive:
            if "/vendor/llama.cpp/models/ggml-vocab" in member.name:
                member.name = pathlib.PurePath(member.name).name
                archive.extract(member, folder, filter="data")
    return folder


@pytest.fixture(scope="session")
def runtime():
    with quire.Runtime(threads=1) as made:
        yield made


@functools.lru_cache
def metadata(path):
    """The tokenizer's part of a GGUF file's metadata: {key without its beginning: value}."""
    data = pathlib.Path(path).read_bytes()
    at = 8

    def number(size, kind=int):
        nonlocal at
        at += size
        part = data[at - size:at]
        return int.from_bytes(part, "little", signed=kind is int)

    def text():
        nonlocal at
        size = number(8)
        at += size
        return data[at - size:at].decode(errors="surrogateescape")

    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def value(kind):
        nonlocal at
        if kind == 8:
            return text()
        if kind == 9:
            inner, n = number(4), number(8)
            if inner == 6:
                import array
                at += 4 * n
                return array.array("f", data[at - 4 * n:at])
            return [value(inner) for _ in range(n)]
        return number(sizes[kind])

    number(8)
    found = {}
    for _ in range(number(8)):
        key = text()
        found[key.removeprefix("tokenizer.ggml.")] = value(number(4))
    return found


def official_tokenizer(path, pre_tokenizer, nfc, ignore_merges):
    """tokenizer.json of a byte-level family with the vocabulary of a GGUF file."""
    data = metadata(path)
    types = data["token_type"]
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": types[i] == TYPES["control"]}
             for i, text in enumerate(data["tokens"]) if types[i] in (TYPES["control"], TYPES["user"])]
    placed = {token["id"] for token in added} | {i for i, kind in enumerate(types) if kind == TYPES["unused"]}
    needed = {part for merge in data["merges"] for part in (*merge.split(" "), merge.replace(" ", ""))}
    vocab = {text: i for i, text in enumerate(data["tokens"]) if i not in placed or text in needed}
    # `tokenizers` numbers added tokens from the size of the vocabulary on unless they are in it.
    vocab |= {token["content"]: token["id"] for token in added}
    return {
        "version": "1.0", "added_tokens": added, "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": pre_tokenizer, "post_processor": byte_level(True), "decoder": byte_level(True),
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": ignore_merges, "vocab": vocab, "merges": data["merges"]}}


def mistral_tokenizer(path, form):
    """tokenizer.json of Mistral 7B's kind, from a SentencePiece vocabulary, in the older form or the newer one."""
    data = metadata(path)
    tokens, scores, types = data["tokens"], data["scores"], data["token_type"]
    vocab = {text: i for i, text in enumerate(tokens)}
    merges = []
    for text, score in zip(tokens, scores):
        if types[vocab[text]] != 1:
            continue
        pairs = [(text[:i], text[i:]) for i in range(1, len(text)) if text[:i] in vocab and text[i:] in vocab]
        merges += [(score, pair) for pair in sorted(pairs, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))]
    merges.sort(key=lambda merge: -merge[0])
    added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i in range(3)]
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    older = {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, spaces]},
             "pre_tokenizer": None}
    newer = {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581",
                                                   "prepend_scheme": "first", "split": False}}
    template = {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    decoder = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return (older if form == "older" else newer) | {
        "version": "1.0", "added_tokens": added, "post_processor": template, "decoder": decoder,
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "vocab": vocab,
                  "merges": [f"{left} {right}" for _, (left, right) in merges]}}


def gemma_tokenizer(path):
    """tokenizer.json of Gemma's kind, from the same vocabulary: nothing is put before a text, and runs of newlines and
    spaces are tokens that were added, as the marks of turns are."""
    definition = mistral_tokenizer(path, "older")
    vocab = definition["model"]["vocab"]
    for text in ("\n", "\n\n", "\n\n\n", "<table>", "<start_of_turn>", "<end_of_turn>"):
        vocab[text] = len(vocab)
        definition["added_tokens"].append(
            {"id": vocab[text], "content": text, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": "turn" in text})
    for text in ("\u2581\u2581", 4 * "\u2581"):
        definition["added_tokens"].append(
            {"id": vocab[text], "content": text, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": False})
    return definition | {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "decoder": {"type": "Sequence", "decoders": definition["decoder"]["decoders"][:-1]}}


def llama_texts(path):
    """llama.cpp's texts and their ids."""
    texts = pathlib.Path(f"{path}.inp").read_bytes().decode().split(SEPARATOR)
    ids = [[int(n) for n in line.split()] for line in pathlib.Path(f"{path}.out").read_text().split("\n")]
    return list(zip(texts, ids))


@functools.lru_cache
def source_texts():
    """The text files of this repository. Links are not files."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    texts = []
    for path in (ROOT / name for name in names if name):
        try:
            if path.is_file() and not path.is_symlink():
                texts.append(path.read_bytes().decode())
        except UnicodeDecodeError:
            pass
    return texts


def random_text(generator):
    """Characters of one kind or of many: words, numbers, spaces, marks, any code point, runs, special tokens."""
    kinds = (
        lambda: generator.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        lambda: generator.choice("0123456789\u0663\u00BD\u2167"),
        lambda: generator.choice(" \t\n\r\u00A0\u3000\u2028\x85\u180E\u200B\x0B"),
        lambda: generator.choice(".,;:!?'\"()[]{}<>/\\|_-+=*&^%$#@~`"),
        lambda: chr(generator.randrange(0xA0, 0x600)),
        lambda: chr(generator.choice((generator.randrange(0x300, 0x370), generator.randrange(0x591, 0x5BE), 0x345))),
        lambda: chr(generator.randrange(0x900, 0x1200)),
        lambda: chr(generator.randrange(0x1E00, 0x2000)),
        lambda: chr(generator.choice((generator.randrange(0x1100, 0x1200), generator.randrange(0xAC00, 0xD7A4)))),
        lambda: chr(generator.randrange(0x3040, 0xA000)),
        lambda: chr(generator.randrange(0x1F300, 0x1FAFF)),
        lambda: chr(generator.choice((generator.randrange(0xD800), generator.randrange(0xE000, 0x110000)))),
        lambda: chr(generator.randrange(0x10000, 0x1F000)),
        lambda: generator.choice(("'s", "'S", "'ll", "'RE", "'\u017F", "\r\n", "<s>", "</s>", "<|endoftext|>", "<|im_end|>",
                                  "<|begin_of_text|>", "<start_of_turn>", "\n\n", "\n\n\n\n", "\u2581", "  ", "    ", "\u0958", "\u0344", "e\u0301", "\u212B")),
    )
    chosen = generator.sample(kinds, generator.choice((1, 2, 3, len(kinds))))
    text = ""
    for _ in range(generator.choice((3, 10, 40, 120))):
        text += generator.choice(chosen)() * generator.choice((1, 1, 1, 1, 1, 2, 3, 17))
    return text


@functools.lru_cache
def random_texts():
    generator = random.Random(SEED)
    return [random_text(generator) for _ in range(N_RANDOM)]


def compare(name, texts, ours, theirs):
    """Both functions on all texts; a difference is shown where it begins."""
    n_ids = 0
    for text in texts:
        mine, other = ours(text), theirs(text)
        if mine != other:
            at = next((i for i, (a, b) in enumerate(zip(mine, other)) if a != b), min(len(mine), len(other)))
            pytest.fail(f"{name}, seed {SEED}: from {at} of {len(other)} on {mine[at:at + 8]} instead of "
                        f"{other[at:at + 8]} in {text[:200]!r}")
        n_ids += len(other)
    print(f"\n{name}: {len(texts)} texts, {n_ids} ids or characters, no difference (seed {SEED})", end="")
    record(name, seed=SEED, texts=len(texts), ids_or_characters=n_ids)


def compare_with_hugging_face(name, runtime, definition, folder, texts):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(definition))
    theirs = tokenizers.Tokenizer.from_file(str(path))
    ours = runtime.tokenizer(path)
    for special in (True, False):
        theirs.encode_special_tokens = not special
        compare(f"{name}, {'with' if special else 'without'} special tokens", texts,
                lambda text: ours.encode(text, parse_special=special, bos=False),
                lambda text: theirs.encode(text, add_special_tokens=False).ids)
    generator = random.Random(SEED)
    sequences = [theirs.encode(text, add_special_tokens=False).ids for text in texts if len(text) < 1000]
    # Random ids, but no byte tokens: of a run of those that is no UTF-8 `tokenizers` makes U+FFFD for each byte, also
    # for letters in it.
    others = sorted(i for text, i in theirs.get_vocab().items() if not (len(text) == 6 and text.startswith("<0x")))
    sequences += [generator.choices(others, k=20) for _ in range(500)]
    added = theirs.get_added_tokens_decoder()
    # `tokenizers` reads added tokens, too, as texts of the byte alphabet; that is seen in those beyond ASCII.
    odd = {i for i, token in added.items() if not token.content.isascii()}
    sequences = [ids for ids in sequences if not odd.intersection(ids)]
    # A control token in the middle of a character: the library keeps the bytes on its two sides apart.
    sequences = [[i for i in ids if i not in added or not added[i].special] for ids in sequences]
    compare(f"{name}, decoded", sequences, ours.decode, theirs.decode)


def all_texts(models):
    texts = [text for text, _ in llama_texts(models / "ggml-vocab-llama-bpe.gguf")]
    return texts + source_texts() + random_texts()


@pytest.mark.parametrize("family", BYTE_LEVEL)
def test_hugging_face(family, models, runtime, tmp_path):
    name, *rest = BYTE_LEVEL[family]
    definition = official_tokenizer(models / f"ggml-vocab-{name}.gguf", *rest)
    compare_with_hugging_face(family, runtime, definition, tmp_path, all_texts(models))


@pytest.mark.parametrize("form", ("older", "newer"))
def test_hugging_face_mistral(form, models, runtime, tmp_path):
    definition = mistral_tokenizer(models / "ggml-vocab-llama-spm.gguf", form)
    compare_with_hugging_face(f"mistral, {form} form", runtime, definition, tmp_path, all_texts(models))


def test_hugging_face_gemma(models, runtime, tmp_path):
    definition = gemma_tokenizer(models / "ggml-vocab-llama-spm.gguf")
    compare_with_hugging_face("gemma", runtime, definition, tmp_path, all_texts(models))


def test_sentencepiece_gemma(runtime, tmp_path):
    """A SentencePiece model with Gemma's settings, whose runs of newlines, tabs and spaces are tokens of their own."""
    runs = [kind * n for kind in "\n\t\u2581" for n in range(2 if kind == "\u2581" else 1, 32)]
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=itertools.islice((line for text in source_texts() for line in text.split("\n")), 30000),
        model_writer=trained, model_type="bpe", vocab_size=3000, byte_fallback=True, character_coverage=0.999,
        minloglevel=2, normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, split_digits=True, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
        bos_piece="<bos>", eos_piece="<eos>",
        user_defined_symbols=["<mask>", *runs, "<table>", "<start_of_turn>", "<end_of_turn>"])
    (tmp_path / "tokenizer.model").write_bytes(trained.getvalue())
    theirs = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    texts = source_texts() + random_texts() + [n * kind + "a" for kind in "\n\t " for n in range(80)]
    ours = runtime.tokenizer(tmp_path / "tokenizer.model")
    compare("gemma, tokenizer.model", texts, lambda text: ours.encode(text, bos=False), theirs.encode)


def test_hugging_face_smollm2(runtime, request, tmp_path):
    """A GGUF file beside the tokenizer.json that is made of it. QUIRE_SMOLLM2 names another than the real model's."""
    path = os.environ.get("QUIRE_SMOLLM2") or request.getfixturevalue("path")
    definition = official_tokenizer(path, sequence(DIGITS, byte_level(True)), False, False)
    compare_with_hugging_face("smollm2", runtime, definition, tmp_path, source_texts() + random_texts())
    theirs = tokenizers.Tokenizer.from_str(json.dumps(definition))
    ours = runtime.tokenizer(path)
    compare("smollm2, GGUF", source_texts() + random_texts(), lambda text: ours.encode(text, parse_special=True, bos=False),
            lambda text: theirs.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("name", WITH_IDS)
def test_llama_cpp_ids(name, models, runtime):
    path = models / f"ggml-vocab-{name}.gguf"
    tokenizer = runtime.tokenizer(path)
    expected = dict(llama_texts(path))
    compare(f"GGUF {name}", list(expected), lambda text: tokenizer.encode(text, bos=False), expected.get)


@pytest.mark.parametrize("family", BYTE_LEVEL)
def test_gguf_beside_json(family, models, runtime, tmp_path):
    """The names of pre-tokenizers in GGUF files mean what tokenizer.json spells out."""
    name, pre_tokenizer, _, ignore_merges = BYTE_LEVEL[family]
    if family == "tekken":
        pytest.skip("there is no vocabulary of that family")
    path = models / f"ggml-vocab-{name}.gguf"
    theirs = tokenizers.Tokenizer.from_str(json.dumps(official_tokenizer(path, pre_tokenizer, False, ignore_merges)))
    ours = runtime.tokenizer(path)
    texts = [text for text in all_texts(models) if "'\u017F" not in text]  # an s to (?i:'s) only
    compare(f"GGUF {family}", texts, lambda text: ours.encode(text, parse_special=True, bos=False),
            lambda text: theirs.encode(text, add_special_tokens=False).ids)


def known_to_llama_cpp(text):
    """Whether llama.cpp's tables know all characters, and it takes the text as the original tokenizers do. It does not
    take so: U+180E, an s that is U+017F, NUL for some expressions; "</s>", which is a control token to it anywhere."""
    return all(unicodedata.category(c) != "Cn" and c not in "\u180E\u017F\0" for c in text) and "</s>" not in text


@pytest.mark.parametrize("name", ("gpt-2", "llama-bpe", "qwen2", "qwen35", "starcoder", "command-r", "falcon"))
def test_llama_cpp_itself(name, models, runtime):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    path = models / f"ggml-vocab-{name}.gguf"
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    ours = runtime.tokenizer(path)
    texts = [text for text in all_texts(models) if known_to_llama_cpp(text)]
    if name == "falcon":  # it has no token for U+000B: tokens are merged across it, as by Hugging Face; by llama.cpp they are not
        texts = [text for text in texts if "\x0B" not in text]
    for special in (True, False):
        compare(f"llama.cpp {name}, {'with' if special else 'without'} special tokens", texts,
                lambda text: ours.encode(text, parse_special=special, bos=False),
                lambda text: theirs.tokenize(text.encode(), add_bos=False, special=special))
