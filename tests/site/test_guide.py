#!/usr/bin/env python3
"""The guide is complete: every status, strategy, argument and declaration has its place, and what is generated says what
the header and the command say."""

import argparse
import html
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDE = ROOT / "examples/guide"
PAGES = GUIDE / "pages"
OPTIONS = None  # --quire

sys.path.insert(0, str(GUIDE))


def generated(name):
    return importlib.import_module(f"generate.{name}")


class GuideTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.interface = json.loads((ROOT / "bindings/interface.json").read_text(encoding="utf-8"))
        cls.terms = json.loads(subprocess.run([OPTIONS.quire, "strategies", "--json"], check=True, capture_output=True,
                                              text=True).stdout)["terms"]
        cls.reference = generated("reference").Reference(ROOT)
        cls.pages = cls.reference.pages()

    def test_every_status_is_explained(self):
        statuses = [c["name"] for c in self.interface["constants"]
                    if re.fullmatch(r"QUIRE_(OK|END|TIMEOUT|ERROR_(?!MESSAGE_BYTES)\w+)", c["name"])]
        parts = re.split(r"^## ", (PAGES / "errors.md").read_text(encoding="utf-8"), flags=re.M)[1:]
        self.assertEqual([re.match(r"`(\w+)`", part)[1] for part in parts], statuses)
        for part in parts:
            self.assertRegex(part, r"\*\*When\.\*\* \S")
            self.assertRegex(part, r"\*\*What to do\.\*\* \S")

    def test_every_strategy_has_a_page_with_its_matrix(self):
        for term in self.terms:
            if term["kind"] != "visibility":
                continue
            text = (PAGES / f"strategies/{term['name']}.md").read_text(encoding="utf-8")
            for part in (f"# `{term['name']}`\n", "## Arguments", f"{{{{ arguments {term['name']} }}}}"):
                self.assertIn(part, text)
            drawn = re.findall(r"^quire plan .*--svg (\S+)$", text, re.M)
            self.assertTrue(drawn, term["name"])
            for picture in drawn:
                self.assertIn(f"(../figures/{picture})", text)
            if term["name"] != "auto":
                for part in ("**When.**", "**Cost.**", "## Measured", "{{ rows ", "tests/quality/re"):
                    self.assertIn(part, text, term["name"])
                self.assertRegex(text, r"\*\*(Paper|Source)\.\*\*", term["name"])
        pages = {path.stem for path in (PAGES / "strategies").glob("*.md")} - {"index", "scalings"}
        self.assertEqual(pages, {term["name"] for term in self.terms if term["kind"] == "visibility"})

    def test_every_argument_is_in_its_table(self):
        commands = generated("commands")
        scalings = commands.scaling_list(self.terms)
        for term in self.terms:
            table = commands.argument_table(term)
            for argument in term["arguments"]:
                self.assertIn(f"| `{argument['name']}` |", table)
            if term["kind"] != "visibility":
                self.assertIn(f"### `{term['name']}`", scalings)
                self.assertIn(table, scalings)

    def page_of(self, name):
        return self.pages[self.reference.targets[name][0]]

    def test_every_function_and_callback_is_in_the_reference(self):
        for entry in self.interface["functions"] + self.interface["callbacks"]:
            part = self.part(entry["name"])
            for parameter in entry["parameters"]:
                self.assertIn(f"{parameter['type']} {parameter['name']}", part)
            self.assertIn(f"*{entry.get('thread', 'callback-only')}*", part)
            self.assertIn(f"since {entry.get('since', '')}" if "since" in entry else "", part)
            self.assert_says(part, entry["comment"])

    def test_every_struct_is_in_the_reference(self):
        for entry in self.interface["structs"]:
            part = self.part(entry["name"])
            self.assert_says(part, entry["comment"])
            rows = re.findall(r"^\| <span.*$", part, re.M)
            self.assertEqual(len(rows), len(entry["fields"]))
            for row, field in zip(rows, entry["fields"]):
                self.assertIn(f"`{field['name']}`", row)
                self.assertIn(f"| {field['offset']} | {field['size']} |", row)
                self.assert_says(row, field["comment"])

    def test_every_constant_and_handle_is_in_the_reference(self):
        for entry in self.interface["constants"]:
            row = re.search(rf"^\| <span id=\"{entry['name'].lower()}\".*$", self.page_of(entry["name"]), re.M)[0]
            self.assertIn(f"| {entry['value']}", row)
            self.assert_says(row, entry["comment"])
        for name in self.interface["handles"]:
            self.assertIn(f'<span id="{name}">', self.page_of(name))

    def test_anchors_are_unique(self):
        for page, text in self.pages.items():
            ids = re.findall(r"id=\"([^\"]+)\"|\{#([\w.]+)\}", text)
            self.assertEqual(len(ids), len(set(ids)), page)

    def part(self, name):
        """Of the page, what stands under the declaration's heading."""
        return re.search(rf"^### `{name}` .*?(?=^##|\Z)", self.page_of(name), re.S | re.M)[0]

    def assert_says(self, text, comment):
        """All words of the comment stand there, in order, whatever marks stand between them."""
        plain = html.unescape(re.sub(r"\[`([^`]*)`\]\([^)]*\)", r"\1", text))
        plain = re.sub(r"</?(?:span|pre)\b[^>]*>", " ", re.sub(r"\\(.)", r"\1", plain)).replace("`", "")
        found = " ".join(plain.split())
        for paragraph in re.split(r"\n\s*\n", comment):
            self.assertIn(" ".join(paragraph.replace("`", "").split()), found)

    def test_the_command_reference_has_every_command(self):
        text = generated("commands").Command(OPTIONS.quire).help_page()
        titles = re.findall(r"^## (quire.*?) \{", text, re.M)
        listed = re.findall(r"^  (\w+) ", text.split("Subcommands:", 1)[1].split("\n\n", 1)[0], re.M)
        self.assertEqual(titles[0], "quire")
        self.assertTrue({f"quire {name}" for name in listed} <= set(titles))
        self.assertIn("quire eval passkey", titles)

    def test_figures_are_those_of_the_tables(self):
        measured = generated("measured")
        text = "# Speed\n\n| a | b | c |\n|---|---|---|\n| `x` | 1 | - |\n| y | 2 | 3 |\n"
        self.assertEqual(measured.quote(text, "Speed", ["x"]), ("Speed", "| a | b |\n|---|---:|\n| `x` | 1 |"))
        with self.assertRaises(ValueError):
            measured.quote(text, "Speed", ["z"])

    def test_languages_that_have_a_readme_have_a_page(self):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            for language in ("go", "rust"):
                (root / "bindings" / language).mkdir(parents=True)
            (root / "bindings/rust/README.md").write_text("# Rust\n\nSee [C](../../ABI.md#threads) and [x](x.rs).\n")
            repository = generated("repository").Repository(root)
            self.assertEqual(repository.page("bindings/rust/README.md"), "# Rust\n\nSee [C](../abi.md#threads) and x.\n")
        self.assertNotIn("bindings/go/README.md", repository.pages)


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True, type=os.path.abspath)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
