#include "lib/tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "lib/tokenizer/tokenizer.h"
#include "lib/tokenizer/unicode.h"

namespace quire {
namespace {

// Tables are at most half full, so longer ways to a free slot come from a file that was made for them.
constexpr size_t kMaxProbes = 1024;

Status too_many_collisions() { return Status(Code::kBadFile, "the vocabulary's texts or merges are made to collide"); }

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

size_t hash_of(uint64_t key) {
  key ^= key >> 32;
  key *= 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
  return static_cast<size_t>(key ^ key >> 29);
}

struct Later {  // the heap's top is the merge of the lowest rank; of several the leftmost
  bool operator()(const BpeModel::Workspace::Candidate& a, const BpeModel::Workspace::Candidate& b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  }
};

// Asked at each step, of which the first has the number 0; looks now and then alone, and not at parts of few steps.
bool is_stopped(const BpeModel::Workspace& work, size_t step) {
  constexpr size_t kEvery = 1 << 16;
  return step % kEvery == kEvery - 1 && work.cancel && work.cancel->cancelled();
}

}  // namespace

size_t TokenTable::slot(std::string_view text, size_t* n_probes) const {
  const size_t mask = slots_.size() - 1;
  *n_probes = 1;
  for (size_t at = std::hash<std::string_view>()(text) & mask;; at = (at + 1) & mask, ++*n_probes) {
    if (slots_[at] == 0) return at;
    const Entry& entry = entries_[slots_[at] - 1];
    if (std::string_view(texts_).substr(entry.begin, entry.size) == text) return at;
  }
}

void TokenTable::grow(size_t capacity) {
  slots_.assign(capacity, 0);
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    size_t n_probes = 0;
    slots_[slot(std::string_view(texts_).substr(entry.begin, entry.size), &n_probes)] = i + 1;
  }
}

void TokenTable::reserve(size_t n_texts) {
  const size_t capacity = std::bit_ceil(std::max<size_t>(16, 2 * n_texts));
  if (capacity > slots_.size()) grow(capacity);
  entries_.reserve(n_texts);
}

Status TokenTable::insert(int32_t id, std::string_view text) {
  if (2 * (entries_.size() + 1) > slots_.size()) grow(std::max<size_t>(16, 2 * slots_.size()));
  if (texts_.size() + text.size() > UINT32_MAX) return Status(Code::kBadFile, "the vocabulary has more than 4 GiB");
  size_t n_probes = 0;
  const size_t at = slot(text, &n_probes);
  if (n_probes > kMaxProbes) return too_many_collisions();
  if (slots_[at] != 0) {
    entries_[slots_[at] - 1].id = id;
    return {};
  }
  entries_.push_back({id, static_cast<uint32_t>(texts_.size()), static_cast<uint32_t>(text.size())});
  slots_[at] = static_cast<uint32_t>(entries_.size());
  texts_ += text;
  return {};
}

int32_t TokenTable::find(std::string_view text) const {
  if (slots_.empty()) return -1;
  size_t n_probes = 0;
  const uint32_t entry = slots_[slot(text, &n_probes)];
  return entry == 0 ? -1 : entries_[entry - 1].id;
}

Result<BpeModel> BpeModel::make(TokenTable tokens, const std::vector<Merge>& merges, Options options) {
  BpeModel model;
  model.tokens_ = std::move(tokens);
  model.options_ = std::move(options);
  model.pairs_.assign(std::bit_ceil(std::max<size_t>(16, 2 * merges.size())), Pair{kNoPair, 0, -1});
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    QUIRE_TRY(model.insert_pair(merges[rank], static_cast<uint32_t>(rank)));
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    model.byte_ids_.push_back(model.tokens_.find({&text, 1}));
  }
  return model;
}

Status BpeModel::insert_pair(const Merge& merge, uint32_t rank) {
  const uint64_t key = pair_key(merge.left, merge.right);
  const size_t mask = pairs_.size() - 1;
  size_t at = hash_of(key) & mask;
  for (size_t n_probes = 0; pairs_[at].key != kNoPair && pairs_[at].key != key; at = (at + 1) & mask) {
    if (++n_probes > kMaxProbes) return too_many_collisions();
  }
  pairs_[at] = {key, rank, merge.result};
  return {};
}

