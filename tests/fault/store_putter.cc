// Puts the long text into a store, and is killed at a call: for store_kill_test. Exit status 0: there was no such call.
//
//   store_putter <directory> <kind of call> <its number>
#include <cstdlib>

#include "tests/fault/file_calls.h"
#include "tests/fault/store_reader.h"

int main(int argc, char** argv) {
  using namespace quire::test;
  if (argc != 4) return 2;
  StoreReader reader(argv[1]);
  const auto session = reader.read(kLongText);
  const int64_t n = std::atoll(argv[3]);
  FailingFiles killing({static_cast<FileCall>(std::atoi(argv[2])), n, n, 1, kKilled});
  return reader.put(session.get()).status == QUIRE_OK ? 0 : 3;
}
