"""Writes Quire/Native/*.cs from bindings/interface.json.

    generate_native.py           writes them
    generate_native.py --check   compares; exit status 1 if they are not what would be written

Enums.cs and Results.cs are public: the groups of constants, and what the library reports as objects that cannot change.
Structs.cs, Callbacks.cs and Functions.cs are internal: the C interface as it is.
"""

import json
import pathlib
import re
import sys
import textwrap
from xml.sax.saxutils import escape

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE / "Quire" / "Native"

SCALARS = {"int32_t": "int", "uint32_t": "uint", "int64_t": "long", "uint64_t": "ulong", "size_t": "UIntPtr", "float": "float",
           "double": "double", "quire_status": "int", "char": "byte", "void": "void"}

# Groups of constants: prefix and type in C, the name of the enum.
ENUMS = {("LOG", "int32_t"): "LogLevel", ("DEVICE", "int32_t"): "DeviceKind", ("DEVICE", "uint32_t"): "DeviceFlags",
         ("TYPE", "int32_t"): "DataType", ("LOAD", "int32_t"): "LoadMethod", ("ADAPTER", "uint32_t"): "AdapterFlags",
         ("TEXT", "uint32_t"): "TextFlags", ("DECODE", "uint32_t"): "DecodeFlags", ("OVERFLOW", "int32_t"): "OverflowPolicy",
         ("TIER", "int32_t"): "Tier", ("SESSION", "uint32_t"): "SessionFlags", ("EDIT", "int32_t"): "EditReuse",
         ("SNAPSHOT", "uint32_t"): "SnapshotFlags", ("STORE", "uint32_t"): "StoreFlags", ("CHAT", "uint32_t"): "ChatFlags",
         ("STREAM", "uint32_t"): "StreamFlags", ("SAMPLER", "int32_t"): "SamplerKind", ("EVENT", "int32_t"): "EventKind",
         ("WARNING", "int32_t"): "MessageCode", ("NOTICE", "int32_t"): "MessageCode", ("FINISH", "int32_t"): "FinishReason",
         ("REUSE", "int32_t"): "ReuseMiss", ("WAIT", "int32_t"): "WaitKind", ("KV", "int32_t"): "KvKind"}
# Those that options classes have properties for instead.
INTERNAL = {"SessionFlags", "SnapshotFlags", "StoreFlags", "ChatFlags", "StreamFlags", "WaitKind", "SamplerKind"}
# Constants that are numbers and no members of a group.
NUMBERS = {"QUIRE_VERSION", "QUIRE_ERROR_MESSAGE_BYTES", "QUIRE_OLD_AT_ONCE"}
STATUS = re.compile(r"QUIRE_(?:ERROR_(?!MESSAGE_BYTES)|(?=OK$|END$|TIMEOUT$))(.*)")
ENUM_TEXTS = {"Status": "What a call came to: 0 is success, negative is failure, positive is success with news.",
              "LogLevel": "How talkative the log is.", "DeviceKind": "What models can run on.",
              "DeviceFlags": "What is true of a device.", "DataType": "Types of numbers in memory and in files.",
              "LoadMethod": "How weight files are read.", "AdapterFlags": "What an adapter changes.",
              "TextFlags": "How text becomes tokens.", "DecodeFlags": "How tokens become text.",
              "OverflowPolicy": "What happens when prompt and max_tokens exceed the strategy's reach.",
              "Tier": "Kinds of memory that the KV cache lies in, from the fastest to the slowest.",
              "EditReuse": "What an edit takes over of the text before it.", "EventKind": "What an event tells.",
              "MessageCode": "What a warning or notice is about. Codes are only ever added.",
              "FinishReason": "Why a stream ended.",
              "ReuseMiss": "Why a stream computed a whole chunk of its text that might have been reused.",
              "KvKind": "What a row or column of a position matrix is."}

