"""What `cmake --install` puts in place, component by component, and the manual page of the command."""

import pathlib
import re
import tempfile
import unittest

from build_under_test import BUILD, COMMAND, MAJOR, PLUGIN, SOURCE, VERSION, cached, files_below, run

LIB = cached("CMAKE_INSTALL_LIBDIR") or "lib"
BUILD_TYPE = cached("CMAKE_BUILD_TYPE").lower()
DOC = "share/doc/quire"
HEADERS = {f"include/quire/{path.name}" for path in (SOURCE / "include/quire").iterdir()}
COMPONENTS = {
    "runtime": {f"{LIB}/libquire.so.{MAJOR}", f"{LIB}/libquire.so.{VERSION}", f"{DOC}/LICENSE", f"{DOC}/LICENSES",
                f"{DOC}/libquire.spdx.json"},
    "development": HEADERS | {f"{LIB}/libquire.so", f"{LIB}/pkgconfig/quire.pc", f"{LIB}/cmake/quire/quire-config.cmake",
                              f"{LIB}/cmake/quire/quire-config-{BUILD_TYPE}.cmake", f"{LIB}/cmake/quire/quire-config-version.cmake"},
    "command": {"bin/quire", "share/man/man1/quire.1", f"{DOC}/LICENSES.command", f"{DOC}/quire.spdx.json"},
}
if PLUGIN.exists():
    COMPONENTS["cuda"] = {f"{LIB}/libquire-cuda.so", f"{DOC}/LICENSES.cuda", f"{DOC}/libquire-cuda.spdx.json"}
# Where the toolkit has its agreement.
OPTIONAL = {f"{DOC}/NVIDIA-EULA.txt"}


class LayoutTest(unittest.TestCase):
    def install(self, *options):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        run("cmake", "--install", BUILD, "--prefix", folder.name, *options)
        return files_below(folder.name)

    def test_components_have_what_they_are_said_to_have(self):
        for component, expected in COMPONENTS.items():
            with self.subTest(component):
                self.assertEqual(self.install("--component", component) - OPTIONAL, expected)

    def test_the_whole_is_its_components(self):
        self.assertEqual(self.install() - OPTIONAL, set.union(*COMPONENTS.values()))

    def test_the_headers_are_those_of_the_repository(self):
        self.assertIn("include/quire/quire.h", HEADERS)
        unknown = [name for name in HEADERS if not name.endswith((".h", ".hpp"))]
        self.assertEqual(unknown, [])


class RunpathTest(unittest.TestCase):
    """Where the installed command looks for the library."""

    def runpath(self, **options):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        run("cmake", "-S", SOURCE, "-B", folder.name, "-DCMAKE_CUDA_COMPILER=NOTFOUND", "-DQUIRE_TESTS=OFF",
            f"-DCMAKE_CXX_COMPILER={cached('CMAKE_CXX_COMPILER')}", f"-DCMAKE_C_COMPILER={cached('CMAKE_C_COMPILER')}",
            *(f"-DCMAKE_INSTALL_{name}={value}" for name, value in options.items()))
        script = (pathlib.Path(folder.name) / "cmake_install.cmake").read_text()
        return set(re.findall(r'NEW_RPATH "(.*)"', script))

    def test_it_leads_from_the_command_to_the_library(self):
        self.assertEqual(self.runpath(LIBDIR="lib"), {r"\$ORIGIN/../lib"})
        self.assertEqual(self.runpath(BINDIR="libexec/quire/bin", LIBDIR="lib/quire"), {r"\$ORIGIN/../../../lib/quire"})
        self.assertEqual(self.runpath(LIBDIR="/opt/lib"), {"/opt/lib"})
        self.assertEqual(self.runpath(PREFIX="/opt/quire", BINDIR="/bin", LIBDIR="lib"), {"/opt/quire/lib"})

    def test_a_packager_may_say_another(self):
        self.assertEqual(self.runpath(RPATH="/opt/other"), {"/opt/other"})


class ManualPageTest(unittest.TestCase):
    page = (BUILD / "quire.1").read_text()

    def test_commands_are_those_of_the_help(self):
        shown = re.search(r"\nSubcommands:\n(.*?)\n\n", run(COMMAND, "--help"), re.DOTALL).group(1)
        commands = dict(re.findall(r"^  (\w+) +(.+)$", shown, re.MULTILINE))
        self.assertGreater(len(commands), 5)
        section = self.page.partition(".SH COMMANDS")[2].partition(".SH")[0]
        self.assertEqual(dict(re.findall(r"^\.TP\n\.B (\w+)\n(.+)$", section, re.MULTILINE)), commands)

    def test_exit_statuses_are_those_of_the_help(self):
        shown = run(COMMAND, "--help").partition("Exit status:")[2]
        section = self.page.partition(".SH EXIT STATUS")[2].partition(".SH")[0]
        self.assertEqual(re.findall(r"^\.TP\n\.B (\d+)$", section, re.MULTILINE), re.findall(r"\b\d+\b", shown))

    def test_the_examples_options_exist(self):
        for command in re.findall(r"^\.B quire (\w+ .*)$", self.page.replace("\\-", "-"), re.MULTILINE):
            if not (name := re.match(r"(\w+) ", command)):
                continue
            help_text = run(COMMAND, name.group(1), "--help")
            for option in re.findall(r" (--?[\w-]+)", command):
                with self.subTest(command=name.group(1), option=option):
                    self.assertRegex(help_text, rf"(?m)^  (-\w,)?{option}\b")

    def test_it_has_the_version(self):
        self.assertIn(f"quire {VERSION}", self.page)


if __name__ == "__main__":
    unittest.main()
