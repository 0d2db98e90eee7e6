"""What needs no model: the declarations, and strategy expressions."""

import ctypes
import math
import pathlib
import subprocess
import sys
import unittest

import quire
from quire import _ffi, _library
from quire._library import lib
from with_model import SOURCE


class Binding(unittest.TestCase):
    """That the declarations say what quire.h says."""

    def test_declarations_are_generated_from_the_interface(self):
        script = SOURCE / "bindings" / "python" / "generate_ffi.py"
        result = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)

    def test_struct_sizes_are_the_librarys(self):
        inits = [name for name in _ffi.FUNCTIONS if name.endswith("_init")]
        self.assertGreater(len(inits), 6)
        for name in inits:
            cls = _ffi.FUNCTIONS[name][1][0]._type_
            options = cls()
            getattr(lib, name)(options, ctypes.sizeof(cls))
            self.assertEqual(options.struct_size, _ffi.SIZES[cls])

    def test_version(self):
        self.assertEqual(lib.quire_get_version(), _ffi.VERSION)
        project = (SOURCE / "bindings" / "python" / "pyproject.toml").read_text(encoding="utf-8")
        self.assertIn(f'\nversion = "{quire.version()}"\n', project)

    def test_a_library_with_another_abi_is_refused(self):
        """Before any function is called that it may not have."""
        for version in (_ffi.VERSION + 1, _ffi.VERSION + 100, _ffi.VERSION - 100):
            self.check_refused(version)

    def check_refused(self, wanted):
        script = f"import quire._ffi; quire._ffi.VERSION = {wanted}; import quire._library"
        stubbed = ("import sys, types; package = sys.modules['quire'] = types.ModuleType('quire');"
                   "package.__path__ = [sys.argv[1]]; ")
        result = subprocess.run([sys.executable, "-c", stubbed + script, str(pathlib.Path(quire.__file__).parent)],
                                capture_output=True, text=True)
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"ImportError: .*libquire\S+ is of version \d+\.\d+\.\d+; this package needs \d+\.\d+\.\d+, or ")

    def test_later_versions_with_the_same_abi_are_taken(self):
        taken = [(wanted, found) for wanted in (100, 102, 10203) for found in (99, 100, 102, 200, 10000, 10203, 10300, 20300)
                 if _library._has_abi_of(wanted, found)]
        self.assertEqual(taken, [(100, 100), (100, 102), (102, 102), (10203, 10203), (10203, 10300)])


class Strategies(unittest.TestCase):
    def test_positions_are_the_papers(self):
        matrix = quire.strategy_positions("dca(chunk=6, cap=9)", train_len=10, n_keys=12)
        self.assertEqual(matrix.shape, (12, 12))
        self.assertEqual(matrix.tolist()[11], [9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0])
        self.assertTrue(math.isnan(matrix[0, 1]))

    def test_positions_of_condensed_entries(self):
        arguments = ("beacon(window=4, stride=4, reserve=0)", 16)  # the ratio by the length: 28 tokens fit with 2
        with self.assertRaises(quire.QuireError) as caught:
            quire.strategy_positions(*arguments, n_keys=12)
        self.assertIn("expected_tokens", caught.exception.message)
        self.assertIn("ratio=2", quire.strategy_describe(*arguments, expected_tokens=28))
        tokens = quire.strategy_positions(*arguments, n_keys=4, first_query=8, n_queries=1, keys="condensed",
                                          expected_tokens=28)
        self.assertEqual(tokens.tolist(), [[4, 3, 2, 1]])
        entries = quire.strategy_positions(*arguments, n_keys=12, first_query=5, n_queries=1, queries="condensed",
                                           expected_tokens=28)
        self.assertEqual(entries.tolist()[0][8:], [4, 3, 2, 1])
        self.assertTrue(all(math.isnan(distance) for distance in entries.tolist()[0][:8]))
        self.assertRaises(ValueError, quire.strategy_positions, "full", 16, 4, keys="words")

    def test_describe_writes_every_default(self):
        text = quire.strategy_describe("dca", 4096)
        self.assertIn("chunk=3072", text)
        self.assertEqual(quire.strategy_describe(text, 4096), text)

    def test_the_list_is_what_the_parser_takes(self):
        """Every default, choice and edge of a range is read by the parser, and what lies beyond an edge is not."""
        refusals = ("expected an integer from", "expected a number from", "expected one of", "expected a multiple of")

        def read(term, *arguments):
            text = f"{term['name']}({', '.join(arguments)})"
            try:
                return text, quire.strategy_describe(text, 4096, n_heads=8, expected_tokens=4096)
            except quire.QuireError as error:
                return text, error

        def check(term, argument, others, value, good):
            text, found = read(term, *others, f"{argument['name']}={value}")
            refused = isinstance(found, quire.QuireError) and any(r in found.message for r in refusals)
            # Other arguments may forbid an edge, and a model may lack what a term needs.
            self.assertEqual(refused, not good and getattr(found, "status", "") != "UNSUPPORTED", (text, found))
            return found

        n_arguments = 0
        terms = quire.strategies(4096, n_heads=8, expected_tokens=4096)
        self.assertEqual([t["name"] for t in terms if "obstacle" in t], [])
        self.assertGreater(len(terms), 20)
        for term in terms:
            required = {a["name"]: f"{a['name']}={a['min']}" for a in term["arguments"] if a["required"]}
            whole = read(term, *required.values())[1]
            for argument in term["arguments"]:
                n_arguments += 1
                self.assertTrue(argument["description"])
                others = [text for name, text in required.items() if name != argument["name"]]
                others += [argument["with"]] if "with" in argument else []
                for choice in argument.get("choices", []):
                    check(term, argument, others, choice, True)
                if "default" in argument:
                    found = check(term, argument, others, argument["default"], True)
                    if "with" not in argument and isinstance(whole, str) and argument["name"] != "growth":
                        self.assertEqual(found, whole, argument)  # it is the default
                if argument["type"] == "choice":
                    check(term, argument, others, "nonsense", False)
                if "min" in argument:
                    step = argument.get("step", 1)
                    least, most = argument["min"], argument["max"]
                    if argument["type"] == "integer":
                        most = most // step * step
                        if step > 1:
                            check(term, argument, others, least + 1, False)
                    for value, good in ((least, True), (most, True), (least - 1, False), (most + step, False)):
                        check(term, argument, others, f"{value:.9f}" if isinstance(value, float) else value, good)
        self.assertGreater(n_arguments, 70)
        short = {t["name"]: t for t in quire.strategies(1)}
        self.assertIn("expected at least 2", short["dca"]["obstacle"])
        self.assertNotIn("obstacle", short["full"])

    def test_a_wrong_expression_names_its_column(self):
        with self.assertRaises(quire.QuireError) as caught:
            quire.strategy_describe("full(wheels=3)", 4096)
        self.assertEqual((caught.exception.status, caught.exception.offset), ("BAD_STRATEGY", 5))


if __name__ == "__main__":
    unittest.main()
