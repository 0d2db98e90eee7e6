#!/usr/bin/env python3
"""Build the training text: documentation prose from Debian packages.

Downloads the packages listed in PACKAGES (apt-get download), unpacks them with dpkg -x into a
cache folder (nothing is installed), turns their HTML into plain prose, and writes

    CACHE/train.txt    one paragraph a line, one blank line between documents
    CACHE/heldout.txt  documents that are never trained on (copied to heldout.txt beside this file)

The cache folder is $QUIRE_EMBEDDED_CACHE, or quire-embedded-model under $XDG_CACHE_HOME (~/.cache).
"""
import gzip
import html.parser
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(
    os.environ.get("QUIRE_EMBEDDED_CACHE")
    or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
                    "quire-embedded-model"))

# All of these texts may be copied and modified freely (see README.md for the licences).
PACKAGES = ["postgresql-doc-15", "sqlite3-doc", "rust-doc", "python3.11-doc", "apache2-doc",
            "dict-jargon"]

# (folder inside the unpacked packages, pattern, file names to leave out)
SOURCES = [
    ("usr/share/doc/postgresql-doc-15/html", "*.html", r"^(release|bookindex|biblio|features)"),
    ("usr/share/doc/sqlite3", "**/*.html", r"^(changes|releaselog|hlr|requirements|keyword_index|doc_)"),
    ("usr/share/doc/rust-doc/html/book", "*.html", r"^(print|SUMMARY|README|title-page|toc)"),
    ("usr/share/doc/rust-doc/html/reference", "**/*.html", r"^(print|SUMMARY|toc)"),
    ("usr/share/doc/rust-doc/html/edition-guide", "**/*.html", r"^(print|SUMMARY|toc)"),
    ("usr/share/doc/rust-doc/html/rust-by-example", "**/*.html", r"^(print|SUMMARY|toc)"),
    ("usr/share/doc/rust-doc/html/rustc", "**/*.html", r"^(print|SUMMARY|toc)"),
    ("usr/share/doc/rust-doc/html/rustdoc", "**/*.html", r"^(print|SUMMARY|toc)"),
    ("usr/share/doc/rust-doc/html/std", "**/*.html", r"^(all|index-of)"),
    ("usr/share/doc/python3.11/html/tutorial", "*.html", ""),
    ("usr/share/doc/python3.11/html/howto", "*.html", ""),
    ("usr/share/doc/python3.11/html/faq", "*.html", ""),
    ("usr/share/doc/python3.11/html/library", "*.html", ""),
    ("usr/share/doc/python3.11/html/reference", "*.html", ""),
    ("usr/share/doc/python3.11/html/extending", "*.html", ""),
    ("usr/share/doc/python3.11/html/using", "*.html", ""),
    ("usr/share/doc/python3.11/html/c-api", "*.html", ""),
    ("usr/share/doc/python3.11/html/whatsnew", "*.html", r"^changelog"),
    ("usr/share/doc/apache2-doc/manual/en", "**/*.html*", r"^(sitemap|directives|quickreference)"),
]
# The held-out text is two whole manuals, each in its own reading order and never trained on:
# "The Rustonomicon" (MIT OR Apache-2.0) and "Distributing Python Modules" (PSF-2.0).
DISTUTILS = """introduction setupscript configfile sourcedist builtdist packageindex examples extending
commandref apiref""".split()
HELDOUT = ["usr/share/doc/rust-doc/html/nomicon/print.html",
           *(f"usr/share/doc/python3.11/html/distutils/{name}.html" for name in DISTUTILS)]
# Paragraphs of these books are never trained on, wherever they occur: the first is held out, the
# prose of the second is under a share-alike licence.
BARRED = [HELDOUT[0], "usr/share/doc/rust-doc/html/embedded-book/print.html"]

FANCY = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-",
                       "\u2014": "-", "\u2026": "...", "\u00a0": " ", "\u2192": "->", "\u00b6": ""})


