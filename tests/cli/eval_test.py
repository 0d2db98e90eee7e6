#!/usr/bin/env python3
"""Tests of what the quire command measures: eval needle, multikey, topics, ppl, bench, and the progress bar."""
import argparse
import json
import math
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

OPTIONS = None  # --quire, --model, --text
SVG = "{http://www.w3.org/2000/svg}"
CELL_FIELDS = {"length", "depth", "trials", "right", "accuracy", "interval", "seconds", "documents"}
DOCUMENT_FIELDS = {"trial", "depth", "n_prompt_tokens", "alignment", "expected", "answer", "right"}


def run(*arguments, stdin=""):
    return subprocess.run([OPTIONS.quire, *map(str, arguments)], input=stdin, capture_output=True, text=True,
                          timeout=240, check=False)


def without_times(value):
    """The same JSON without how long it took."""
    if isinstance(value, list):
        return [without_times(v) for v in value]
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k != "seconds"}
    return value


class CommandTest(unittest.TestCase):
    def setUp(self):
        if not (pathlib.Path(OPTIONS.model) / "model.safetensors").is_file():
            self.skipTest(f"no model in {OPTIONS.model}")
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def run_json(self, *arguments, stdin=""):
        done = run(*arguments, "--json", stdin=stdin)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        return json.loads(done.stdout)

    def assert_fails(self, status, message, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, status, f"{arguments}: {done.stdout}{done.stderr}")
        self.assertRegex(done.stderr, r"\Aquire: ")
        self.assertRegex(done.stderr, message)
        self.assertEqual(done.stdout, "")

    def file(self, name, data):
        path = self.folder / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path


