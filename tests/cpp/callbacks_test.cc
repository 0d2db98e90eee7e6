// Callbacks: when they run and go, and what becomes of what they throw.
#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "tests/cpp/with_model.h"

namespace quire_cpp {
namespace {

using quire::Status;
using testing::HasSubstr;

struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Callbacks : public WithModel {
 protected:
  // That the call failed because of the exception, which value() throws again.
  template <typename T>
  static void expect_refusal(Status expected, quire::Result<T> result) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().status(), expected);
    EXPECT_THAT(result.error().message(), HasSubstr("no further"));
    EXPECT_TRUE(result.error().cause());
    EXPECT_THROW(std::move(result).value(), Refusal);
  }
  static quire::Session read(int n) {
    quire::Session made = session("dca(kv_chunk=16)");
    made.feed_tokens(some_ids(n)).value();
    prefill(made);
    return made;
  }
};

TEST_F(Callbacks, TheLogGoesWithItsRuntime) {
  // The log holds this until the library lets go of it.
  auto lines = std::make_shared<std::vector<std::string>>();
  const auto mutex = std::make_shared<std::mutex>();
  const std::weak_ptr<std::vector<std::string>> watched = lines;
  quire::RuntimeOptions options;
  options.n_threads = 1;
  options.log_level = quire::LogLevel::kInfo;
  options.log = [lines, mutex](quire::LogLevel level, std::string_view message) {
    const std::lock_guard<std::mutex> lock(*mutex);
    lines->push_back(std::string(quire::name(level)) + ": " + std::string(message));
  };
  auto own = quire::Runtime::create(options).value();
  options = {};
  quire::Model::load(own, kModel).value();
  own.close().value();
  EXPECT_THAT(*lines, testing::Contains(HasSubstr("text_256")));
  lines.reset();
  own.drop();
  EXPECT_TRUE(watched.expired());
}

TEST_F(Callbacks, LogLinesAreKeptUntilTheyAreTaken) {
  quire::RuntimeOptions options;
  options.n_threads = 1;
  options.log_level = quire::LogLevel::kInfo;
  options.n_kept_log_lines = 2;
  auto own = quire::Runtime::create(options).value();
  EXPECT_FALSE(own.take_log_line().value().has_value());
  for (int i = 0; i < 3; ++i) quire::Model::load(own, kModel).value();
  for (int i = 0; i < 2; ++i) {
    const auto line = own.take_log_line().value();
    ASSERT_TRUE(line.has_value());
    EXPECT_EQ(line->level, quire::LogLevel::kInfo);
    EXPECT_THAT(line->text, HasSubstr("text_256"));
    EXPECT_EQ(line->n_lost, 0);
  }
  EXPECT_FALSE(own.take_log_line().value().has_value());
  quire::Model::load(own, kModel).value();
  EXPECT_EQ(own.take_log_line().value()->n_lost, 1);
  own.close().value();
  EXPECT_EQ(status(own.take_log_line()), Status::kClosed);
}

