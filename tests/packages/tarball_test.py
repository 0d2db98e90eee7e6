"""The archives that run from any folder: the same bytes whoever packs them, and they do run."""

import os
import pathlib
import subprocess
import tarfile
import tempfile
import unittest

from build_under_test import BUILD, LIBRARY, MAJOR, MODEL, PLUGIN, SOURCE, TEXT, VERSION, cached, need, run

LIB = cached("CMAKE_INSTALL_LIBDIR") or "lib"


def pack(folder, **environment):
    """Packs the build; paths of the archives by the beginning of their names."""
    output = run("bash", SOURCE / "cmake/make_tarball.sh", BUILD, folder, env=os.environ | environment)
    return {path.name.partition(f"-{VERSION}")[0]: path for path in map(pathlib.Path, output.splitlines())}


class TarballTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="quire packages ")  # a name with spaces
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.archives = pack(cls.folder / "first", SOURCE_DATE_EPOCH="1700000000")
        for archive in cls.archives.values():
            run("tar", "-C", cls.folder, "-xzf", archive)
        (cls.root,) = [path for path in cls.folder.glob("quire-*")]

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def test_a_second_packer_makes_the_same_bytes(self):
        mask = os.umask(0o077)
        try:
            others = pack(self.folder / "second", SOURCE_DATE_EPOCH="1700000000", LC_ALL="C", TZ="Asia/Tokyo", HOME="/nonexistent")
        finally:
            os.umask(mask)
        self.assertEqual(set(others), {"quire", "quire-cuda"} if PLUGIN.exists() else {"quire"})
        architectures = cached("QUIRE_CUDA_ARCHITECTURES")
        if PLUGIN.exists() and architectures:
            self.assertIn("-for-" + architectures.replace(";", "-"), self.archives["quire-cuda"].name)
        for name, path in self.archives.items():
            self.assertEqual(path.read_bytes(), others[name].read_bytes(), name)
            run("sha256sum", "--check", f"{path.name}.sha256", cwd=path.parent)

    def test_names_are_sorted_and_owners_modes_and_times_fixed(self):
        for archive in self.archives.values():
            with tarfile.open(archive) as opened:
                members = opened.getmembers()
            self.assertEqual([member.name for member in members], sorted(member.name for member in members))
            self.assertEqual({(member.uid, member.gid, member.mtime) for member in members}, {(0, 0, 1700000000)})
            self.assertEqual({member.mode for member in members if not member.issym()}, {0o755, 0o644})

    def test_they_have_libraries_licences_and_bills(self):
        documents = {path.name for path in (self.root / "share/doc/quire").iterdir()}
        self.assertLessEqual({"LICENSE", "LICENSES", "LICENSES.command", "libquire.spdx.json", "quire.spdx.json"}, documents)
        if PLUGIN.exists():
            self.assertLessEqual({"LICENSES.cuda", "libquire-cuda.spdx.json"}, documents)
            self.assertTrue((self.root / LIB / PLUGIN.name).exists())

    def test_nothing_names_a_folder_of_the_build(self):
        for path in self.root.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                for folder in (SOURCE, BUILD):
                    self.assertNotIn(str(folder).encode() + b"/", content, path.name)

    def test_the_command_answers_with_the_library_beside_it(self):
        command = self.root / "bin/quire"
        environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        opened = run("ldd", command, env=environment)
        self.assertIn(f"libquire.so.{MAJOR} => {self.root}/bin/../{LIB}/libquire.so.{MAJOR}", opened)
        answer = run(command, "run", "-m", MODEL, "-s", "dca", "-f", TEXT, "-p", "What is it?", "-n", 8, env=environment, cwd="/")
        self.assertTrue(answer.strip())

    def test_programs_are_built_with_it(self):
        environment = os.environ | {"PKG_CONFIG_PATH": str(self.root / LIB / "pkgconfig")}
        # pkg-config writes spaces in paths as a shell reads them.
        run("sh", "-c", f'eval "$CC" examples/c_minimal/main.c -o \'"$0"\' $(pkg-config --cflags --libs quire)',
            self.folder / "program", cwd=SOURCE, env=environment)
        answer = run(self.folder / "program", MODEL, TEXT, "What is it?", "dca", env=os.environ | {"LD_LIBRARY_PATH": str(self.root / LIB)})
        self.assertTrue(answer.strip())

    def test_instrumented_builds_are_refused(self):
        fake = self.folder / "instrumented"
        fake.mkdir()
        cache = (BUILD / "CMakeCache.txt").read_text()
        fake.joinpath("CMakeCache.txt").write_text(cache.replace("QUIRE_SANITIZE:STRING=", "QUIRE_SANITIZE:STRING=address"))
        failed = subprocess.run(["bash", SOURCE / "cmake/make_tarball.sh", fake, self.folder / "none"], capture_output=True, text=True)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("instrumented: QUIRE_SANITIZE", failed.stderr)


if __name__ == "__main__":
    need("cmake", "tar", "gzip", "pkg-config", "ldd")
    assert LIBRARY.exists()
    unittest.main()
