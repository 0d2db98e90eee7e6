"""The bills of materials are valid SPDX 2.3, says the SPDX project's own validator (PyPI: spdx-tools)."""

import json
import subprocess
import sys
import tempfile
import unittest

from build_under_test import BUILD, bill, binaries, run

VALIDATOR = "spdx-tools==0.8.5"
ENVIRONMENT = BUILD / "tests/packages/validator"


def install_validator():
    """False where Python's packages cannot be had."""
    try:
        if not (ENVIRONMENT / "bin/pyspdxtools").exists():
            run(sys.executable, "-m", "venv", ENVIRONMENT)
            run(ENVIRONMENT / "bin/pip", "install", "--quiet", VALIDATOR)
    except AssertionError as error:
        print(f"skipped: {VALIDATOR} cannot be installed: {error}")
        return False
    return True


def validate(path):
    return subprocess.run([ENVIRONMENT / "bin/pyspdxtools", "--infile", path], capture_output=True, text=True)


class SchemaTest(unittest.TestCase):
    def test_the_bills_are_valid(self):
        for binary in binaries():
            with self.subTest(binary):
                result = validate(BUILD / "sbom" / f"{binary}.spdx.json")
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                self.assertEqual(bill(binary)["spdxVersion"], "SPDX-2.3")

    def test_the_validator_sees_errors(self):
        document = bill("libquire")
        document["packages"][1]["licenseConcluded"] = "no such licence"
        with tempfile.NamedTemporaryFile("w", suffix=".spdx.json") as file:
            json.dump(document, file)
            file.flush()
            self.assertNotEqual(validate(file.name).returncode, 0)


if __name__ == "__main__":
    if not install_validator():
        sys.exit(77)
    unittest.main()
