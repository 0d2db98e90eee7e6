#!/usr/bin/env python3
"""Checks the links of the repository's own Markdown files and of the site's pages: files and anchors that they name are
there. Files that a text of the repository names in code marks, such as `lib/README.md`, are there, too."""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import blocks

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDE = ROOT / "examples/guide"
OPTIONS = None  # --quire

LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
ID = re.compile(r"<\w+ [^>]*\bid=\"([^\"]+)\"|\{#([\w.-]+)\}")
NAMED_FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:md|py|sh|h|cc|c|txt|json|jsonl|toml))`")


def own_files():
    """The repository's Markdown files, but for the guide's, whose pages are checked as they are generated."""
    skipped = {"build", "node_modules", "target", "third_party", "obj", ".venv", ".git"}
    return sorted(path for path in ROOT.rglob("*.md")
                  if not skipped & set(path.relative_to(ROOT).parts) and GUIDE not in path.parents)


def github_slug(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def site_slug(heading):
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def anchors_of(path, slug):
    prose = blocks.without_blocks(path.read_text(encoding="utf-8"))
    found = {one or two for one, two in ID.findall(prose)}
    for heading in re.findall(r"^#{1,6} +(.*?)(?: *\{#[\w.-]+\})?$", prose, re.M):
        plain = slug(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", ""))
        found.add(plain if plain not in found else f"{plain}-1" if slug is github_slug else f"{plain}_1")
    return found


def broken_links(path, folder, slug):
    """What is wrong with a file's links, in words. folder: links must stay in it."""
    prose = re.sub(r"`[^`\n]*`", "``", blocks.without_blocks(path.read_text(encoding="utf-8")))
    for number, line in enumerate(prose.split("\n"), 1):
        for link in LINK.findall(line):
            if re.match(r"(https?|mailto):", link):
                continue
            place, _, anchor = link.partition("#")
            target = (path.parent / place).resolve() if place else path
            if not target.exists() or folder not in (target, *target.parents):
                yield f"{path}:{number}: {link}: no such file"
            elif anchor and anchor not in anchors_of(target, slug):
                yield f"{path}:{number}: {link}: no such place in that file"


class Links(unittest.TestCase):
    def test_repository(self):
        files = own_files()
        self.assertGreater(len(files), 20)
        self.assertEqual([], [problem for file in files for problem in broken_links(file, ROOT, github_slug)])

    def test_files_that_texts_name(self):
        missing = []
        for file in own_files():
            if file.name == "CHANGELOG.md":  # it speaks of files that are gone
                continue
            for name in NAMED_FILE.findall(blocks.without_blocks(file.read_text(encoding="utf-8"))):
                if re.search(r"(^|/)[A-Z]+(/|\.(?!md$))", name):  # NAME.txt, VERSION/x.json: placeholders
                    continue
                if not any((base / name).exists() for base in (ROOT, ROOT / "include", file.parent, *file.parents[1:3])):
                    missing.append(f"{file.relative_to(ROOT)}: {name}")
        self.assertEqual([], missing)

    def test_site(self):
        with tempfile.TemporaryDirectory() as name:
            pages = pathlib.Path(name).resolve() / "pages"
            subprocess.run([sys.executable, "-m", "generate", OPTIONS.quire, str(pages)], cwd=GUIDE, check=True)
            files = sorted(pages.rglob("*.md"))
            self.assertGreater(len(files), 50)
            self.assertEqual([], [problem for file in files for problem in broken_links(file, pages, site_slug)])

    def test_a_broken_link_is_found(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name).resolve()
            (folder / "a.md").write_text("# One\n[x](b.md) [y](#one) [z](#two) [w](a.md#one)\n```\n[v](c.md)\n```\n")
            found = list(broken_links(folder / "a.md", folder, github_slug))
        self.assertEqual([problem.split(": ", 1)[1] for problem in found],
                         ["b.md: no such file", "#two: no such place in that file"])


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True, type=os.path.abspath)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
