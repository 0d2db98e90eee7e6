"""Long documents with several questions: keys of many names, and topics of sections."""
import tuning  # first: it restarts Python with the allocator settings
import tasks


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

    def tokens(self, asked):
        return sum(len(self.line(question)) + len(self.mid(answer)) + 3 for question, answer in asked)

    def with_questions(self, body, asked):
        """body [tokens], then (question, answer) one a line; everything but the answers weighs little."""
        ids = [1] + body + self.line("\n")
        weights = [0.3] * len(ids)
        for question, answer in asked:
            q, a, end = self.line(question), self.mid(answer), self.line(".\n")
            ids, weights = ids + q + a + end, weights + [0.3] * len(q) + [5.0] * len(a) + [1.0] * len(end)
        return ids + [2], weights + [1.0]

    def doc_multi_key(self, n, rng):
        """Prose with a five-digit key for each of several names; up to six questions."""
        count = int(rng.integers(2, 3 + n // 128))
        keys = {tasks.NAMES[i]: str(int(rng.integers(10000, 100000)))
                for i in rng.permutation(len(tasks.NAMES))[:count]}
        facts = [self.mid(f"The pass key of {name} is {key}.") for name, key in keys.items()]
        names = [list(keys)[i] for i in rng.permutation(len(keys))[:6]]
        asked = [(f"What is the pass key of {name}? The pass key of {name} is", keys[name]) for name in names]
        parts = self.prose(n - 4 - sum(map(len, facts)) - self.tokens(asked), rng)
        for fact in facts:
            parts.insert(int(rng.integers(len(parts) + 1)), fact)
        return self.with_questions([t for p in parts for t in p], asked)

    def doc_topics(self, n, rng):
        """Sections of prose under numbered topics; the questions name numbers."""
        count = int(rng.integers(2, 3 + n // 256))
        words = [self.words[int(i)] for i in rng.choice(len(self.words), count, replace=False)]
        asked = [(f"What is topic {i + 1}? Topic {i + 1} is", words[i]) for i in rng.permutation(count)[:6]]
        room, body = n - 4 - 16 * count - self.tokens(asked), []
        for i, word in enumerate(words):
            body += self.mid(f"Topic {i + 1} is {word}.") + [t for s in self.prose(room // count, rng) for t in s]
        return self.with_questions(body, asked)