# Structs that become public classes; types of fields that are members of an enum; names that the rules do not make.
RESULTS = ["quire_runtime_stats", "quire_device_info", "quire_model_info", "quire_adapter_info", "quire_edit_result",
           "quire_label_attention", "quire_passage", "quire_session_stats", "quire_tier_stats", "quire_store_match",
           "quire_memory_plan", "quire_rate_estimate", "quire_token_logprob", "quire_event", "quire_session_probes"]
RESULT_TEXTS = {"quire_device_info": "A device of this machine that models may run on.",
                "quire_model_info": "What a model is made of.", "quire_adapter_info": "What an adapter is made of.",
                "quire_edit_result": "What an edit of a session's text came to.",
                "quire_session_stats": "What a session has done and holds, at a token boundary.",
                "quire_memory_plan": "What a model and a session would take.",
                "quire_rate_estimate": "How long reading and answering would take on this machine.",
                "quire_event": "What a stream reports. Which properties mean something depends on the kind."}
FIELD_ENUMS = {("quire_device_info", "flags"): "DeviceFlags", ("quire_device_info", "kind"): "DeviceKind",
               ("quire_adapter_info", "flags"): "AdapterFlags", ("quire_model_info", "weight_type"): "DataType",
               ("quire_tier_stats", "tier"): "Tier", ("quire_event", "kind"): "EventKind",
               ("quire_event", "finish_reason"): "FinishReason", ("quire_event", "code"): "MessageCode",
               ("quire_event", "reuse_miss"): "ReuseMiss"}
NAMES = {"n_misses": "MissCount", "n_per_second": "TokensPerSecond", "n_computed": "ComputedCount"}

# Functions whose caller keeps the handle itself, for longer than the call: what they return lies in the handle's object.
BY_ADDRESS = {"quire_stream_next"}

# Words of C#.
PARAMETER_NAMES = {"out": "result", "event": "next"}

HEAD = "// Generated by generate_native.py from bindings/interface.json. Do not edit.\n"


def pascal(name):
    return "".join(word[:1].upper() + word[1:].lower() for word in name.split("_"))


def member(name):
    """Of an enum. Names of number types keep their form: Q4_K, BF16."""
    return name if re.match(r"(B?F|Q)\d", name) else pascal(name)


def property_name(field):
    """n_query_heads: QueryHeadCount; prefill_ns: PrefillNanoseconds."""
    if field in NAMES:
        return NAMES[field]
    if field.startswith("n_"):
        return pascal(re.sub(r"s$", "", field[2:])) + "Count"
    return pascal(re.sub(r"_ns$", "_nanoseconds", field))


def native(name):
    """quire_stream_options: NativeStreamOptions."""
    return "Native" + pascal(name.removeprefix("quire_"))


def handle(name):
    return pascal(name.removeprefix("quire_")) + "Handle"


def sentence(text):
    """With a capital letter, unless it begins with a name of the interface, and a full stop."""
    text = text.strip()
    if re.match(r"[a-z]+\b(?![_.(=])", text):
        text = text[0].upper() + text[1:]
    return text if text.endswith(".") else text + "."


def summary(text, indent):
    """An XML comment. `text` is plain."""
    text = sentence(text)
    head = " " * indent + "/// "
    lines = [line for paragraph in text.strip().split("\n\n")
             for line in textwrap.wrap(escape(" ".join(paragraph.split())), 116 - len(head), break_long_words=False)]
    if len(lines) == 1 and len(lines[0]) + len(head) + 19 <= 120:
        return f"{head}<summary>{lines[0]}</summary>\n"
    return "".join(f"{head}{line}\n" for line in ["<summary>", *lines, "</summary>"])


