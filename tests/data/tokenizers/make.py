#!/usr/bin/env python3
"""Makes the tokenizers of the tests, and the ids that they must give.

    python tests/data/tokenizers/make.py

Needs the packages sentencepiece, transformers and protobuf. The models are trained on the text below; the expected ids come from
these packages (recorded in golden.json), not from Quire. Training is deterministic for one version of sentencepiece;
tests compare with golden.json only, so a new version may be used: commit all outputs together.
"""

import contextlib
import io
import json
import pathlib
import tempfile

import sentencepiece as spm

HERE = pathlib.Path(__file__).resolve().parent

TEXT = """
A quire is a gathering of pages in a book; four sheets folded once give eight leaves and sixteen pages.
The reader turns the pages one by one, and the book remembers where the reader stopped.
Long documents are read in parts. Each part is kept, and the parts that matter are read again.
A model reads tokens; a token is a piece of a word, a word, or a single byte where nothing else fits.
The keys and values of earlier tokens stay in memory, so that later tokens can look back at them.
When the memory is full, old chunks move to the disk, and they come back when somebody asks for them.
The quick brown fox jumps over the lazy dog, while the five boxing wizards jump quickly.
How many pages are in the third chapter? There are twenty pages in the third chapter.
Numbers such as 1, 22, 333, 4096 and 65536 are split into digits; 3.14159 is one of them.
Die Leserin blättert eine Seite nach der anderen um; das Buch weiß, wo sie aufgehört hat.
Le lecteur tourne les pages une à une, et le livre se souvient de l'endroit où il s'est arrêté.
Читатель переворачивает страницы одну за другой.
def read(book, page):
    for line in book.pages[page]:
        print(line)
    return page + 1
The binder sews the quires together, glues the back, and covers the boards with cloth or leather.
Nobody reads all the pages, but everybody wants to know what is written on them.
The printer prints the pages, the binder binds the book, and the seller sells the books to the readers.
What is the name of the binder? The name of the binder is written on the last page of the book.
Reading, writing, printing and binding are old trades; learning them takes many years.
"""

# Text of every kind the encoder must treat alike: spaces, code points of each length, bytes no piece covers.
SAMPLES = [
    "", " ", "  ", "a", " a", "a ", "the book", " the book", "the  book", "the book.\n\nThe pages", "\n", "\t x",
    "The quick brown fox jumps over the lazy dog.", "quire", "Quire 0.1: 65536 tokens!", "weiß", "Читатель",
    "日本語の文章", "emoji \U0001F600\U0001F468\u200D\U0001F469 end", "nul\0byte", "a \u2581 literal", "caf\u0065\u0301",
    "\uFF26\uFF35\uFF2C\uFF2C width", "\uFFFD replacement", "<s> </s> <unk> <0x41>", "<|im_end|> and <|user|>",
    "    for line in book:\n        print(line)", "x" * 50, "aaaa bbbb cccc " * 8,
]

# A few rules instead of the standard ones, whose table alone has 240 kB: full-width letters, a ligature, a soft hyphen
# that vanishes.
RULES = [("FF26", "46"), ("FF35", "55"), ("FF2C", "4C"), ("FB01", "66 69"), ("00AD", ""), ("0009", "20"), ("000A", "20"),
         ("0065 0301", "E9")]

MODELS = {
    # As Llama's: BPE, byte fallback, white space as it is.
    "bpe_bytes": dict(model_type="bpe", vocab_size=480, byte_fallback=True, normalization_rule_name="identity",
                      remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True),
    "bpe_no_prefix": dict(model_type="bpe", vocab_size=460, byte_fallback=True, normalization_rule_name="identity",
                          remove_extra_whitespaces=False, add_dummy_prefix=False, control_symbols=["<|im_end|>"],
                          user_defined_symbols=["<|user|>", "<|user|>\n"]),
    # Without byte fallback: what has no piece is unknown.
    "unigram": dict(model_type="unigram", vocab_size=300, character_coverage=1.0, rules=True),
    "unigram_bytes_no_prefix": dict(model_type="unigram", vocab_size=460, byte_fallback=True, add_dummy_prefix=False,
                                    normalization_rule_name="identity", remove_extra_whitespaces=False),
}

# The Llama-like model together with tokens beyond the SentencePiece model's own.
CONFIG = {
    "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
    "legacy": False, "tokenizer_class": "LlamaTokenizer",
    "added_tokens_decoder": {
        "0": {"content": "<unk>", "special": True}, "1": {"content": "<s>", "special": True},
        "2": {"content": "</s>", "special": True},
        "480": {"content": "<|im_start|>", "special": True},
        "481": {"content": "<|im_end|>", "special": True},
        "482": {"content": "<|im_end|><|im_end|>", "special": True},
    },
}
for token in CONFIG["added_tokens_decoder"].values():
    token.update({"lstrip": False, "rstrip": False, "normalized": False, "single_word": False})

SPECIAL_SAMPLES = ["<s>the book</s>", "<|im_start|>user\nthe book<|im_end|>\n", "<|im_end|><|im_end|><|im_end|>",
                   "a<|im_end", "the book <s> the book"]


def train(name, options):
    options = dict(options)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if options.pop("rules", False):
            pathlib.Path("rules.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in RULES))
            options["normalization_rule_tsv"] = "rules.tsv"  # relative: the model file keeps this name
        model = io.BytesIO()
        spm.SentencePieceTrainer.train(sentence_iterator=iter(TEXT.strip().split("\n")), model_writer=model,
                                       minloglevel=2, num_threads=1, hard_vocab_limit=False, **options)
    (HERE / f"{name}.model").write_bytes(model.getvalue())
    return model.getvalue()


def record(data):
    first = spm.SentencePieceProcessor(model_proto=data)
    # Protobuf messages merge when they are joined: normalizer_spec { add_dummy_prefix: false }.
    later = spm.SentencePieceProcessor(model_proto=data + b"\x1a\x02\x18\x00")
    cases = []
    for text in SAMPLES:
        ids = first.encode(text)
        cases.append({"text": text, "first": ids, "later": later.encode(text), "decoded": first.decode(ids)})
    return {"size": first.get_piece_size(), "bos": first.bos_id(), "eos": first.eos_id(), "cases": cases}


def record_special(data):
    """The same text through transformers, which has its own implementation of the encoder."""
    from transformers import AutoTokenizer
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "tokenizer.model").write_bytes(data)
        (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG))
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        # Its dummy prefix is left out where the text begins with a space; SentencePiece's is not, nor is ours.
        samples = SPECIAL_SAMPLES + [text for text in SAMPLES if not text.startswith(" ")]
        return [{"text": text, "ids": tokenizer(text)["input_ids"]} for text in samples]


def main():
    golden = {}
    for name, options in MODELS.items():
        golden[name] = record(train(name, options))
    golden["special"] = {"tokenizer_config": CONFIG, "cases": record_special((HERE / "bpe_bytes.model").read_bytes())}
    (HERE / "golden.json").write_text(json.dumps(golden, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
