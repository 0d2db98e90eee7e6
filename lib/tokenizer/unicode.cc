#include "lib/tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

namespace quire {
namespace {

struct StandIn {
  uint32_t first, last, stand_in;
};
struct CombiningClass {
  uint32_t first, last;
  uint8_t value;
};
struct Decomposition {  // of one step
  uint32_t composed, first, second;
  bool composes;  // the two become the character again
};

#include "lib/tokenizer/unicode_tables.inc"

// Hangul syllables are made of two or three jamo by arithmetic (The Unicode Standard, 3.12).
constexpr uint32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr uint32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28;
constexpr uint32_t kSyllableCount = kLeadCount * kVowelCount * kTailCount;

// The row of a table of ranges, sorted, in which the code point lies; nullptr: none.
template <typename Row, size_t n>
const Row* find_range(const Row (&rows)[n], uint32_t code_point) {
  const Row* after = std::upper_bound(std::begin(rows), std::end(rows), code_point,
                                      [](uint32_t c, const Row& row) { return c < row.first; });
  if (after == std::begin(rows)) return nullptr;
  const Row* row = after - 1;
  return code_point <= row->last ? row : nullptr;
}

uint8_t combining_class(uint32_t code_point) {
  if (code_point < kCombiningClasses[0].first) return 0;
  const auto* row = find_range(kCombiningClasses, code_point);
  return row ? row->value : 0;
}

const Decomposition* find_decomposition(uint32_t code_point) {
  const auto* row = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), code_point,
                                     [](const Decomposition& d, uint32_t c) { return d.composed < c; });
  return row != std::end(kDecompositions) && row->composed == code_point ? row : nullptr;
}

constexpr size_t kPairs = std::count_if(std::begin(kDecompositions), std::end(kDecompositions),
                                        [](const Decomposition& d) { return d.composes; });

// The compositions, sorted by the characters of which they are made: second, then first.
constexpr std::array<uint16_t, kPairs> sorted_pairs() {
  std::array<uint16_t, kPairs> pairs{};
  size_t n = 0;
  for (size_t i = 0; i < std::size(kDecompositions); ++i) {
    if (kDecompositions[i].composes) pairs[n++] = static_cast<uint16_t>(i);
  }
  std::sort(pairs.begin(), pairs.end(), [](uint16_t a, uint16_t b) {
    const Decomposition &x = kDecompositions[a], &y = kDecompositions[b];
    return x.second != y.second ? x.second < y.second : x.first < y.first;
  });
  return pairs;
}
constexpr auto kSortedPairs = sorted_pairs();

// The first pair whose second character is `second`, or comes after it.
auto first_pair(uint32_t second) {
  return std::lower_bound(kSortedPairs.begin(), kSortedPairs.end(), second,
                          [](uint16_t row, uint32_t c) { return kDecompositions[row].second < c; });
}

// What the two characters become, or 0.
uint32_t compose(uint32_t first, uint32_t second) {
  if (first - kLeads < kLeadCount && second - kVowels < kVowelCount) {
    return kSyllables + ((first - kLeads) * kVowelCount + (second - kVowels)) * kTailCount;
  }
  if (first - kSyllables < kSyllableCount && (first - kSyllables) % kTailCount == 0 &&
      second - kTails - 1 < kTailCount - 1) {
    return first + (second - kTails);
  }
  for (auto at = first_pair(second); at != kSortedPairs.end() && kDecompositions[*at].second == second; ++at) {
    if (kDecompositions[*at].first == first) return kDecompositions[*at].composed;
  }
  return 0;
}

// True if the character may change what stands before it, or is changed itself: it is no place where a part of a text
// that is normalized on its own can begin.
bool interacts(uint32_t code_point) {
  if (code_point < kCombiningClasses[0].first) return false;  // U+0300; what is below composes only with what follows
  if (code_point - kVowels < kVowelCount || code_point - kTails - 1 < kTailCount - 1) return true;
  if (code_point - kSyllables < kSyllableCount) return false;
  if (combining_class(code_point) != 0) return true;
  const auto pair = first_pair(code_point);
  if (pair != kSortedPairs.end() && kDecompositions[*pair].second == code_point) return true;
  const Decomposition* row = find_decomposition(code_point);
  return row && !row->composes;
}

