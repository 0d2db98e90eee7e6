"""That the package has all of quire.h: functions, fields and constants of bindings/interface.json."""

import json
import pathlib
import re
import unittest

import quire
from quire import _names
from with_model import SOURCE

INTERFACE = json.loads((SOURCE / "bindings" / "interface.json").read_text(encoding="utf-8"))
PACKAGE = pathlib.Path(quire.__file__).parent
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.glob("*.py")) if path.name != "_ffi.py")

# Fields that nothing of Python's can set, and why.
NOT_SET = {
    "reserved": "always 0", "reserved_2": "always 0",
    "alloc": "memory from Python would be slower and no safer", "free": "likewise", "alloc_user_data": "likewise",
    "alloc_destroy": "likewise",
    "log_destroy": "the function that C calls is never freed", "progress_user_data": "ctypes has closures",
    "sampler_stride": "ctypes knows the size", "struct_size": "set for all",
    "abort": "the caller knows from the exception", "name": "messages say what the object was", "name_len": "likewise",
}


def constants(*prefixes):
    """Those of a group: {name in lower case: value}."""
    found = {}
    for constant in INTERFACE["constants"]:
        for prefix in prefixes:
            if constant["name"].startswith(f"QUIRE_{prefix}_"):
                found[constant["name"][len(f"QUIRE_{prefix}_"):].lower()] = constant["value"]
    return found


class Coverage(unittest.TestCase):
    def test_functions(self):
        """Left out: structs are made with their sizes, and Python counts references itself."""
        names = {function["name"] for function in INTERFACE["functions"]}
        names = {name for name in names if not name.endswith(("_init", "_retain"))}
        self.assertEqual(names - set(re.findall(r"quire_\w+", TEXT)), set())

    def test_fields_of_options(self):
        n_fields = 0
        for options in INTERFACE["structs"]:
            if not re.search(r"_(options|view|reader|writer)$", options["name"]):
                continue
            for field in options["fields"]:
                n_fields += 1
                if field["name"] not in NOT_SET:
                    self.assertRegex(TEXT, rf"\b{field['name']}\b", options["name"])
        self.assertGreater(n_fields, 100)

    def test_constants(self):
        def check(table, *prefixes, without=()):
            expected = {name: value for name, value in constants(*prefixes).items() if name not in without}
            self.assertTrue(expected, prefixes)
            self.assertEqual(table, expected)

        def inverse(table):
            return {name: number for number, name in table.items()}

        check({**_names.TYPES, **_names.KV_OLD_TYPES}, "TYPE")
        check(_names.LOADS, "LOAD")
        check(inverse(_names.DEVICE_KINDS), "DEVICE", without=("usable",))
        check(_names.OVERFLOWS, "OVERFLOW")
        check({name: number for name, number in _names.LOG_LEVELS.items() if number}, "LOG")
        check(inverse(_names.EVENTS), "EVENT")
        check({name or "none": number for number, name in _names.FINISHES.items()}, "FINISH")
        check(inverse(_names.REUSE_MISSES), "REUSE")
        check(_names.EDIT_REUSES, "EDIT")
        check({name: number for number, name in _names.MESSAGES.items() if number}, "WARNING", "NOTICE")
        check(_names.KV_KINDS, "KV")
        check(_names.TIERS, "TIER")
        check(_names.SAMPLERS, "SAMPLER")
        check(quire.Adapter.FLAGS, "ADAPTER")

    def test_numbers_that_are_not_known_name_themselves(self):
        self.assertEqual(_names.EVENTS[99], "99")


if __name__ == "__main__":
    unittest.main()
