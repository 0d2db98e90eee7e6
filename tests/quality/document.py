#!/usr/bin/env python3
"""A document that is processed once, and asked much later, by an application with little memory to spare.

    export QUIRE_LIBRARY=libquire.so PYTHONPATH=bindings/python
    python3 tests/quality/document.py --handbook FOLDER [...]
    python3 tests/quality/document.py --text FILE --model MODEL [...]

Three processes, each with what it says:
  index    reads the document, whose pages are labels, within a budget of memory, and saves a snapshot;
  ask      opens the snapshot, forks it once for each question, and generates all answers at the same time, within the
           same budget; prints for each the pages that it was taken from;
  compare  the same without budgets, one question after the other.

The exit status is 1 if a process took more memory than --memory, a KV cache more than its budget, `ask` computed any token
of the document again, or an answer or its pages depend on budget, snapshot or company.
"""
import argparse
import concurrent.futures
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import real_model

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "real"))
PAGE = 1600  # characters at least


def read_document(options):
    """Pages, which are whole paragraphs; and questions with the number of the page that has the answer."""
    if options.handbook:
        from texts import handbook
        paragraphs = handbook(options.handbook)
    else:
        paragraphs = options.text.read_text().splitlines(keepends=True)
    pages, begins = [""], []  # begins: the page that each paragraph begins on
    for paragraph in paragraphs:
        if len(pages[-1]) >= PAGE:
            if len(pages) == options.pages:
                break
            pages.append("")
        begins.append(len(pages))
        pages[-1] += paragraph
    if options.handbook:
        from questions import QUESTIONS
        questions = [(item["question"], begins[item["paragraph"]]) for item in QUESTIONS
                     if item["paragraph"] < len(begins)]
    else:
        questions = [(f"What follows '{' '.join(page.split()[:6])}'?", n) for n, page in enumerate(pages, 1)]
    return pages, questions[::max(1, len(questions) // options.questions)][:options.questions]


def labels_of(pages):
    """(begin, end, number of the page, from 1) in bytes."""
    labels, end = [], 0
    for number, page in enumerate(pages, 1):
        begin, end = end, end + len(page.encode())
        labels.append((begin, end, number))
    return labels


def budgets(options, n_tokens):
    return {"overflow": "extrapolate", "expected_tokens": n_tokens, "kv_host_budget_bytes": options.kv_budget,
            "kv_file_directory": options.directory}


def index(model, options, pages):
    n_tokens = len(model.tokenizer.encode("".join(pages)))
    begun = time.monotonic()
    with model.session(options.strategy, **budgets(options, n_tokens + 1000)) as session:
        session.feed("<|im_start|>user\n", parse_special=True)
        session.feed("".join(pages), bos=False, labels=labels_of(pages))
        session.prefill()
        seconds = time.monotonic() - begun
        session.save(options.snapshot)
        return {"tokens": session.n_tokens, "seconds": seconds, "kv_peak": session.tier("host")["bytes_peak"],
                "in_file": session.tier("file")["bytes"], "strategy": session.strategy}


def answer(session, question, document):
    """One answer, how many tokens were computed for the question, and the pages it was taken from."""
    session.feed(f"\n{question} Answer in a few words.<|im_end|>\n<|im_start|>assistant\n", parse_special=True)
    result = {"fed": session.n_pending, "computed": 0, "text": ""}
    with session.stream(24, cite=True, cite_end=document) as stream:
        for event in stream:
            if event.kind == "prefill":
                result["computed"] = event.total - event.reused
            result["text"] += event.text if event.kind == "token" else ""
    # The question's own part and what stands before the first page have no label.
    shares = [label for label in session.label_shares() if label["share"] > 0]
    result["pages"] = [label["id"] for label in sorted(shares, key=lambda l: -l["share"])[:3]]
    return result


def ask(model, options, questions):
    begun = time.monotonic()
    with model.load_session(options.snapshot, **budgets(options, 0)) as document:
        opened = time.monotonic() - begun
        n_tokens = document.n_tokens
        forks = [document.fork() for _ in questions]

        with concurrent.futures.ThreadPoolExecutor(len(questions)) as pool:
            results = list(pool.map(lambda fork, item: answer(fork, item[0], n_tokens), forks, questions))
        kv_peak = max(fork.tier("host")["bytes_peak"] for fork in forks)
        for fork in forks:
            fork.close()
    return {"answers": results, "opened": opened, "seconds": time.monotonic() - begun, "kv_peak": kv_peak}


def compare(model, options, questions):
    results = []
    with model.load_session(options.snapshot, overflow="extrapolate") as document:
        for question, _ in questions:
            with document.fork() as fork:
                results.append(answer(fork, question, document.n_tokens))
    return {"answers": results}


def child(options):
    import quire
    pages, questions = read_document(options)
    limit = 0 if options.step == "compare" else options.kv_budget
    with quire.Runtime(threads=options.threads, kv_host_budget_bytes=limit) as runtime:
        with runtime.load(options.model) as model:
            result = index(model, options, pages) if options.step == "index" else \
                ask(model, options, questions) if options.step == "ask" else compare(model, options, questions)
    result["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result))


def run(options, step, directory):
    document = ["--handbook", str(options.handbook)] if options.handbook else ["--text", str(options.text)]
    command = [sys.executable, __file__, "--step", step, "--model", options.model, *document,
               "--strategy", options.strategy, "--pages", str(options.pages), "--questions", str(options.questions),
               "--kv-budget", str(options.kv_budget), "--threads", str(options.threads), "--directory", directory,
               "--snapshot", directory + "/document.quire"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: the model of examples/get_model.sh")
    document = parser.add_mutually_exclusive_group(required=True)
    document.add_argument("--handbook", type=pathlib.Path, help="the folder of the Debian handbook's HTML pages")
    document.add_argument("--text", type=pathlib.Path, help="any text; its lines are paragraphs")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--pages", type=int, default=300)
    parser.add_argument("--questions", type=int, default=10)
    parser.add_argument("--kv-budget", type=int, default=1_000_000_000, help="bytes of memory for KV caches")
    parser.add_argument("--memory", type=int, default=2_000_000_000, help="bytes that a process may take")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--directory", default="/var/tmp", help="of the snapshot and of spilled chunks")
    parser.add_argument("--step", choices=["index", "ask", "compare"], help=argparse.SUPPRESS)
    parser.add_argument("--snapshot", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        return child(options)
    options.model = real_model.path_or_exit(options.model)

    pages, questions = read_document(options)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        indexed = run(options, "index", directory)
        print(f"index: {len(pages)} pages, {indexed['tokens']} tokens, {indexed['seconds']:.0f} s, "
              f"{indexed['strategy']}; {indexed['kv_peak'] / 1e6:.0f} MB of KV cache in memory, "
              f"{indexed['in_file'] / 1e6:.0f} MB in the file; the process took {indexed['memory'] / 1e6:.0f} MB", flush=True)
        asked = run(options, "ask", directory)
        print(f"ask: opened in {asked['opened']:.2f} s, {len(questions)} answers at once in {asked['seconds']:.0f} s, "
              f"{asked['kv_peak'] / 1e6:.0f} MB of KV caches in memory; the process took {asked['memory'] / 1e6:.0f} MB",
              flush=True)
        for (question, page), result in zip(questions, asked["answers"]):
            cited = ", ".join(str(number) for number in result["pages"])
            print(f"  page {page}, cited {cited}: {question} | {result['text'].splitlines()[0] if result['text'] else ''}")
        alone = run(options, "compare", directory)

    wrong = []
    for name, step in (("index", indexed), ("ask", asked)):
        if step["memory"] > options.memory:
            wrong.append(f"{name} took {step['memory']} bytes of memory")
        if step["kv_peak"] > options.kv_budget:
            wrong.append(f"{name} had {step['kv_peak']} bytes of KV caches in memory")
    for (question, _), result, expected in zip(questions, asked["answers"], alone["answers"]):
        if result["computed"] != result["fed"]:
            wrong.append(f"{result['computed']} tokens were computed for a question of {result['fed']}")
        if result != expected:
            wrong.append(f"the answer to '{question}' depends on more than the text")
    print("\n".join(wrong) or "all as it should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