class AlignmentTest(CommandTest):
    """Documents of one length end at different places in a method's chunks; what they say of these is their sum."""

    TASKS = {"passkey": [], "needle": ["--depths", "0.5"], "multikey": ["--keys", 1], "topics": ["--topics", 1]}

    def ask(self, task, *arguments):
        return self.run_json("eval", task, "-m", OPTIONS.model, "--trials", 12, *self.TASKS[task], *arguments)

    @staticmethod
    def part(task, result):
        """The row or cell with its documents, and where the sums by alignment stand."""
        if task == "needle":
            return result["cells"][0], result["cells"][0]["documents"], result["by_alignment"]
        return result["rows"][0], result["rows"][0]["trials"], result["rows"][0]["by_alignment"]

    @staticmethod
    def answers(document):
        if "asked" in document:
            return [asked["right"] for asked in document["asked"]]
        return [document.get("right", document.get("correct"))]

    def test_varies_and_can_be_repeated(self):
        for task in self.TASKS:
            arguments = ["-s", "dca", "--tokens", 512, "--seed", 3]
            first = self.ask(task, *arguments)
            self.assertEqual(without_times(first), without_times(self.ask(task, *arguments)))
            self.assertFalse(first["same_length"])
            lengths = [d["n_prompt_tokens"] for d in self.part(task, first)[1]]
            # A chunk of 192 tokens, cut to an eighth of the length: 64.
            self.assertGreater(len(set(lengths)), 6, task)
            self.assertLess(max(lengths), 512)
            self.assertLessEqual(max(lengths) - min(lengths), 64 + 8)
            self.assertGreater(max(lengths) - min(lengths), 25)
            other = self.ask(task, *arguments[:-1], 4)
            self.assertNotEqual(lengths, [d["n_prompt_tokens"] for d in self.part(task, other)[1]])

    def test_same_length_is_one_place(self):
        for task in ("passkey", "needle", "multikey"):
            result = self.ask(task, "-s", "dca", "--tokens", 512, "--same-length")
            self.assertTrue(result["same_length"])
            lengths = [d["n_prompt_tokens"] for d in self.part(task, result)[1]]
            self.assertLessEqual(max(lengths) - min(lengths), 4 if task == "multikey" else 0)  # names differ
            strategies = [self.part(task, self.ask(task, "-s", s, "--tokens", 300, "--same-length"))[1]
                          for s in ("full", "dca(chunk=150)")]
            prompts = [[(d["n_prompt_tokens"], d.get("depth")) for d in documents] for documents in strategies]
            self.assertEqual(*prompts)

    def test_sums_by_alignment(self):
        for task in self.TASKS:
            for strategy, chunk in (("dca", 192), ("full(kv_chunk=48)", 48), ("dca(chunk=130, kv_chunk=160)", 160)):
                row, documents, sums = self.part(task, self.ask(task, "-s", strategy, "--tokens", 400, "--seed", 1))
                self.assertEqual(sums["chunk"], chunk)
                quarters = [[], [], [], []]
                for document in documents:
                    self.assertEqual(document["alignment"], document["n_prompt_tokens"] % chunk)
                    quarters[document["alignment"] * 4 // chunk] += self.answers(document)
                self.assertEqual([(q["from"], q["n_asked"], q["n_right"]) for q in sums["quarters"]],
                                 [(i / 4, len(q), sum(q)) for i, q in enumerate(quarters)])
                shares = [sum(q) / len(q) for q in quarters if q]
                self.assertEqual([q["accuracy"] for q in sums["quarters"]], [sum(q) / len(q) if q else None for q in quarters])
                self.assertEqual((sums["least"], sums["greatest"]), (min(shares), max(shares)))
                low, high = row["interval"]
                self.assertTrue(0 <= low <= row["accuracy"] <= high <= 1)

    def test_interval_is_wilsons(self):
        """The bounds are the two shares p for which the number of right answers is z standard deviations off."""
        for row in self.ask("passkey", "--tokens", 160, 320, 2048, "-s", "streaming_llm")["rows"]:
            for bound in row["interval"]:
                off = (row["n_correct"] - 12 * bound) ** 2
                self.assertAlmostEqual(off, 1.959964 ** 2 * 12 * bound * (1 - bound), delta=1e-6)
            self.assertLess(*row["interval"])

    def test_text(self):
        arguments = ["-m", OPTIONS.model, "-s", "full", "--tokens", 160, "--trials", 12]
        row = self.run_json("eval", "passkey", *arguments)["rows"][0]
        percents = [round(100 * share) for share in (row["accuracy"], *row["interval"], row["by_alignment"]["least"],
                                                     row["by_alignment"]["greatest"])]
        self.assertEqual(run("eval", "passkey", *arguments).stdout.splitlines()[1:],
                         ["  tokens   correct  accuracy      95 % sure  by place in a chunk of 64",
                          "     160  {:>8}  {:6} %  {:3} to {:3} %  {:3} to {:3} %".format(f"{row['n_correct']}/12", *percents)])
        grid = self.run_json("eval", "needle", *arguments, "--depths", "0,1")
        shares = (grid["accuracy"], *grid["interval"], grid["by_alignment"]["least"], grid["by_alignment"]["greatest"])
        self.assertEqual(run("eval", "needle", *arguments, "--depths", "0,1").stdout.splitlines()[-1],
                         "all 24: {} %, with 95 % confidence {} to {} %; by place in a chunk of 64: {} to {} %".format(
                             *(round(100 * share) for share in shares)))


class NeedleTest(CommandTest):
    def needle(self, *arguments, **keywords):
        return self.run_json("eval", "needle", "-m", OPTIONS.model, *arguments, **keywords)

    def test_grid(self):
        result = self.needle("-s", "dca", "--tokens", "256,512", "--depths", "0,0.5,1", "--trials", 3, "--seed", 4)
        self.assertEqual(set(result), {"task", "model", "strategy", "train_len", "seed", "haystack", "needle", "question",
                                       "answer", "answer_tokens", "lengths", "depths", "same_length", "accuracy", "interval",
                                       "by_alignment", "cells"})
        self.assertEqual([result[k] for k in ("task", "seed", "haystack", "lengths", "depths")],
                         ["needle", 4, None, [256, 512], [0, 0.5, 1]])
        self.assertEqual([(c["depth"], c["length"]) for c in result["cells"]],
                         [(d, n) for d in (0, 0.5, 1) for n in (256, 512)])
        for cell in result["cells"]:
            self.assertEqual(set(cell), CELL_FIELDS)
            self.assertEqual(cell["trials"], 3)
            self.assertEqual(cell["right"], sum(d["right"] for d in cell["documents"]))
            self.assertEqual(cell["accuracy"], cell["right"] / 3)
            self.assertEqual(len({d["expected"] for d in cell["documents"]}), 3)
            for document in cell["documents"]:
                self.assertEqual(set(document), DOCUMENT_FIELDS)
                self.assertEqual(document["right"], bool(re.search(rf"\b{document['expected']}\b", document["answer"])))
                self.assertLessEqual(document["n_prompt_tokens"], cell["length"] - result["answer_tokens"])
                shortest = cell["length"] - cell["length"] // 8 - result["answer_tokens"]
                self.assertGreater(document["n_prompt_tokens"], shortest - 10)
                self.assertAlmostEqual(document["depth"], cell["depth"], delta=0.26 if cell["length"] == 256 else 0.1)
        self.assertAlmostEqual(result["accuracy"], sum(c["right"] for c in result["cells"]) / 18)

    def test_cells_depend_on_themselves_alone(self):
        arguments = ["-s", "dca", "--depths", 0.5, "--trials", 2, "--seed", 9, "--tokens"]
        grid, alone = self.needle(*arguments, 256, 300, 512), self.needle(*arguments, 300)
        self.assertEqual(without_times(grid["cells"][1]), without_times(alone["cells"][0]))
        other = self.needle("-s", "dca", "--depths", 0.5, "--trials", 2, "--seed", 10, "--tokens", 300)
        self.assertNotEqual(alone["cells"][0]["documents"], other["cells"][0]["documents"])

    def test_tells_strategies_apart(self):
        arguments = ["--tokens", 1024, "--depths", "0.1,0.4", "--trials", 5]
        self.assertGreaterEqual(self.needle("-s", "dca", *arguments)["accuracy"], 0.8)
        self.assertLessEqual(self.needle("-s", "full", *arguments)["accuracy"], 0.2)
        # The window of streaming_llm holds the end of the document and nothing of its middle.
        cells = self.needle("-s", "streaming_llm", "--tokens", 1024, "--depths", "0.4,1", "--trials", 5)["cells"]
        self.assertLessEqual(cells[0]["right"], 1)
        self.assertGreaterEqual(cells[1]["right"], 4)

    def test_own_text_and_needle(self):
        text = "The wind is cold and the leaf is dry today. The old boat lies near the river. " * 100
        template = ["--needle", "The code of Anna is {key}.", "--question", "What is the code of Anna? The code of Anna is"]
        result = self.needle("-s", "dca", "--tokens", 512, "--depths", "0,0.5", "--trials", 4, "-f",
                             self.file("leaves", text), *template, "--answer", "{key}")
        self.assertEqual(result["needle"], "The code of Anna is {key}.")
        self.assertTrue(result["haystack"].endswith("leaves"))
        for cell in result["cells"]:
            for document in cell["documents"]:
                self.assertRegex(document["expected"], r"^[1-9]\d{4}$")
                self.assertAlmostEqual(document["depth"], cell["depth"], delta=0.05)
        self.assertGreaterEqual(result["accuracy"], 0.75)
        # The same haystack from stdin; a needle without a key is the same in every trial.
        again = self.needle("-s", "dca", "--tokens", 512, "--depths", "0,0.5", "--trials", 4, "-f", "-", *template,
                            "--answer", "{key}", stdin=text)
        self.assertEqual(without_times(again["cells"]), without_times(result["cells"]))
        fixed = self.needle("--tokens", 200, "--trials", 1, "--depths", 1, "--needle", "Bob likes red.", "--question",
                            "What does Bob like? Bob likes", "--answer", "RED", "--answer-tokens", 5)
        self.assertEqual(fixed["cells"][0]["documents"][0]["expected"], "RED")
        self.assertEqual(fixed["answer_tokens"], 5)

    def test_answers_are_whole_words(self):
        # The filler says "... grass is green. The sky is blue ...": asked to go on, the model repeats it.
        question = ["--question", "The grass is green. The sky is", "--trials", 1, "--depths", 0.5, "--tokens", 250,
                    "--needle", "A leaf is a leaf."]
        self.assertEqual(self.needle(*question, "--answer", "Blue")["accuracy"], 1)
        self.assertEqual(self.needle(*question, "--answer", "blu")["accuracy"], 0)

    def test_text_of_any_shape_is_a_haystack(self):
        for text in ("x", "one word after another " * 300, "漢字" * 3000, "a.b\n\n" * 200, "\n\n\n", "Why? (No.) \"Yes!\" " * 9):
            result = self.needle("--tokens", 400, "--depths", 0.5, "--trials", 1, "-f", self.file("text", text))
            self.assertLessEqual(result["cells"][0]["documents"][0]["n_prompt_tokens"], 400, text[:10])

    def test_svg(self):
        # A path with signs of XML must not make the picture or the JSON invalid.
        target = self.folder / "map.svg"
        odd = self.folder / "plain" / 'odd & <b> "c" \x01'
        odd.mkdir(parents=True)
        for part in pathlib.Path(OPTIONS.model).resolve().iterdir():
            (odd / part.name).symlink_to(part)
        result = self.run_json("eval", "needle", "-m", odd, "-s", "dca", "--tokens", "256,512", "--depths", "0,0.5,1",
                               "--trials", 2, "--svg", target)
        root = ElementTree.parse(target).getroot()
        self.assertEqual(root.tag, SVG + "svg")
        texts = [t.text for t in root.iter(SVG + "text")]
        self.assertIn('Needle in a haystack: plain/odd & <b> "c"', texts[0])
        self.assertIn(result["strategy"], texts)
        for label in ("document length (tokens)", "depth of the needle", "256", "512", "0 %", "50 %", "100 %"):
            self.assertIn(label, texts)
        cells = [g for g in root.iter(SVG + "g") if g.get("class") == "cell"]
        self.assertEqual(len(cells), 6)
        for drawn, cell in zip(cells, result["cells"]):
            self.assertEqual(drawn.find(SVG + "text").text, f"{100 * cell['accuracy']:.3g} %")
            self.assertIn(f"{cell['length']} tokens", drawn.find(SVG + "title").text)
            self.assertIn(f"{cell['right']} of 2", drawn.find(SVG + "title").text)
        self.assertNotIn("href", target.read_text())
        self.assertEqual(root.findall(f".//{SVG}script"), [])
        width, height = (float(root.get(k)) for k in ("width", "height"))
        for rectangle in root.iter(SVG + "rect"):
            if rectangle.get("x"):
                self.assertLessEqual(float(rectangle.get("x")) + float(rectangle.get("width")), width)
                self.assertLessEqual(float(rectangle.get("y")) + float(rectangle.get("height")), height)

    def test_colours_say_how_much(self):
        target = self.folder / "map.svg"
        self.needle("-s", "streaming_llm", "--tokens", 1024, "--depths", "0.3,1", "--trials", 2, "--svg", target)
        cells = [g for g in ElementTree.parse(target).getroot().iter(SVG + "g") if g.get("class") == "cell"]
        self.assertEqual([(c.find(SVG + "rect").get("fill"), c.find(SVG + "text").get("fill")) for c in cells],
                         [("#00224e", "#fff"), ("#fee838", "#111")])

    def test_table(self):
        done = run("eval", "needle", "-m", OPTIONS.model, "-s", "dca", "--tokens", 256, 512, "--depths", "0,1", "--trials", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual(lines[1], ["depth", "256", "512"])
        self.assertEqual([line[:2] for line in lines[2:4]], [["0", "%"], ["100", "%"]])
        self.assertTrue(all(cell in "012" for line in lines[2:4] for cell in line[2:]), done.stdout)
        self.assertRegex(done.stdout, r"\nall 8: .* by place in a chunk of 192: .*%\n$")

    def test_bad_input(self):
        start = ["eval", "needle", "-m", OPTIONS.model]
        self.assert_fails(2, "--tokens", *start)
        self.assert_fails(2, "--tokens 40 is too short.* take \\d+", *start, "--tokens", "512,40")
        self.assert_fails(2, "--tokens", *start, "--tokens", "256,many")
        self.assert_fails(2, "--tokens", *start, "--tokens", "-256")
        self.assert_fails(2, "--depths", *start, "--tokens", 256, "--depths", "0,1.5")
        self.assert_fails(2, "--depths", *start, "--tokens", 256, "--depths", "nan")
        self.assert_fails(2, "--trials", *start, "--tokens", 256, "--trials", 0)
        self.assert_fails(2, "go together", *start, "--tokens", 256, "--needle", "A leaf.")
        own = ["--tokens", 256, "--needle", "A leaf.", "--question", "A?"]
        self.assert_fails(2, "give the answer away", *start, *own[:-1], "{key}?", "--answer", "leaf")
        self.assert_fails(2, "stands nowhere", *start, *own, "--answer", "{key}")
        self.assert_fails(2, "the same document", *start, *own, "--answer", "leaf")
        self.assert_fails(2, "BAD_STRATEGY", *start, "-s", "dca(", "--tokens", 256)
        self.assert_fails(2, "is empty", *start, "--tokens", 256, "-f", self.file("empty", ""))
        self.assert_fails(1, "/nowhere/text", *start, "--tokens", 256, "-f", "/nowhere/text")
        self.assert_fails(1, "/nowhere/map.svg", *start, "--tokens", 256, "--svg", "/nowhere/map.svg")
        self.assert_fails(1, "INVALID_TEXT", *start, "--tokens", 256, "-f", self.file("latin1", b"caf\xe9. " * 99))
        self.assert_fails(1, "/nowhere/model.*NOT_FOUND", "eval", "needle", "-m", "/nowhere/model", "--tokens", 256)
        # A picture that was not drawn leaves no file, and one that was there stays.
        drawn = self.file("drawn.svg", "<svg/>")
        for target in (drawn, drawn.with_suffix(".new")):
            self.assert_fails(1, "NOT_FOUND", "eval", "needle", "-m", "/nowhere", "--tokens", 256, "--svg", target)
        self.assertEqual(drawn.read_text(), "<svg/>")
        self.assertFalse(drawn.with_suffix(".new").exists())

    def test_beyond_the_reach(self):
        arguments = ["eval", "needle", "-m", OPTIONS.model, "-s", "full", "--tokens", 512, "--overflow"]
        self.assert_fails(1, "OVERFLOW", *arguments, "error")
        self.assert_fails(1, "reach", *arguments, "stop")


class PasskeyTest(CommandTest):
    def test_svg(self):
        target = self.folder / "passkey.svg"
        result = self.run_json("eval", "passkey", "-m", OPTIONS.model, "--tokens", "200,1024", "--trials", 2, "--svg", target)
        root = ElementTree.parse(target).getroot()
        marks = [(m.find(SVG + "title").text, float(m.get("cy"))) for m in root.iter(SVG + "circle")]
        self.assertEqual([title for title, _ in marks], [f"{row['n_correct']}/2" for row in result["rows"]])
        self.assertEqual(marks[0][0], "2/2")
        self.assertLess(marks[0][1], marks[1][1])
        self.assertTrue({"200", "1024", "100 %", result["strategy"]} <= {t.text for t in root.iter(SVG + "text")})
        self.assert_fails(1, "/nowhere/map.svg", "eval", "passkey", "-m", OPTIONS.model, "--tokens", 200, "--svg",
                          "/nowhere/map.svg")


class FactsTest(CommandTest):
    def ask(self, task, *arguments, **keywords):
        return self.run_json("eval", task, "-m", OPTIONS.model, *arguments, **keywords)

    def test_json(self):
        for task, count in (("multikey", "--keys"), ("topics", "--topics")):
            result = self.ask(task, "--tokens", "256,512", count, 3, "--trials", 2, "--seed", 5, "-s", "dca")
            self.assertEqual(set(result), {"task", "strategy", "train_len", "seed", "n_facts", "same_length", "rows"})
            self.assertEqual([result[k] for k in ("task", "seed", "n_facts")], [task, 5, 3])
            self.assertEqual([r["n_tokens"] for r in result["rows"]], [256, 512])
            for row in result["rows"]:
                self.assertEqual(set(row), {"n_tokens", "accuracy", "n_asked", "n_right", "interval", "by_alignment", "by_depth",
                                            "seconds", "trials"})
                asked = [a for t in row["trials"] for a in t["asked"]]
                self.assertEqual((row["n_asked"], len(asked)), (6, 6))
                self.assertEqual(row["n_right"], sum(a["right"] for a in asked))
                self.assertEqual(row["accuracy"], row["n_right"] / 6)
                self.assertEqual(sum(d["n_asked"] for d in row["by_depth"]), 6)
                for trial in row["trials"]:
                    self.assertEqual(len({a["of"] for a in trial["asked"]}), 3)
                    self.assertEqual(len({a["expected"] for a in trial["asked"]}), 3)
                    self.assertLess(trial["n_prompt_tokens"], row["n_tokens"])
                    self.assertGreater(trial["n_prompt_tokens"], row["n_tokens"] - row["n_tokens"] // 8 - 80)
                for answer in asked:
                    self.assertEqual(answer["right"], bool(re.search(rf"\b{answer['expected']}\b", answer["answer"])))

    def test_each_question_is_asked_of_the_document_alone(self):
        # A single fact's answer does not depend on what else was asked, so that order and number change nothing.
        four = self.ask("topics", "--tokens", 256, "--topics", 4, "--trials", 4)
        self.assertGreaterEqual(four["rows"][0]["accuracy"], 0.8)
        again = self.ask("topics", "--tokens", "512,256", "--topics", 4, "--trials", 4)
        self.assertEqual(without_times(four["rows"][0]), without_times(again["rows"][1]))
        other = self.ask("topics", "--tokens", 256, "--topics", 4, "--trials", 4, "--seed", 1)
        self.assertNotEqual(four["rows"][0]["trials"], other["rows"][0]["trials"])

    def test_a_window_forgets(self):
        row = self.ask("topics", "--tokens", 1024, "--topics", 5, "--trials", 4, "-s", "streaming_llm")["rows"][0]
        self.assertLessEqual(row["by_depth"][0]["accuracy"], 0.25)
        self.assertLess(row["by_depth"][0]["accuracy"], row["by_depth"][4]["accuracy"])

    def test_asks_at_most_eight(self):
        row = self.ask("multikey", "--tokens", 1024, "--keys", 12, "--trials", 1)["rows"][0]
        self.assertEqual(row["n_asked"], 8)

    def test_svg(self):
        path = self.folder / "topics.svg"
        self.ask("topics", "--tokens", "256,512", "--topics", 4, "--trials", 2, "--svg", path)
        texts = [t.text for t in ElementTree.parse(path).iter(SVG + "text")]
        self.assertIn("Topics of sections", texts)
        self.assertTrue({"256", "512", "to 20 %"} <= set(texts), texts)

    def test_own_text(self):
        text = self.file("leaves", "The wind is cold and the leaf is dry today. " * 30)
        self.assertGreater(self.ask("topics", "--tokens", 256, "--topics", 2, "--trials", 4, "-f", text)["rows"][0]["n_right"], 0)

    def test_bad_input(self):
        start = ["eval", "topics", "-m", OPTIONS.model]
        self.assert_fails(2, "--tokens", *start)
        self.assert_fails(2, "--tokens 60 is too short for 4 facts", *start, "--tokens", 60)
        self.assert_fails(2, "--topics", *start, "--tokens", 256, "--topics", 33)
        self.assert_fails(2, "is empty", *start, "--tokens", 256, "-f", self.file("empty", ""))
        self.assert_fails(1, "/nowhere/map.svg", *start, "--tokens", 256, "--svg", "/nowhere/map.svg")
        self.assert_fails(1, "OVERFLOW", *start, "--tokens", 512, "--overflow", "error")
        self.assert_fails(1, "reach", *start, "--tokens", 512, "--overflow", "stop")


class PerplexityTest(CommandTest):
    def ppl(self, *arguments, **keywords):
        return self.run_json("eval", "ppl", "-m", OPTIONS.model, "-f", OPTIONS.text, *arguments, **keywords)

    def test_json(self):
        result = self.ppl("--tokens", 300, "-s", "dca")
        self.assertEqual(set(result), {"task", "strategy", "train_len", "n_tokens", "n_targets", "perplexity", "nll", "seconds",
                                       "by_position"})
        self.assertEqual([result[k] for k in ("task", "n_tokens", "n_targets")], ["ppl", 300, 150])
        self.assertAlmostEqual(result["perplexity"], math.exp(result["nll"]))
        windows = self.ppl("--tokens", 300, "--window", 64, "--stride", 32)
        self.assertEqual(set(windows) - set(result), {"window", "stride", "n_windows"})

    def test_by_position(self):
        target = self.folder / "ppl.svg"
        result = self.ppl("--tokens", 301, "--target-tokens", 100, "-s", "dca", "--svg", target)
        parts = result["by_position"]
        self.assertEqual(len(parts), 16)
        self.assertEqual([parts[0]["from"], parts[-1]["to"]], [201, 301])
        self.assertEqual([p["to"] for p in parts[:-1]], [p["from"] for p in parts[1:]])
        total = sum((p["to"] - p["from"]) * math.log(p["perplexity"]) for p in parts)
        self.assertAlmostEqual(total / 100, result["nll"], places=5)
        last = self.ppl("--tokens", 301, "--target-tokens", parts[-1]["to"] - parts[-1]["from"], "-s", "dca")
        self.assertAlmostEqual(last["perplexity"], parts[-1]["perplexity"], places=3)
        root = ElementTree.parse(target).getroot()
        marks = list(root.iter(SVG + "circle"))
        self.assertEqual(len(marks), 16)
        for part, mark in zip(parts, marks):  # the higher, the less the y
            self.assertAlmostEqual(float(mark.find(SVG + "title").text), part["perplexity"], places=5)
        order = sorted(range(16), key=lambda i: parts[i]["perplexity"])
        heights = [float(marks[i].get("cy")) for i in order]
        self.assertEqual(heights, sorted(heights, reverse=True))
        self.assertEqual(len(self.ppl("--tokens", 5)["by_position"]), 2)

    def test_every_token_is_scored_once(self):
        # Parts of the text that follow one another, each given everything before it, add up to the whole.
        whole = self.ppl("--tokens", 200, "--all-targets")
        self.assertEqual(whole["n_targets"], 199)
        first = self.ppl("--tokens", 120, "--all-targets")
        second = self.ppl("--tokens", 200, "--target-tokens", 80)
        total = first["nll"] * first["n_targets"] + second["nll"] * second["n_targets"]
        self.assertAlmostEqual(whole["nll"] * 199, total, delta=1e-6 * total)

    def test_windows(self):
        # As in the transformers library's example: begin at 0, stride, 2 stride ... until one reaches the end.
        for n_tokens, window, stride in ((300, 64, 32), (300, 64, 62), (257, 64, 1), (64, 64, 8), (65, 64, 8), (20, 64, 8)):
            result = self.ppl("--tokens", n_tokens, "--window", window, "--stride", stride, "--all-targets", "--no-bos")
            self.assertEqual(result["n_targets"], n_tokens - 1)
            self.assertEqual(result["n_windows"], 1 + max(0, math.ceil((n_tokens - window) / stride)))

    def test_the_first_window_is_read_like_a_text(self):
        whole = self.ppl("--tokens", 100, "--all-targets")
        for stride in (5, 98):
            windows = self.ppl("--tokens", 100, "--all-targets", "--window", 100, "--stride", stride)
            self.assertEqual((windows["nll"], windows["n_windows"]), (whole["nll"], 1))

    def test_a_window_forgets(self):
        # A text of two halves, alike: who sees the first half knows the second.
        text = self.file("twice", "Ida keeps 7 hats, 3 boats and a grey horse in Turin. " * 2)
        arguments = ["eval", "ppl", "-m", OPTIONS.model, "-f", text, "--kv-type", "f32"]
        whole = self.run_json(*arguments)
        n = whole["n_tokens"]
        self.assertEqual(whole["n_targets"], n // 2)
        window = self.run_json(*arguments, "--window", n // 4, "--stride", n // 8)
        self.assertLess(whole["nll"], window["nll"] - 0.5)
        # A beginning-of-sequence token in front of each window is one that the model knows.
        self.assertNotEqual(window["nll"], self.run_json(*arguments, "--window", n // 4, "--stride", n // 8, "--no-bos")["nll"])

    def test_weights_that_are_quantised_while_loading(self):
        exact, eight, four = (self.ppl("--tokens", 200, "--weights", weights)["nll"] for weights in ("f32", "q8", "q4"))
        self.assertNotEqual(eight, exact)
        self.assertAlmostEqual(eight, exact, delta=0.05)
        self.assertTrue(exact + 0.05 < four < exact + 1, (exact, four))

    def test_text_output(self):
        done = run("eval", "ppl", "-m", OPTIONS.model, "-f", OPTIONS.text, "--tokens", 64)
        self.assertRegex(done.stdout, r"^perplexity \d+\.\d+ \(nll \d+\.\d+\) of 32 tokens\n$")

    def test_bad_input(self):
        start = ["eval", "ppl", "-m", OPTIONS.model]
        text = ["-f", OPTIONS.text]
        self.assert_fails(2, "--file", *start)
        self.assert_fails(1, "/nowhere/text", *start, "-f", "/nowhere/text")
        self.assert_fails(2, "fewer than --tokens 1000", *start, "-f", self.file("short", "A leaf."), "--tokens", 1000)
        self.assert_fails(2, "fewer than 2", *start, "-f", self.file("empty", ""))
        self.assert_fails(2, "must be less", *start, "-f", self.file("short", "A leaf."), "--target-tokens", 1000)
        self.assert_fails(2, "excludes", *start, *text, "--target-tokens", 8, "--all-targets")
        self.assert_fails(2, "go together", *start, *text, "--stride", 8)
        self.assert_fails(2, "at most --window minus 2", *start, *text, "--window", 32, "--stride", 31)
        self.assert_fails(2, "--no-bos", *start, *text, "--no-bos")
        self.assert_fails(1, "INVALID_TEXT", *start, "-f", self.file("latin1", b"caf\xe9 and more"))
        self.assert_fails(1, "OVERFLOW", *start, *text, "--tokens", 512, "--overflow", "error")
        self.assert_fails(1, "reach", *start, *text, "--tokens", 512, "--overflow", "stop")


class BenchTest(CommandTest):
    def bench(self, *arguments):
        return self.run_json("bench", "-m", OPTIONS.model, "--threads", 2, *arguments)

    def assert_rates(self, rates):
        self.assertEqual(list(rates), ["min", "median", "max"])
        self.assertLess(0, rates["min"])
        self.assertLessEqual(rates["min"], rates["median"])
        self.assertLessEqual(rates["median"], rates["max"])

    def test_json(self):
        info = json.loads(run("info", OPTIONS.model, "--json").stdout)
        kv_token = 2 * 4 * info["n_layers"] * info["n_kv_heads"] * info["head_dim"]
        result = self.bench("-s", "dca", "--depth", "0,1000", "-p", 64, "-n", 8, "-r", 3, "--kv-type", "f32")
        self.assertEqual([result[k] for k in ("task", "kv_type", "n_threads", "n_repeats")], ["bench", "f32", 2, 3])
        self.assertEqual(result["kv_bytes_per_token"], kv_token)
        self.assertEqual(result["weight_bytes"], info["weight_bytes"])
        self.assertEqual(result["weight_bytes_per_decoded_token"], info["weight_bytes"] - self.table_bytes(OPTIONS.model))
        self.assert_rates(result["read_bytes_per_second"])
        self.assertEqual([row["depth"] for row in result["rows"]], [0, 1000])
        for row in result["rows"]:
            self.assertEqual(row["prefill"]["n_tokens"], 64)
            self.assertEqual(row["decode"]["n_tokens"], 8)
            self.assert_rates(row["prefill"]["tokens_per_second"])
            self.assert_rates(row["decode"]["tokens_per_second"])
            # The new token's own key and value are among those read.
            read = result["weight_bytes_per_decoded_token"] + (row["depth"] + 1) * kv_token
            self.assertEqual(row["decode"]["bytes_per_token"], read)
            fastest = row["decode"]["tokens_per_second"]["max"]
            self.assertAlmostEqual(row["decode"]["of_read_bandwidth"],
                                   read * fastest / result["read_bytes_per_second"]["max"])
        self.assertEqual(result["rows"][0]["kv_bytes"], 0)
        self.assertGreaterEqual(result["rows"][1]["kv_bytes"], 1000 * kv_token)

    def table_bytes(self, model):
        """Of the embedding table, as it is stored."""
        tensors = json.loads(run("info", "--tensors", model, "--json").stdout)["tensors"]
        (table,) = [t for t in tensors if t["name"] in ("token_embd.weight", "model.embed_tokens.weight")]
        return table["bytes"]

    def test_the_table_is_counted_as_it_is_stored(self):
        quantised = self.folder / "q4.gguf"
        self.assertEqual(run("quantize", OPTIONS.model, quantised, "-t", "q4_0").returncode, 0)
        tied = pathlib.Path(__file__).resolve().parents[1] / "golden" / "models" / "gqa_llama3_tied"
        for model, *more in ([quantised], [OPTIONS.model, "--weights", "q8_0"], [tied]):
            found = self.run_json("bench", "-m", model, "-p", 0, "-n", 1, "-r", 1, *more)
            read = found["weight_bytes_per_decoded_token"]
            self.assertEqual(read, found["weight_bytes"] - self.table_bytes(model), (model, more))
        # The matrices, of which the head is one.
        self.assertGreater(read, self.table_bytes(tied))

    def test_depth_costs_what_the_strategy_sees(self):
        rows = self.bench("-s", "streaming_llm", "--depth", 300, 100000, "-p", 0, "-n", 4, "-r", 1)["rows"]
        self.assertEqual(rows[0]["decode"]["bytes_per_token"], rows[1]["decode"]["bytes_per_token"])
        self.assertLessEqual(rows[1]["kv_bytes"], 2 * rows[0]["kv_bytes"])
        self.assertNotIn("prefill", rows[0])

    def read_at(self, name, *depths):
        golden = pathlib.Path(__file__).resolve().parents[1] / "golden" / "models" / name
        result = self.run_json("bench", "-m", golden, "--threads", 2, "--depth", *depths, "-p", 0, "-n", 2, "-r", 1)
        return [row["decode"]["bytes_per_token"] - result["weight_bytes_per_decoded_token"] for row in result["rows"]], result

    def test_keys_of_a_model_with_a_window_or_factors_of_its_own(self):
        read, result = self.read_at("mistral_window_64", 40, 63, 200)
        self.assertEqual(read, [n * result["kv_bytes_per_token"] for n in (41, 64, 64)])
        read, result = self.read_at("gqa_longrope", 40)  # its scaling means nothing without the checkpoint
        self.assertEqual(read, [41 * result["kv_bytes_per_token"]])

    def test_what_is_read_is_not_known_of_a_strategy_that_chooses(self):
        row = self.bench("-s", "longheads", "--depth", 500, "-p", 8, "-n", 4, "-r", 1)["rows"][0]
        self.assert_rates(row["decode"]["tokens_per_second"])
        self.assertEqual([row["decode"][k] for k in ("bytes_per_token", "of_read_bandwidth")], [None, None])

    def test_deep_sessions_are_slower(self):
        rows = self.bench("-s", "dca", "--depth", "0,20000", "-p", 16, "-n", 8, "-r", 2)["rows"]
        for what in ("prefill", "decode"):
            shallow, deep = (row[what]["tokens_per_second"]["max"] for row in rows)
            self.assertGreater(shallow, 2 * deep)

    def test_prefill_alone_and_table(self):
        self.assertNotIn("decode", self.bench("-p", 1, "-n", 0, "-r", 1)["rows"][0])
        done = run("bench", "-m", OPTIONS.model, "--depth", 10, "-p", 16, "-n", 2, "-r", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual([line[:3] for line in lines[-2:]], [["10", "prefill", "16"], ["10", "decode", "2"]])
        self.assertRegex(done.stdout, r"weights \d.*KV cache \d.* a token in f16, \d+ threads, memory reads \d+\.\d GB/s")

    def test_bad_input(self):
        start = ["bench", "-m", OPTIONS.model]
        self.assert_fails(2, "--model", "bench")
        self.assert_fails(2, "--depth", *start, "--depth", "-1")
        self.assert_fails(2, "--depth", *start, "--depth", 1 << 24)
        self.assert_fails(2, "--depth", *start, "--depth", "deep")
        self.assert_fails(2, "--repeats", *start, "-r", 0)
        self.assert_fails(2, "--generate-tokens", *start, "-n", "-1")
        self.assert_fails(2, "nothing to measure", *start, "-p", 0, "-n", 0)
        self.assert_fails(2, "BAD_STRATEGY", *start, "-s", "dca(")
        self.assert_fails(1, "OVERFLOW", *start, "-s", "full", "--depth", 1000, "--overflow", "error", "-r", 1)
        self.assert_fails(1, "reach", *start, "-s", "full", "--depth", 1000, "--overflow", "stop", "-r", 1)
        self.assert_fails(1, "/nowhere/model.*NOT_FOUND", "bench", "-m", "/nowhere/model")

    def test_depth_beyond_the_memory(self):
        deepest = (1 << 24) - 1
        info = json.loads(run("info", OPTIONS.model, "--json").stdout)
        needed = 2 * 4 * info["n_layers"] * info["n_kv_heads"] * info["head_dim"] * deepest
        if needed <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE"):
            self.skipTest("this machine could hold it")
        self.assert_fails(1, r"--depth \d+ needs a KV cache of .* this machine has", "bench", "-m", OPTIONS.model, "-s",
                          "dca", "--kv-type", "f32", "--depth", f"0,{deepest}")


class ProgressTest(CommandTest):
    def on_terminal(self, *arguments):
        """What a person sees on stderr."""
        primary, secondary = pty.openpty()
        with os.fdopen(primary, "rb", buffering=0) as terminal:
            process = subprocess.Popen([OPTIONS.quire, *map(str, arguments)], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=secondary)
            os.close(secondary)
            seen = b""
            try:
                while part := terminal.read(1 << 16):
                    seen += part
            except OSError:  # the other end was closed
                pass
            self.assertEqual(process.wait(timeout=240), 0, seen)
        return seen.decode()

    def commands(self):
        model = ["-m", OPTIONS.model]
        return {
            "reading": ["run", *model, "-s", "dca", "-f", self.file("text", "The sky is blue. " * 100), "-n", 1],
            "needle": ["eval", "needle", *model, "--tokens", "200,256", "--trials", 1],
            "passkey": ["eval", "passkey", *model, "--tokens", 200, "--trials", 2],
            "scoring": ["eval", "ppl", *model, "-f", OPTIONS.text, "--tokens", 200],
            "bench": ["bench", *model, "-p", 8, "-n", 2, "-r", 1],
        }

    def test_one_line_with_percent_rate_and_time_left(self):
        for label, command in self.commands().items():
            seen = self.on_terminal(*command)
            for bar in ("loading", label):
                self.assertRegex(seen, rf"\r\x1b\[K{bar} \[#{{24}}\] 100%  \d+/\d+ \w+  [\d.]+/s  ETA 0s")
            lines = re.split(r"\r\x1b\[K", seen)
            self.assertTrue(all("\n" not in line for line in lines[:-1]), seen)
            self.assertTrue(all(len(line) < 80 for line in lines[:-1]), seen)
            self.assertNotIn("[#", lines[-1], "the bar is removed")

    def test_nothing_with_quiet_or_on_a_pipe(self):
        for command in self.commands().values():
            self.assertEqual(self.on_terminal(*command, "--quiet"), "")
            done = run(*command)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.on_terminal("info", OPTIONS.model, "-q"), "")


class HelpTest(unittest.TestCase):
    def test_help_teaches(self):
        for command in (["bench"], ["eval"], ["eval", "needle"], ["eval", "ppl"]):
            done = run(*command, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn("Example", done.stdout)
            self.assertIn("quire " + " ".join(command), done.stdout)
        top = run("--help").stdout
        self.assertIn("bench", top)
        self.assertRegex(top, r"(?s)Exit status: 0 success, 1 failure.* 2 wrong usage.* 130 interrupted")


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    parser.add_argument("--model", required=True, help="a Llama directory with a SentencePiece tokenizer")
    parser.add_argument("--text", required=True, help="a text file of a few thousand tokens")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
