"""What the Python binding costs on a stream: the program that tests/overhead compares with the same in C.

    overhead.py MODEL_DIR N_TOKENS

Prints {"ready":true}. For each line on its standard input it generates N_TOKENS tokens behind the same beginning and prints
{"tokens", "seconds", "allocations"}. CPython cannot say how often it allocates: "allocations" is how many blocks of its
memory one event of a token holds, itself included, as sys.getallocatedblocks() counts them.
"""

import json
import sys
import time

import quire


def answer(session, n_tokens):
    """The length of the answer's text, and the seconds it took."""
    begin = time.monotonic()
    length = 0
    for event in session.stream(n_tokens, ignore_eos=True):
        length += len(event.text)
    return length, time.monotonic() - begin


def blocks_of_an_event(session, n_tokens):
    before = sys.getallocatedblocks()
    events = list(session.stream(n_tokens, ignore_eos=True))
    return (sys.getallocatedblocks() - before) / len(events)


def main():
    path, n_tokens = sys.argv[1], int(sys.argv[2])
    with quire.Runtime(threads=1) as runtime, runtime.load(path) as model:
        session = model.session("full", overflow="extrapolate")
        session.feed("Once upon a time")
        session.prefill()
        n_prefilled = session.n_tokens
        blocks = round(blocks_of_an_event(session, n_tokens), 2)
        print('{"ready":true}', flush=True)
        for _ in sys.stdin:
            session.truncate(n_prefilled)
            length, seconds = answer(session, n_tokens)
            assert length > 0
            print(json.dumps({"tokens": n_tokens, "seconds": seconds, "allocations": blocks}), flush=True)


if __name__ == "__main__":
    main()