class Types:
    def __init__(self, interface):
        self.handles = set(interface["handles"])
        self.callbacks = {c["name"] for c in interface["callbacks"]}

    def field(self, kind):
        """Of a struct: pointers and callbacks are addresses."""
        return "IntPtr" if kind.endswith("*") or kind in self.callbacks else SCALARS[kind]

    def pointer(self, kind):
        target = kind.removeprefix("const ").removesuffix("*")
        return (SCALARS.get(target) or native(target)) + "*"

    def parameter(self, function, index):
        parameters = function["parameters"]
        kind = parameters[index]["type"]
        if kind.endswith("**"):
            return "out " + handle(kind.removesuffix("**"))
        target = kind.removeprefix("const ").removesuffix("*")
        if not kind.endswith("*"):
            return SCALARS[kind]
        if target in self.handles:
            counts = re.search(r"_(release|retain)$", function["name"])
            return "IntPtr" if counts or function["name"] in BY_ADDRESS else handle(target)
        if target == "quire_error":
            return "out NativeError"
        following = parameters[index + 1]["name"] if index + 1 < len(parameters) else ""
        if target in SCALARS and not kind.startswith("const ") and following != "cap":
            return "out " + SCALARS[target]
        return self.pointer(kind)


def grouped(constants):
    """Constants by enum, in the header's order; those that belong to none."""
    groups, numbers = {"Status": []}, []
    for c in constants:
        if c["name"] in NUMBERS:
            numbers.append(c)
        elif match := STATUS.fullmatch(c["name"]):
            groups["Status"].append((pascal(match[1]), c))
        else:
            prefix, name = re.fullmatch(r"QUIRE_([A-Z]+)_(.*)", c["name"]).groups()
            groups.setdefault(ENUMS[prefix, c["type"]], []).append((member(name), c))
    return groups, numbers


def enums(interface):
    groups, numbers = grouped(interface["constants"])
    parts = [HEAD, "using System;\n\nnamespace Quire\n{\n", "    internal static class Constants\n    {\n"]
    parts += [f"        internal const int {pascal(c['name'].removeprefix('QUIRE_'))} = {c['value']};\n" for c in numbers]
    parts.append("    }\n")
    for name, members in groups.items():
        flags = members[0][1]["type"] == "uint32_t"
        if name not in INTERNAL:
            parts.append("\n" + summary(ENUM_TEXTS[name], 4))
        else:
            parts.append("\n")
        parts.append(("    [Flags]\n" if flags else "") + f"    {'internal' if name in INTERNAL else 'public'} enum {name}"
                     + (" : uint" if flags else "") + "\n    {\n")
        blocks = [] if any(c["value"] == 0 for _, c in members) or not (flags or name == "MessageCode") else [
            summary("Nothing of these.", 8) + "        None = 0,\n"]
        blocks += [summary(c["comment"] or f"{c['name']} of quire.h.", 8) + f"        {label} = {c['value']},\n"
                   for label, c in members]
        parts.append("\n".join(blocks) + "    }\n")
    return "".join([*parts, "}\n"])


def structs(interface, types):
    parts = [HEAD, "using System;\nusing System.Runtime.InteropServices;\n\nnamespace Quire\n{\n"]
    blocks = []
    for s in interface["structs"]:
        lines = ["    [StructLayout(LayoutKind.Sequential)]", f"    internal unsafe struct {native(s['name'])}", "    {"]
        for f in s["fields"]:
            if "elements" in f:
                lines.append(f"        public fixed byte {f['name']}[{f['elements']}];")
            else:
                lines.append(f"        public {types.field(f['type'])} {f['name']};")
        blocks.append("\n".join([*lines, "    }\n"]))
    return "".join([*parts, "\n".join(blocks), "}\n"])


def callbacks(interface, types):
    parts = [HEAD, "using System;\nusing System.Runtime.InteropServices;\n\nnamespace Quire\n{\n"]
    blocks = []
    for c in interface["callbacks"]:
        parameters = ", ".join(f"{'IntPtr' if p['type'].endswith('*') else SCALARS[p['type']]} {p['name']}"
                               for p in c["parameters"])
        result = "IntPtr" if c["returns"].endswith("*") else SCALARS[c["returns"]]
        blocks.append("    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]\n"
                      f"    internal delegate {result} {native(c['name'])}({parameters});\n")
    return "".join([*parts, "\n".join(blocks), "}\n"])


