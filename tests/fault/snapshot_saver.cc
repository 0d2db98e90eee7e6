// Saves one session to one path for ever, each time with a token more: for snapshot_kill_test.
//
//   snapshot_saver <path>
#include <cstdio>
#include <cstring>

#include "tests/abi/harness.h"

int main(int argc, char** argv) {
  using namespace quire::test;
  if (argc != 2) return 2;
  const auto runtime = make_runtime(1);
  const auto model = load_model(runtime.get(), "short_128");
  const auto session = make_session(model.get(), "longheads(chunk=16, chunks=4)");
  feed(session.get(), some_tokens(400, 64));
  if (generate(session.get(), 1).outcome.status != QUIRE_OK) return 3;
  for (uint32_t n = 0; n < 100000; ++n) {
    feed(session.get(), some_tokens(1, 64, n));
    if (quire_session_save(session.get(), argv[1], std::strlen(argv[1]), nullptr, nullptr) != QUIRE_OK) return 4;
    if (n == 0) {
      std::puts("saved");  // the test may kill from here on
      std::fflush(stdout);
    }
  }
  return 0;
}
