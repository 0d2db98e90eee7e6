// Saves one session to one path for ever, each time with a token more: for snapshot_kill_test. After each save it
// writes how many tokens it saved, as an int64.
//
//   snapshot_saver <path> whole|append
#include <unistd.h>

#include <cstring>
#include <string_view>

#include "tests/abi/harness.h"

int main(int argc, char** argv) {
  using namespace quire::test;
  if (argc != 3) return 2;
  const auto runtime = make_runtime(1);
  const auto model = load_model(runtime.get(), "short_128");
  const auto session = make_session(model.get(), "longheads(chunk=16, chunks=4)");
  feed(session.get(), some_tokens(400, 64));
  quire_snapshot_options options;
  quire_snapshot_options_init(&options, sizeof options);
  options.flags = std::string_view(argv[2]) == "whole" ? QUIRE_SNAPSHOT_WHOLE : 0;
  for (;;) {
    if (generate(session.get(), 1).outcome.status != QUIRE_OK) return 3;
    if (quire_session_save(session.get(), argv[1], std::strlen(argv[1]), &options, nullptr) != QUIRE_OK) return 4;
    const int64_t n_tokens = position(session.get()).first;
    if (::write(STDOUT_FILENO, &n_tokens, sizeof n_tokens) != sizeof n_tokens) return 5;
  }
}
