// Closing a session or its runtime cancels calls that turn a long text into tokens.
#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/pause.h"
#include "tests/unit/session/hooked_tokenizer.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

// The parameter: whether the runtime is closed, or the session.
class CloseDuringText : public testing::TestWithParam<bool> {
 protected:
  CloseDuringText() {
    HookedTokenizer::put_into(*model_, nullptr, [this] { pause_.here(); });
  }

  // The call waits in the tokenizer until a close has begun. The close waits for its end.
  template <typename Call>
  Status closed_during(const Call& call) {
    Status status;
    std::thread caller([&] { status = call(); });
    pause_.wait_for_arrival();
    std::thread closer([&] { GetParam() ? model_->runtime->close() : session_->close(); });
    while (!session_->closing().cancelled()) std::this_thread::yield();
    pause_.release();
    caller.join();
    closer.join();
    return status;
  }

  Pause pause_;
  const std::shared_ptr<Model> model_ = load("text_256");
  const std::shared_ptr<Session> session_ = make_session(model_, with_strategy("full"));
};

TEST_P(CloseDuringText, Feed) {
  EXPECT_EQ(closed_during([&] { return session_->feed_text("The grass is green.", false, true); }).code(),
            Code::kClosed);
}

TEST_P(CloseDuringText, Edit) {
  EditResult result;
  EXPECT_EQ(closed_during([&] { return session_->edit_text("The sky is blue.", {}, &result); }).code(), Code::kClosed);
}

INSTANTIATE_TEST_SUITE_P(Of, CloseDuringText, testing::Bool(),
                         [](const auto& info) { return info.param ? "Runtime" : "Session"; });

}  // namespace
}  // namespace quire::test
