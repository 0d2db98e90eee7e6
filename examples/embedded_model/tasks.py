"""Training and test documents: the papers' passkey prompt, facts with questions, copying.

Every document is a list of token ids and a list of loss weights of the same length (the weight of
a token is what predicting it counts). SentencePiece runs on whole lines or on " word ..." pieces,
which tokenize the same way inside a longer text (newline is a byte token; digits stand alone).
"""
import re

import numpy as np

PREFIX = ("There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
          "I will quiz you about the important information there.\n")
FILLER = ("The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n")
SUFFIX = "What is the pass key? The pass key is"
ANSWER_TOKENS = 8            # room left for the answer in a test prompt of N tokens


def key_line(key):
    return f"The pass key is {key}. Remember it. {key} is the pass key.\n"


NAMES = """Ada Alan Alice Anna Arthur Bella Ben Bob Carl Carol Cecil Clara Daisy Dan David Diana Dora Edgar
Ella Emma Eric Eva Felix Fiona Frank Fred George Gina Grace Greta Hanna Harry Helen Henry Hugo Ida Ines
Iris Ivan Jack Jane Jim John Julia Karl Kate Kim Lara Laura Leo Lisa Louis Lucy Marc Maria Martin Mary
Max Mia Mike Nina Nora Oliver Olga Oscar Otto Paul Peter Petra Ralph Rita Robert Rosa Ruth Sam Sara
Simon Sofia Steve Susan Thomas Tina Tom Ursula Vera Victor Walter Wendy Xavier Yara Zoe""".split()
ATTRIBUTES = """colour color name code word number city key password age job title food animal flower fruit
tree river house car dog cat horse book song game sport ship star stone metal drink hat coat boat garden
friend teacher secret answer language country street office room door box bag phone size price weight
nickname badge address hobby instrument project team server port machine""".split()
COLOURS = "red green blue yellow black white brown orange purple pink grey silver golden violet".split()
PLACES = """London Paris Berlin Rome Madrid Vienna Oslo Athens Cairo Tokyo Delhi Lima Boston Chicago Dublin
Prague Lisbon Geneva Hamburg Munich Milan Turin Bergen Quebec Sydney""".split()


