"""The example server, while a test runs, and the texts that the tests ask it about."""

import contextlib
import pathlib
import subprocess

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = SOURCE / "examples" / "embedded_model" / "model"

FIRST = ("There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you about "
         "the important information there.\n")
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
QUESTION = "What is the pass key? The pass key is"


def document(n_lines, key="71432"):
    """Some 26 tokens a line; the embedded model finds the key."""
    return FIRST + FILLER * (n_lines // 2) + f"The pass key is {key}. Remember it. {key} is the pass key.\n" + FILLER * (n_lines // 2)


@contextlib.contextmanager
def served(program, *options, model=MODEL):
    """The address of a server with this model."""
    process = subprocess.Popen([program, "-listen", "127.0.0.1:0", *options, str(model)], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:"), line
        yield line.split()[0]
        process.terminate()
        assert process.wait(60) == 0, process.returncode
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