TEST_F(Callbacks, ARuntimeThatIsRefusedLeavesThemToTheCaller) {
  auto held = std::make_shared<int>(0);
  quire::RuntimeOptions options;
  options.n_threads = -1;
  options.log = [held](quire::LogLevel, std::string_view) {};
  options.allocator.alloc = [held](size_t, size_t) { return nullptr; };  // and no free
  EXPECT_EQ(status(quire::Runtime::create(options)), Status::kInvalidArgument);
  options = {};
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(Callbacks, WhatALogAndAnAllocatorThrow) {
  std::atomic<int> n_logged = 0;
  quire::RuntimeOptions options;
  options.n_threads = 1;
  options.log_level = quire::LogLevel::kDebug;
  options.log = [&](quire::LogLevel, std::string_view) {
    ++n_logged;
    throw Refusal("no further");
  };
  auto own = quire::Runtime::create(options).value();
  EXPECT_TRUE(quire::Model::load(own, kModel));
  own.close().value();
  EXPECT_GT(n_logged, 0);
  options = {};
  options.allocator.alloc = [](size_t, size_t) -> void* { throw std::bad_alloc(); };
  options.allocator.free = [](void*, size_t, size_t) { throw Refusal("no further"); };
  own = quire::Runtime::create(options).value();
  EXPECT_EQ(status(quire::Model::load(own, kModel)), Status::kOutOfMemory);
  own.close().value();
}

TEST_F(Callbacks, WhatProgressThrows) {
  int n_calls = 0;
  const quire::Progress refuse = [&](int64_t, int64_t) {
    ++n_calls;
    throw Refusal("no further");
  };
  quire::ModelOptions model_options;
  model_options.progress = refuse;
  expect_refusal(Status::kCancelled, quire::Model::load(runtime, kModel, model_options));
  EXPECT_EQ(n_calls, 1);
  quire::AdapterOptions adapter_options;
  adapter_options.progress = refuse;
  expect_refusal(Status::kCancelled, quire::Adapter::load(model, kAdapters + "/attention", adapter_options));
  const quire::test::TemporaryFolder folder;
  quire::QuantizeOptions quantize_options;
  quantize_options.progress = refuse;
  expect_refusal(Status::kCancelled, quire::quantize_model(kModel, folder.file("model.gguf"), quantize_options));
  quire::Session document = read(100);
  document.save(folder.file("saved.quire")).value();
  quire::SnapshotOptions snapshot_options;
  snapshot_options.progress = refuse;
  expect_refusal(Status::kCancelled, quire::verify_snapshot(folder.file("saved.quire"), snapshot_options));
  auto store = quire::Store::open(folder.file("store")).value();
  expect_refusal(Status::kCancelled, store.put(document, "", snapshot_options));
  EXPECT_EQ(status(document.token_counts()), Status::kOk);
}

// A callback that stops its own call by the handle of the call.
TEST_F(Callbacks, ProgressMayCancel) {
  quire::ModelOptions options;
  options.cancel = quire::Cancel::create().value();
  options.progress = [&](int64_t, int64_t) { options.cancel.trigger(); };
  EXPECT_EQ(status(quire::Model::load(runtime, kModel, options)), Status::kCancelled);
}

TEST_F(Callbacks, WhatAWriterThrows) {
  quire::Session document = read(100);
  int n_aborted = 0;
  quire::SnapshotWriter writer;
  writer.write = [](quire::Span<const unsigned char>) -> quire::Result<void> { throw Refusal("no further"); };
  writer.abort = [&] {
    ++n_aborted;
    throw Refusal("not this either");
  };
  expect_refusal(Status::kIo, document.save(writer));
  EXPECT_EQ(n_aborted, 1);
  writer.write = [](quire::Span<const unsigned char>) -> quire::Result<void> { return {}; };
  writer.commit = []() -> quire::Result<void> { throw Refusal("no further"); };
  expect_refusal(Status::kIo, document.save(writer));
  EXPECT_EQ(n_aborted, 2);
}

TEST_F(Callbacks, WhatAReaderThrows) {
  std::vector<unsigned char> bytes;
  quire::SnapshotWriter writer;
  writer.write = [&](quire::Span<const unsigned char> part) -> quire::Result<void> {
    bytes.insert(bytes.end(), part.begin(), part.end());
    return {};
  };
  read(100).save(writer).value();
  const auto n_left = std::make_shared<std::atomic<int>>(0);
  quire::SnapshotReader reader;
  reader.n_bytes = static_cast<int64_t>(bytes.size());
  reader.read = [&bytes, n_left](int64_t offset, quire::Span<unsigned char> buffer) -> quire::Result<size_t> {
    if (--*n_left < 0) throw Refusal("no further");
    std::copy_n(bytes.begin() + offset, buffer.size(), buffer.begin());
    return buffer.size();
  };
  expect_refusal(Status::kIo, quire::describe_snapshot(reader));
  expect_refusal(Status::kIo, quire::verify_snapshot(reader));
  expect_refusal(Status::kIo, quire::Session::load(model, reader));
  quire::SessionOptions alone;
  alone.prefix_reuse = false;
  // From the first read on, until loading succeeds; what the session reads later fails on the runtime's threads.
  quire::Session loaded;
  for (int n = 1; !loaded; ++n) {
    *n_left = n;
    if (auto result = quire::Session::load(model, reader, alone)) loaded = *std::move(result);
  }
  *n_left = 0;
  auto stream = quire::Stream::open(loaded, go(2)).value();
  auto text = stream.read_all();
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().status(), Status::kIo);
  EXPECT_THAT(text.error().message(), HasSubstr("no further"));
  *n_left = 1 << 20;
  EXPECT_EQ(generate(loaded, go(2)).size(), 2u);
  loaded.close().value();
  loaded = {};
  reader = {};
  EXPECT_EQ(n_left.use_count(), 1);  // the library has let go of the copy
}

}  // namespace
}  // namespace quire_cpp