class Builder:
    """Draws documents of a given length from a text and a tokenizer; all randomness is in `rng`."""

    def __init__(self, sp, text_lines):
        self.sp = sp
        stream, self.starts = [], []
        for line, ids in zip(text_lines, self.encode_lines(text_lines)):
            if not line:
                continue
            if len(line) > 60:
                self.starts.append(len(stream))
            stream += ids
        self.stream = np.array(stream, np.int64)
        # Sentences (as they appear after a space) and words for the fact documents.
        sentences, words = [], {}
        for line in text_lines[::7]:
            for s in re.split(r"(?<=[.!?]) ", line):
                if 30 < len(s) < 240 and s[0].isupper() and s[-1] in ".!?":
                    sentences.append(s)
            for w in re.findall(r"\b[a-z]{3,10}\b", line):
                words[w] = words.get(w, 0) + 1
        self.sentences = [np.array(i, np.int64) for i in sp.encode(sentences)]
        self.words = sorted(words, key=lambda w: (-words[w], w))[:5000]
        self.prefix = [1] + sp.encode(PREFIX)
        self.filler = self.line(FILLER)
        self.suffix = self.line(SUFFIX)
        self.mid = sp.encode                    # " word" in the middle of a line

    def encode_lines(self, lines):
        """Tokens of "\\n" + line without the leading space piece, moved to: line + newline."""
        newline = self.sp.piece_to_id("<0x0A>")
        for ids in self.sp.encode(["\n" + l for l in lines]):
            yield ids[2:] + [newline]

    def line(self, text):
        return self.sp.encode("\n" + text)[2:]

    # -- the papers' passkey document ------------------------------------------------------------
    def passkey(self, n, rng, room=ANSWER_TOKENS, prefix=True, depth=None, key=None):
        """(prompt, answer) with len(prompt) <= n - room; the key lies at a random filler boundary."""
        key = int(rng.integers(10000, 100000)) if key is None else key
        head = self.prefix if prefix else [1]
        line = self.line(key_line(key))
        fillers = (n - room - len(head) - len(line) - len(self.suffix)) // len(self.filler)
        if fillers < 0:
            raise ValueError(f"{n} tokens are too few for the passkey prompt")
        at = int(rng.integers(0, fillers + 1)) if depth is None else round(depth * fillers)
        prompt = head + self.filler * at + line + self.filler * (fillers - at) + self.suffix
        return prompt, self.mid(str(key))

    def doc_passkey(self, n, rng):
        prompt, answer = self.passkey(n, rng, room=8, prefix=n < 128 or rng.random() < 0.7) \
            if n >= 128 else self.passkey(n, rng, room=8, prefix=False)
        if n >= 256 and rng.random() < 0.15:     # a shorter document now and then
            prompt, answer = self.passkey(int(rng.integers(140, 256)), rng, room=8)
        end = self.line(".\n") + [2]
        return prompt + answer + end, [0.15] * len(prompt) + [5.0] * len(answer) + [1.0] * len(end)

    # -- facts among prose, questions at the end ---------------------------------------------------
    def fact(self, rng):
        """(sentence, question, stem, value): the answer to `question` is `stem` + `value`."""
        pick = lambda seq: seq[int(rng.integers(len(seq)))]
        name, attr = pick(NAMES), pick(ATTRIBUTES)
        if rng.random() < 0.3:
            name = pick(self.words).capitalize()
        if rng.random() < 0.25:
            attr = pick(self.words)
        kind = rng.random()
        value = (pick(COLOURS) if kind < 0.15 else pick(PLACES) if kind < 0.25 else
                 str(int(rng.integers(10, 10 ** int(rng.integers(2, 6)) + 10))) if kind < 0.45 else pick(self.words))
        form = rng.random()
        if form < 0.5:
            stem = f"The {attr} of {name} is"
            question = f"What is the {attr} of {name}?"
        elif form < 0.65:
            stem, question = f"The {attr} is", f"What is the {attr}?"
        elif form < 0.75:
            stem, question = f"{name}'s {attr} is", f"What is {name}'s {attr}?"
        elif form < 0.85:
            value = pick(PLACES) if rng.random() < 0.5 else pick(self.words).capitalize()
            stem, question = f"{name} lives in", f"Where does {name} live?"
        else:
            value = str(int(rng.integers(10000, 100000)))
            stem, question = "The pass key is", "What is the pass key?"
            if rng.random() < 0.6:
                return f"{stem} {value}. Remember it. {value} is the pass key.", question, stem, value
        return f"{stem} {value}.", question, stem, value

    def doc_facts(self, n, rng):
        facts, stems = [], set()
        for _ in range(int(rng.integers(1, 2 + n // 64))):
            f = self.fact(rng)
            if f[2] not in stems:
                stems.add(f[2])
                facts.append(f)
        newline = self.line("\n")
        asked = [facts[i] for i in rng.permutation(len(facts))[:int(rng.integers(1, 3))]]
        tail, weights = [], []
        for _, question, stem, value in asked:
            q, v, end = self.line(f"{question} {stem}"), self.mid(value), self.line(".\n")
            tail += q + v + end
            weights += [0.3] * len(q) + [5.0] * len(v) + [1.0] * len(end)
        parts = [self.mid(f[0]) for f in facts]
        budget = n - 3 - len(tail) - sum(map(len, parts))
        prose = []
        while budget > 0:
            s = self.sentences[int(rng.integers(len(self.sentences)))]
            if len(s) > budget:
                break
            prose.append(s.tolist())
            budget -= len(s)
        for p in parts:                           # each fact at a random sentence boundary
            prose.insert(int(rng.integers(len(prose) + 1)), p)
        tail, weights = tail + [2], weights + [1.0]
        body = [1] + [t for p in prose for t in p] + newline
        return body + tail, [0.5] * len(body) + weights

    # -- copying ---------------------------------------------------------------------------------------
    def text(self, n, rng):
        if rng.random() < 0.5:
            at = self.starts[int(rng.integers(len(self.starts)))]
            at = min(at, len(self.stream) - n)
        else:
            at = int(rng.integers(len(self.stream) - n))
        return self.stream[at: at + n].tolist()

    def doc_text(self, n, rng):
        return [1] + self.text(n - 1, rng), [1.0] * n

    def doc_copy_text(self, n, rng):
        """English, other English, the first piece again (from its start or from its middle)."""
        size = int(rng.integers(12, n // 2))
        piece = self.text(size, rng)
        gap = self.text(int(rng.integers(1, n - 2 * size)), rng) if n - 2 * size > 1 else []
        ids = [1] + piece + gap + piece
        weights = [0.5] * (1 + size + len(gap)) + [0.5] * 4 + [1.5] * (size - 4)
        rest = n - len(ids)
        if rest > 0:
            ids, weights = ids + self.text(rest, rng), weights + [0.5] * rest
        return ids[:n], weights[:n]

    def doc_copy_random(self, n, rng):
        """Random tokens repeated with a random period, so that only copying predicts them."""
        period = int(rng.integers(6, max(7, n - n // 8)))
        pool = rng.integers(3, 1024, size=int(rng.integers(8, 400)))
        base = rng.choice(pool, size=period)
        reps = np.tile(base, n // period + 2)[: n - 1]
        weights = np.where(np.arange(n - 1) > period, 1.0, 0.0)
        return [1] + reps.tolist(), [0.0] + weights.tolist()

    def batch(self, n, tokens, mix, rng):
        """ids, weights [tokens/n, n]; a mix is {document kind: probability}. Short ones are padded."""
        kinds, p = list(mix), np.array(list(mix.values()))
        ids = np.full((tokens // n, n), 2, np.int64)
        w = np.zeros((tokens // n, n), np.float32)
        for row in range(len(ids)):
            a, b = getattr(self, "doc_" + kinds[rng.choice(len(kinds), p=p / p.sum())])(n, rng)
            assert len(a) == len(b)
            a, b = a[:n], b[:n]
            ids[row, : len(a)], w[row, : len(b)] = a, b
        return ids, w
