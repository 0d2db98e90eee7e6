"""A session that reads a document once and answers several questions about it."""

import time


class Reader:
    def __init__(self, model, strategy, length):
        self.tokenizer = model.tokenizer
        self.session = model.session(strategy, overflow="extrapolate", expected_tokens=length)
        self.n_tokens = 0  # fed: the document, without questions
        self.cpu_seconds, self.n_read = 0.0, 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.session.close()

    def encode(self, text):
        """Of text that may have control tokens."""
        return self.tokenizer.encode(text, parse_special=True, bos=False)

    def feed(self, ids):
        self.session.feed_tokens(ids)
        self.n_tokens += len(ids)

    def cut(self, n_tokens):
        """Back to the document's first tokens."""
        self.session.truncate(n_tokens)
        self.n_tokens = n_tokens

    def read(self, **options):
        """Processes what was fed, and notes the processor time of it."""
        before, read = time.process_time(), self.session.stats["n_prefilled"]
        self.session.prefill(**options)
        self.cpu_seconds += time.process_time() - before
        self.n_read += self.session.stats["n_prefilled"] - read

    def ask(self, question, n_tokens, given=False):
        """The greedy answer; the document stays as it was. given: each of its tokens is given back to the session."""
        self.read()
        ids = self.encode(question)
        self.session.feed_tokens(ids)
        if given:
            answer = self.tokenizer.decode(self.give_back(self.n_tokens + len(ids), n_tokens))
        else:
            answer = "".join(self.session.generate(n_tokens))
        self.session.truncate(self.n_tokens)
        return answer

    def generate(self, n_tokens):
        """Whatever comes, and how many tokens that are."""
        return sum(event.kind == "token" for event in self.session.stream(max_tokens=n_tokens, ignore_eos=True))

    def give_back(self, end, n_tokens):
        """The tokens of a greedy answer behind the first `end` tokens."""
        ids = []
        while len(ids) < n_tokens:
            generated = [event.token for event in self.session.stream(max_tokens=1) if event.kind == "token"]
            if not generated:
                break
            ids += generated
            self.session.truncate(end)
            self.session.feed_tokens(generated)
            end += 1
        return ids

    def force(self, ids):
        """The log probabilities of these tokens, which become the model's own: it generates them one at a time."""
        first = self.n_tokens
        stream = self.session.stream(max_tokens=len(ids), score=True, constrain=True, ignore_eos=True)
        stream.allow(ids[:1])
        for event in stream:
            if event.kind == "token":
                self.n_tokens += 1
                if self.n_tokens - first < len(ids):
                    stream.allow([ids[self.n_tokens - first]])
        return self.session.scores(first, len(ids))

    def costs(self):
        return {"cpu_seconds": round(self.cpu_seconds, 2), "n_read": self.n_read,
                "kv_bytes_peak": sum(self.session.tier(tier)["bytes_peak"] for tier in ("device", "host"))}
