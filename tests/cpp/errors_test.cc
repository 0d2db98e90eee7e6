// Every status that a call can return, as an Error and as an exception.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <limits>

#include "tests/cpp/with_model.h"
#include "tests/fault/model_copy.h"

namespace quire_cpp {
namespace {

using quire::Status;

class Errors : public WithModel {
 protected:
  // That the call failed so, and that value() throws the same.
  template <typename T>
  void expect(Status expected, quire::Result<T> result) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().status(), expected) << result.error().message();
    EXPECT_FALSE(result.error().message().empty());
    try {
      std::move(result).value();
      ADD_FAILURE() << "did not throw";
    } catch (const quire::Exception& exception) {
      EXPECT_EQ(exception.error().status(), expected);
      EXPECT_THAT(exception.what(), testing::StartsWith(std::string(quire::name(expected)) + ": "));
    }
  }
};

TEST_F(Errors, OfArguments) {
  quire::Session plain = session("full");
  expect(Status::kInvalidArgument, plain.truncate(-1));
  expect(Status::kInvalidArgument, plain.feed_positions({5, 6}, {9}));
  expect(Status::kInvalidText, plain.feed_text("half a \xe9\x9b"));
  expect(Status::kInvalidToken, plain.feed_tokens({5, 320}));
  expect(Status::kUnsupported, session("dca").feed_positions({5, 6}, {9, 10}));
  expect(Status::kEmpty, quire::Stream::open(plain, go(1)));
  const auto wrong = quire::describe_strategy({"full(wheels=3)", 4096});
  expect(Status::kBadStrategy, wrong);
  EXPECT_EQ(wrong.error().offset(), 5);
  plain.feed_tokens(some_ids(250)).value();
  expect(Status::kOverflow, quire::Stream::open(plain, go(100)));
  quire::SessionOptions small;
  small.kv_compressed_budget_bytes = 1;
  expect(Status::kBudget, quire::Session::create(model, small));
  expect(Status::kNotFound, plain.logits(7));
}

// Of the form of quire.h's functions: a result of which there cannot be so many elements.
quire_status endless(double*, std::size_t, std::size_t* needed, quire_error*) {
  *needed = std::numeric_limits<std::size_t>::max();
  return QUIRE_OK;
}

int n_calls = 0;

// Of that form, too: five elements.
quire_status five(std::int32_t* buf, std::size_t cap, std::size_t* needed, quire_error*) {
  ++n_calls;
  *needed = 5;
  if (cap < 5) return buf ? QUIRE_ERROR_BUFFER_TOO_SMALL : QUIRE_OK;
  std::fill_n(buf, 5, 7);
  return QUIRE_OK;
}

TEST(Results, OfAGuessedLengthTakeOneCall) {
  for (const std::size_t guess : {0u, 4u, 5u, 9u}) {
    n_calls = 0;
    EXPECT_EQ(quire::detail::guessed<std::vector<std::int32_t>>(guess, five).value(), std::vector<std::int32_t>(5, 7));
    EXPECT_EQ(n_calls, guess < 5 ? 2 : 1);
  }
}

TEST_F(Errors, OfResultsThatAreTooLarge) {
  quire::Session plain = session("full");
  expect(Status::kNotFound, plain.logits(0, std::int64_t{1} << 50));
  expect(Status::kNotFound, plain.scores(0, std::int64_t{1} << 50));
  expect(Status::kNotFound, plain.hidden_states(0, std::int64_t{1} << 50));
  expect(Status::kOutOfMemory, quire::detail::copied<std::vector<double>>(endless));
}

TEST_F(Errors, OfFiles) {
  const quire::test::TemporaryFolder folder;
  expect(Status::kNotFound, quire::Model::load(runtime, "/no/such/folder"));
  std::ofstream(folder.file("garbage.quire")) << "no snapshot";
  expect(Status::kBadFile, quire::Session::load(model, folder.file("garbage.quire")));
  quire::SnapshotWriter writer;
  writer.write = [](quire::Span<const unsigned char>) -> quire::Result<void> {
    return quire::Error(Status::kIo, "the shelf is full", 28);
  };
  const auto saved = session().save(writer);
  expect(Status::kIo, saved);
  EXPECT_EQ(saved.error().os_error(), 28);
  EXPECT_THAT(saved.error().message(), testing::HasSubstr("the shelf is full"));
}

