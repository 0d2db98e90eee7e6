"""Asks a document several questions at once: it is read once, and each question goes on in a fork of its own.

    forks.py MODEL DOCUMENT QUESTION...

A fork shares what was read with its origin; the answers are computed together, and read here by one task each.
"""

import asyncio
import pathlib
import sys

import quire


async def answer(document, question):
    with document.fork() as fork:
        fork.feed("\n" + question)
        async with fork.stream(64, stop="\n") as stream:
            return "".join([event.text async for event in stream])


async def answers(document, questions):
    return await asyncio.gather(*[answer(document, question) for question in questions])


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    path, document_path, *questions = sys.argv[1:]
    with quire.Runtime() as runtime, runtime.load(path) as model, model.session("dca") as document:
        document.feed(pathlib.Path(document_path).read_text(encoding="utf-8"))
        document.prefill()
        for question, text in zip(questions, asyncio.run(answers(document, questions))):
            print(f"{question}{text}")
        print(f"read {document.stats['n_prefilled']} tokens for {len(questions)} questions", file=sys.stderr)


if __name__ == "__main__":
    main()
