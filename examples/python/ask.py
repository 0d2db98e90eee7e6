"""Asks a document: reads it once, answers questions about it as they come, and forgets each answer before the next one.

    ask.py MODEL DOCUMENT [QUESTION...]

Without a QUESTION it reads them from its standard input, one a line. Ctrl-C stops an answer, not the program.
"""

import argparse
import pathlib
import sys

import quire


def read(session, text):
    session.feed(text)
    with session.stream() as stream:
        for event in stream:
            if event.kind == "prefill":
                print(f"\r{event.done + event.reused} of {event.total} tokens", end="", file=sys.stderr)
    print(file=sys.stderr)


def answer(session, question, options):
    session.feed("\n" + question)
    with session.stream(options.max_tokens, stop=options.stop, ignore_eos=options.ignore_eos) as stream:
        try:
            for event in stream:
                print(event.text, end="", flush=True)
                if event.kind == "warning":
                    print("warning:", event.message, file=sys.stderr)
        except KeyboardInterrupt:  # leaving `with` stops the computation
            print(" [stopped]", end="")
    print(flush=True)


def main():
    parser = argparse.ArgumentParser(description="Asks a document.")
    parser.add_argument("model")
    parser.add_argument("document", type=pathlib.Path)
    parser.add_argument("questions", nargs="*")
    parser.add_argument("--strategy", default="dca", help="the long-context strategy")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--stop", default="\n", help="the answer ends before this text")
    parser.add_argument("--ignore-eos", action="store_true", help="go on behind the end of the text")
    options = parser.parse_args()
    with quire.Runtime() as runtime, runtime.load(options.model) as model, model.session(options.strategy) as session:
        read(session, options.document.read_text(encoding="utf-8"))
        n_document = session.n_tokens
        for question in options.questions or map(str.strip, sys.stdin):
            answer(session, question, options)
            session.truncate(n_document)


if __name__ == "__main__":
    main()
