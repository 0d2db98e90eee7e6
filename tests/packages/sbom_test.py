"""The bills of materials against what was really linked in and compiled in.

The build system knows which archives it linked and which headers each object file was compiled with; the symbol tables know
what is in a binary. Neither was asked when the bills were written.
"""

import hashlib
import pathlib
import re
import subprocess
import unittest

from build_under_test import BUILD, LIBRARY, MAJOR, PLUGIN, SOURCE, VERSION, bill, binaries, cached, need, run

# Packages of the C and C++ implementation itself.
TOOLCHAIN = re.compile(r"libc6-dev|linux-libc-dev|libstdc\+\+-\d+-dev|libgcc-\d+-dev|libclang-.*|libc\+\+.*")
# A symbol that only that component brings.
SYMBOLS = {
    "libquire": {"PCRE2": r"\bpcre2_match_8$", "sljit": r"\bsljit_", "zstd": r"\bZSTD_decompress", "xxHash": r"\bXXH3_hashLong_128b",
                 "Highway": r"quire::cpu::N_\w+::", "SentencePiece": r"quire::sentencepiece::", "Darts-clone": r"quire::Darts::",
                 "Unicode Character Database": r"kStandIns"},
    "quire": {"CLI11": r"CLI::App::", "JSON for Modern C++": r"nlohmann::"},
    "libquire-cuda": {"CUDA Runtime": r"\bcudaMalloc$", "libstdc++": r"\b__gxx_personality_v0$", "libgcc_eh": r"\b_Unwind_Resume$"},
}
# libgcc.a is linked with libgcc_eh.a, and has single functions that a compiler may call: none need be there.
WITHOUT_SYMBOL = {"libquire-cuda": {"libgcc"}}
SYSTEM_LIBRARIES = {"-ldl", "-lrt", "-lpthread", "-lm"}


def packages(binary):
    """Packages of a bill by name, without the binary itself."""
    document = bill(binary)
    main = document["relationships"][0]["relatedSpdxElement"]
    return {package["name"]: package for package in document["packages"] if package["SPDXID"] != main}


def debian_packages(binary):
    purls = [reference["referenceLocator"] for package in packages(binary).values() for reference in package.get("externalRefs", [])]
    return {match.group(1) for purl in purls if (match := re.match(r"pkg:deb/debian/([^@]+)@", purl))}


def ninja(*arguments):
    return run("ninja", "-C", BUILD, *arguments)


def compiled_headers(binary):
    """Headers from outside of source and build that objects of the binary were compiled with."""
    target = str(binaries()[binary].relative_to(BUILD))
    objects = [path for path in ninja("-t", "inputs", target).split() if path.endswith(".o")]
    if binary == "quire":
        objects = [path for path in objects if path.startswith("examples/")]
    assert objects, target
    headers = {line.strip() for line in ninja("-t", "deps", *objects).splitlines() if line.startswith("    /")}
    ours = (str(SOURCE) + "/", str(BUILD) + "/")
    return {str(pathlib.Path(path).resolve()) for path in headers if not path.startswith(ours)}


def owners(paths):
    """Debian packages that files are from, and the files that are from none."""
    found = subprocess.run(["dpkg-query", "-S", *sorted(paths)], capture_output=True, text=True)
    owned = dict(reversed(line.split(": ", 1)) for line in found.stdout.splitlines())
    return {owner.partition(":")[0] for owner in owned.values()}, set(paths) - set(owned)


def defined_symbols(path):
    return run("nm", "-C", "--defined-only", path)


