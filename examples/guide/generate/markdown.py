"""Plain text as Markdown."""

import html
import itertools
import re

NAME = re.compile(r"\b(?:quire_[a-z0-9_]*[a-z0-9](?:\.[a-z_]+\b)?|QUIRE_[A-Z0-9_]*[A-Z0-9])\b")


def escape(text):
    """What is in code marks stays so."""
    parts = re.split(r"(`[^`|]+`)", text)
    return "".join(part if n % 2 else re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", part) for n, part in enumerate(parts))


def linked(text, targets, here):
    """Escaped text whose names of the interface are links. targets: name -> (page, anchor); here: the page that it is for."""
    parts, at = [], 0
    for match in NAME.finditer(text):
        parts.append(escape(text[at:match.start()]))
        target = targets.get(match[0])
        parts.append(f"[`{match[0]}`]({link(target, here)})" if target else f"`{match[0]}`")
        at = match.end()
    return "".join([*parts, escape(text[at:])])


def link(target, here):
    page, anchor = target
    return f"#{anchor}" if page == here else f"{page}#{anchor}"


def paragraphs(text, targets, here):
    """A comment of the header: paragraphs become paragraphs, and lines that are indented keep their form."""
    found = []
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        for indented, lines in itertools.groupby(part.split("\n"), lambda line: line.startswith("  ")):
            if indented:
                found.append("<pre>" + html.escape("\n".join(lines), quote=False) + "</pre>")
            else:
                found.append(linked(" ".join(lines), targets, here))
    return "\n\n".join(found)


def table(head, rows, numbers=False):
    """numbers: all columns but the first are."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + ("---:|" if numbers else "---|") * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
