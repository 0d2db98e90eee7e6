#!/usr/bin/env python3
"""Runs the code blocks of README.md, ABI.md and the guide: commands, C and Python."""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import blocks
import placeholders

ROOT = placeholders.ROOT
OPTIONS = None  # --quire, --library, --cc

# What the parts of programs in the documentation are put into. Each name is one that they use without declaring it.
C_FRAME = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "quire/quire.h"
int main(void) {
  quire_error err; quire_runtime* rt = NULL; quire_model* model = NULL; quire_adapter* adapter = NULL;
  quire_session* session = NULL; quire_session* other = NULL; quire_stream* stream = NULL; quire_store* store = NULL;
  quire_tokenizer* tokenizer = NULL; quire_event ev; quire_stream_options go; quire_session_options so;
  const char* dir = ""; const char* text = ""; const char* question = ""; size_t text_len = 0, question_len = 0;
  const int32_t* ids = NULL; size_t n_ids = 0; quire_message next_question; int32_t status = 0; size_t n = 0;
  memset(&ev, 0, sizeof ev); memset(&go, 0, sizeof go); memset(&so, 0, sizeof so); memset(&err, 0, sizeof err);
  memset(&next_question, 0, sizeof next_question);
  (void)rt; (void)model; (void)adapter; (void)session; (void)other; (void)stream; (void)store; (void)tokenizer;
  (void)dir; (void)text; (void)question; (void)text_len; (void)question_len; (void)ids; (void)n_ids; (void)status; (void)n;
  {
%s
  }
  return 0;
}
"""

# The same for parts of Python programs: those that do not import anything.
PYTHON_FRAME = """
import quire
runtime = quire.Runtime(threads=1)
model = runtime.load("MODEL")
session = model.session("dca")
session.feed("Once upon a time")
text = open("book.txt", encoding="utf-8").read()
%s
"""


def files():
    return [ROOT / "README.md", ROOT / "ABI.md", ROOT / "bindings/python/README.md",
            *sorted((ROOT / "examples/guide/pages").rglob("*.md"))]


def environment():
    return {**os.environ, "PATH": f"{pathlib.Path(OPTIONS.quire).parent}:{os.environ['PATH']}", "QUIRE_CUDA_PLUGIN": "none",
            "QUIRE_LIBRARY": OPTIONS.library, "PYTHONPATH": str(ROOT / "bindings/python"), "PYTHONDONTWRITEBYTECODE": "1"}


def shortened(command):
    """The same measurement of less text: what takes minutes as it stands need not take them in a test."""
    if not re.match(r"quire (eval|bench) ", command):
        return command
    command = re.sub(r"(?<![\w.=-])\d+(?![\w.])", lambda m: str(int(m[0]) // 8) if int(m[0]) >= 512 else m[0], command)
    return re.sub(r"--trials \d+", "--trials 2", command)


class CodeBlocks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.found = [block for file in files() for block in blocks.blocks_of(file)]
        cls.n_run = collections.Counter()

    def chosen(self, language, starts=""):
        return [block for block in self.found
                if block.language == language and block.code.startswith(starts) and not block.not_run]

    def check(self, block, command, **more):
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=240, check=False, **more)
        self.assertEqual(done.returncode, 0, f"{block}\n{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def test_commands(self):
        by_file = collections.defaultdict(list)
        for block in self.chosen("bash", "quire "):
            by_file[block.file].append(block)
        for file, chosen in by_file.items():
            with self.subTest(file=str(file)), tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name)
                placeholders.make(folder)
                self.check(file, ["quire", "index", "other.txt", "-m", "MODEL", "-s", "dca", "-o", "library/other.quire"],
                           cwd=folder, env=environment())
                for block in chosen:
                    for command in block.code.replace("\\\n", " ").splitlines():
                        self.check(block, ["bash", "-c", shortened(command)], cwd=folder, env=environment())
                        self.n_run["commands"] += bool(command.strip())
        self.assertGreater(self.n_run["commands"], 40)

    def test_c(self):
        with tempfile.TemporaryDirectory() as folder:
            for block in self.chosen("c"):
                with self.subTest(block=str(block)):
                    whole = block.code if "int main(" in block.code else C_FRAME % block.code
                    source = pathlib.Path(folder) / "block.c"
                    source.write_text(whole, encoding="utf-8")
                    self.check(block, [OPTIONS.cc, "-std=c99", "-Wall", "-Wextra", "-Wno-unused-variable",
                                       "-Wno-unused-but-set-variable", "-Werror", "-fsyntax-only", f"-I{ROOT / 'include'}",
                                       str(source)])
                self.n_run["parts of C programs"] += 1
        self.assertGreater(self.n_run["parts of C programs"], 5)

    def test_python(self):
        with tempfile.TemporaryDirectory() as name:
            placeholders.make(pathlib.Path(name))
            for block in self.chosen("python"):
                with self.subTest(block=str(block)):
                    whole = block.code if re.search(r"^import ", block.code, re.M) else PYTHON_FRAME % block.code
                    self.check(block, [sys.executable, "-c", whole], cwd=name, env=environment())
                self.n_run["parts of Python programs"] += 1
        self.assertGreater(self.n_run["parts of Python programs"], 0)

    def test_languages_are_known(self):
        """A block of another language would be run by nobody: the guide includes example files, which have their tests."""
        for block in self.found:
            if ROOT / "examples/guide" in block.file.parents:
                self.assertIn(block.language, ("bash", "c", "python", "text"), str(block))

    @classmethod
    def tearDownClass(cls):
        print(", ".join(f"{n} {what}" for what, n in cls.n_run.items()), "run")
        marked = [block for block in cls.found if block.not_run]
        others = [b for b in cls.found if b.language == "bash" and not b.code.startswith("quire ") and not b.not_run]
        print(f"not run: {len(marked)} blocks that say so, {len(others)} of other programs (builds, downloads)")
        for block in marked:
            print(f"  {block}: {block.not_run}")


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    for option in ("--quire", "--library"):
        parser.add_argument(option, required=True, type=os.path.abspath)
    parser.add_argument("--cc", required=True)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
