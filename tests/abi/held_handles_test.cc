// A call that has begun keeps what it works on: handles are released inside its callbacks, and on another thread while
// one of them waits. The call goes on as if nobody had, and what it kept goes with its end.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tests/abi/harness.h"
#include "tests/abi/host_callbacks.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire::test {
namespace {

constexpr int32_t kVocab = 64;

Owned<quire_store> open_store(const std::string& path) {
  quire_store* store = nullptr;
  EXPECT_EQ(quire_store_open(path.data(), path.size(), nullptr, &store, nullptr), QUIRE_OK);
  return Owned<quire_store>(store);
}

Owned<quire_cancel> make_cancel() {
  quire_cancel* cancel = nullptr;
  EXPECT_EQ(quire_cancel_create(&cancel, nullptr), QUIRE_OK);
  return Owned<quire_cancel>(cancel);
}

// A session that has read and generated, of a runtime whose memory all comes back in the end.
class HeldHandles : public testing::Test {
 protected:
  HeldHandles() {
    feed(session_.get(), some_tokens(300, kVocab));
    EXPECT_EQ(generate(session_.get(), 4).outcome.status, QUIRE_OK);
  }
  ~HeldHandles() override {
    release_all();
    EXPECT_TRUE(memory_.wait_destroyed());
  }

  void release_all() {
    session_.reset();
    model_.reset();
    runtime_.reset();
  }
  HostCallbacks::Action releasing_all() {
    return [this] { release_all(); };
  }
  quire_snapshot_options snapshot_options() { return host_.options(quire_snapshot_options_init); }
  quire_status save_to() {
    const quire_snapshot_writer writer = host_.writer();
    return quire_session_save_to(session_.get(), &writer, nullptr, nullptr);
  }