class Prose(html.parser.HTMLParser):
    """Collects the text of headings and paragraphs; skips code blocks, tables and navigation."""
    KEEP = {"p", "h1", "h2", "h3", "h4"}
    SKIP = {"pre", "table", "nav", "script", "style", "header", "footer", "head", "svg", "button"}
    VOID = {"br", "img", "hr", "meta", "link", "input", "col", "wbr"}

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.lines, self.buf, self.depth_skip, self.keeping = [], [], 0, 0

    def flush(self):
        text = re.sub(r"\s+", " ", "".join(self.buf).translate(FANCY)).strip()
        self.buf = []
        if text:
            self.lines.append(text)

    def handle_starttag(self, tag, attrs):
        if tag in self.VOID:
            if tag == "br":
                self.buf.append(" ")
            return
        if tag in self.SKIP:
            self.depth_skip += 1
        elif tag in self.KEEP:
            self.flush()
            self.keeping = 1

    def handle_endtag(self, tag):
        if tag in self.SKIP:
            self.depth_skip = max(0, self.depth_skip - 1)
        elif tag in self.KEEP:
            self.flush()
            self.keeping = 0

    def handle_data(self, data):
        if self.keeping and not self.depth_skip:
            self.buf.append(data)


def good(line):
    """English-looking, plain ASCII, not a list of symbols."""
    if len(line) < 3 or any(ord(c) > 126 or ord(c) < 32 for c in line):
        return False
    letters = sum(c.isalpha() or c == " " for c in line)
    return letters >= 0.85 * len(line) and max(map(len, line.split())) <= 40


def prose_of_html(path):
    parser = Prose()
    parser.feed(path.read_text(encoding="utf-8", errors="replace"))
    parser.flush()
    return [l for l in parser.lines if good(l)]


def prose_of_jargon(path):
    """The Jargon File: one entry a document; diagrams and pronunciations are filtered out."""
    docs = []
    for entry in re.split(r"\n(?=\S)", gzip.open(path, "rt", encoding="utf-8", errors="replace").read()):
        paras = [re.sub(r"\s+", " ", p.translate(FANCY)).strip() for p in re.split(r"\n\s*\n", entry)]
        paras = [re.sub(r"[{}]", "", p) for p in paras]
        docs.append([p for p in paras if len(p) > 80 and good(p)])
    return docs


def fetch():
    CACHE.mkdir(parents=True, exist_ok=True)
    root = CACHE / "root"
    if not (root / ".unpacked").exists():
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=CACHE, check=True)
        for deb in sorted(CACHE.glob("*.deb")):
            subprocess.run(["dpkg", "-x", deb, root], check=True)
        (root / ".unpacked").write_text("\n".join(sorted(p.name for p in CACHE.glob("*.deb"))))
    return root


def main():
    root = fetch()
    seen = {line for book in BARRED for line in prose_of_html(root / book)}
    docs, report = [], {}
    for folder, pattern, leave_out in SOURCES:
        for path in sorted((root / folder).glob(pattern)):
            name = path.name
            if leave_out and re.search(leave_out, name):
                continue
            lines = []
            for line in prose_of_html(path):
                if line not in seen:                       # a paragraph is used once
                    seen.add(line)
                    lines.append(line)
            if sum(map(len, lines)) >= 400:
                docs.append(lines)
                report[folder] = report.get(folder, 0) + sum(map(len, lines))
    for lines in prose_of_jargon(root / "usr/share/dictd/jargon.dict.dz"):
        if sum(map(len, lines)) >= 200:
            docs.append(lines)
            report["jargon"] = report.get("jargon", 0) + sum(map(len, lines))
    for name, size in report.items():
        print(f"{size / 1e6:7.2f} MB  {name}")
    trained = {line for doc in docs for line in doc}
    heldout = [line for book in HELDOUT for line in prose_of_html(root / book) if line not in trained]
    (CACHE / "train.txt").write_text("\n\n".join("\n".join(d) for d in docs) + "\n")
    (CACHE / "heldout.txt").write_text("\n".join(heldout) + "\n")
    print(f"train {os.path.getsize(CACHE / 'train.txt') / 1e6:.2f} MB in {len(docs)} documents, "
          f"heldout {os.path.getsize(CACHE / 'heldout.txt') / 1e3:.0f} kB")
    if "--write-heldout" in sys.argv:
        (HERE / "heldout.txt").write_text((CACHE / "heldout.txt").read_text())


if __name__ == "__main__":
    main()
