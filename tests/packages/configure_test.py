"""Options of the build: Quire as a part of another project, and values that contradict one another."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from build_under_test import SOURCE, need, run

HOST = """cmake_minimum_required(VERSION 3.25)
project(host LANGUAGES {languages})
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${{PROJECT_BINARY_DIR}}/libraries")
add_subdirectory("{source}" quire)
add_executable(program "{source}/examples/c_minimal/main.c")
target_link_libraries(program PRIVATE quire::quire)
"""


class ConfigureTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="quire configure ")  # a name with a space
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def embed(self, *languages, options=()):
        """Configures a project that Quire is a part of. The words of the commands that would build it."""
        text = HOST.format(languages=" ".join(languages), source=SOURCE)
        (self.folder / "CMakeLists.txt").write_text(text)
        build = self.folder / "build"
        run("cmake", "-G", "Ninja", "-S", self.folder, "-B", build, *options)
        return set(run("ninja", "-C", build, "-t", "commands").split())

    def check_words(self, words, present, absent):
        for pattern in present:
            self.assertTrue(any(re.fullmatch(pattern, word) for word in words), pattern)
        for pattern in absent:
            self.assertEqual([word for word in words if re.fullmatch(pattern, word)], [], pattern)

    def test_a_part_of_another_project_is_the_library_alone(self):
        self.check_words(self.embed("C", "CXX"), ["program", r"libraries/libquire\.so\.\d"],
                         ["quire/.*/Unity/.*", "-Werror.*", ".*quire-cuda.*", ".*gtest.*", "bin/quire"])

    @unittest.skipUnless(shutil.which("nvcc"), "there is no nvcc")
    def test_a_project_that_uses_cuda_gets_the_plugin_where_it_asks(self):
        words = self.embed("C", "CXX", "CUDA", options=["-DQUIRE_CUDA=on", "-DQUIRE_CUDA_ARCHITECTURES=90a-real;80-virtual"])
        self.check_words(words, [r".*code=\[sm_90a\].*", r".*code=\[compute_80\].*", r"libraries/libquire-cuda\.so"],
                         [".*sm_(?!90a).*", "-Werror.*", "quire/.*/Unity/.*"])

    def refusal(self, *options):
        """What is said of options that are refused."""
        failed = subprocess.run(["cmake", "-G", "Ninja", "-S", SOURCE, "-B", tempfile.mkdtemp(dir=self.folder), "-DQUIRE_TESTS=OFF",
                                 "-DQUIRE_EXAMPLES=OFF", *options], capture_output=True, text=True)
        self.assertEqual(failed.returncode, 1, failed.stdout)
        return re.sub(r"\s+", " ", failed.stderr)

    def test_values_of_quire_cuda_that_contradict_others_are_refused(self):
        self.assertIn('QUIRE_CUDA is "perhaps"', self.refusal("-DQUIRE_CUDA=perhaps"))
        self.assertIn("QUIRE_SANITIZE or QUIRE_COVERAGE", self.refusal("-DQUIRE_CUDA=1", "-DQUIRE_SANITIZE=address"))
        self.assertIn("is not found", self.refusal("-DQUIRE_CUDA=yes", "-DCMAKE_CUDA_COMPILER=NOTFOUND"))


if __name__ == "__main__":
    need("cmake", "ninja")
    unittest.main()
