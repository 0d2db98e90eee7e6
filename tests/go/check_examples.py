"""Runs the examples `ask` and `forks` on the embedded model, and the program of the binding's README.md as that says.

    check_examples.py FOLDER_OF_PROGRAMS GO
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from served import MODEL, QUESTION, SOURCE, document


def check_answers(programs, folder):
    path = folder / "document.txt"
    path.write_text(document(60))
    asked = subprocess.run([programs / "ask", "-strategy", "dca", "-stop", "\n", MODEL, path], check=True,
                           input=f"{QUESTION}\n{QUESTION}\n", capture_output=True, text=True)
    assert asked.stdout == " 71432.\n 71432.\n", asked
    last = [line for line in asked.stderr.split("\n") if "tokens read" in line][-1]
    reused, total = int(last.split(", ")[1].split()[0]), int(last.split(" of ")[1].split()[0])
    assert reused > 0.9 * total > 1000, last
    forks = subprocess.run([programs / "forks", MODEL, path, QUESTION, "The grass is"], capture_output=True, text=True,
                           check=True)
    lines = forks.stdout.split("\n")
    assert lines[0] == QUESTION + " 71432." and lines[1].startswith("The grass is green."), forks
    assert "tokens were read once" in lines[2], forks


def check_interrupt(programs, folder):
    """Ctrl-C, twice, while a text is read that would take long; the program goes on, and ends when its input does."""
    path = folder / "long.txt"
    path.write_text(document(1400))
    process = subprocess.Popen([programs / "ask", "-strategy", "dca", MODEL, path], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
    for _ in range(2):
        process.stdin.write(QUESTION + "\n")
        # Behind the prompt; before it are lines that the answer before was still writing when it was interrupted.
        for awaited in ("> ", "tokens read"):
            while awaited not in process.stderr.readline():
                pass
        process.send_signal(signal.SIGINT)
        assert [process.stdout.readline(), process.stdout.readline()] == ["\n", "(cancelled)\n"]
    out, _ = process.communicate()
    assert (out, process.returncode) == ("", 0), (out, process.returncode)


def check_readme(go, folder):
    """The whole program among its blocks, and the commands behind it."""
    text = (SOURCE / "bindings" / "go" / "README.md").read_text()
    blocks = re.findall(r"```(\w+)\n(.*?)```", text, re.S)
    at = next(i for i, (kind, block) in enumerate(blocks) if kind == "go" and block.startswith("package main"))
    (_, program), (_, commands), (_, printed) = blocks[at:at + 3]
    (folder / "main.go").write_text(program)
    environment = {**os.environ, "QUIRE": str(SOURCE), "PATH": f"{go.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-ec", commands], cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (printed, 0), done


def main():
    programs = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        check_readme(pathlib.Path(sys.argv[2]), pathlib.Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        check_answers(programs, pathlib.Path(folder))
        check_interrupt(programs, pathlib.Path(folder))


if __name__ == "__main__":
    main()
