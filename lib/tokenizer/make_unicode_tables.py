"""Writes unicode_tables.inc. Needs Python 3.11 (Unicode 14) and two packages:

    pip install tokenizers==0.23.3 unicodedata2==16.0.0
    python lib/tokenizer/make_unicode_tables.py > lib/tokenizer/unicode_tables.inc

Stand-ins: PCRE2 of Debian 12 knows the characters of Unicode 14. The regular expressions of `tokenizers` know those of
Unicode 16. A character that came in between, or changed its category, is shown to PCRE2 as another one of the same
category and length.

Composition: the NFC of `tokenizers` knows the decompositions and combining classes of an older Unicode. `tokenizers`
itself is asked which.
"""

import sys
import unicodedata as old

import unicodedata2 as new
from tokenizers import normalizers

assert old.unidata_version == "14.0.0" and new.unidata_version == "16.0.0"
ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
nfc = normalizers.NFC().normalize_str


def n_bytes(c):
    return len(chr(c).encode())


def stand_ins():
    def is_ideograph(c):
        return new.name(chr(c), "").startswith("CJK UNIFIED IDEOGRAPH")

    known = {}  # (category, bytes, ideograph): the first such character of Unicode 14
    for c in ALL:
        # PCRE2 takes U+180E for white space.
        if c != 0x180E and old.category(chr(c)) == new.category(chr(c)):
            known.setdefault((old.category(chr(c)), n_bytes(c), is_ideograph(c)), c)
    known["Cf", 3, False] = 0x200B
    ranges = []
    for c in ALL:
        if old.category(chr(c)) == new.category(chr(c)) and c != 0x180E:
            continue
        stand_in = known[new.category(chr(c)), n_bytes(c), is_ideograph(c)]
        if ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == stand_in:
            ranges[-1][1] = c
        else:
            ranges.append([c, c, stand_in])
    return ranges


def is_reordered(c):
    """Whether `tokenizers` gives the character a combining class: it swaps with a mark of another one."""
    return any(nfc(text) != text for text in (chr(c) + "\u0334", "\u0315" + chr(c), "\u0345" + chr(c)))


def combining_classes():
    ranges = []
    for c in ALL:
        ccc = new.combining(chr(c))
        if ccc == 0 or not is_reordered(c):
            continue
        if ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == ccc:
            ranges[-1][1] = c
        else:
            ranges.append([c, c, ccc])
    return ranges


def decompositions():
    """(character, first, second or 0, whether the two compose to it)"""
    rows = []
    for c in ALL:
        parts = new.decomposition(chr(c))
        if not parts or parts.startswith("<"):
            continue
        parts = [int(part, 16) for part in parts.split()]
        text = "".join(map(chr, parts))
        if len(parts) == 2 and nfc(text) == chr(c):
            rows.append((c, *parts, 1))
        elif nfc(chr(c)) != chr(c):  # otherwise `tokenizers` does not know it
            rows.append((c, *(parts + [0])[:2], 0))
    return rows


def show(name, kind, rows):
    print(f"constexpr {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        item = " {" + ", ".join(f"{n:#x}" if n > 255 else str(n) for n in row) + "},"
        if len(line) + len(item) > 120:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


print("// Made by make_unicode_tables.py, which says what is in it.")
show("kStandIns", "StandIn", stand_ins())
show("kCombiningClasses", "CombiningClass", combining_classes())
show("kDecompositions", "Decomposition", decompositions())
sys.stderr.write(f"{len(stand_ins())} {len(combining_classes())} {len(decompositions())}\n")
