#!/usr/bin/env python3
"""Does an answer's provenance name the right passages? `session.passages()` on texts whose source is known.

    QUIRE_LIBRARY=libquire.so PYTHONPATH=bindings/python python3 tests/quality/cite.py --model MODEL [...]

passkey: a number in filler (Mohtashami and Jaggi 2023, arXiv:2305.16300); right is an answer whose top passage holds the
number's digits. handbook: questions about the Debian handbook, whose paragraph was picked beforehand
(tests/quality/real/questions.py); the paragraph's place among all paragraphs by their shares, and the place of the first
passage that lies in it. With --check the exit status is 1 if less than nine in ten top passages hold the passkey.
"""
import argparse
import pathlib
import random
import sys

import real_model

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "real"))

INTRO = ("There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
         "about the important information there.\n")
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
NEEDLE = "The pass key is {0}. Remember it. {0} is the pass key.\n"


def passkey(model, strategy, length, trials, question, seed):
    """Trials with the number in each part of the text: how many top passages hold it, how many answers are right."""
    tokenizer = model.tokenizer
    lines = (length - 100) // len(tokenizer.encode(FILLER, bos=False))
    held = right = 0
    for trial in range(trials):
        draw = random.Random(f"{seed} {length} {trial}")
        key, before = str(draw.randrange(10000, 100000)), round((trial + draw.random()) / trials * lines)
        text = INTRO + FILLER * before + NEEDLE.format(key) + FILLER * (lines - before)
        with model.session(strategy, overflow="extrapolate", expected_tokens=length) as session:
            session.feed(text)
            document = session.n_pending
            session.feed(question)
            answer = "".join(session.generate(8, cite=True, cite_end=document))
            [top] = session.passages(most=1)
            held += key in text.encode()[top["begin"]:top["end"]].decode()
            right += key in answer
    return held, right


def handbook(model, strategy, length, folder):
    """(question, place of its paragraph among all, place of the first passage that lies in it, answer) of each."""
    from questions import QUESTIONS
    from texts import handbook as paragraphs_of
    rows = []
    with model.session(strategy, overflow="extrapolate", expected_tokens=length) as session:
        session.feed("<|im_start|>user\n", parse_special=True)
        begin = session.n_pending
        paragraphs, n_fed = [], begin
        for paragraph in paragraphs_of(folder):
            n = len(model.tokenizer.encode(paragraph, bos=False, continued=True))
            if n_fed + n > length - 80:
                break
            paragraphs.append(paragraph.encode())
            n_fed += n
        ends = [sum(map(len, paragraphs[:i + 1])) for i in range(len(paragraphs))]
        labels = [(end - len(p), end, i) for i, (p, end) in enumerate(zip(paragraphs, ends))]
        session.feed(b"".join(paragraphs), labels=labels)
        session.prefill()
        document = session.n_tokens
        for item in QUESTIONS:
            wanted = item["paragraph"]
            if wanted >= len(paragraphs):
                continue
            with session.fork() as asked:
                asked.feed(f"\n{item['question']} Answer in a few words.<|im_end|>\n<|im_start|>assistant\n",
                           parse_special=True)
                answer = "".join(asked.generate(24, cite=True, cite_end=document)).split("\n")[0]
                shares = [label["share"] for label in asked.label_shares()]
                passages = [p["label_id"] for p in asked.passages(most=20)]
            place = 1 + sum(share > shares[wanted] for share in shares)
            passage = 1 + passages.index(wanted) if wanted in passages else 0
            rows.append((item["question"], place, passage, len(paragraphs), answer))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: the model of examples/get_model.sh")
    parser.add_argument("--strategy", default="dca")
    parser.add_argument("--length", type=int, action="append", help="tokens of a passkey text")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--question", default="What is the pass key? The pass key is")
    parser.add_argument("--handbook", type=pathlib.Path, help="the folder of its HTML pages")
    parser.add_argument("--handbook-length", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    options.model = real_model.path_or_exit(options.model)
    import quire

    good = True
    with quire.Runtime(threads=options.threads) as runtime, runtime.load(options.model) as model:
        for length in options.length or []:
            held, right = passkey(model, options.strategy, length, options.trials, options.question, options.seed)
            good = good and 10 * held >= 9 * options.trials
            print(f"passkey {options.strategy} {length}: top passage holds it {held}/{options.trials}, "
                  f"answers right {right}/{options.trials}", flush=True)
        if options.handbook:
            for question, place, passage, n, answer in handbook(model, options.strategy, options.handbook_length,
                                                                 options.handbook):
                print(f"paragraph {place} of {n}, passage {passage or '-'}: {question} | {answer}", flush=True)
    return 1 if options.check and not good else 0


if __name__ == "__main__":
    sys.exit(main())
