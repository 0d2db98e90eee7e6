"""The number in the SONAME follows the project's version: .so.0 until 1.0, then the major version, which ABI.md promises to
keep. A copy of the project whose version is 1.0 shows that changing that line is enough."""

import pathlib
import re
import shutil
import tempfile
import unittest

from build_under_test import LIBRARY, MAJOR, MINOR, PATCH, SOURCE, VERSION, need, run


def copy_with_version(folder, version):
    """What is needed to configure the library alone, and for Debian's files."""
    for name in ("cmake", "include", "kernels", "lib"):
        shutil.copytree(SOURCE / name, folder / name)
    shutil.copy(SOURCE / "LICENSE", folder)
    text = (SOURCE / "CMakeLists.txt").read_text()
    folder.joinpath("CMakeLists.txt").write_text(text.replace(f"VERSION {VERSION} ", f"VERSION {version} ", 1))


class ThisVersionTest(unittest.TestCase):
    def test_the_library_has_the_major_version_as_its_number(self):
        soname = re.findall(r"\(SONAME\).*\[(.*)\]", run("readelf", "-dW", LIBRARY))
        self.assertEqual(soname, [f"libquire.so.{MAJOR}"])

    def test_the_header_has_the_version_of_the_project(self):
        header = (SOURCE / "include/quire/quire.h").read_text()
        number = int(re.search(r"^#define QUIRE_VERSION (\d+)$", header, re.MULTILINE).group(1))
        self.assertEqual(number, int(MAJOR) * 10000 + int(MINOR) * 100 + int(PATCH))


class VersionOneTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        copy_with_version(cls.folder, "1.2.0")
        run("cmake", "-G", "Ninja", "-S", cls.folder, "-B", cls.folder / "build", "-DQUIRE_TESTS=OFF", "-DQUIRE_EXAMPLES=OFF",
            "-DQUIRE_CUDA=OFF", "-DCMAKE_INSTALL_LIBDIR=lib")

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def test_the_library_is_linked_as_so_1(self):
        link = run("ninja", "-C", self.folder / "build", "-t", "commands", "lib/abi/libquire.so.1.2.0").splitlines()[-1]
        self.assertRegex(link, r"-soname,libquire\.so\.1 ")
        rules = (self.folder / "build/lib/abi/cmake_install.cmake").read_text() + \
            (self.folder / "build/cmake_install.cmake").read_text()
        self.assertIn('/lib/libquire.so.1"', rules)

    def test_find_package_takes_any_later_version_of_the_same_major(self):
        def is_compatible(installed, wanted):
            script = self.folder / "check.cmake"
            script.write_text(f"set(PACKAGE_FIND_VERSION {wanted})\nset(PACKAGE_FIND_VERSION_MAJOR {wanted[0]})\n"
                              f"set(PACKAGE_FIND_VERSION_MINOR {wanted[2]})\nset(CMAKE_SIZEOF_VOID_P 8)\ninclude({installed})\n"
                              "message(NOTICE \"compatible: ${PACKAGE_VERSION_COMPATIBLE}\")\n")
            # message(NOTICE) goes to stderr.
            return "compatible: TRUE" in run("sh", "-c", f"cmake -P {script} 2>&1")

        later = self.folder / "build/quire-config-version.cmake"
        self.assertTrue(is_compatible(later, "1.0"))
        self.assertFalse(is_compatible(later, "1.3"))
        self.assertFalse(is_compatible(later, "0.1"))

    def test_debian_packages_are_named_after_it(self):
        run("bash", self.folder / "cmake/debian/prepare.sh", self.folder, "1.2.0-1", 0)
        debian = self.folder / "debian"
        self.assertIn("Package: libquire1\n", (debian / "control").read_text())
        self.assertNotIn("libquire0", (debian / "control").read_text())
        self.assertEqual((debian / "libquire1.symbols").read_text().splitlines()[0], "libquire.so.1 libquire1 #MINVER#")
        self.assertIn("libquire.so", (debian / "libquire1.install").read_text())


class BeforeOneTest(unittest.TestCase):
    """Until 1.0 a minor version may change anything, so that a program needs the one it was built with."""

    def test_debian_programs_need_the_same_minor_version(self):
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            copy_with_version(folder, "0.7.3")
            run("bash", folder / "cmake/debian/prepare.sh", folder, "0.7.3-1", 0)
            self.assertEqual((folder / "debian/libquire0.symbols").read_text().splitlines()[0],
                             "libquire.so.0 libquire0 #MINVER#, libquire0 (<< 0.8~)")


if __name__ == "__main__":
    need("cmake", "ninja", "readelf")
    unittest.main()
