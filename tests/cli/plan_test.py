#!/usr/bin/env python3
"""Tests of `quire plan`, run as a program: which keys each query of a strategy sees, and at what distance."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

OPTIONS = None  # --quire

# "Training-Free Long-Context Scaling of Large Language Models", appendix A.2: chunk 4, largest position 7.
DCA_MATRIX = """
0
1 0
2 1 0
3 2 1 0
4 3 2 1 0
5 4 3 2 1 0
6 5 4 3 2 1 0
7 6 5 4 3 2 1 0
7 6 5 4 4 3 2 1 0
7 6 5 4 5 4 3 2 1 0
7 6 5 4 6 5 4 3 2 1 0
7 6 5 4 7 6 5 4 3 2 1 0
"""
DCA_ROWS = [[int(cell) for cell in line.split()] for line in DCA_MATRIX.split("\n") if line]
SVG = "{http://www.w3.org/2000/svg}"
UNTRAINED = 'fill="#be1e2d"'
DCA_ARGUMENTS = ["plan", "-s", "dca(chunk=4, cap=7)", "--train-len", "8", "--tokens", "12"]


def run(*arguments):
    return subprocess.run([OPTIONS.quire, *map(str, arguments)], capture_output=True, text=True, timeout=240, check=False)


class PlanTest(unittest.TestCase):
    def test_json_is_the_papers_matrix(self):
        done = run(*DCA_ARGUMENTS, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        padded = [row + [None] * (12 - len(row)) for row in DCA_ROWS]
        result = json.loads(done.stdout)
        self.assertEqual(result["relative_position"], padded)
        # 7 == 7.0 in Python, so look at the text: integers are printed as integers.
        self.assertNotIn(".", done.stdout.split("relative_position")[1])
        self.assertIn("dca", result["strategy"])

    def test_text_marks_invisible_keys(self):
        done = run(*DCA_ARGUMENTS)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()[-12:]
        self.assertEqual([line.split() for line in lines],
                         [[str(cell) for cell in row] + ["."] * (12 - len(row)) for row in DCA_ROWS])
        self.assertEqual(len({len(line) for line in lines}), 1, "columns are aligned")

    def test_svg_has_the_matrix(self):
        with tempfile.TemporaryDirectory() as folder:
            target = pathlib.Path(folder) / "plan.svg"
            done = run(*DCA_ARGUMENTS, "--svg", target)
            self.assertEqual(done.returncode, 0, done.stderr)
            texts = [e.text for e in xml.etree.ElementTree.parse(target).getroot().iter(SVG + "text")]
        labels = [int(text) for text in texts if text.isdigit()]
        # Row by row, then the two ends of the scale.
        self.assertEqual(labels, [cell for row in DCA_ROWS for cell in row] + [7, 0])
        self.assertEqual(texts[0], "dca(chunk=4, cap=7)")

    def test_svg_marks_untrained_distances_and_condensed_entries(self):
        with tempfile.TemporaryDirectory() as folder:
            target = pathlib.Path(folder) / "plan.svg"
            run("plan", "-s", "full", "--train-len", 8, "--tokens", 12, "--svg", target)
            untrained = target.read_text().count(UNTRAINED)
            run("plan", "-s", self.BEACON, "--train-len", 16, "--tokens", 12, "--svg", target)
            condensed = target.read_text()
        self.assertEqual(untrained, 4 + 3 + 2 + 1 + 1)  # distances 8 to 11, and the legend
        self.assertIn("each entry, when it was made", condensed)
        self.assertEqual(condensed.count(UNTRAINED), 1)

    def test_canonical_expression_describes_the_same_plan(self):
        first = json.loads(run(*DCA_ARGUMENTS, "--json").stdout)
        again = run("plan", "-s", first["strategy"], "--train-len", 8, "--tokens", 12, "--json")
        self.assertEqual(json.loads(again.stdout), first)

    def test_streaming_llm_forgets_the_middle(self):
        done = run("plan", "-s", "streaming_llm(sinks=2, recent=3)", "--train-len", 8, "--tokens", 9, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)["relative_position"]
        self.assertEqual(rows[8], [5, 4, None, None, None, 3, 2, 1, 0])

    def plan(self, strategy, train_len, tokens, *more):
        done = run("plan", "-s", strategy, "--train-len", train_len, "--tokens", tokens, *more, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def assert_row(self, strategy, expected, train_len=16, head=0, heads=4):
        """The last row is what the text says: distances, "." for an invisible key."""
        n = len(expected.split())
        row = self.plan(strategy, train_len, n, "--heads", heads, "--head", head)["relative_position"][-1]
        self.assertEqual(" ".join("." if cell is None else str(cell) for cell in row), expected, strategy)

    def test_every_method(self):
        self.assert_row("full", "9 8 7 6 5 4 3 2 1 0")
        self.assert_row("lm_infinite(sinks=2, recent=4)", "4 4 . . . . 3 2 1 0")
        self.assert_row("rerope(window=4)", "4 4 4 4 4 4 3 2 1 0")
        self.assert_row("rerope(window=4, leaky=2)", "6.5 6 5.5 5 4.5 4 3 2 1 0")
        self.assert_row("self_extend(window=4, group=2)", "6 6 5 5 4 4 3 2 1 0")
        self.assert_row("dca(chunk=6, cap=9)", "9 8 7 6 5 4 5 4 3 2 1 0", train_len=10)

    def test_methods_that_differ_by_head(self):
        self.assert_row("s2(group=4)", ". . . . 3 2 1 0")
        self.assert_row("s2(group=4)", ". . . . . . 1 0", head=3)
        self.assert_row("scca_fixed(chunk=4)", ". . 3 2 1 0")
        self.assert_row("scca_fixed(chunk=4)", ". . . . 1 0", head=3)
        self.assert_row("scca_flow(chunks=4)", ". . . . . . . . 1 0")
        self.assert_row("scca_flow(chunks=4)", ". . . . 5 4 3 2 . 0", head=1)
        self.assert_row("scca_flow(chunks=4)", "9 8 7 6 . . . . . 0", head=2)
        self.assert_row("sda(dilation=2)", "6 . 4 . 2 . 0")
        self.assert_row("sda(dilation=2)", ". . . . . . .", head=1)
        self.assert_row("sda(dilation=2, reading=kv)", ". 5 . 3 . 1 0", head=1)
        mixed = "long_mixed(heads=sda2x2.rolledx1.localx1.shift1x1.fullx1)"
        for head, expected in enumerate(["6 . 4 . 2 . 0", ". . . . . . .", ". . 4 3 2 1 0", ". . . . 2 1 0",
                                         "6 5 4 3 . . 0", "6 5 4 3 2 1 0"]):
            self.assert_row(mixed, expected, head=head, heads=6)

    def test_longheads_packs_its_chunks_or_places_them_as_dca(self):
        # Token 70 of chunk 4 sees the first, the previous and its own chunk of 16.
        def three_chunks(*pieces):
            return " ".join(" ".join(map(str, piece)) for piece in pieces)

        invisible, recent = ["."] * 32, range(22, -1, -1)
        self.assert_row("longheads(chunk=16, chunks=3)", three_chunks(range(38, 22, -1), invisible, recent), train_len=64)
        self.assert_row("longheads(chunk=16, chunks=3, positions=dca, dca_chunk=48, dca_cap=63)",
                        three_chunks(range(63, 47, -1), invisible, recent), train_len=64)

    def test_auto_chooses_by_the_texts_length(self):
        unknown, short = self.plan("auto", 16, 20), self.plan("auto", 16, 12, "--expected-tokens", 12)
        self.assertTrue(unknown["strategy"].startswith("dca(preset=paper, chunk=12, cap=15"))
        self.assertEqual(unknown["relative_position"][19][:12], list(range(15, 3, -1)))  # 7 + 12 is more than the cap
        self.assertTrue(short["strategy"].startswith("full("))
        longer = self.plan("auto", 4096, 4, "--expected-tokens", 10000)  # of a Llama model, without beacon weights
        self.assertTrue(longer["strategy"].startswith("dca("))

    def test_examples_of_long_contexts(self):
        scaled = self.plan("dca(chunk=24576) + pi(factor=8)", 4096, 3)
        self.assertIn("chunk=24576, cap=32767", scaled["strategy"])
        self.assertIn("train_len=32768", scaled["strategy"])
        self.assertEqual(scaled["relative_position"][2], [2, 1, 0])
        longheads = self.plan("longheads + dynamic_ntk(factor=2)", 256, 3, "--expected-tokens", 1000)
        self.assertIn("dynamic_ntk(factor=2, length=1000, original=256)", longheads["strategy"])
        done = run("plan", "-s", "longheads + dynamic_ntk(factor=2)", "--train-len", 256, "--tokens", 3)
        self.assertEqual(done.returncode, 2)
        self.assertIn("expected_tokens", done.stderr)

    # Windows of four tokens, each condensed into two entries, which stand at 0, 1, ...; a window stands behind them.
    BEACON = "beacon(ratio=2, window=4, stride=4)"

    def test_beacon_shows_its_condensed_entries(self):
        result = self.plan(self.BEACON, 16, 12)
        hidden = [None] * 8
        self.assertEqual([row[8:] for row in result["relative_position"][8:]],
                         [[0, None, None, None], [1, 0, None, None], [2, 1, 0, None], [3, 2, 1, 0]])
        self.assertEqual([row[:8] for row in result["relative_position"][8:]], [hidden] * 4)
        self.assertEqual(result["condensed_position"][3], [None] * 6)
        self.assertEqual(result["condensed_position"][7], [5, 4, None, None, None, None])
        self.assertEqual(result["condensed_position"][8:], [[p, p - 1, p - 2, p - 3, None, None] for p in (4, 5, 6, 7)])
        condensed = result["condensed"]
        self.assertEqual([entry["entry"] for entry in condensed], list(range(6)))
        self.assertEqual(condensed[4], {"entry": 4, "relative_position": hidden + [2, 1, None, None],
                                     "condensed_position": [6, 5, 4, 3, 0, None]})
        self.assertEqual(condensed[5], {"entry": 5, "relative_position": hidden + [4, 3, 2, 1],
                                     "condensed_position": [8, 7, 6, 5, None, 0]})

    def test_text_has_condensed_before_tokens(self):
        done = run("plan", "-s", self.BEACON, "--train-len", 16, "--tokens", 6)
        self.assertEqual(done.stdout.splitlines()[2:], [
            ". . | 0 . . . . .",
            ". . | 1 0 . . . .",
            ". . | 2 1 0 . . .",
            ". . | 3 2 1 0 . .",
            "2 1 | . . . . 0 .",
            "3 2 | . . . . 1 0",
            "",
            "condensed entries, when they were made:",
            "0 . | 2 1 . . . .",
            ". 0 | 4 3 2 1 . .",
        ])

    def test_no_condensed_entries_no_columns(self):
        for strategy, tokens in (("full", 4), (self.BEACON, 3), ("beacon(ratio=0, window=4, stride=4)", 12)):
            result = self.plan(strategy, 16, tokens)
            self.assertNotIn("condensed", result)
            self.assertNotIn("condensed_position", result)
            self.assertEqual(result["relative_position"][3 if tokens > 3 else 2][0], 3 if tokens > 3 else 2)

    def test_beacon_chooses_its_ratio_by_the_texts_length(self):
        done = run("plan", "-s", "beacon", "--train-len", 4096, "--tokens", 2)
        self.assertEqual(done.returncode, 2)
        self.assertIn("expected_tokens", done.stderr)
        # With 1024 tokens to spare: (4096 - 1024) * 4 + 1024 hold 12288 tokens, not one more.
        for expected_tokens, ratio in ((3072, 0), (3073, 2), (12288, 4), (12289, 8)):
            result = self.plan("beacon", 4096, 2, "--expected-tokens", expected_tokens)
            self.assertIn(f"window=1024, stride=1024, attn=step_expansion, ratio={ratio},", result["strategy"])


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