TEST_F(Errors, OfHandles) {
  quire::Session busy = session();
  busy.feed_tokens(some_ids(20'000)).value();
  auto stream = quire::Stream::open(busy).value();
  expect(Status::kBusy, busy.feed_text("more"));
  busy.close().value();
  expect(Status::kClosed, busy.feed_text("more"));
  for (const quire::Event& event : stream) EXPECT_NE(event.kind(), quire::EventKind::kEnd);
  ASSERT_TRUE(stream.failure());
  EXPECT_EQ(stream.failure()->status(), Status::kClosed);
  expect(Status::kInvalidArgument, quire::Session().reset());  // nothing is in there
  const auto cancel = quire::Cancel::create().value();
  cancel.trigger();
  quire::ModelOptions options;
  options.cancel = cancel;
  expect(Status::kCancelled, quire::Model::load(runtime, kModel, options));
}

TEST_F(Errors, OfMemory) {
  std::atomic<bool> none = false;
  quire::RuntimeOptions options;
  options.n_threads = 1;
  options.allocator.alloc = [&](size_t size, size_t alignment) {
    return none ? nullptr : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  };
  options.allocator.free = [](void* memory, size_t, size_t) { std::free(memory); };
  auto own = quire::Runtime::create(options).value();
  none = true;
  expect(Status::kOutOfMemory, quire::Model::load(own, kModel));
  none = false;
  EXPECT_TRUE(quire::Model::load(own, kModel));
  own.close().value();
}

// Weights that are not numbers: the range ends, failure() says why, and the session goes on.
TEST_F(Errors, OfNumbers) {
  const quire::test::ModelCopy copy("text_256");
  quire::test::Safetensors weights(copy.read("model.safetensors"));
  weights.fill("model.embed_tokens.weight", size_t{319} * 64, 64, std::numeric_limits<float>::quiet_NaN());
  copy.write("model.safetensors", weights.file());
  const auto broken = quire::Model::load(runtime, copy.path()).value();
  auto session = quire::Session::create(broken).value();
  session.feed_tokens({5, 6, 319}).value();
  auto stream = quire::Stream::open(session, go(3)).value();
  for (const quire::Event& event : stream) EXPECT_NE(event.kind(), quire::EventKind::kToken);
  ASSERT_TRUE(stream.failure());
  EXPECT_EQ(stream.failure()->status(), Status::kNumeric);
  session.discard_pending().value();
  session.feed_tokens({5, 6}).value();
  EXPECT_EQ(generate(session, go(2)).size(), 2u);
}

// Those that no call of this header ends with here: a bug of the library, a buffer that C's callers give, a fault of a
// GPU.
TEST_F(Errors, OfCAlone) {
  quire_error error{};
  for (const auto& [code, name] :
       {std::pair(QUIRE_ERROR_INTERNAL, "INTERNAL"), std::pair(QUIRE_ERROR_BUFFER_TOO_SMALL, "BUFFER_TOO_SMALL"),
        std::pair(QUIRE_ERROR_DEVICE, "DEVICE"), std::pair(-999, "UNKNOWN")}) {
    error.code = code;
    const quire::Result<int> result = quire::Error(error);
    EXPECT_EQ(quire::name(result.error().status()), name);
    EXPECT_THROW((void)result.value(), quire::Exception);
  }
  EXPECT_EQ(quire::Result<int>(quire::Error(error)).value_or(3), 3);
  EXPECT_EQ(quire::Result<int>(4).value_or(3), 4);
}

TEST_F(Errors, Names) {
  EXPECT_EQ(quire::name(Status::kBadFile), "BAD_FILE");
  EXPECT_EQ(quire::name(Status::kTimeout), "TIMEOUT");
  EXPECT_EQ(quire::name(quire::Type::kQ8_0), "q8_0");
  EXPECT_EQ(quire::name(static_cast<quire::Type>(99)), "");
  EXPECT_EQ(quire::from_name<quire::Type>("q4_k"), quire::Type::kQ4K);
  EXPECT_EQ(quire::from_name<quire::Type>("q4"), std::nullopt);
  EXPECT_EQ(quire::version(), QUIRE_VERSION);
  EXPECT_EQ(quire::version_string(), "0.1.0");
}

}  // namespace
}  // namespace quire_cpp
