"""Long documents with several questions: keys of many names, and topics of sections."""
import tuning  # first: it restarts Python with the allocator settings
import tasks

SECTION = "Topic {} is {}."


class Builder(tasks.Builder):
    """The embedded model's documents and two kinds more; every answer token weighs 5."""

    def prose(self, n, rng):
        """Whole sentences of at most n tokens."""
        out = []
        while True:
            s = self.sentences[int(rng.integers(len(self.sentences)))]
            if len(s) > n:
                return out
            out.append(s.tolist())
            n -= len(s)

    def with_questions(self, body, asked):
        """body [tokens], then (question, answer) one a line; everything but the answers weighs little."""
        ids, weights = [1] + body + self.line("\n"), []
        weights = [0.3] * len(ids)
        for question, answer in asked:
            q, a, end = self.line(question), self.mid(answer), self.line(".\n")
            ids, weights = ids + q + a + end, weights + [0.3] * len(q) + [5.0] * len(a) + [1.0] * len(end)
        return ids + [2], weights + [1.0]

    def multi_key(self, n, keys, rng):
        """(facts, names, values): `keys` sentences with one five-digit key for each of as many names."""
        names = [tasks.NAMES[i] for i in rng.permutation(len(tasks.NAMES))[:keys]]
        values = [str(int(rng.integers(10000, 100000))) for _ in names]
        return [self.mid(f"The pass key of {a} is {b}.") for a, b in zip(names, values)], names, values

    def doc_multi_key(self, n, rng):
        facts, names, values = self.multi_key(n, int(rng.integers(2, 3 + n // 128)), rng)
        order = rng.permutation(len(names))[:6]
        asked = [(f"What is the pass key of {names[i]}? The pass key of {names[i]} is", values[i]) for i in order]
        room = n - 4 - sum(map(len, facts)) - sum(len(self.line(q)) + len(self.mid(a)) + 3 for q, a in asked)
        parts = self.prose(room, rng)
        for fact in facts:
            parts.insert(int(rng.integers(len(parts) + 1)), fact)
        return self.with_questions([t for p in parts for t in p], asked)

    def doc_topics(self, n, rng):
        """Sections of prose under numbered topics; the questions name numbers."""
        count = int(rng.integers(2, 3 + n // 256))
        words = [self.words[int(i)] for i in rng.choice(len(self.words), count, replace=False)]
        asked = [(f"What is topic {i + 1}? Topic {i + 1} is", words[i]) for i in rng.permutation(count)[:6]]
        room = n - 4 - 16 * count - sum(len(self.line(q)) + len(self.mid(a)) + 3 for q, a in asked)
        body = []
        for i, word in enumerate(words):
            body += self.mid(SECTION.format(i + 1, word)) + [t for s in self.prose(room // count, rng) for t in s]
        return self.with_questions(body, asked)
