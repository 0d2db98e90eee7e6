"""The files that cmake/debian/prepare.sh writes: copyright, symbols and changelog. debian_test.py builds packages with them."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from build_under_test import LIBRARY, MAJOR, SOURCE, bill, binaries, run


def bill_names(binary):
    return {package["name"] for package in bill(binary)["packages"][1:]}


class DebianFilesTest(unittest.TestCase):
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
        names = {name.lower().replace(" ", "-") for binary in binaries() for name in bill_names(binary)}
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

    @unittest.skipUnless(shutil.which("dpkg-gensymbols"), "there is no dpkg-gensymbols")
    def test_the_library_has_those_symbols(self):
        listed = next(self.debian.glob("libquire*.symbols"))
        tree = self.debian / "tree"
        (tree / "usr/lib").mkdir(parents=True)
        shutil.copy(LIBRARY, tree / "usr/lib" / f"libquire.so.{MAJOR}")

        def differences(symbols):
            self.debian.joinpath("symbols").write_text(symbols)
            return subprocess.run(["dpkg-gensymbols", f"-plibquire{MAJOR}", f"-P{tree}", "-Idebian/symbols", "-O/dev/null", "-c4"],
                                  cwd=self.debian.parent, capture_output=True, text=True)

        text = listed.read_text()
        right = differences(text)
        self.assertEqual((right.returncode, right.stdout), (0, ""), right.stderr)
        line = next(line for line in text.splitlines(keepends=True) if line.startswith(" "))
        self.assertIn(f"+{line}".rstrip().rpartition(" ")[0], differences(text.replace(line, "")).stdout)
        self.assertNotEqual(differences(text + " quire_unknown@Base 0.1\n").returncode, 0)

    def test_the_changelog_has_version_and_time(self):
        changelog = (self.debian / "changelog").read_text()
        self.assertTrue(changelog.startswith("quire (1.2.3-1) "))
        self.assertIn("  Tue, 14 Nov 2023 22:13:20 +0000\n", changelog)


if __name__ == "__main__":
    unittest.main()
