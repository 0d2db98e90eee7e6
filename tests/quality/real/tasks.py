"""The tasks. Each adds rows to the results, one for a trial, and returns early when the time is over.

A document is cut where its key stands and read again from there for the next trial, the trials in descending order of
the key's place: what stands before the key is the same for all of them.
"""

import math
import random
import re
import time

from reader import Reader
from strategies import WINDOW, answers, expression, selects_when_answering
from texts import FILLER

# Questions are asked as the model's chat template writes them, behind the text in one message. Of numbers the text goes
# on as it began: asked "What is the pass key?", this model explains pass keys, inside its window too.
INTRO = ("There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
         "about the important information there.\n")
TEXT = "[the text]"  # in a message, where the document comes
DEPTHS = 10          # places of a key, in tenths of the document
CITIES = ("Amsterdam Berlin Cairo Dublin Edinburgh Florence Geneva Hamburg Istanbul Jakarta Kyoto Lisbon Madrid Nairobi "
          "Oslo Prague Quito Rome Stockholm Tokyo Vienna Warsaw Zurich").split()
KEYS = 4             # of a multikey document
TARGETS = 1024       # tokens whose perplexity is measured
# Where the document of a round begins, as a share of the handbook; the last place leaves room for 64k tokens. A document
# that is longer goes on at the handbook's beginning.
PLACES = (0.0, 0.35, 0.15, 0.5, 0.25, 0.6)