  HostMemory memory_;
  HostCallbacks host_;
  TemporaryFolder folder_;
  Owned<quire_runtime> runtime_ = make_runtime(2, &memory_);
  Owned<quire_model> model_ = load_model(runtime_.get(), "short_128");
  Owned<quire_session> session_ = make_session(model_.get(), "dca", 48);
};

TEST_F(HeldHandles, ProgressOfSave) {
  const std::string path = folder_.file("session.quire");
  const quire_snapshot_options options = snapshot_options();
  host_.in_progress = releasing_all();
  ASSERT_EQ(quire_session_save(session_.get(), path.data(), path.size(), &options, nullptr), QUIRE_OK);
  EXPECT_FALSE(runtime_);
  EXPECT_EQ(quire_snapshot_verify(path.data(), path.size(), nullptr, nullptr), QUIRE_OK);
}

TEST_F(HeldHandles, Write) {
  host_.in_write = releasing_all();
  ASSERT_EQ(save_to(), QUIRE_OK);
  EXPECT_TRUE(host_.committed);
  const quire_snapshot_reader reader = host_.reader();
  EXPECT_EQ(quire_snapshot_verify_from(&reader, nullptr, nullptr), QUIRE_OK);
}

TEST_F(HeldHandles, Commit) {
  host_.in_commit = releasing_all();
  ASSERT_EQ(save_to(), QUIRE_OK);
  EXPECT_TRUE(host_.committed);
}

TEST_F(HeldHandles, Abort) {
  host_.write_fails = true;
  host_.in_abort = releasing_all();
  ASSERT_EQ(save_to(), QUIRE_ERROR_IO);
  EXPECT_TRUE(host_.aborted);
}

// The session reads chunks of the snapshot that it was loaded from while it is saved; the reader goes with it.
TEST_F(HeldHandles, ReadInsideSave) {
  ASSERT_EQ(save_to(), QUIRE_OK);
  const quire_snapshot_reader reader = host_.reader();
  quire_session* loaded = nullptr;
  const std::string strategy = "dca";
  quire_session_options options = session_options(strategy, 48);
  options.flags = QUIRE_SESSION_NO_PREFIX_REUSE;
  ASSERT_EQ(quire_session_load_from(model_.get(), &reader, &options, &loaded, nullptr), QUIRE_OK);
  session_.reset(loaded);
  HostCallbacks copy;
  const quire_snapshot_writer writer = copy.writer();
  host_.in_read = releasing_all();
  ASSERT_EQ(quire_session_save_to(session_.get(), &writer, nullptr, nullptr), QUIRE_OK);
  EXPECT_FALSE(host_.in_read);
  EXPECT_TRUE(memory_.wait_destroyed());
  EXPECT_TRUE(host_.reader_destroyed);
  EXPECT_EQ(copy.bytes.size(), host_.bytes.size());
}

TEST_F(HeldHandles, ReadInsideLoad) {
  ASSERT_EQ(save_to(), QUIRE_OK);
  const quire_snapshot_reader reader = host_.reader();
  quire_session* loaded = nullptr;
  host_.in_read = releasing_all();
  ASSERT_EQ(quire_session_load_from(model_.get(), &reader, nullptr, &loaded, nullptr), QUIRE_OK);
  session_.reset(loaded);
  EXPECT_EQ(position(session_.get()).first, 304);
}

TEST_F(HeldHandles, ProgressOfPutAndOfVerify) {
  const std::string path = folder_.file("store");
  Owned<quire_store> store = open_store(path);
  const quire_snapshot_options options = snapshot_options();
  quire_store_match match;
  quire_store_match_init(&match, sizeof match);
  host_.in_progress = [&] {
    store.reset();
    release_all();
  };
  ASSERT_EQ(quire_store_put(store.get(), session_.get(), "t", 1, &options, &match, nullptr), QUIRE_OK);
  EXPECT_FALSE(store);

  store = open_store(path);
  host_.in_progress = [&] { store.reset(); };
  EXPECT_EQ(quire_store_verify(store.get(), match.name, std::strlen(match.name), &options, nullptr), QUIRE_OK);
  EXPECT_FALSE(store);
}

TEST_F(HeldHandles, ProgressOfLoading) {
  const std::string adapter_path = model_directory("../adapters/attention"), path = model_directory("text_256");
  const auto options = host_.options(quire_model_options_init);
  quire_model* model = nullptr;
  session_.reset();
  model_.reset();
  host_.in_progress = [&] { runtime_.reset(); };
  ASSERT_EQ(quire_model_load(runtime_.get(), path.data(), path.size(), &options, &model, nullptr), QUIRE_OK);
  EXPECT_FALSE(runtime_);
  model_.reset(model);

  const auto adapter_options = host_.options(quire_adapter_options_init);
  quire_adapter* adapter = nullptr;
  host_.in_progress = [&] { model_.reset(); };
  const quire_status status =
      quire_adapter_load(model_.get(), adapter_path.data(), adapter_path.size(), &adapter_options, &adapter, nullptr);
  const Owned<quire_adapter> owned(adapter);
  ASSERT_EQ(status, QUIRE_OK);
  EXPECT_FALSE(model_);
}

// The handle is triggered, too: the call must still see that.
TEST_F(HeldHandles, CancelHandle) {
  Owned<quire_cancel> cancel;
  host_.in_progress = nullptr;
  const auto expect_cancelled = [&](auto options, const auto& call) {
    cancel = make_cancel();
    options.cancel = cancel.get();
    host_.in_progress = [&] {
      quire_cancel_trigger(cancel.get());
      cancel.reset();
    };
    EXPECT_EQ(call(&options), QUIRE_ERROR_CANCELLED);
    EXPECT_FALSE(cancel);
  };
  const std::string path = folder_.file("session.quire"), out = folder_.file("model.gguf");
  const std::string model_path = model_directory("text_256");
  expect_cancelled(snapshot_options(), [&](const quire_snapshot_options* options) {
    return quire_session_save(session_.get(), path.data(), path.size(), options, nullptr);
  });
  ASSERT_EQ(quire_session_save(session_.get(), path.data(), path.size(), nullptr, nullptr), QUIRE_OK);
  expect_cancelled(snapshot_options(), [&](const quire_snapshot_options* options) {
    return quire_snapshot_verify(path.data(), path.size(), options, nullptr);
  });
  expect_cancelled(host_.options(quire_quantize_options_init), [&](const quire_quantize_options* options) {
    return quire_model_quantize(model_path.data(), model_path.size(), out.data(), out.size(), options, nullptr);
  });
  expect_cancelled(host_.options(quire_model_options_init), [&](const quire_model_options* options) {
    quire_model* model = nullptr;
    return quire_model_load(runtime_.get(), model_path.data(), model_path.size(), options, &model, nullptr);
  });
}

// The host's own allocator, which the library calls inside calls on a session.
TEST(HeldHandlesOfAllocator, SessionInsideFillRandom) {
  HostMemory memory;
  HostCallbacks::Action action;
  memory.in_allocate = [&] {
    if (action) std::exchange(action, nullptr)();
  };
  Owned<quire_runtime> runtime = make_runtime(2, &memory);
  Owned<quire_model> model = load_model(runtime.get(), "short_128");
  Owned<quire_session> session = make_session(model.get(), "full");
  action = [&] {
    session.reset();
    model.reset();
    runtime.reset();
  };
  EXPECT_EQ(quire_session_fill_random(session.get(), 2000, 1, nullptr), QUIRE_OK);
  EXPECT_FALSE(session);
}

TEST_F(HeldHandles, AnotherThread) {
  Pause pause;
  pause.arm();
  host_.in_write = [&] { pause.here(); };
  quire_status status = QUIRE_ERROR_INTERNAL;
  std::thread saver([&, session = session_.get()] {
    const quire_snapshot_writer writer = host_.writer();
    status = quire_session_save_to(session, &writer, nullptr, nullptr);
  });
  pause.wait_for_arrival();
  release_all();
  EXPECT_GT(memory_.bytes(), 0);  // the call has it all
  pause.release();
  saver.join();
  EXPECT_EQ(status, QUIRE_OK);
  EXPECT_TRUE(host_.committed);
}

}  // namespace
}  // namespace quire::test
