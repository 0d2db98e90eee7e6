// Handles: in which order, where and how often they may go.
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "tests/cpp/with_model.h"

namespace quire_cpp {
namespace {

class Lifetime : public WithModel {};

// One of everything that hangs together, each as something that can be dropped.
struct World {
  World(const std::string& store_path) {
    quire::RuntimeOptions options;
    options.n_threads = 1;
    runtime = quire::Runtime::create(options).value();
    model = quire::Model::load(runtime, kModel).value();
    tokenizer = quire::Tokenizer::of(model).value();
    adapter = quire::Adapter::load(model, kAdapters + "/attention").value();
    store = quire::Store::open(store_path).value();
    cancel = quire::Cancel::create().value();
    quire::SessionOptions with_adapter;
    with_adapter.adapters = {{adapter, 1}};
    session = quire::Session::create(model, with_adapter).value();
    session.feed_text("Rain fell").value();
    quire::StreamOptions go;
    go.max_tokens = 2;
    stream = quire::Stream::open(session, go).value();
  }
  void drop(int what) {
    switch (what) {
      case 0:
        return runtime.drop();
      case 1:
        return model.drop();
      case 2:
        return tokenizer.drop();
      case 3:
        return adapter.drop();
      case 4:
        return session.drop();
      case 5:
        return stream.drop();
      default:
        store.drop();
        return cancel.drop();
    }
  }
  static constexpr int kThings = 7;

  quire::Runtime runtime;
  quire::Model model;
  quire::Tokenizer tokenizer;
  quire::Adapter adapter;
  quire::Session session;
  quire::Stream stream;
  quire::Store store;
  quire::Cancel cancel;
};

// Each thing goes first, second, ... last in one of these orders, and every pair goes either way round.
TEST_F(Lifetime, InEveryOrder) {
  const quire::test::TemporaryFolder folder;
  std::vector<int> order(World::kThings);
  std::iota(order.begin(), order.end(), 0);
  for (bool reversed : {false, true}) {
    for (int shift = 0; shift < World::kThings; ++shift) {
      World world(folder.path());
      std::vector<int> now = order;
      std::rotate(now.begin(), now.begin() + shift, now.end());
      if (reversed) std::reverse(now.begin(), now.end());
      for (int what : now) world.drop(what);
    }
  }
}

// As a collector's finalizers do it: each on a thread of its own, all at once.
TEST_F(Lifetime, OnOtherThreads) {
  const quire::test::TemporaryFolder folder;
  for (int i = 0; i < 5; ++i) {
    World world(folder.path());
    std::vector<std::thread> threads;
    for (int what = 0; what < World::kThings; ++what) threads.emplace_back([&world, what] { world.drop(what); });
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(Lifetime, CopiesShareAndMovesLeaveNothing) {
  quire::Session first = fed("Rain fell");
  quire::Session copy = first;
  EXPECT_EQ(copy, first);
  quire::Session moved = std::move(first);
  EXPECT_FALSE(first);  // NOLINT: what a move leaves
  EXPECT_EQ(copy, moved);
  copy.feed_text(" again").value();
  EXPECT_EQ(moved.token_counts().value().n_pending, copy.token_counts().value().n_pending);
  quire::Session other = session();
  other = copy;
  EXPECT_EQ(other, copy);
  quire_session* raw = other.detach();
  EXPECT_FALSE(other);
  const quire::Session taken(raw);
  EXPECT_EQ(taken, copy);
  EXPECT_NE(taken, session());
  quire::Stream stream = quire::Stream::open(copy, go(3)).value();
  const quire::Stream same = stream;
  EXPECT_TRUE(stream.read_all());
  const quire::Cancel cancel = quire::Cancel::create().value();
  const quire::Cancel cancel_too = cancel;
  const quire::Runtime runtime_too = runtime;
  const quire::Model model_too = model;
  const quire::Tokenizer tokenizer = quire::Tokenizer::of(model).value(), tokenizer_too = tokenizer;
  const quire::Adapter adapter = quire::Adapter::load(model, kAdapters + "/attention").value(), adapter_too = adapter;
  EXPECT_EQ(tokenizer, tokenizer_too);
  EXPECT_EQ(adapter, adapter_too);
  EXPECT_EQ(cancel, cancel_too);
}

TEST_F(Lifetime, AStreamOutlivesItsSession) {
  quire::Stream stream;
  {
    quire::Session reader = fed("Rain fell on the harbour");
    stream = quire::Stream::open(reader, go(8)).value();
  }
  EXPECT_FALSE(stream.read_all().value().empty());
}

// What sessions took comes back, whether they were closed or only dropped.
TEST_F(Lifetime, AThousandSessions) {
  std::atomic<int64_t> bytes = 0;
  quire::RuntimeOptions options;
  options.n_threads = 1;
  options.allocator.alloc = [&](size_t size, size_t alignment) {
    bytes += static_cast<int64_t>(size);
    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  };
  options.allocator.free = [&](void* memory, size_t size, size_t) {
    bytes -= static_cast<int64_t>(size);
    std::free(memory);
  };
  auto own = quire::Runtime::create(options).value();
  auto used = quire::Model::load(own, kModel).value();
  const auto read = [&](int i) {
    auto session = quire::Session::create(used).value();
    session.feed_tokens(some_ids(20)).value();
    generate(session, go(1));
    if (i % 2 == 0) session.close().value();
  };
  read(0);
  const int64_t after_one = bytes;
  for (int i = 0; i < 1000; ++i) read(i);
  // Sessions that were dropped go on a thread of the runtime, when it comes to it.
  for (int waited = 0; waited < 1000 && bytes > after_one; ++waited) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_LE(bytes, after_one);
  used.drop();
  own.close().value();
  own.drop();
  EXPECT_EQ(bytes, 0);
}

TEST_F(Lifetime, AClosedRuntimeEndsEverything) {
  quire::RuntimeOptions options;
  options.n_threads = 1;
  auto own = quire::Runtime::create(options).value();
  auto session = quire::Session::create(quire::Model::load(own, kModel).value()).value();
  session.feed_tokens(some_ids(200)).value();
  auto stream = quire::Stream::open(session).value();
  own.close().value();
  EXPECT_EQ(status(stream.read_all()), quire::Status::kClosed);
  EXPECT_EQ(status(session.reset()), quire::Status::kClosed);
}

}  // namespace
}  // namespace quire_cpp
