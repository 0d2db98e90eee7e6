"""The programs of examples/python, and that of overhead.py, on the embedded model."""

import json
import signal
import subprocess
import sys
import unittest

from with_model import SOURCE

EXAMPLES = SOURCE / "examples"
MODEL = EXAMPLES / "embedded_model" / "model"
DOCUMENT = EXAMPLES / "quickstart.txt"
QUESTION = "What is the pass key? The pass key is"


def program(name, *arguments):
    return [sys.executable, str(EXAMPLES / "python" / f"{name}.py"), str(MODEL), str(DOCUMENT), *arguments]


class Examples(unittest.TestCase):
    def run_program(self, *arguments):
        result = subprocess.run(program(*arguments), capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def test_ask(self):
        result = self.run_program("ask", QUESTION, QUESTION)
        self.assertEqual(result.stdout, " 48213.\n" * 2)
        self.assertRegex(result.stderr, r"1758 of 1758 tokens\n$")

    def test_ctrl_c_stops_an_answer_and_not_the_program(self):
        command = program("ask", "--ignore-eos", "--max-tokens=1000000", "--stop=\N{SNOWMAN}")
        asking = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  text=True, encoding="utf-8", errors="replace")
        self.addCleanup(asking.kill)
        for _ in range(2):
            asking.stdin.write(QUESTION + "\n")
            asking.stdin.flush()
            answer = asking.stdout.read(8)
            self.assertEqual(answer, " 48213.\n")
            asking.send_signal(signal.SIGINT)
            while not answer.endswith(" [stopped]\n"):
                more = asking.stdout.read(1)
                self.assertTrue(more, "the program ended")
                answer += more
        rest, _ = asking.communicate(timeout=60)
        self.assertEqual((asking.returncode, rest), (0, ""))

    def test_the_program_that_measures_overhead(self):
        command = [sys.executable, str(SOURCE / "tests" / "python" / "overhead.py"), str(MODEL), "20"]
        result = subprocess.run(command, input="\n\n", capture_output=True, text=True, timeout=120)
        ready, *rounds = map(json.loads, result.stdout.splitlines())
        self.assertEqual((result.returncode, ready, len(rounds)), (0, {"ready": True}, 2), result.stderr)
        for measured in rounds:
            self.assertEqual(measured["tokens"], 20)
            self.assertGreater(measured["seconds"], 0)

    def test_forks(self):
        result = self.run_program("forks", QUESTION, "What is the code? The code is", QUESTION)
        lines = result.stdout.splitlines()
        self.assertEqual(lines[0], QUESTION + " 48213.")
        self.assertTrue(lines[1].startswith("What is the code? The code is "))
        self.assertEqual(lines[2], lines[0])
        self.assertIn("read 1758 tokens for 3 questions", result.stderr)


if __name__ == "__main__":
    unittest.main()
