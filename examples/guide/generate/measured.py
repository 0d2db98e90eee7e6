"""Rows of the tables in which measurements are recorded, so that a page quotes what stands there and nothing else."""

import re

from . import markdown


def slug(heading):
    """A heading's anchor, as Python-Markdown makes it."""
    plain = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[\s-]+", "-", plain)


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables(text):
    """[(heading, head, rows)]: all tables, with the heading that each stands under."""
    found, heading, lines = [], "", text.split("\n")
    for number, line in enumerate(lines):
        if match := re.match(r"#+ (.*)", line):
            heading = match[1]
        if line.startswith("|") and re.match(r"\|[-:| ]+\|$", lines[number + 1] if number + 1 < len(lines) else ""):
            end = next(n for n in range(number, len(lines) + 1) if n == len(lines) or not lines[n].startswith("|"))
            found.append((heading, cells(line), [cells(row) for row in lines[number + 2:end]]))
    return found


def quote(text, heading_begins, labels):
    """(heading, tables in Markdown): of each table under the heading, the rows with these labels, without empty columns."""
    parts, heading = [], ""
    for found, head, rows in tables(text):
        chosen = [row for label in labels for row in rows if row[0].strip("`") == label]
        if not found.startswith(heading_begins) or not chosen:
            continue
        heading = found
        kept = [n for n in range(len(head)) if any(row[n] != "-" for row in chosen)]
        parts.append(markdown.table([head[n] for n in kept], [[row[n] for n in kept] for row in chosen], numbers=True))
    if not parts:
        raise ValueError(f"no table under a heading that begins with {heading_begins!r} has a row {' or '.join(labels)}")
    return heading, "\n\n".join(parts)
