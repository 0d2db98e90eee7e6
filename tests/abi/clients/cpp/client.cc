// A client over quire.hpp. Prints what ../README.md says.
#include <cstdint>
#include <cstdio>

#include "quire/quire.hpp"

namespace {

quire::Session create_session(const char* path) {
  quire::RuntimeOptions one_thread;
  one_thread.n_threads = 1;
  const auto runtime = quire::Runtime::create(one_thread).value();
  quire::SessionOptions options;
  options.strategy = "dca";
  return quire::Session::create(quire::Model::load(runtime, path).value(), options).value();
}

void print_answer(quire::Session session) {
  session.feed_text("Once upon a time").value();
  quire::StreamOptions options;
  options.max_tokens = 16;
  options.ignore_eos = true;
  auto stream = quire::Stream::open(session, options).value();
  auto finish = quire::Finish::kNone;
  const char* blank = "";
  for (const quire::Event& event : stream) {
    finish = event.finish();
    if (event.kind() != quire::EventKind::kToken) continue;
    std::printf("%s%d", blank, static_cast<int>(event.token()));
    blank = " ";
  }
  const auto counts = session.token_counts().value();
  std::printf("\n%s %lld %lld\n", finish == quire::Finish::kMaxTokens ? "MAX_TOKENS" : "another",
              static_cast<long long>(counts.n_tokens), static_cast<long long>(counts.n_pending));
}

void print_error() {
  quire::StrategyOptions options;
  options.strategy = "full(wheels=3)";
  options.train_len = 4096;
  const auto result = quire::describe_strategy(options);
  std::printf("%s %lld\n", quire::name(result.error().status()).data(),
              static_cast<long long>(result.error().offset()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  print_answer(create_session(argv[1]));
  print_error();
}
