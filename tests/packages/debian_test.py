"""Builds the Debian packages of the commit that is checked out, and uses them on a fresh Debian.

The fresh system is made by debootstrap where that can be had (root, and the network); elsewhere the packages are unpacked
into a folder and used from there.
"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from build_under_test import BUILD, MAJOR, MINOR, SOURCE, VERSION, need, run

FOLDER = BUILD / "tests/packages/debian"
MIRROR = [mirror] if (mirror := os.environ.get("QUIRE_DEBIAN_MIRROR")) else []  # else debootstrap's own
LIBRARY = f"libquire{MAJOR}"
# What each package has, with names of folders that differ between architectures left out.
FILES = {
    LIBRARY: [rf"usr/lib/[^/]*/libquire\.so\.{MAJOR}", rf"usr/lib/[^/]*/libquire\.so\.{re.escape(VERSION)}",
              rf"usr/share/doc/{LIBRARY}/libquire\.\w+\.spdx\.json"],
    "libquire-dev": [r"usr/include/quire/quire\.h", r"usr/lib/[^/]*/libquire\.so", r"usr/lib/[^/]*/pkgconfig/quire\.pc",
                     r"usr/lib/[^/]*/cmake/quire/quire-config\.cmake", r"usr/share/doc/libquire-dev/examples/main\.c"],
    "quire": [r"usr/bin/quire", r"usr/share/man/man1/quire\.1\.gz", r"usr/share/doc/quire/quire\.spdx\.json"],
    "libquire-cuda": [r"usr/lib/[^/]*/libquire-cuda\.so", r"usr/share/doc/libquire-cuda/libquire-cuda\.\w+\.spdx\.json"],
}


def field(package, name):
    return run("dpkg-deb", "--field", package, name).strip()


class DebianTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(FOLDER, ignore_errors=True)
        # The plugin for one kind of GPU is compiled in a quarter of the time.
        options = {"QUIRE_CMAKE_OPTIONS": "-DQUIRE_CUDA_ARCHITECTURES=90a-real"}
        run("bash", SOURCE / "cmake/make_debian_packages.sh", FOLDER, env=options | os.environ)
        packages = {path.name.partition("_")[0]: path for path in FOLDER.glob("*.deb")}
        cls.packages = {name: path for name, path in packages.items() if not name.endswith("-dbgsym")}

    def test_the_packages_are_those_that_are_documented(self):
        expected = set(FILES) if shutil.which("nvcc") else set(FILES) - {"libquire-cuda"}
        self.assertEqual(set(self.packages), expected)
        for name, path in self.packages.items():
            with self.subTest(name):
                files = [line.split()[5].removeprefix("./") for line in run("dpkg-deb", "--contents", path).splitlines()]
                for pattern in [*FILES[name], rf"usr/share/doc/{name}/copyright", rf"usr/share/doc/{name}/changelog(\.Debian)?\.gz"]:
                    self.assertTrue(any(re.fullmatch(pattern, file) for file in files), (pattern, files))

    def test_lintian_finds_nothing(self):
        (changes,) = FOLDER.glob("*.changes")
        as_root = ["--allow-root"] if os.geteuid() == 0 else []
        found = subprocess.run(["lintian", *as_root, "--tag-display-limit", "0", "--display-level", ">=warning",
                                "--fail-on", "error,warning", changes], capture_output=True, text=True)
        self.assertEqual((found.returncode, found.stdout), (0, ""), found.stderr)

    def test_programs_depend_on_the_version_that_they_need(self):
        upper = f"{LIBRARY} (<< 0.{int(MINOR) + 1}~)" if MAJOR == "0" else LIBRARY
        depends = field(self.packages["quire"], "Depends").split(", ")
        self.assertIn(upper, depends)
        self.assertIn(f"{LIBRARY} (>= {MAJOR}.{MINOR})", depends)
        self.assertIn(f"{LIBRARY} (= ", field(self.packages["libquire-dev"], "Depends"))

    def test_they_work_on_a_fresh_debian(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder) / "root"
            if os.geteuid() == 0 and shutil.which("debootstrap") and self.make_system(root):
                self.use_in_system(root)
            else:
                self.use_unpacked(root)

    def make_system(self, root):
        made = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", root, *MIRROR], capture_output=True)
        if made.returncode != 0:
            shutil.rmtree(root, ignore_errors=True)
        return made.returncode == 0

    def use_in_system(self, root):
        inside = ["chroot", root, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8"]
        (root / "source").mkdir()
        for name in ("examples", "cmake"):
            shutil.copytree(SOURCE / name, root / "source" / name)
        names = []
        for name, path in self.packages.items():
            shutil.copy(path, root)
            names.append(f"./{path.name}")
        # The packages that were built, and what debian/tests/control asks for besides.
        run(*inside, "sh", "-c", f"cd / && apt-get update -q && apt-get install -q -y --no-install-recommends {' '.join(names)} "
                                 "gcc libc6-dev pkg-config")
        self.assertIn("work", run(*inside, "sh", "-c", "cd /source && cmake/debian/tests/use-packages"))
        run(*inside, "sh", "-c", f"apt-get purge -q -y {' '.join(self.packages)}")
        left = [str(path) for path in (root / "usr").rglob("*quire*")]
        self.assertEqual(left, [])

    def use_unpacked(self, root):
        for path in self.packages.values():
            run("dpkg-deb", "--extract", path, root)
        (library,) = root.glob(f"usr/lib/*/libquire.so.{MAJOR}")
        environment = os.environ | {"LD_LIBRARY_PATH": str(library.parent), "PATH": f"{root}/usr/bin:{os.environ['PATH']}",
                                    "PKG_CONFIG_PATH": str(library.parent / "pkgconfig")}
        self.assertIn("work", run(SOURCE / "cmake/debian/tests/use-packages", cwd=SOURCE, env=environment))


if __name__ == "__main__":
    need("git", "dpkg-buildpackage", "dh", "lintian", "dpkg-deb", "pkg-config")
    if subprocess.run(["git", "-C", SOURCE, "rev-parse", "HEAD"], capture_output=True).returncode != 0:
        print("skipped: this is no checkout, of which a commit could be packaged")
        raise SystemExit(77)
    unittest.main()
