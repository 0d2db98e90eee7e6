#include "tests/fault/store_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace quire::test {
namespace {

Owned<quire_store> open(const std::string& path, int64_t budget_bytes) {
  quire_store_options options;
  quire_store_options_init(&options, sizeof options);
  options.budget_bytes = budget_bytes;
  Outcome outcome;
  quire_store* store = nullptr;
  outcome.status = quire_store_open(path.data(), path.size(), &options, &store, &outcome.error);
  EXPECT_EQ(outcome.status, QUIRE_OK) << outcome.text();
  return Owned<quire_store>(store);
}

nlohmann::json entries_of(quire_store* store) {
  std::string text(1 << 16, '\0');
  size_t n = 0;
  EXPECT_EQ(quire_store_describe(store, text.data(), text.size(), &n, nullptr), QUIRE_OK);
  text.resize(n);
  return nlohmann::json::parse(text)["entries"];
}

}  // namespace

int64_t fault_stride(int64_t n_calls) {
  const char* wanted = std::getenv("QUIRE_FAULT_RUNS");
  const int64_t runs = wanted ? std::atoll(wanted) : 6;
  return runs > 0 ? std::max<int64_t>(1, n_calls / runs) : 1;
}

StoreReader::StoreReader(const std::string& path, int64_t budget_bytes)
    : path_(path), budget_bytes_(budget_bytes), store_(open(path, budget_bytes)) {}

Owned<quire_session> StoreReader::read(size_t n_tokens, uint32_t seed) {
  std::vector<int32_t> ids = some_tokens(kLongText, kStoreVocab, seed);
  ids.resize(n_tokens);
  quire_session_options options = session_options(strategy_);
  quire_session* loaded = nullptr;
  quire_store_load(store_.get(), model_.get(), &options, ids.data(), ids.size(), nullptr, &loaded, nullptr);
  Owned<quire_session> session(loaded);
  if (!session) session = make_session(model_.get(), strategy_);
  feed(session.get(), {ids.begin() + position(session.get()).first, ids.end()});
  EXPECT_EQ(generate(session.get(), 0).outcome.status, QUIRE_OK);
  return session;
}

std::vector<float> StoreReader::read_on(quire_session* session, uint32_t seed) {
  const std::vector<int32_t> ids = some_tokens(kLongText, kStoreVocab, seed);
  feed(session, {ids.begin() + position(session).first, ids.end()});
  EXPECT_EQ(generate(session, 0).outcome.status, QUIRE_OK);
  return last_logits(session, kStoreVocab);
}

Outcome StoreReader::put(quire_session* session) {
  Outcome outcome;
  outcome.status = quire_store_put(store_.get(), session, nullptr, 0, nullptr, nullptr, &outcome.error);
  return outcome;
}

quire_store_match StoreReader::match(const std::vector<int32_t>& tokens) {
  quire_session_options options = session_options(strategy_);
  quire_store_match match;
  quire_store_match_init(&match, sizeof match);
  Outcome outcome;
  outcome.status =
      quire_store_find(store_.get(), model_.get(), &options, tokens.data(), tokens.size(), &match, &outcome.error);
  EXPECT_EQ(outcome.status, QUIRE_OK) << outcome.text();
  return match;
}

int64_t StoreReader::n_found(uint32_t seed) {
  std::vector<int32_t> ids = some_tokens(kLongText, kStoreVocab, seed);
  ids.push_back(3);  // a token is always left to be read
  return match(ids).n_tokens;
}

void StoreReader::expect_whole(size_t n_entries, bool may_be_torn) {
  store_ = open(path_, budget_bytes_);
  const auto entries = entries_of(store_.get());
  EXPECT_EQ(entries.size(), n_entries) << entries.dump(1);
  for (const auto& entry : entries) {
    const std::string name = entry["name"];
    Outcome outcome;
    outcome.status = quire_store_verify(store_.get(), name.data(), name.size(), nullptr, &outcome.error);
    const bool is_torn =
        may_be_torn && outcome.text().find("the last whole snapshot ends at byte") != std::string::npos;
    EXPECT_EQ(outcome.status, is_torn ? QUIRE_ERROR_BAD_FILE : QUIRE_OK) << outcome.text();
  }
  const auto n_files = std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
  EXPECT_EQ(n_files, static_cast<int64_t>(2 * n_entries) + 1);
}

void StoreReader::clear() {
  for (const auto& entry : entries_of(store_.get())) {
    const std::string name = entry["name"];
    EXPECT_EQ(quire_store_remove(store_.get(), name.data(), name.size(), nullptr), QUIRE_OK);
  }
}

}  // namespace quire::test
