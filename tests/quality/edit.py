#!/usr/bin/env python3
"""What does an approximate edit cost, and what does it save? `session.edit(reuse="approximate")` beside an exact one.

    QUIRE_LIBRARY=libquire.so PYTHONPATH=bindings/python python3 tests/quality/edit.py --model MODEL --text FILE [...]

A session has read a document, which is edited; the edited text is then read exactly (all from the change on is
computed) and approximately (later chunks are taken over), also with the first tokens of each run computed (--reread).

perplexity: of the text that follows the document. Edits: a paragraph of --paragraph tokens inserted or deleted at a
quarter of the document, and its second quarter replaced by another part of the same book.
passkey: a number in filler (Mohtashami and Jaggi 2023, arXiv:2305.16300) in the middle of the document. Edits: a
paragraph of prose inserted in front of it (at a quarter), or behind it (at three quarters), and the number itself
replaced by another one.
Computed are the tokens of the document that were neither kept nor taken over; seconds are those of reading them.
"""
import argparse
import math
import pathlib
import random
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "real"))

INTRO = ("There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
         "about the important information there.\n")
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
NEEDLE = "The pass key is {0}. Remember it. {0} is the pass key.\n"
QUESTION = "What is the pass key? The pass key is"


def ways(rereads):
    return [("exact", {})] + [(f"approximate, reread {r}", {"reuse": "approximate", "reread": r}) for r in rereads]


def edited(session, ids, how):
    """A fork whose text is `ids`, read; the tokens that were computed, and the seconds that took."""
    fork = session.fork()
    fork.edit(ids, **how)
    before = fork.stats
    fork.prefill()
    after = fork.stats
    return (fork, after["n_prefilled"] - before["n_prefilled"], after["n_moved"] - before["n_moved"],
            1e-9 * (after["prefill_ns"] - before["prefill_ns"]))


def report(what, name, cost, result):
    computed, moved, seconds = cost
    print(f"| {what} | {name} | {computed} | {moved} | {seconds:.2f} | {result} |", flush=True)


def perplexity(model, strategy, ids, length, options):
    """ids: of a book."""
    follow, paragraph = ids[length:length + options.follow], options.paragraph
    spare = ids[length + options.follow:]
    document, q = ids[:length], length // 4
    edits = {"inserted": document[:q] + spare[:paragraph] + document[q:],
             "deleted": document[:q] + document[q + paragraph:],
             "replaced": document[:q] + spare[:q] + document[2 * q:]}
    with model.session(strategy, overflow="extrapolate", expected_tokens=2 * length, prefix_reuse=False) as session:
        session.feed_tokens(document)
        session.prefill()
        for kind, text in edits.items():
            for name, how in ways(options.reread):
                fork, *cost = edited(session, text, how)
                with fork:
                    fork.feed_tokens(follow)
                    fork.prefill(score=True)
                    scores = fork.scores(len(text), len(follow))
                result = math.exp(-sum(scores) / len(scores))
                report(f"{strategy}, {length}, perplexity, {kind}", name, cost, f"{result:.4f}")


def passkey(model, strategy, prose, length, options):
    encode = lambda text: model.tokenizer.encode(text, bos=False, continued=True)
    start, filler, question = model.tokenizer.encode(INTRO), encode(FILLER), encode(QUESTION)
    lines = (length - 100) // len(filler)
    results = {}
    for trial in range(options.trials):
        draw = random.Random(f"{options.seed} {length} {trial}")
        key, other = (str(draw.randrange(10000, 100000)) for _ in range(2))
        middle = round(lines * (0.4 + 0.2 * draw.random()))
        document = lambda number: start + filler * middle + encode(NEEDLE.format(number)) + filler * (lines - middle)
        old, quarter = document(key), len(start) + lines // 4 * len(filler)
        rest = len(old) - (lines // 4) * len(filler)
        at = draw.randrange(len(prose) - options.paragraph)
        paragraph = prose[at:at + options.paragraph]
        edits = {"in front": (old[:quarter] + paragraph + old[quarter:], key),
                 "behind": (old[:rest] + paragraph + old[rest:], key),
                 "the key": (document(other), other)}
        with model.session(strategy, overflow="extrapolate", expected_tokens=2 * length, prefix_reuse=False) as session:
            session.feed_tokens(old)
            session.prefill()
            for kind, (text, right) in edits.items():
                for name, how in ways(options.reread):
                    fork, *cost = edited(session, text, how)
                    with fork:
                        fork.feed_tokens(question)
                        answer = "".join(fork.generate(10))
                    of = results.setdefault((kind, name), [0, [0, 0, 0.0]])
                    of[0] += right in answer
                    of[1] = [a + b for a, b in zip(of[1], cost)]
    for (kind, name), (n_right, cost) in sorted(results.items(), key=lambda row: [list(edits).index(row[0][0])]):
        n = options.trials
        report(f"{strategy}, {length}, passkey, {kind}", name, [round(cost[0] / n), round(cost[1] / n), cost[2] / n],
               f"{n_right}/{n}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", type=pathlib.Path, required=True, help="a file, or the folder of the handbook's pages")
    parser.add_argument("--strategy", action="append", required=True)
    parser.add_argument("--length", type=int, action="append", default=[], help="tokens of a document")
    parser.add_argument("--passkey-length", type=int, action="append", default=[])
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--follow", type=int, default=512, help="tokens whose perplexity is taken")
    parser.add_argument("--paragraph", type=int, default=120)
    parser.add_argument("--reread", type=int, action="append", help="default: 0")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    options.reread = options.reread or [0]
    import quire

    if options.text.is_dir():
        from texts import handbook
        text = "".join(handbook(options.text))
    else:
        text = options.text.read_text()
    print("| strategy, tokens, task, edit | reading | computed | taken over | seconds | result |\n"
          "|---|---|---:|---:|---:|---:|")
    with quire.Runtime(threads=options.threads) as runtime, runtime.load(options.model) as model:
        ids = model.tokenizer.encode(text)
        for strategy in options.strategy:
            for length in options.length:
                perplexity(model, strategy, ids, length, options)
            for length in options.passkey_length:
                passkey(model, strategy, ids[1:], length, options)


if __name__ == "__main__":
    sys.exit(main())
