"""The texts of licences that are installed, and Debian's copyright file, name all that the bills of materials list."""

import pathlib
import re
import shutil
import tempfile
import unittest

from build_under_test import SOURCE, bill, binaries, run

TEXTS = {"libquire": "lib/third_party/LICENSES", "quire": "cmake/licenses/command.txt", "libquire-cuda": "cmake/licenses/cuda.txt"}
LINE = "=" * 80 + "\n"


def listed(binary):
    return {package["name"] for package in bill(binary)["packages"][1:]}


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
                self.assertEqual(set(texts), listed(binary))
                for name, text in texts.items():
                    self.assertIn(name, head)
                    self.assertGreater(len(text.strip()), 300, name)


class DebianCopyrightTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        for path in ("CMakeLists.txt", "LICENSE", "cmake", "lib"):
            copy = shutil.copytree if (SOURCE / path).is_dir() else shutil.copy
            copy(SOURCE / path, pathlib.Path(cls.folder.name) / path)
        run("bash", SOURCE / "cmake/debian/prepare.sh", cls.folder.name, "1.2.3-1", 1700000000)
        cls.debian = pathlib.Path(cls.folder.name) / "debian"
        cls.stanzas = cls.debian.joinpath("copyright").read_text().split("\n\n")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def licenses(self, pattern):
        """The licences of stanzas with such files."""
        return [re.search(r"^License: (.*)$", stanza, re.MULTILINE).group(1) for stanza in self.stanzas
                if re.match(rf"Files: {pattern}", stanza)]

    def test_what_is_linked_in_is_listed(self):
        names = {name.lower().replace(" ", "-") for binary in binaries() for name in listed(binary)}
        names -= {"sentencepiece", "darts-clone", "unicode-character-database"}  # in the source
        gcc = {"libstdc++", "libgcc", "libgcc_eh"}
        names = {"nlohmann-json" if name.startswith("json-") else "gcc" if name in gcc else name for name in names}
        found = set(re.findall(r"^Files: linked-in/(.*)$", "\n\n".join(self.stanzas), re.MULTILINE))
        self.assertEqual(found - names, set() if "libquire-cuda" in binaries() else {"cuda-runtime", "gcc"})
        self.assertEqual(names - found, set())

    def test_each_licence_has_a_text(self):
        texts = {}
        for stanza in self.stanzas:
            if match := re.match(r"License: (.*)\n", stanza):
                texts[match.group(1)] = stanza[match.end():]
        self.assertEqual(set(self.licenses(".*")), set(texts))
        for name, text in texts.items():
            self.assertNotIn("@", text.replace("hzmester@freemail.hu", ""), name)
            self.assertTrue(all(line.startswith(" ") for line in text.splitlines()), name)
        self.assertIn(" Permission is hereby granted, free of charge", texts["Expat"])
        self.assertIn("Susumu Yata", texts["BSD-3-clause-Darts-clone"])

    def test_symbols_are_those_of_the_list(self):
        lines = (SOURCE / "lib/abi/symbols.txt").read_text().split("\n")
        expected = [" " + line.replace(" ", "@Base ") for line in lines if line.startswith("quire_")]
        library = next(self.debian.glob("libquire*.symbols"))
        self.assertEqual([line for line in library.read_text().split("\n") if line.startswith(" ")], expected)
        self.assertGreater(len(expected), 100)

    def test_the_changelog_has_version_and_time(self):
        changelog = (self.debian / "changelog").read_text()
        self.assertTrue(changelog.startswith("quire (1.2.3-1) "))
        self.assertIn("  Tue, 14 Nov 2023 22:13:20 +0000\n", changelog)


if __name__ == "__main__":
    unittest.main()