class BillTest(unittest.TestCase):
    def test_each_binary_has_one_and_it_is_of_this_version(self):
        for binary in binaries():
            main = bill(binary)["packages"][0]
            self.assertEqual((main["name"], main["versionInfo"], main["licenseDeclared"]), (binary, VERSION, "MIT"))
            for package in packages(binary).values():
                self.assertIn(package["licenseConcluded"], main["licenseConcluded"])

    def test_archives_are_those_that_were_linked(self):
        inputs = ninja("-t", "query", LIBRARY.relative_to(BUILD)).split()
        linked = {pathlib.Path(path).name: path for path in inputs if path.startswith("/") and path.endswith(".a")}
        listed = {package["packageFileName"]: package for package in packages("libquire").values() if "packageFileName" in package}
        self.assertEqual(set(listed), set(linked))
        self.assertIn("libzstd.a", linked)
        for name, path in linked.items():
            sum_ = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
            self.assertEqual(listed[name]["checksums"], [{"algorithm": "SHA256", "checksumValue": sum_}], name)

    def test_headers_are_from_packages_that_are_listed(self):
        for binary in set(binaries()) - {"libquire-cuda"}:
            with self.subTest(binary):
                used, unknown = owners(compiled_headers(binary))
                self.assertEqual(unknown, set())
                self.assertEqual({owner for owner in used if not TOOLCHAIN.fullmatch(owner)}, debian_packages(binary))

    def test_versions_are_those_of_debian(self):
        n_compared = 0
        for binary in binaries():
            for package in packages(binary).values():
                match = re.match(r"Debian package (\S+) ", package.get("sourceInfo", ""))
                if match and not TOOLCHAIN.fullmatch(match.group(1)):
                    installed = run("dpkg-query", "-W", "-f", "${source:Upstream-Version}", match.group(1))
                    self.assertEqual(re.match(r"[\d.]+", installed).group(), package["versionInfo"])
                    n_compared += 1
        self.assertEqual(n_compared, 6)

    def test_symbols_show_each_component(self):
        for binary, path in binaries().items():
            symbols = defined_symbols(path)
            self.assertEqual(set(SYMBOLS[binary]) | WITHOUT_SYMBOL.get(binary, set()), set(packages(binary)))
            for component, pattern in SYMBOLS[binary].items():
                with self.subTest(binary=binary, component=component):
                    self.assertRegex(symbols, re.compile(pattern, re.MULTILINE))

    def test_sources_of_others_are_listed_with_their_versions(self):
        table = (SOURCE / "lib/third_party/README.md").read_text()
        versions = {"sentencepiece": re.search(r"`sentencepiece` ([\d.]+)", table).group(1),
                    "darts_clone": re.search(r"Darts-clone ([\d.]+)", table).group(1)}
        folders = {path.name for path in (SOURCE / "lib/third_party").iterdir() if path.is_dir()}
        self.assertEqual(folders, set(versions))
        listed = {package["name"].lower().replace("-", "_"): package for package in packages("libquire").values()}
        for folder, version in versions.items():
            self.assertEqual(listed[folder]["versionInfo"], version)


class SystemLibrariesTest(unittest.TestCase):
    """What is not in the bills is of the system, and opened when a binary is."""

    def needed(self, path):
        return set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-dW", path)))

    def test_no_library_is_needed_but_those_of_c_and_cxx(self):
        runtime = re.compile(r"lib(c|m|stdc\+\+|gcc_s|pthread|dl|rt)\.so\.\d+|ld-linux-.*")
        for binary, path in binaries().items():
            others = {name for name in self.needed(path) if not runtime.fullmatch(name)}
            self.assertEqual(others, {f"libquire.so.{MAJOR}"} if binary == "quire" else set())

    @unittest.skipUnless(PLUGIN.exists(), "no CUDA plugin was built")
    def test_the_plugin_is_linked_with_the_cuda_runtime_alone(self):
        link = ninja("-t", "commands", PLUGIN.relative_to(BUILD)).splitlines()[-1]
        self.assertIn("-static-libstdc++", link)
        libraries = set(re.findall(r"(?<=\s)-l\w+", link)) - SYSTEM_LIBRARIES
        # The device runtime is for kernels that start kernels: there are none, and nothing of it is taken.
        self.assertEqual(libraries, {"-lcudart_static", "-lcudadevrt"})
        self.assertNotIn("libstdc++.so.6", self.needed(PLUGIN))


if __name__ == "__main__":
    need("ninja", "nm", "readelf", "dpkg-query")
    if cached("CMAKE_GENERATOR") != "Ninja":
        print("skipped: what was compiled with what is asked of Ninja")
        raise SystemExit(77)
    unittest.main()
