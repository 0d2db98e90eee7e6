"""What the raw layers of Lua, Ruby and Node.js take and give for each function and struct of bindings/interface.json.

They all have the same shape, which follows from C's types alone (a table is a Hash in Ruby, a list an Array):

    a handle                        an object of the raw layer that owns one reference
    text, text_len                  a string
    const T* items, n_items         a list: of numbers, of strings (quire_text), or of tables (structs)
    const struct* options           a table of its fields, or nil
    struct* result                  is returned as a table
    T* buf, cap, *needed            is returned: bytes as a string, all else as a list
    T** out, int64_t* n_tokens      are returned
    quire_error* err                a failure is raised

Fields of structs likewise. What belongs to callbacks (user_data, destroy) is the raw layers' own.
"""

SCALARS = ("int32_t", "uint32_t", "int64_t", "uint64_t", "size_t", "float", "double")
CALLBACKS = ("progress", "write", "commit", "read")
# Written by hand in both layers: one is called for each token.
BY_HAND = ("quire_stream_next",)


def target(kind):
    """What a pointer points to; None for what is no pointer."""
    return kind.removeprefix("const ").removesuffix("*") if kind.endswith("*") else None


class Plans:
    def __init__(self, interface, objects=None):
        """objects: names of fields by struct, for callbacks that come on threads of the library, where no interpreter may run:
        what the raw layer has in their place."""
        self.interface, self.objects = interface, objects or {}
        self.handles = interface["handles"]
        self.structs = {s["name"]: s for s in interface["structs"]}

    def ordered(self):
        """The structs, each behind those that it points to."""
        done, rest = [], list(self.structs.values())
        while rest:
            names = {s["name"] for s in rest}
            ready = [s for s in rest if not any(target(f["type"]) in names - {s["name"]} for f in s["fields"])]
            done += ready
            rest = [s for s in rest if s not in ready]
        return done

    def fields(self, struct):
        """(name, kind, more) of each field that Lua sees, where `more` is the field with the length, or the size."""
        found, fields = [], struct["fields"]
        for at, field in enumerate(fields):
            name, kind = field["name"], field["type"]
            following = fields[at + 1]["name"] if at + 1 < len(fields) else ""
            to = target(kind)
            if name == "struct_size" or name.startswith("reserved") or name == "sampler_stride":
                continue
            if field.get("elements"):
                found.append((name, "chars", field["elements"]))
            elif kind.endswith("_callback"):
                if name in CALLBACKS:
                    found.append((name, name, None))
            elif to in self.handles:
                found.append((name, "handle", to))
            elif to == "char":
                found.append((name, "text", following))
            elif to in self.structs or to in SCALARS:
                found.append((name, "list", (to, following)))
            elif kind in SCALARS and not self.is_count(fields, at):
                found.append((name, kind, None))
        return found + [(name, "object", None) for name in self.objects.get(struct["name"], ())]

    @staticmethod
    def is_count(items, at):
        """Whether this is how many there are of what the pointer before it points to."""
        return at > 0 and items[at]["type"] == "size_t" and items[at - 1]["type"].endswith("*")

    def steps(self, function):
        """(what, name, type) of what happens for each group of parameters, in C's order."""
        found, parameters = [], function["parameters"]
        for at, parameter in enumerate(parameters):
            name, kind = parameter["name"], parameter["type"]
            following = parameters[at + 1]["name"] if at + 1 < len(parameters) else ""
            to, borrowed = target(kind), kind.startswith("const ")
            if kind == "quire_error*":
                found.append(("error", name, kind))
            elif name in ("cap", "needed"):
                continue
            elif kind.endswith("**"):
                found.append(("made", name, to.removesuffix("*")))
            elif to in self.handles:
                found.append(("handle", name, to))
            elif following == "cap":
                found.append(("filled", name, to))
            elif to == "char":
                found.append(("text", name, "char"))
            elif to in self.structs and not borrowed:
                found.append(("result", name, to))
            elif to in self.structs and not following.startswith("n_" + name):
                found.append(("options", name, to))
            elif to is not None and borrowed:
                found.append(("list", name, to))
            elif to is not None:
                found.append(("number", name, to))
            elif kind == "size_t" and at > 0 and parameters[at - 1]["type"].endswith("*"):
                if found[-1][0] == "result":
                    found.append(("size", name, found[-1][2]))
                else:
                    found.append(("count", name, found[-1][1]))
            else:
                found.append(("scalar", name, kind))
        return found
