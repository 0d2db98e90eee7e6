"""Describes quire.h as data: bindings/interface.json, from which bindings are generated.

    describe.py HEADER JSON [--update]

Reads the header with clang and compares what it finds with the JSON, or writes it with --update. Exit status 77: there
is no clang. The JSON has

    version      of the interface
    constants    name, value, type, comment
    handles      names of opaque types
    callbacks    name, returns, parameters (name, type), comment
    structs      name, size, grows (it begins with struct_size), section, comment, and its fields: name, type, elements (of
                 an array in the struct; else absent), offset, size, comment
    functions    name, returns, parameters, thread, since, section, experimental, comment

in the header's order. Types are those of C; offsets and sizes are bytes on 64-bit systems.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TAG = re.compile(r"\[(any-thread|one-thread-at-a-time|callback-only)\](?: since (\d+\.\d+)\.?)?")


def clang():
    return next((found for name in ("clang", "clang-14") if (found := shutil.which(name))), None)


def clean(comment):
    """The text of a comment without its marks, paragraphs kept apart."""
    text = re.sub(r"^/\*|\*/$", "", comment.strip())
    first, *rest = text.split("\n")  # a star that the first line begins with is the text's own
    lines = [first.rstrip(), *(re.sub(r"^\s*\*? ?", "", line).rstrip() for line in rest)]
    return "\n".join(lines).strip()


class Source:
    """Comments and sections of the header, by line."""

    def __init__(self, text):
        self.text = text
        self.lines = text.split("\n")

    def section(self, line):
        for above in reversed(self.lines[:line]):
            if match := re.match(r"/\* ---- (.*?) -+ \*/$", above):
                return match[1]
        return ""

    def comment(self, line):
        """Of what is declared on this line (from 0): behind it, else directly above it."""
        if match := re.search(r"\S.*?(/\*.*\*/)\s*$", self.lines[line]):
            return clean(match[1])
        end = line - 1
        if end < 0 or not self.lines[end].rstrip().endswith("*/") or not re.match(r"\s*(/\*|\*)", self.lines[end]):
            return ""
        begin = end
        while not self.lines[begin].lstrip().startswith("/*"):
            begin -= 1
        return clean("\n".join(self.lines[begin:end + 1]))

    def line_of(self, pattern):
        return self.text[:re.search(pattern, self.text, re.M).start()].count("\n")


def c_type(text):
    """As the header writes it: no blank before a star."""
    return re.sub(r"\s+\*", "*", text)


def split_type(text):
    """The element type, and the number of elements of an array or None."""
    match = re.fullmatch(r"(.*?)\s*\[(\d+)\]", text)
    return (c_type(match[1]), int(match[2])) if match else (c_type(text), None)


def tagged(comment):
    """The comment without its thread word and version; those."""
    match = TAG.search(comment)
    text = re.sub(r"[ \n]+$", "", TAG.sub("", comment)).strip()
    return text, match[1] if match else "", (match[2] or "") if match else ""


def constants(source):
    found = []
    for number, line in enumerate(source.lines):
        if match := re.match(r"#define (QUIRE_[A-Z0-9_]+) \(?(-?\d+)(u?)\)?", line):
            found.append({"name": match[1], "value": int(match[2]), "type": "uint32_t" if match[3] else "int32_t",
                          "comment": source.comment(number)})
    return found


def parameters(text, names):
    """Of a function type as clang prints it: "int32_t (void *, int32_t)"."""
    inside = text[text.index("(") + 1:text.rindex(")")]
    types = [c_type(part.strip()) for part in inside.split(",")] if inside not in ("", "void") else []
    return [{"name": name, "type": kind} for name, kind in zip(names, types, strict=True)]


def callback(node, source):
    name = node["name"]
    line = source.line_of(r"^typedef .*\(\*%s\)\(" % name)
    declared = re.search(r"\(\*%s\)\((.*?)\);" % name, source.text, re.S)[1]
    names = [re.search(r"(\w+)$", part.strip())[1] for part in declared.split(",")]
    kind = node["type"]["qualType"].replace("(*)", "", 1)
    text, _, _ = tagged(source.comment(line))
    return {"name": name, "returns": c_type(kind[:kind.index("(")].strip()), "parameters": parameters(kind, names),
            "comment": text}


def struct(node, source):
    name = node["name"]
    line = source.line_of(r"^typedef struct %s \{" % name)
    fields = []
    for field in (inner for inner in node["inner"] if inner["kind"] == "FieldDecl"):
        kind, elements = split_type(field["type"]["qualType"])
        at = next(number for number in range(line + 1, len(source.lines))
                  if re.match(r"\s+[^/*].*?\b%s(\[\w+\])?;" % field["name"], source.lines[number]))
        fields.append({"name": field["name"], "type": kind, **({"elements": elements} if elements else {}),
                       "comment": source.comment(at)})
    return {"name": name, "grows": fields[0]["name"] == "struct_size", "section": source.section(line),
            "comment": source.comment(line), "fields": fields}


def function(node, source):
    name = node["name"]
    line = source.line_of(r"^QUIRE_API [^;(]*?\b%s\(" % name)
    names = [inner["name"] for inner in node.get("inner", []) if inner["kind"] == "ParmVarDecl"]
    kind = node["type"]["qualType"]
    text, thread, since = tagged(source.comment(line))
    section = source.section(line)
    return {"name": name, "returns": c_type(kind[:kind.index("(")].strip()), "parameters": parameters(kind, names),
            "thread": thread, "since": since, "section": section, "experimental": section == "Experimental",
            "comment": text}


def add_layout(structs, header):
    """Sizes and offsets, as the compiler has them."""
    lines = ['#include <stdio.h>', '#include <stddef.h>', f'#include "{header}"', "int main(void) {"]
    for s in structs:
        lines.append(f'  printf("%zu", sizeof({s["name"]}));')
        for f in s["fields"]:
            lines.append(f'  printf(" %zu %zu", offsetof({s["name"]}, {f["name"]}), '
                         f'sizeof((({s["name"]}*)NULL)->{f["name"]}));')
        lines.append('  puts("");')
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "layout"
        program.with_suffix(".c").write_text("\n".join([*lines, "}", ""]))
        subprocess.run([clang(), "-std=c99", str(program.with_suffix(".c")), "-o", str(program)], check=True)
        printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines()
    for s, line in zip(structs, printed, strict=True):
        size, *numbers = map(int, line.split())
        s["size"] = size
        for f, offset, width in zip(s["fields"], numbers[::2], numbers[1::2], strict=True):
            f["offset"], f["size"] = offset, width


def describe(header):
    source = Source(header.read_text(encoding="utf-8"))
    dump = subprocess.run([clang(), "-std=c99", "-fsyntax-only", "-Xclang", "-ast-dump=json", "-x", "c", str(header)],
                          check=True, capture_output=True, text=True).stdout
    nodes = [node for node in json.loads(dump)["inner"] if node.get("name", "").startswith("quire_")]
    records = [node for node in nodes if node["kind"] == "RecordDecl"]
    whole = [node for node in records if node.get("completeDefinition")]
    names = {node["name"] for node in whole}
    structs = [struct(node, source) for node in whole]
    add_layout(structs, header.resolve())
    found = constants(source)
    return {"version": next(c["value"] for c in found if c["name"] == "QUIRE_VERSION"),
            "constants": found,
            "handles": list(dict.fromkeys(node["name"] for node in records if node["name"] not in names)),
            "callbacks": [callback(node, source) for node in nodes
                          if node["kind"] == "TypedefDecl" and node["name"].endswith("_callback")],
            "structs": structs,
            "functions": [function(node, source) for node in nodes if node["kind"] == "FunctionDecl"]}


def main():
    header, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if not clang():
        print("no clang here to read the header with")
        return 77
    found = describe(header)
    problems = [f"{f['name']} does not say {word}" for f in found["functions"] for word in ("thread", "since") if not f[word]]
    if problems:
        print("\n".join(problems))
        return 1
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if "--update" in sys.argv[3:]:
        target.write_text(text, encoding="utf-8")
        return 0
    if text == target.read_text(encoding="utf-8"):
        return 0
    print(f"{target} does not describe {header}: build the target `interface`, which writes it anew")
    return 1


if __name__ == "__main__":
    sys.exit(main())