const BpeModel::Pair* BpeModel::find_pair(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  const size_t mask = pairs_.size() - 1;
  for (size_t at = hash_of(key) & mask; pairs_[at].key != kNoPair; at = (at + 1) & mask) {
    if (pairs_[at].key == key) return &pairs_[at];
  }
  return nullptr;
}

// The part as symbols that no merge has touched.
Status BpeModel::split(std::string_view part, Workspace& work) const {
  auto& symbols = work.symbols;
  symbols.clear();
  symbols.reserve(part.size());
  bool after_unknown = false;
  const auto add = [&](int32_t id, size_t begin) {
    symbols.push_back({id, static_cast<uint32_t>(begin), static_cast<int32_t>(symbols.size()) - 1,
                       static_cast<int32_t>(symbols.size()) + 1});
  };
  const auto add_unknown = [&](size_t begin) {
    if (options_.unknown >= 0 && !(after_unknown && options_.fuse_unknown)) add(options_.unknown, begin);
    after_unknown = true;
  };
  for (size_t at = 0, step = 0; at < part.size(); ++step) {
    if (is_stopped(work, step)) return encoding_cancelled();
    const size_t begin = at;
    int32_t id = -1;
    if (options_.bytes) {
      id = byte_ids_[static_cast<uint8_t>(part[at++])];
    } else {
      (void)take_code_point(part, at);
      id = tokens_.find(part.substr(begin, at - begin));
    }
    if (id >= 0) {
      add(id, begin);
    } else if (!options_.byte_fallback.empty()) {
      for (size_t i = begin; i < at; ++i) add(options_.byte_fallback[static_cast<uint8_t>(part[i])], i);
    } else {
      add_unknown(begin);
      continue;
    }
    after_unknown = false;
  }
  if (!symbols.empty()) symbols.back().next = -1;
  return {};
}

void BpeModel::add_candidate(Workspace& work, int32_t left) const {
  const auto& symbols = work.symbols;
  const int32_t right = left < 0 ? -1 : symbols[static_cast<size_t>(left)].next;
  if (right < 0) return;
  const Pair* pair = find_pair(symbols[static_cast<size_t>(left)].id, symbols[static_cast<size_t>(right)].id);
  if (!pair) return;
  work.candidates.push_back({pair->rank, static_cast<uint32_t>(left), pair->result});
  std::push_heap(work.candidates.begin(), work.candidates.end(), Later());
  ++work.n_steps;
}

Status BpeModel::merge(Workspace& work) const {
  auto& symbols = work.symbols;
  work.candidates.clear();
  work.candidates.reserve(symbols.size());
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    if (is_stopped(work, i)) return encoding_cancelled();
    if (const Pair* pair = find_pair(symbols[i].id, symbols[i + 1].id)) {
      work.candidates.push_back({pair->rank, static_cast<uint32_t>(i), pair->result});
    }
  }
  std::make_heap(work.candidates.begin(), work.candidates.end(), Later());
  work.n_steps += static_cast<int64_t>(work.candidates.size());
  for (size_t step = 0; !work.candidates.empty(); ++step) {
    if (is_stopped(work, step)) return encoding_cancelled();
    std::pop_heap(work.candidates.begin(), work.candidates.end(), Later());
    const auto [rank, at, result] = work.candidates.back();
    work.candidates.pop_back();
    ++work.n_steps;
    auto& left = symbols[at];
    if (left.id < 0 || left.next < 0) continue;
    auto& right = symbols[static_cast<size_t>(left.next)];
    // A candidate is out of date if its symbols have become others since. What counts is what the two would become.
    const Pair* pair = find_pair(left.id, right.id);
    if (!pair || pair->result != result) continue;
    left.id = result;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = static_cast<int32_t>(at);
    add_candidate(work, left.previous);
    add_candidate(work, static_cast<int32_t>(at));
  }
  return {};
}

}  // namespace quire
