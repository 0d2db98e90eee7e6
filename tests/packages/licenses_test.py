"""The texts of licences that are installed name all that the bills of materials list, and packages of bindings have them."""

import pathlib
import sys
import tempfile
import unittest
import zipfile

from build_under_test import LIBRARY, SOURCE, bill, binaries, run

TEXTS = {"libquire": "lib/third_party/LICENSES", "quire": "cmake/licenses/command.txt", "libquire-cuda": "cmake/licenses/cuda.txt"}
LINE = "=" * 80 + "\n"


def parts(path):
    """Texts of a file of licences by what they are for, and what its head says."""
    head, *sections = (SOURCE / path).read_text().split(LINE)
    texts = {}
    for section in sections:
        title, _, text = section.partition("\n")
        texts |= {name: text for name in title.split(", ")}
    return head, texts


class LicensesTest(unittest.TestCase):
    def test_each_component_has_its_text(self):
        for binary in binaries():
            with self.subTest(binary):
                head, texts = parts(TEXTS[binary])
                self.assertEqual(set(texts), {package["name"] for package in bill(binary)["packages"][1:]})
                for name, text in texts.items():
                    self.assertIn(name, head)
                    self.assertGreater(len(text.strip()), 300, name)

    def test_packages_without_the_library_have_that_of_quire(self):
        for folder in ("node", "ruby", "rust/quire"):
            self.assertEqual((SOURCE / "bindings" / folder / "LICENSE").read_text(), (SOURCE / "LICENSE").read_text(), folder)
        for manifest in ("node/package.json", "ruby/quire.gemspec"):
            self.assertIn('"LICENSE"', (SOURCE / "bindings" / manifest).read_text())


class NugetTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        for name in ("Quire.dll", "Quire.xml"):
            (self.folder / name).touch()

    def pack(self, library):
        """The contents of a package with this library, by their names."""
        path = run(sys.executable, SOURCE / "bindings/csharp/pack.py", self.folder / "Quire.dll", library, self.folder).strip()
        with zipfile.ZipFile(path) as package:
            return {name: package.read(name) for name in package.namelist()}

    def library_for(self, machine):
        content = bytearray(LIBRARY.read_bytes())
        content[18:20] = machine.to_bytes(2, "little")
        path = self.folder / "libquire.so.0"
        path.write_bytes(content)
        return path

    def test_it_has_the_licences_of_its_library(self):
        contents = self.pack(LIBRARY)
        self.assertEqual(contents["LICENSE"], (SOURCE / "LICENSE").read_bytes())
        self.assertEqual(contents["third_party/LICENSES"], (SOURCE / TEXTS["libquire"]).read_bytes())

    def test_its_library_lies_where_its_machine_looks(self):
        for machine, system in ((62, "linux-x64"), (183, "linux-arm64")):
            libraries = [name for name in self.pack(self.library_for(machine)) if "libquire" in name]
            self.assertEqual(libraries, [f"runtimes/{system}/native/libquire.so.0"])
        with self.assertRaisesRegex(AssertionError, "not a library for x86-64 or aarch64"):
            self.pack(self.library_for(243))


if __name__ == "__main__":
    unittest.main()
