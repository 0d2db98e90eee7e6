// What the tests of quire.hpp share: a tiny model, and ways to look at errors.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "quire/quire.hpp"
#include "tests/source_path.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire_cpp {

inline const std::string kModel = quire::test::source_path("tests/golden/models/text_256");
inline const std::string kAdapters = quire::test::source_path("tests/golden/adapters");

// n ids that are no control tokens.
inline std::vector<int32_t> some_ids(int n) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) ids[static_cast<size_t>(i)] = 3 + i % 300;
  return ids;
}

template <typename T>
quire::Status status(const quire::Result<T>& result) {
  return result ? quire::Status::kOk : result.error().status();
}

class WithModel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    quire::RuntimeOptions options;
    options.n_threads = 2;
    runtime = quire::Runtime::create(options).value();
    model = quire::Model::load(runtime, kModel).value();
  }
  static void TearDownTestSuite() {
    model.drop();
    runtime.close().value();
    runtime.drop();
  }

  static quire::Session session(const std::string& strategy = "dca", quire::SessionOptions options = {}) {
    options.strategy = strategy;
    return quire::Session::create(model, options).value();
  }
  static quire::Session fed(const std::string& text, const std::string& strategy = "dca") {
    quire::Session made = session(strategy);
    made.feed_text(text).value();
    return made;
  }
  // Processes what was fed.
  static void prefill(quire::Session& session, quire::StreamOptions options = {}) {
    quire::Stream::open(session, options).value().read_all().value();
  }
  // n more tokens, whatever ends the text.
  static quire::StreamOptions go(int64_t n) {
    quire::StreamOptions options;
    options.max_tokens = n;
    options.ignore_eos = true;
    return options;
  }
  static std::vector<int32_t> generate(quire::Session& session, const quire::StreamOptions& options) {
    auto stream = quire::Stream::open(session, options).value();
    std::vector<int32_t> tokens;
    for (const quire::Event& event : stream) {
      if (event.kind() == quire::EventKind::kToken) tokens.push_back(event.token());
    }
    if (stream.failure()) throw quire::Exception(*stream.failure());
    return tokens;
  }

  inline static quire::Runtime runtime;
  inline static quire::Model model;
};

}  // namespace quire_cpp
