"""The conformance suite of all bindings (tests/conformance)."""

import unittest

import conformance
import quire


class Conformance(unittest.TestCase):
    def check(self, case, step):
        try:
            result = case.do(step)
        except quire.QuireError as error:
            wanted = step.get("error")
            self.assertIsNotNone(wanted, f"{step}: {error}")
            self.assertEqual(error.status, wanted["status"], step)
            if "offset" in wanted:
                self.assertEqual(error.offset, wanted["offset"], step)
            self.assertIn(wanted.get("message", ""), error.message, step)
            return
        self.assertNotIn("error", step, "the call succeeded")
        for key, expected in step.get("expect", {}).items():
            self.assertTrue(conformance.agree(result[key], expected), f"{step}: {key} is {result[key]!r}")

    def test_all_files(self):
        n_cases = 0
        for path, file in conformance.files():
            with quire.Runtime(threads=1) as runtime:
                model = runtime.load(conformance.SOURCE / file["model"])
                for described in file["cases"]:
                    n_cases += 1
                    case = conformance.Case(model)
                    with self.subTest(file=path.name, case=described["name"]):
                        try:
                            for step in described["steps"]:
                                self.check(case, step)
                        finally:
                            case.close()
        self.assertGreater(n_cases, 20)
