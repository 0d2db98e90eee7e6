"""The fenced code blocks of Markdown files."""

import dataclasses
import pathlib
import re

FENCE = re.compile(r"^( *)(`{3,}|~{3,})\s*([\w+-]*)")
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


@dataclasses.dataclass
class Block:
    file: pathlib.Path
    line: int       # of its first line of code, from 1
    language: str
    code: str
    not_run: str    # the reason that a comment before the block gives; empty: none

    def __str__(self):
        return f"{self.file}:{self.line}"


def blocks_of(file):
    found, lines = [], file.read_text(encoding="utf-8").split("\n")
    at = 0
    while at < len(lines):
        opened = FENCE.match(lines[at])
        if not opened:
            at += 1
            continue
        indent, fence, language = opened.groups()
        end = next(n for n in range(at + 1, len(lines)) if re.fullmatch(rf" *{re.escape(fence[0])}{{{len(fence)},}} *", lines[n]))
        above = next((line for line in reversed(lines[:at]) if line.strip()), "")
        marked = NOT_RUN.fullmatch(above.strip())
        code = "\n".join(line.removeprefix(indent) for line in lines[at + 1:end])
        found.append(Block(file, at + 2, language, code + "\n", marked[1] if marked else ""))
        at = end + 1
    return found


def without_blocks(text):
    """The text with the lines of its code blocks emptied: what is left is prose, at the same line numbers."""
    kept, fence = [], None
    for line in text.split("\n"):
        opened = FENCE.match(line)
        if fence is None and opened:
            fence = opened[2]
            kept.append("")
        elif fence is not None:
            if re.fullmatch(rf" *{re.escape(fence[0])}{{{len(fence)},}} *", line):
                fence = None
            kept.append("")
        else:
            kept.append(line)
    return "\n".join(kept)
