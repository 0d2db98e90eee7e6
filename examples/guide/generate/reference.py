"""The reference of the C interface: bindings/interface.json as pages, one for each section of quire.h.

What a declaration is comes from the JSON; quire.h itself gives the texts between declarations, and which section a constant
or a callback stands in.
"""

import importlib.util
import json
import re

from . import markdown


def load_describe(root):
    spec = importlib.util.spec_from_file_location("describe", root / "bindings/describe.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def slug(title):
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


class Reference:
    def __init__(self, root):
        self.describe = load_describe(root)
        text = (root / "include/quire/quire.h").read_text(encoding="utf-8")
        self.source = self.describe.Source(text)
        self.interface = json.loads((root / "bindings/interface.json").read_text(encoding="utf-8"))
        self.sections = re.findall(r"^/\* ---- (.*?) -+ \*/$", text, re.M)
        self.items = {section: [] for section in self.sections}
        for kind in ("constants", "handles", "callbacks", "structs", "functions"):
            for entry in self.interface[kind]:
                entry = {"name": entry} if kind == "handles" else entry
                self.items[self.section_of(kind, entry)].append((kind, entry))
        self.targets = {entry["name"]: (f"{slug(section)}.md", entry["name"].lower())
                        for section, entries in self.items.items() for _, entry in entries}
        self.targets |= {f"{s['name']}.{f['name']}": (f"{slug(s['section'])}.md", f"{s['name']}.{f['name']}")
                         for s in self.interface["structs"] for f in s["fields"]}

    def section_of(self, kind, entry):
        if "section" in entry:
            return entry["section"]
        pattern = {"constants": r"^#define {}\b", "handles": r"^typedef struct {0} {0};",
                   "callbacks": r"^typedef .*\(\*{}\)\("}[kind]
        return self.source.section(self.source.line_of(pattern.format(entry["name"])))

    def named(self, section, kind):
        return [entry for found, entry in self.items[section] if found == kind]

    def texts(self, section):
        """The comments of a section that belong to no single declaration: (text, the constant right behind it or None)."""
        own = {entry.get("comment", "") for _, entry in self.items[section]}
        found, lines, here = [], self.source.lines, None
        for number, line in enumerate(lines):
            if match := re.match(r"/\* ---- (.*?) -+ \*/$", line):
                here = match[1]
            elif here == section and line.startswith("/* "):
                end = next(n for n in range(number, len(lines)) if "*/" in lines[n])
                text = self.describe.clean("\n".join(lines[number:end + 1]))
                constant = re.match(r"#define (QUIRE_\w+)", lines[end + 1])
                if self.describe.tagged(text)[0] not in own:
                    found.append((text, constant[1] if constant else None))
        return found

    def prose(self, text, page):
        return markdown.paragraphs(text, self.targets, page)

    def in_cell(self, text, page):
        return markdown.linked(" ".join(text.split()), self.targets, page)

    def constant_groups(self, entries, texts):
        """Constants that stand together in the header: those without a blank line or a text between them."""
        groups, above = [], None
        for entry in entries:
            line = self.source.line_of(rf"^#define {entry['name']}\b")
            if above is None or entry["name"] in texts or "" in self.source.lines[above:line]:
                groups.append([])
            groups[-1].append(entry)
            above = line
        return groups

    def constants(self, entries, texts, page):
        parts = ["## Constants"]
        for group in self.constant_groups(entries, texts):
            if group[0]["name"] in texts:
                parts.append(self.prose(texts[group[0]["name"]], page))
            parts.append(self.constant_table(group, page))
        return parts

    def constant_table(self, entries, page):
        return markdown.table(["constant", "value", ""], [
            [f'<span id="{c["name"].lower()}"></span>`{c["name"]}`', f"{c['value']}{'u' if c['type'] == 'uint32_t' else ''}",
             self.in_cell(c["comment"], page)] for c in entries])

    def struct(self, entry, page):
        growth = "Begins with its size, and may grow." if entry["grows"] else "Its size is final."
        rows = []
        for f in entry["fields"]:
            kind = f["type"] + (f"[{f['elements']}]" if "elements" in f else "")
            name = f'<span id="{entry["name"]}.{f["name"]}"></span>`{f["name"]}`'
            rows.append([name, f"`{kind}`", str(f["offset"]), str(f["size"]), self.in_cell(f["comment"], page)])
        return "\n\n".join([f"### `{entry['name']}` {{#{entry['name']}}}", self.prose(entry["comment"], page),
                            f"{entry['size']} bytes on 64-bit systems. {growth}",
                            markdown.table(["field", "type", "offset", "bytes", ""], rows)])

    @staticmethod
    def declaration(entry):
        given = [f"{parameter['type']} {parameter['name']}" for parameter in entry["parameters"]] or ["void"]
        one = f"{entry['returns']} {entry['name']}({', '.join(given)})"
        if len(one) <= 88:
            return one
        return f"{entry['returns']} {entry['name']}(\n    " + ",\n    ".join(given) + ")"

    def function(self, entry, page):
        """A function or a callback."""
        word = entry.get("thread", "callback-only")
        said = f"*{word}*" + (f", since {entry['since']}" if "since" in entry else "")
        return "\n\n".join([f"### `{entry['name']}` {{#{entry['name']}}}", f"```c\n{self.declaration(entry)};\n```", said,
                            self.prose(entry["comment"], page)])

    def section_page(self, section):
        page = f"{slug(section)}.md"
        texts = self.texts(section)
        parts = [f"# {section}", *(self.prose(text, page) for text, constant in texts if constant is None)]
        if handles := self.named(section, "handles"):
            parts += ["## Handles", "Opaque, reference counted: " + ", ".join(
                f'<span id="{h["name"]}"></span>`{h["name"]}`' for h in handles) + "."]
        if constants := self.named(section, "constants"):
            parts += self.constants(constants, {constant: text for text, constant in texts}, page)
        for title, kind, write in (("Structs", "structs", self.struct), ("Callbacks", "callbacks", self.function),
                                   ("Functions", "functions", self.function)):
            if entries := self.named(section, kind):
                parts += [f"## {title}", *(write(entry, page) for entry in entries)]
        return "\n\n".join(part for part in parts if part) + "\n"

    def index_page(self):
        head = self.source.text.split("*/", 1)[0].removeprefix("/* SPDX-License-Identifier: MIT\n")
        version = self.interface["version"]
        parts = ["# The C interface",
                 f"Made from `include/quire/quire.h`, version {version // 10000}.{version // 100 % 100}.{version % 100}: "
                 f"{len(self.interface['functions'])} functions, {len(self.interface['structs'])} structs, "
                 f"{len(self.interface['constants'])} constants, {len(self.interface['callbacks'])} callbacks. "
                 "What the header says at its beginning:",
                 self.prose(self.describe.clean(head), "index.md")]
        for section in self.sections:
            parts.append(f"## [{section}]({slug(section)}.md)")
            rows = [[f"[`{f['name']}`]({markdown.link(self.targets[f['name']], 'index.md')})", f["thread"],
                     self.in_cell(first_sentence(f["comment"]), "index.md")] for f in self.named(section, "functions")]
            if rows:
                parts.append(markdown.table(["function", "threads", ""], rows))
        return "\n\n".join(parts) + "\n"

    def pages(self):
        """File name -> text; SUMMARY.md is their order."""
        found = {"index.md": self.index_page()}
        found |= {f"{slug(section)}.md": self.section_page(section) for section in self.sections}
        order = ["* [The C interface](index.md)", *(f"* [{section}]({slug(section)}.md)" for section in self.sections)]
        return found | {"SUMMARY.md": "\n".join(order) + "\n"}

    def functions_that_return(self, status):
        """Those whose comment names the status (its name without QUIRE_ERROR_) among its errors."""
        word = re.compile(r"\b%s\b" % status.removeprefix("QUIRE_ERROR_"))
        return [f["name"] for f in self.interface["functions"] if word.search(f["comment"])]


def first_sentence(text):
    match = re.match(r"(.+?[.:])(?:\s+[A-Z]|\s*$)", " ".join(text.split()))
    return match[1] if match else " ".join(text.split())