def functions(interface, types):
    parts = [HEAD, "using System;\nusing System.Runtime.InteropServices;\n\nnamespace Quire\n{\n",
             "    internal static unsafe partial class Native\n    {\n"]
    blocks = []
    for f in interface["functions"]:
        result = "IntPtr" if f["returns"].endswith("*") else SCALARS[f["returns"]]
        parameters = [f"{types.parameter(f, index)} {PARAMETER_NAMES.get(p['name'], p['name'])}"
                      for index, p in enumerate(f["parameters"])]
        head = f"        internal static extern {result} {f['name']}("
        text = textwrap.wrap(", ".join(parameters).replace(" ", "\0").replace(",\0", ", ") + ");", 104) or [");"]
        lines = "\n            ".join(text).replace("\0", " ")
        joined = head + lines.replace("\n            ", " ")
        words = f"{f['comment']}\n\n[{f['thread']}] since {f['since']}."
        blocks.append(summary(words, 8) + "        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]\n"
                      + (joined if len(joined) <= 120 else head + "\n            " + lines) + "\n")
    return "".join([*parts, "\n".join(blocks), "    }\n}\n"])


def result_property(s, f, types):
    """(type, name, expression) of a field of a struct as a property; None: it has none."""
    name, kind = f["name"], f["type"]
    if name in ("struct_size", "reserved") or name == "flags" and (s["name"], name) not in FIELD_ENUMS:
        return None
    if "elements" in f:
        return "string", pascal(name), f"Utf8.Terminated(from->{name}, {f['elements']})"
    if kind == "const char*":
        return "string", pascal(name), f"Utf8.Text(from->{name}, from->{name}_len)"
    if kind == "const quire_token_logprob*":
        return "IReadOnlyList<TokenLogprob>", pascal(name), f"TokenLogprob.List(from->{name}, from->n_{name})"
    if kind == "size_t":  # the length of one of these
        return None
    if enum := FIELD_ENUMS.get((s["name"], name)):
        return enum, property_name(name), f"({enum})from->{name}"
    return types.field(kind), property_name(name), f"from->{name}"


def results(interface, types):
    parts = [HEAD, "using System.Collections.Generic;\n\nnamespace Quire\n{\n"]
    blocks = []
    for s in (s for name in RESULTS for s in interface["structs"] if s["name"] == name):
        properties = [(found, f) for f in s["fields"] if (found := result_property(s, f, types))]
        name = pascal(s["name"].removeprefix("quire_"))
        lines = [summary(RESULT_TEXTS.get(s["name"]) or re.sub(r" ?This struct has its\s+final\s+size\.", "", s["comment"]), 4),
                 f"    public sealed unsafe partial class {name}\n    {{\n",
                 f"        internal {name}({native(s['name'])}* from)\n        {{\n"]
        lines += [f"            {label} = {expression};\n" for (_, label, expression), _ in properties]
        lines.append("        }\n")
        lines += ["\n" + summary(f["comment"] or f"The field {f['name']} of {s['name']} in quire.h.", 8)
                  + f"        public {kind} {label} {{ get; }}\n" for (kind, label, _), f in properties]
        blocks.append("".join([*lines, "    }\n"]))
    return "".join([*parts, "\n".join(blocks), "}\n"])


def generate(interface):
    types = Types(interface)
    return {"Enums.cs": enums(interface), "Structs.cs": structs(interface, types), "Callbacks.cs": callbacks(interface, types),
            "Functions.cs": functions(interface, types), "Results.cs": results(interface, types)}


def main():
    interface = json.loads((HERE.parent / "interface.json").read_text(encoding="utf-8"))
    status = 0
    for name, text in generate(interface).items():
        target = TARGET / name
        if "--check" not in sys.argv[1:]:
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            print(f"{target} is not what {HERE / 'generate_native.py'} writes: run that")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
