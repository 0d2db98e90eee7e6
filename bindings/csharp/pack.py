"""Writes a NuGet package without the .NET SDK, for where there is none.

    pack.py ASSEMBLY LIBRARY FOLDER      writes FOLDER/Quire.VERSION-mono.nupkg

ASSEMBLY is Quire.dll as Mono's compiler made it, with Quire.xml beside it; LIBRARY is libquire.so.0, for x86-64 or
aarch64, whose licences the package brings. The package has the layout and metadata of what `dotnet pack` makes of
Quire.csproj, but one assembly for netstandard2.0, which has its async streams and spans from Mono's own libraries:
hence the suffix of its version.
"""

import pathlib
import sys
import xml.etree.ElementTree as xml
import zipfile
from xml.sax.saxutils import escape

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1]

# What .NET calls the systems that a library is for, by e_machine of its ELF header.
RUNTIME_IDENTIFIERS = {62: "linux-x64", 183: "linux-arm64"}

CONTENT_TYPES = """<?xml version="1.0" encoding="utf-8"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
  <Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml" />
  <Default Extension="nuspec" ContentType="application/octet" />
  <Default Extension="dll" ContentType="application/octet" />
  <Default Extension="xml" ContentType="application/octet" />
  <Default Extension="md" ContentType="application/octet" />
  <Default Extension="0" ContentType="application/octet" />
  <Override PartName="/LICENSE" ContentType="application/octet" />
  <Override PartName="/third_party/LICENSES" ContentType="application/octet" />
</Types>
"""

RELATIONSHIPS = """<?xml version="1.0" encoding="utf-8"?>
<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
  <Relationship Type="http://schemas.microsoft.com/packaging/2010/07/manifest" Target="/Quire.nuspec" Id="manifest" />
</Relationships>
"""

NUSPEC = """<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://schemas.microsoft.com/packaging/2013/05/nuspec.xsd">
  <metadata>
    <id>{PackageId}</id>
    <version>{Version}-mono</version>
    <authors>{Authors}</authors>
    <license type="expression">{PackageLicenseExpression}</license>
    <readme>{PackageReadmeFile}</readme>
    <description>{Description}</description>
    <tags>{PackageTags}</tags>
    <dependencies>
      <group targetFramework=".NETStandard2.0" />
    </dependencies>
  </metadata>
</package>
"""


def properties():
    """Those of Quire.csproj, where the metadata are."""
    project = xml.parse(HERE / "Quire.csproj").getroot()
    return {item.tag: item.text or "" for group in project.iter("PropertyGroup") for item in group}


def runtime_identifier(library):
    header = library.read_bytes()[:20]
    machine = int.from_bytes(header[18:20], "little")
    if header[:4] != b"\x7fELF" or machine not in RUNTIME_IDENTIFIERS:
        sys.exit(f"{library} is not a library for x86-64 or aarch64")
    return RUNTIME_IDENTIFIERS[machine]


def pack(assembly, library, folder):
    values = properties()
    system = runtime_identifier(library)
    target = folder / f"{values['PackageId']}.{values['Version']}-mono.nupkg"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr("[Content_Types].xml", CONTENT_TYPES)
        package.writestr("_rels/.rels", RELATIONSHIPS)
        package.writestr("Quire.nuspec", NUSPEC.format(**{name: escape(text) for name, text in values.items()}))
        package.write(HERE / "README.md", "README.md")
        package.write(SOURCE / "LICENSE", "LICENSE")
        package.write(SOURCE / "lib/third_party/LICENSES", "third_party/LICENSES")
        package.write(assembly, "lib/netstandard2.0/Quire.dll")
        package.write(assembly.with_suffix(".xml"), "lib/netstandard2.0/Quire.xml")
        package.write(library.resolve(), f"runtimes/{system}/native/libquire.so.0")
    return target


def main():
    if len(sys.argv) != 4:
        print(__doc__)
        return 2
    print(pack(*map(pathlib.Path, sys.argv[1:])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
