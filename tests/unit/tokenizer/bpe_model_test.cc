#include "lib/tokenizer/bpe_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/seed.h"

namespace quire {
namespace {

using Ids = std::vector<int32_t>;

struct Vocabulary {
  std::vector<std::string> texts;  // by id
  std::vector<BpeModel::Merge> merges;
};

// Tokens of a few letters, each merged from two of those before it.
Vocabulary random_vocabulary(std::mt19937_64& random, size_t n_letters, size_t n_merges) {
  Vocabulary made;
  for (size_t i = 0; i < n_letters; ++i) made.texts.emplace_back(1, static_cast<char>('a' + i));
  while (made.merges.size() < n_merges) {
    const auto left = static_cast<int32_t>(random() % made.texts.size());
    const auto right = static_cast<int32_t>(random() % made.texts.size());
    const std::string text = made.texts[static_cast<size_t>(left)] + made.texts[static_cast<size_t>(right)];
    if (text.size() > 12 || std::any_of(made.merges.begin(), made.merges.end(), [&](const auto& merge) {
          return merge.left == left && merge.right == right;
        })) {
      continue;
    }
    const auto at = std::find(made.texts.begin(), made.texts.end(), text);
    made.merges.push_back({left, right, static_cast<int32_t>(at - made.texts.begin())});
    if (at == made.texts.end()) made.texts.push_back(text);
  }
  std::shuffle(made.merges.begin(), made.merges.end(), random);
  return made;
}

Result<BpeModel> make(const Vocabulary& vocabulary, BpeModel::Options options = {}) {
  TokenTable table;
  for (size_t id = 0; id < vocabulary.texts.size(); ++id) {
    EXPECT_TRUE(table.insert(static_cast<int32_t>(id), vocabulary.texts[id]).ok());
  }
  return BpeModel::make(std::move(table), vocabulary.merges, std::move(options));
}

Ids encode(const BpeModel& model, std::string_view text, BpeModel::Workspace& work) {
  Ids ids;
  size_t before = 0;
  const Status status = model.encode(text, work, [&](int32_t id, size_t at) {
    EXPECT_TRUE(ids.empty() ? at == 0 : at > before);
    before = at;
    ids.push_back(id);
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return ids;
}

// The rule itself: of all neighbours that merge, those of the lowest rank, leftmost first.
Ids encode_slowly(const Vocabulary& vocabulary, std::string_view text) {
  Ids ids;
  for (const char c : text) ids.push_back(c - 'a');
  for (;;) {
    size_t best_at = 0;
    const BpeModel::Merge* best = nullptr;
    for (size_t at = 0; at + 1 < ids.size(); ++at) {
      for (const auto& merge : vocabulary.merges) {
        if (best && &merge >= best) break;
        if (merge.left != ids[at] || merge.right != ids[at + 1]) continue;
        best = &merge;
        best_at = at;
      }
    }
    if (!best) return ids;
    ids[best_at] = best->result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

TEST(BpeModel, MergesByRankThenFromTheLeft) {
  std::mt19937_64 random(test::seed());
  BpeModel::Workspace work;
  for (int i = 0; i < 60; ++i) {
    // Each text comes about in one way here: the fast way may use a result's first rank (as `tokenizers` does).
    Vocabulary vocabulary = random_vocabulary(random, 1 + random() % 4, 5 + random() % 20);
    std::map<int32_t, int> ways;
    for (const auto& merge : vocabulary.merges) ++ways[merge.result];
    std::erase_if(vocabulary.merges, [&](const auto& merge) { return ways[merge.result] > 1; });
    auto model = make(vocabulary);
    ASSERT_TRUE(model.ok());
    for (int k = 0; k < 20; ++k) {
      std::string text;
      for (size_t n = random() % 60; n > 0; --n) text += vocabulary.texts[random() % vocabulary.texts.size()][0];
      EXPECT_EQ(encode(*model, text, work), encode_slowly(vocabulary, text)) << text;
    }
  }
}

// Steps of the heap: each merge removes a symbol and adds two candidates at most.
TEST(BpeModel, WorkIsInProportionToTheText) {
  Vocabulary vocabulary{{"a"}, {}};
  for (int32_t i = 0; i < 12; ++i) {
    vocabulary.texts.push_back(vocabulary.texts.back() + vocabulary.texts.back());
    vocabulary.merges.push_back({i, i, i + 1});
  }
  auto model = make(vocabulary);
  ASSERT_TRUE(model.ok());
  for (const size_t n : {1000u, 100'000u}) {
    BpeModel::Workspace work;
    EXPECT_EQ(encode(*model, std::string(n, 'a'), work).size(),
              n / 4096 + static_cast<size_t>(std::popcount(n % 4096)));
    EXPECT_LT(work.n_steps, static_cast<int64_t>(6 * n));
  }
}

// A part is not cut, and may be long.
TEST(BpeModel, StopsInsideAPart) {
  auto model = make({{"a", "aa"}, {{0, 0, 1}}});
  ASSERT_TRUE(model.ok());
  CancelToken cancel;
  BpeModel::Workspace work;
  work.cancel = &cancel;
  const std::string text(1 << 17, 'a');
  EXPECT_EQ(encode(*model, text, work).size(), text.size() / 2);
  cancel.cancel();
  const auto ignore = [](int32_t, size_t) {};
  EXPECT_EQ(model->encode(text, work, ignore).code(), Code::kCancelled);
}

TEST(BpeModel, IgnoreMerges) {
  const Vocabulary vocabulary{{"a", "b", "ab", "aba"}, {{0, 1, 2}}};
  BpeModel::Workspace work;
  EXPECT_EQ(encode(*make(vocabulary), "aba", work), (Ids{2, 0}));
  EXPECT_EQ(encode(*make(vocabulary, {.ignore_merges = true, .byte_fallback = {}}), "aba", work), Ids{3});
}

TEST(BpeModel, Unknown) {
  const Vocabulary vocabulary{{"a", "?"}, {}};
  BpeModel::Workspace work;
  EXPECT_EQ(encode(*make(vocabulary), "axxa", work), (Ids{0, 0}));
  EXPECT_EQ(encode(*make(vocabulary, {.unknown = 1, .byte_fallback = {}}), "axxa", work), (Ids{0, 1, 1, 0}));
  EXPECT_EQ(encode(*make(vocabulary, {.unknown = 1, .fuse_unknown = true, .byte_fallback = {}}), "axxax", work),
            (Ids{0, 1, 0, 1}));
  BpeModel::Options bytes{.bytes = false, .byte_fallback = Ids(256)};
  for (int32_t i = 0; i < 256; ++i) bytes.byte_fallback[static_cast<size_t>(i)] = 1000 + i;
  EXPECT_EQ(encode(*make(vocabulary, bytes), "a\xC3\xA9", work), (Ids{0, 1000 + 0xC3, 1000 + 0xA9}));
}

TEST(TokenTable, FindsAfterGrowing) {
  TokenTable table;
  EXPECT_EQ(table.find("1"), -1);
  for (int32_t i = 0; i < 5000; ++i) ASSERT_TRUE(table.insert(i, std::to_string(i)).ok());
  ASSERT_TRUE(table.insert(9999, "17").ok());
  EXPECT_EQ(table.find("17"), 9999);
  EXPECT_EQ(table.find("4999"), 4999);
  EXPECT_EQ(table.find("5000"), -1);
  EXPECT_EQ(table.find(""), -1);
}

}  // namespace
}  // namespace quire
