"""Pages of the repository that are pages of the site too, with their links turned to where the files are here."""

import os
import pathlib
import re

# File of the repository -> page of the site.
PAGES = {
    "ABI.md": "abi.md",
    "CHANGELOG.md": "changes.md",
    "lib/kv/FORMAT.md": "format.md",
    "tests/quality/report.md": "measured/report.md",
    "tests/quality/results.md": "measured/results.md",
    "tests/quality/real.md": "measured/real.md",
    "tests/quality/old_text.md": "measured/old_text.md",
    "tests/quality/edit.md": "measured/edit.md",
    "tests/quality/cite.md": "measured/cite.md",
    "tests/bench/README.md": "measured/bench.md",
}
FIGURES = ("tests/quality/figures", "measured/figures")

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
PATH = re.compile(r"(?<!\[)`([\w./-]+\.md)`")


def language_pages(root):
    return {f"bindings/{folder.name}/README.md": f"languages/{folder.name}.md"
            for folder in sorted((root / "bindings").iterdir()) if (folder / "README.md").is_file()}


class Repository:
    def __init__(self, root):
        self.root = root
        self.pages = PAGES | language_pages(root)

    def place(self, path):
        """Where a file of the repository is on the site, or None."""
        if path.startswith(FIGURES[0] + "/"):
            return FIGURES[1] + path.removeprefix(FIGURES[0])
        return self.pages.get(path)

    def turned(self, match, source, page):
        mark, text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        place = self.place(os.path.normpath(os.path.join(os.path.dirname(source), path)))
        if place is None:
            return text
        to = os.path.relpath(place, os.path.dirname(page) or ".")
        return f"{mark}[{text}]({to}{'#' + anchor if anchor else ''})"

    def named(self, match, page):
        place = self.place(match[1])
        if place is None or place == page:
            return match[0]
        return f"[`{match[1]}`]({os.path.relpath(place, os.path.dirname(page) or '.')})"

    def page(self, source):
        """The text of a file of the repository as a page. What stands in code blocks is left alone."""
        page, kept = self.pages[source], []
        text = (self.root / source).read_text(encoding="utf-8")
        for part in re.split(r"(^```.*?^```$)", text, flags=re.S | re.M):
            if not part.startswith("```"):
                part = LINK.sub(lambda match: self.turned(match, source, page), part)
                part = PATH.sub(lambda match: self.named(match, page), part)
            kept.append(part)
        return "".join(kept)


EXAMPLES = {".c": "c", ".cc": "cpp", ".cpp": "cpp", ".cs": "csharp", ".go": "go", ".js": "javascript", ".lua": "lua",
            ".mjs": "javascript", ".py": "python", ".rb": "ruby", ".rs": "rust", ".ts": "typescript"}


def examples(root, language):
    """The example programs of a language, whole: its tests build and run them."""
    folder = root / "examples" / language
    names = sorted(path for path in folder.rglob("*") if path.suffix in EXAMPLES) if folder.is_dir() else []
    parts = []
    for path in names:
        name = path.relative_to(root)
        if {"target", "build", "obj", "bin", "node_modules"} & set(name.parts):
            continue
        parts.append(f"### {name}\n\n````{EXAMPLES[path.suffix]}\n{path.read_text(encoding='utf-8').rstrip()}\n````")
    return "\n\n".join(["## Example programs", *parts]) + "\n" if parts else ""


def file_block(root, name):
    path = pathlib.Path(name)
    return f"````{EXAMPLES.get(path.suffix, 'text')}\n{(root / path).read_text(encoding='utf-8').rstrip()}\n````"
