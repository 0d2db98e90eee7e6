"""The texts of licences that are installed name all that the bills of materials list."""

import unittest

from build_under_test import SOURCE, bill, binaries

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


if __name__ == "__main__":
    unittest.main()
