"""That bindings/interface.json says what the compiler finds in quire.h.

    check_interface.py C_COMPILER INCLUDE_DIR JSON

Constants, sizes, offsets and types of functions and callbacks are compiled as assertions, and nothing that the header
declares is missing. (That the comments are the header's is seen by bindings/describe.py, which needs clang.)
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile


def assertions(interface):
    lines = ["#include <stddef.h>", "#include <quire/quire.h>", "#define SAME(a, b) _Static_assert((a) == (b), #a)"]
    lines += [f"SAME({c['name']}, ({c['type']}){c['value']});" for c in interface["constants"]]
    for s in interface["structs"]:
        lines.append(f"SAME(sizeof({s['name']}), {s['size']});")
        end = 0
        for f in s["fields"]:
            member = f"(({s['name']}*)NULL)->{f['name']}"
            first = member + ("[0]" if "elements" in f else "")
            lines.append(f"SAME(offsetof({s['name']}, {f['name']}), {f['offset']});")
            lines.append(f"SAME(sizeof({member}), {f['size']});")
            lines.append(f"_Static_assert(_Generic(&{first}, {f['type']}*: 1, default: 0), \"{s['name']}.{f['name']}\");")
            lines.append(f"SAME({f['offset']}, {end});")  # no padding, so no field is missing
            end = f["offset"] + f["size"]
        lines.append(f"SAME({s['size']}, {end});")
    for kind, things in (("callback", interface["callbacks"]), ("function", interface["functions"])):
        for thing in things:
            parameters = ", ".join(p["type"] for p in thing["parameters"]) or "void"
            value = f"({thing['name']})0" if kind == "callback" else f"&{thing['name']}"
            lines.append(f"_Static_assert(_Generic({value}, {thing['returns']} (*)({parameters}): 1, default: 0), "
                         f"\"{thing['name']}\");")
    return "\n".join([*lines, ""])


def missing(interface, header):
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    declared = {"constants": r"^#define (QUIRE_[A-Z0-9_]+) [-(0-9]", "structs": r"^typedef struct (quire_\w+) \{",
                "handles": r"^typedef struct (quire_\w+) quire_\w+;", "callbacks": r"\(\*(quire_\w+_callback)\)\(",
                "functions": r"^QUIRE_API [^;(]*?\b(quire_\w+)\("}
    for key, pattern in declared.items():
        names = [thing if isinstance(thing, str) else thing["name"] for thing in interface[key]]
        if re.findall(pattern, header, re.M) != names:
            yield f"{key} of the header and of the JSON differ: {sorted(set(re.findall(pattern, header, re.M)) ^ set(names))}"


def main():
    compiler, include, path = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    interface = json.loads(path.read_text(encoding="utf-8"))
    failures = list(missing(interface, (include / "quire" / "quire.h").read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "interface.c"
        source.write_text(assertions(interface))
        result = subprocess.run([compiler, "-std=c11", "-Wall", "-Werror", "-fsyntax-only", f"-I{include}", str(source)],
                                capture_output=True, text=True)
    if result.returncode != 0:
        failures.append(result.stderr)
    print(f"{len(interface['functions'])} functions, {len(interface['structs'])} structs, {len(failures)} failures")
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
