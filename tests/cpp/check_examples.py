"""Runs examples/cpp as their user would, Ctrl-C included.

    check_examples.py SOURCE_DIR ASK FORKS
"""

import pathlib
import signal
import subprocess
import sys
import tempfile


def check_forks(forks, model, text):
    questions = [" The grass is", " What is the name of it?"]

    def run(*asked):
        result = subprocess.run([forks, model, text, *asked], capture_output=True, text=True)
        assert (result.returncode, result.stderr) == (0, ""), result
        return result.stdout

    together = run(*questions)
    assert together == "".join(run(question) for question in questions), together
    assert all(len(run(question)) > len(question) + 2 for question in questions), together


def check_ask(ask, model, text):
    """The first answer is stopped while the document is still read; the second one reads the rest."""
    process = subprocess.Popen([ask, model, text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b" The grass is\n")
    process.stdin.flush()
    assert process.stderr.read(1)  # it has begun to read
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"[stopped]\n"
    printed, progress = process.communicate(b" The sky is\n")
    assert process.returncode == 0, progress
    assert printed.strip() and b"stopped" not in printed, printed


def main():
    source, ask, forks = sys.argv[1:4]
    model = f"{source}/examples/embedded_model/model"
    document = pathlib.Path(source, "examples", "quickstart.txt").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        short, long = pathlib.Path(folder, "short.txt"), pathlib.Path(folder, "long.txt")
        short.write_text(document, encoding="utf-8")
        long.write_text(document * 5, encoding="utf-8")
        check_forks(forks, model, str(short))
        check_ask(ask, model, str(long))
    for program, *questions in ([ask], [forks, "?"]):
        assert subprocess.run([program], capture_output=True).returncode == 2
        missing = subprocess.run([program, "/no/such/model", f"{source}/LICENSE", *questions], capture_output=True)
        assert missing.returncode == 1 and b"NOT_FOUND" in missing.stderr, missing
    return 0


if __name__ == "__main__":
    sys.exit(main())
