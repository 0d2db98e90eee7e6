// Closing a session or the runtime cancels calls that run: they return CLOSED soon, and leave what calls that fail
// leave.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>

#include "tests/abi/harness.h"
#include "tests/abi/host_callbacks.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire::test {
namespace {

constexpr int32_t kVocab = 64;

std::string describe(const std::string& path) {
  std::string text(4096, '\0');
  size_t needed = 0;
  EXPECT_EQ(quire_snapshot_describe(path.data(), path.size(), text.data(), text.size(), &needed, nullptr), QUIRE_OK);
  text.resize(needed);
  return text;
}

// The parameter: whether the runtime is closed, or the session.
class Close : public testing::TestWithParam<bool> {
 protected:
  Close() {
    memory_.in_allocate = [this] { pause_.here(); };
    runtime_ = make_runtime(2, &memory_);
    model_ = load_model(runtime_.get(), "short_128");
    session_ = make_session(model_.get(), "dca", 48);
  }
  ~Close() override {
    session_.reset();
    model_.reset();
    runtime_.reset();
    EXPECT_TRUE(memory_.wait_destroyed());
  }

  void read(size_t n_tokens) {
    feed(session_.get(), some_tokens(n_tokens, kVocab));
    EXPECT_EQ(generate(session_.get(), 0).outcome.status, QUIRE_OK);
  }
  quire_status close() {
    return GetParam() ? quire_runtime_close(runtime_.get(), nullptr) : quire_session_close(session_.get(), nullptr);
  }
  bool close_has_begun() {
    int32_t n_devices;
    const quire_status status = GetParam() ? quire_runtime_get_device_count(runtime_.get(), &n_devices, nullptr)
                                           : quire_session_get_token_counts(session_.get(), nullptr, nullptr, nullptr);
    return status == QUIRE_ERROR_CLOSED;
  }
  // What a call returns that comes to pause_, waits there until a close has begun, and then goes on.
  quire_status closed_during(const std::function<quire_status()>& call) {
    quire_status status = QUIRE_OK;
    pause_.arm();
    std::thread caller([&] { status = call(); });
    pause_.wait_for_arrival();
    std::thread closer([&] {
      EXPECT_EQ(close(), QUIRE_OK);
      close_is_over_ = true;
    });
    while (!close_has_begun()) std::this_thread::yield();
    pause_.release();
    caller.join();
    closer.join();
    return status;
  }
  void pause_in(HostCallbacks::Action& callback) {
    callback = [this] { pause_.here(); };
  }
  // In a callback for which the close that has begun waits.
  void expect_close_to_wait() {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(close_is_over_);
  }
  quire_status save(uint32_t flags) {
    auto options = host_.options(quire_snapshot_options_init);
    options.flags = flags;
    return quire_session_save(session_.get(), path_.data(), path_.size(), &options, nullptr);
  }
  void expect_old_snapshot_after_save(uint32_t flags) {
    read(300);
    ASSERT_EQ(save(0), QUIRE_OK);
    read(300);
    pause_in(host_.in_progress);
    EXPECT_EQ(closed_during([&] { return save(flags); }), QUIRE_ERROR_CLOSED);
    EXPECT_EQ(quire_snapshot_verify(path_.data(), path_.size(), nullptr, nullptr), QUIRE_OK);
    EXPECT_NE(describe(path_).find("\"n_tokens\":300,"), std::string::npos) << describe(path_);
    const std::filesystem::directory_iterator files(folder_.path());
    EXPECT_EQ(std::distance(begin(files), end(files)), 1);  // none of another name is left
  }

  HostMemory memory_;
  HostCallbacks host_;
  Pause pause_;
  std::atomic<bool> close_is_over_{false};
  TemporaryFolder folder_;
  const std::string path_ = folder_.file("session.quire");
  Owned<quire_runtime> runtime_;
  Owned<quire_model> model_;
  Owned<quire_session> session_;
};

TEST_P(Close, DuringSaveTo) {
  read(300);
  const quire_snapshot_writer writer = host_.writer();
  pause_in(host_.in_write);
  host_.in_abort = [this] { expect_close_to_wait(); };
  EXPECT_EQ(closed_during([&] { return quire_session_save_to(session_.get(), &writer, nullptr, nullptr); }),
            QUIRE_ERROR_CLOSED);
  EXPECT_TRUE(host_.aborted);
  EXPECT_FALSE(host_.committed);
}

TEST_P(Close, DuringSaveOfAWholeFile) { expect_old_snapshot_after_save(QUIRE_SNAPSHOT_WHOLE); }

TEST_P(Close, DuringSaveBehindAnotherSnapshot) { expect_old_snapshot_after_save(0); }

// The part of the text that an entry can have is saved from a session of its own.
TEST_P(Close, DuringPutOfAPart) {
  read(300);
  feed(session_.get(), some_tokens(10, kVocab));
  const std::string path = folder_.file("store");
  quire_store* store = nullptr;
  ASSERT_EQ(quire_store_open(path.data(), path.size(), nullptr, &store, nullptr), QUIRE_OK);
  const Owned<quire_store> owned(store);
  const auto options = host_.options(quire_snapshot_options_init);
  host_.in_progress = [this] {
    pause_.here();
    expect_close_to_wait();
  };
  EXPECT_EQ(
      closed_during([&] { return quire_store_put(store, session_.get(), nullptr, 0, &options, nullptr, nullptr); }),
      QUIRE_ERROR_CLOSED);
}

TEST_P(Close, DuringPut) {
  read(300);
  const std::string path = folder_.file("store");
  quire_store* store = nullptr;
  ASSERT_EQ(quire_store_open(path.data(), path.size(), nullptr, &store, nullptr), QUIRE_OK);
  const Owned<quire_store> owned(store);
  const auto options = host_.options(quire_snapshot_options_init);
  pause_in(host_.in_progress);
  EXPECT_EQ(
      closed_during([&] { return quire_store_put(store, session_.get(), nullptr, 0, &options, nullptr, nullptr); }),
      QUIRE_ERROR_CLOSED);
  std::string text(4096, '\0');
  size_t needed = 0;
  ASSERT_EQ(quire_store_describe(store, text.data(), text.size(), &needed, nullptr), QUIRE_OK);
  EXPECT_NE(text.find("\"entries\":[]"), std::string::npos) << text;
  EXPECT_NE(text.find("\"unknown\":[]"), std::string::npos) << text;
}

TEST_P(Close, DuringFillRandom) {
  EXPECT_EQ(closed_during([&] { return quire_session_fill_random(session_.get(), 20'000, 1, nullptr); }),
            QUIRE_ERROR_CLOSED);
}

INSTANTIATE_TEST_SUITE_P(Of, Close, testing::Bool(),
                         [](const auto& info) { return info.param ? "Runtime" : "Session"; });

}  // namespace
}  // namespace quire::test
