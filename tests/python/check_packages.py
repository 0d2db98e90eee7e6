"""What is in the wheel and in the source distribution.

    check_packages.py FOLDER SOURCE      FOLDER: both, and repaired/ with the wheel as auditwheel has it
"""

import pathlib
import sys
import tarfile
import zipfile


def one(folder, pattern):
    (found,) = folder.glob(pattern)
    return found


def check_wheel(path, package):
    names = {name for name in zipfile.ZipFile(path).namelist() if not name.endswith("/")}
    modules = {f"quire/{file.name}" for file in package.iterdir() if file.suffix == ".py" or file.name == "py.typed"}
    own = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert own == modules | {"quire/libquire.so.0"}, own ^ (modules | {"quire/libquire.so.0"})
    licences = {name.split("/", 1)[1] for name in names - own if "licenses/" in name}
    assert licences == {"licenses/LICENSE", "licenses/third_party/LICENSES"}, licences


def check_sdist(path, source):
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    top = {name.split("/")[0] for name in names}
    assert top == {"CMakeLists.txt", "PKG-INFO", "README.md", "native", "pyproject.toml", "quire"}, top
    native = {name.split("/")[1] for name in names if name.startswith("native/")}
    assert native == {"CMakeLists.txt", "LICENSE", "cmake", "include", "kernels", "lib"}, native
    for folder in ("cmake", "include", "kernels", "lib"):
        expected = {f"native/{file.relative_to(source)}" for file in (source / folder).rglob("*") if file.is_file()}
        missing = {name for name in expected - names if "__pycache__" not in name}
        assert not missing, missing


def main():
    folder, source = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    check_sdist(one(folder, "*.tar.gz"), source)
    check_wheel(one(folder, "*.whl"), source / "bindings" / "python" / "quire")
    repaired = one(folder / "repaired", "*.whl")
    check_wheel(repaired, source / "bindings" / "python" / "quire")
    assert "-py3-none-manylinux_" in repaired.name, repaired.name
    size = repaired.stat().st_size
    assert size < 12 << 20, size
    print(f"{repaired.name}: {size / 2**20:.1f} MB; {one(folder, '*.tar.gz').name}")


if __name__ == "__main__":
    main()