void decompose(uint32_t code_point, std::vector<uint32_t>& out) {
  if (code_point - kSyllables < kSyllableCount) {
    const uint32_t index = code_point - kSyllables;
    out.push_back(kLeads + index / (kVowelCount * kTailCount));
    out.push_back(kVowels + index / kTailCount % kVowelCount);
    if (index % kTailCount != 0) out.push_back(kTails + index % kTailCount);
  } else if (const Decomposition* row = code_point < 0xC0 ? nullptr : find_decomposition(code_point)) {
    decompose(row->first, out);  // at most four deep
    if (row->second != 0) decompose(row->second, out);
  } else {
    out.push_back(code_point);
  }
}

// The canonical order of decomposed characters, then composition (The Unicode Standard, 3.11).
void compose_part(std::vector<uint32_t>& part) {
  for (auto begin = part.begin(); begin != part.end();) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, part.end(), [](uint32_t c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end, [](uint32_t a, uint32_t b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
  constexpr size_t kNone = SIZE_MAX;
  size_t n = 0, starter = kNone;
  for (const uint32_t code_point : part) {
    const uint8_t own = combining_class(code_point);
    if (starter != kNone) {
      // A character between the two is in the way if its class is 0 or not below that of this one.
      const uint8_t before = starter + 1 < n ? combining_class(part[n - 1]) : 0;
      if (starter + 1 == n || (before != 0 && before < own)) {
        if (const uint32_t composed = compose(part[starter], code_point)) {
          part[starter] = composed;
          continue;
        }
      }
    }
    if (own == 0) starter = n;
    part[n++] = code_point;
  }
  part.resize(n);
}

}  // namespace

uint32_t take_code_point(std::string_view text, size_t& at) {
  const auto next = [&] { return static_cast<uint8_t>(text[at++]); };
  const uint32_t lead = next();
  if (lead < 0x80) return lead;
  int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  uint32_t code_point = lead & (0x3Fu >> more);
  while (more-- > 0) code_point = code_point << 6 | (next() & 0x3Fu);
  return code_point;
}

void append_code_point(uint32_t code_point, std::string& text) {
  const auto put = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) return put(code_point);
  if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      put(0xE0 | code_point >> 12);
    } else {
      put(0xF0 | code_point >> 18);
      put(0x80 | (code_point >> 12 & 0x3F));
    }
    put(0x80 | (code_point >> 6 & 0x3F));
  }
  put(0x80 | (code_point & 0x3F));
}

bool is_surely_nfc(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0xCC) {  // below U+0300; a continuation byte is not met here
      at += static_cast<uint8_t>(text[at]) < 0x80 ? 1 : 2;
    } else if (interacts(take_code_point(text, at))) {
      return false;
    }
  }
  return true;
}

std::string to_nfc(std::string_view text, Origins* origins) {
  std::string normalized;
  normalized.reserve(text.size());
  std::vector<uint32_t> part;
  const auto copy = [&](size_t begin, size_t end) {
    if (begin == end) return;
    if (origins) origins->add_copied(normalized.size(), begin);
    normalized += text.substr(begin, end - begin);
  };
  size_t copied = 0;   // what is before is in `normalized`
  size_t starter = 0;  // where the last character that does not interact begins
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!interacts(take_code_point(text, at))) {
      starter = begin;
      continue;
    }
    // The part reaches to the next character that does not interact.
    copy(copied, starter);
    part.clear();
    size_t end = starter;
    while (end < text.size()) {
      size_t next = end;
      const uint32_t code_point = take_code_point(text, next);
      if (end >= at && !interacts(code_point)) break;
      decompose(code_point, part);
      end = next;
    }
    compose_part(part);
    if (origins) origins->add_replaced(normalized.size(), starter);
    for (const uint32_t code_point : part) append_code_point(code_point, normalized);
    at = copied = starter = end;
  }
  copy(copied, text.size());
  return normalized;
}

std::string with_stand_ins(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0xE0) {  // all in the table have three bytes or four
      ++at;
      continue;
    }
    const size_t begin = at;
    const StandIn* row = find_range(kStandIns, take_code_point(text, at));
    if (!row) continue;
    if (out.empty()) out = text;
    std::string bytes;
    append_code_point(row->stand_in, bytes);
    std::copy(bytes.begin(), bytes.end(), out.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  return out;
}

}  // namespace quire