class Bench:
    """model: loaded; book: paragraphs of the handbook; results: of the model's device, whose description each row has if
    it is not empty; over: a function that says whether the time is over."""

    def __init__(self, model, description, book, results, over, log):
        self.model, self.results, self.over, self.log = model, results, over, log
        self.described = {"device_description": description} if description else {}
        self.tokenizer = model.tokenizer
        self.book = [self.tokenizer.encode(paragraph, bos=False) for paragraph in book]
        self.message = self.tokenizer.render_chat([("user", TEXT)])
        self.filler = self.tokenizer.encode(FILLER, bos=False)

    def reader(self, strategy, length):
        return Reader(self.model, expression(strategy, length), length)

    def add(self, task, strategy, length, trial, reader, **fields):
        row = {"task": task, "strategy": strategy, "length": length, "trial": trial, **fields, **reader.costs(),
               **self.described}
        self.results.add(row)
        self.log(f"{task} {strategy} {length} #{trial}: {fields.get('answer', fields.get('nll'))!r} "
                 f"{'right' if fields.get('right') else ''}")

    def prose(self, round_, n_tokens):
        """Paragraphs of the handbook, of at most so many tokens together."""
        paragraphs = []
        at = int(PLACES[round_ % len(PLACES)] * len(self.book))
        while n_tokens >= len(self.book[at % len(self.book)]):
            paragraphs.append(self.book[at % len(self.book)])
            n_tokens -= len(paragraphs[-1])
            at += 1
        return paragraphs

    def missing(self, task, strategy, length, trials):
        """The session that answers as the strategy (answers()), and the trials and strategies that it has to answer."""
        reads, names = answers(strategy)
        names = [(name, given) for name, given in names if not self.results.failed(task, name, length)]
        wanted = {t: [(name, given) for name, given in names if not self.results.has(task, name, length, t)] for t in trials}
        return reads, {t: names for t, names in wanted.items() if names}

    def hidden_numbers(self, task, strategy, length, round_, filler, needle, question, n_answer):
        """Trials whose documents differ in the number and where it stands: a round has one in each tenth."""
        reads, trials = self.missing(task, strategy, length, range(round_ * DEPTHS, (round_ + 1) * DEPTHS))
        if not trials:
            return
        with self.reader(reads, length) as reader:
            reader.feed(reader.encode(INTRO))
            starts = [reader.n_tokens]  # of each paragraph, and the end
            for paragraph in filler:
                starts.append(starts[-1] + len(paragraph))
            placed = []
            for trial in trials:
                draw = random.Random(f"{task} {length} {trial}")
                depth = (trial % DEPTHS + draw.random()) / DEPTHS
                place = min(range(len(starts)), key=lambda i: abs(starts[i] - depth * starts[-1]))
                placed.append((place, trial, str(draw.randrange(10000, 100000))))
            fed = 0
            for place, trial, key in sorted(placed):
                if self.over():
                    return
                # Ascending: the session holds the longest common beginning when the next trial starts.
                while fed < place:
                    reader.feed(filler[fed])
                    fed += 1
                reader.read()
                begin = reader.n_tokens
                reader.feed(reader.encode(needle.format(key)))
                for paragraph in filler[place:]:
                    reader.feed(paragraph)
                for name, given in trials[trial]:
                    answer = reader.ask(question, n_answer, given)
                    self.add(task, name, length, trial, reader, depth=round(begin / reader.n_tokens, 3), expected=key,
                             answer=answer, right=key in answer, n_tokens=reader.n_tokens)
                reader.cut(begin)

    def passkey(self, strategy, length, round_):
        """A number in filler (Mohtashami and Jaggi 2023)."""
        room = length - 120
        self.hidden_numbers("passkey", strategy, length, round_, [self.filler] * (room // len(self.filler)),
                            "The pass key is {0}. Remember it. {0} is the pass key.\n",
                            "The pass key is", 8)

    def needle(self, strategy, length, round_):
        """The same in prose (RULER's single needle, Hsieh et al. 2024)."""
        self.hidden_numbers("needle", strategy, length, round_, self.prose(round_, length - 120),
                            "The special magic number for Lisbon is {0}.\n",
                            "The special magic number for Lisbon is", 8)

    def multikey(self, strategy, length, round_):
        """Several numbers in prose, each asked for by its name (RULER's multi-key needles)."""
        trials = range(round_ * KEYS, (round_ + 1) * KEYS)
        reads, wanted = self.missing("multikey", strategy, length, trials)
        if not wanted or self.over():
            return
        draw = random.Random(f"multikey {length} {round_}")
        names = draw.sample(CITIES, KEYS)
        numbers = [str(draw.randrange(10000, 100000)) for _ in names]
        paragraphs = self.prose(round_, length - 60 - 30 * KEYS)
        places = [int((k + draw.random()) / KEYS * len(paragraphs)) for k in range(KEYS)]
        with self.reader(reads, length) as reader:
            reader.feed(reader.encode(INTRO))
            begins = []
            for i, paragraph in enumerate(paragraphs):
                for name, number, place in zip(names, numbers, places):
                    if place == i:
                        begins.append(reader.n_tokens)
                        reader.feed(reader.encode(f"The special magic number for {name} is {number}.\n"))
                reader.feed(paragraph)
            for trial, name, number, begin in zip(trials, names, numbers, begins):
                for strategy, given in wanted.get(trial, ()):
                    answer = reader.ask(f"The special magic number for {name} is", 8, given)
                    self.add("multikey", strategy, length, trial, reader, depth=round(begin / reader.n_tokens, 3),
                             expected=number, answer=answer, right=number in answer, n_tokens=reader.n_tokens)

    def ask(self, task, strategy, length, trial, reader, q, given=False, **fields):
        """A question behind the text that the reader holds."""
        behind = self.message.split(TEXT)[1]
        answer = reader.ask(f"\n{q['question']} Answer in a few words.{behind}", 32, given).strip().split("\n")[0]
        right = any(re.search(rf"\b{re.escape(word)}\b", answer, re.IGNORECASE) for word in q["answers"])
        self.add(task, strategy, length, trial, reader, question=q["question"], expected=q["answers"][0], answer=answer,
                 right=right, n_tokens=reader.n_tokens, **fields)

    def paragraphs(self, questions):
        """The same questions about the paragraph alone that the fact stands in: what the model can do at best."""
        for trial, q in enumerate(questions):
            if self.over() or self.results.has("paragraph", "full", 0, trial):
                continue
            with self.reader("full", WINDOW) as reader:
                reader.feed(reader.encode(self.message.split(TEXT)[0]))
                reader.feed(self.book[q["paragraph"]])
                self.ask("paragraph", "full", 0, trial, reader, q)

    def questions(self, strategy, length, questions):
        """Questions about the first `length` tokens of the handbook; those whose fact stands there are asked."""
        self.paragraphs(questions)
        reads, wanted = self.missing("questions", strategy, length, range(len(questions)))
        if self.over() or 0 not in wanted:
            return
        with self.reader(reads, length) as reader:
            reader.feed(reader.encode(self.message.split(TEXT)[0]))
            asked, at = [], 0
            while reader.n_tokens + len(self.book[at]) <= length - 80:
                asked += [(q, reader.n_tokens) for q in questions if q["paragraph"] == at]
                reader.feed(self.book[at])
                at += 1
            for trial, (q, begin) in reversed(list(enumerate(asked))):  # the first one last: it says that all are there
                for name, given in wanted.get(trial, ()):
                    self.ask("questions", name, length, trial, reader, q, given, depth=round(begin / reader.n_tokens, 3))

    def perplexity(self, strategy, length, round_):
        """The same last tokens of a stretch of the handbook, after contexts of different lengths. A context that is longer
        than what stands before them begins in the handbook's end."""
        if self.over() or self.results.has("perplexity", strategy, length, round_):
            return
        ids = [token for paragraph in self.book for token in paragraph]
        end = len(ids) * (round_ + 2) // 4 - 8
        if end < length:
            ids, end = ids + ids, end + len(ids)
        with self.reader(strategy, length) as reader:
            if selects_when_answering(strategy, length):
                reader.feed(ids[end - length:end - TARGETS])
                reader.read()
                scores = reader.force(ids[end - TARGETS:end])
            else:
                reader.feed(ids[end - length:end])
                reader.read(score=True)
                scores = reader.session.scores(length - TARGETS, TARGETS)
            nll = -sum(scores) / TARGETS
            self.add("perplexity", strategy, length, round_, reader, nll=nll, right=math.isfinite(nll),
                     n_tokens=length)

    def speed(self, strategy, length, round_):
        """Processor time of a generated token behind so many, whose keys and values are made up."""
        n_tokens = 32
        if self.over() or self.results.has("speed", strategy, length, round_):
            return
        with self.reader(strategy, length + 2 * n_tokens) as reader:
            reader.session.fill_random(length)
            reader.generate(n_tokens)  # takes memory
            before = time.process_time()
            n_generated = reader.generate(n_tokens)
            self.add("speed", strategy, length, round_, reader, right=True,
                     token_cpu_seconds=round((time.process_time() - before) / n_generated, 6))
