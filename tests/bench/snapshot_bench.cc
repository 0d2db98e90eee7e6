// A document that is opened again, and one that is forked, against reading it; and snapshots against the disk.
//
//   quire_bench_snapshot MODEL STRATEGY TOKENS [DIRECTORY]
//
// Reads TOKENS made-up tokens, saves the session to DIRECTORY (default: /tmp), loads it with the file in the page cache
// and without, forks it, and saves it again with an answer behind the text. Fails if a token differs, or if a fork
// takes a hundredth of the KV cache's bytes. The disk's own figures are those of one file of as many bytes: written in
// pieces of 1 MiB and synced, dropped from the page cache, and read.
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "tests/bench/sessions.h"

namespace quire::bench {
namespace {

constexpr int kRounds = 5;
constexpr int64_t kAnswer = 8;

void drop_cached(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY);
  if (fd < 0 || ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0) std::perror(path.c_str());
  ::close(fd);
}

// Nowhere: what making a snapshot costs beside writing it.
class NoSink : public ByteSink {
 public:
  Status write(std::span<const std::byte>) override { return {}; }
  Status barrier() override { return {}; }
  Status commit() override { return {}; }
};

// By the whole process.
int64_t allocated_bytes() {
  const auto use = mallinfo2();
  return static_cast<int64_t>(use.uordblks + use.hblkhd);
}

struct Disk {
  double write = 0, read = 0, read_cached = 0;  // bytes a second
};

Disk measure_disk(const std::string& path, int64_t bytes) {
  std::vector<char> piece(size_t{1} << 20, 'x');
  const auto pass = [&](int flags, const auto& transfer) {
    const int fd = ::open(path.c_str(), flags, 0600);
    for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(piece.size())) {
      if (fd < 0 || transfer(fd) <= 0) std::exit((std::perror(path.c_str()), 1));
    }
    if ((flags & O_CREAT) != 0) ::fsync(fd);
    ::close(fd);
  };
  const auto rate = [&](double s) { return static_cast<double>(bytes) / s; };
  Disk disk;
  disk.write = rate(seconds(
      [&] { pass(O_CREAT | O_TRUNC | O_WRONLY, [&](int fd) { return ::write(fd, piece.data(), piece.size()); }); }));
  const auto read = [&] { pass(O_RDONLY, [&](int fd) { return ::read(fd, piece.data(), piece.size()); }); };
  drop_cached(path);
  disk.read = rate(seconds(read));
  disk.read_cached = rate(seconds(read));
  std::filesystem::remove(path);
  return disk;
}

int run(const std::string& model_path, const std::string& strategy, int64_t n_tokens, const std::string& directory) {
  const auto model = take(load_model(std::make_shared<Runtime>(RuntimeOptions()), model_path, {}));
  const std::string path = directory + "/quire_bench.quire";
  SessionOptions options;
  options.strategy = strategy;
  options.overflow = OverflowPolicy::kExtrapolate;
  const auto session = take(Session::create(model, options));
  feed(*session, n_tokens);
  const double reading = seconds([&] { generate(session, 1); });
  const double saving = seconds([&] { check(session->save(path, {})); });
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  double making = saving;  // at best: it is work alone
  for (int round = 0; round < 4 * kRounds; ++round) {
    NoSink nowhere;
    making = std::min(making, seconds([&] { check(session->save_to(nowhere, {})); }));
  }

  std::vector<double> forks, warm, cold, opening;
  int64_t fork_bytes = 0;  // allocated for one
  const auto fork = take(session->fork());
  const std::vector<int32_t> expected = generate(session, kAnswer);
  bool same = generate(fork, kAnswer) == expected;
  for (int round = 0; round < kRounds; ++round) {
    std::shared_ptr<Session> another;  // which is not released while it is timed
    const int64_t before = allocated_bytes();
    forks.push_back(seconds([&] { another = take(fork->fork()); }));
    fork_bytes = std::max(fork_bytes, allocated_bytes() - before);
    for (std::vector<double>* times : {&cold, &warm}) {
      if (times == &cold) drop_cached(path);
      std::shared_ptr<Session> loaded;
      const double load = seconds([&] { loaded = take(Session::load(model, path, {})); });
      if (times == &warm) opening.push_back(load);
      // Each needs the keys of the whole text.
      times->push_back(load + seconds([&] { generate(loaded, 2); }));
      const std::vector<int32_t> rest = generate(loaded, kAnswer - 2);
      same = same && std::equal(rest.begin(), rest.end(), expected.begin() + 2);
    }
  }
  const double appending = seconds([&] { check(session->save(path, {})); });
  const int64_t appended = static_cast<int64_t>(std::filesystem::file_size(path)) - bytes;
  std::filesystem::remove(path);
  const Disk disk = measure_disk(path, bytes);

  std::printf("%lld tokens, %s: snapshot of %.1f MB\n", static_cast<long long>(n_tokens), strategy.c_str(),
              1e-6 * static_cast<double>(bytes));
  std::printf("reading the text and the first token: %.2f s\n", reading);
  const auto opened = [&](const char* what, double s) {
    std::printf("opened again, two tokens, %s: %.3f s, %.0f times sooner\n", what, s, reading / s);
  };
  opened("file in the page cache", median(warm));
  opened("file on the disk", median(cold));
  const double fork_share = static_cast<double>(fork_bytes) / static_cast<double>(stats_of(*session).kv_bytes);
  std::printf("opening alone: %.2f ms; a fork: %.2f ms, and %.4f of the KV cache's bytes\n", 1e3 * median(opening),
              1e3 * median(forks), fork_share);
  std::printf(
      "saving: %.0f MB/s, %.2f of writing a file; the disk writes %.0f and reads %.0f MB/s, the page cache %.0f\n",
      1e-6 * static_cast<double>(bytes) / saving, static_cast<double>(bytes) / saving / disk.write, 1e-6 * disk.write,
      1e-6 * disk.read, 1e-6 * disk.read_cached);
  std::printf("without the disk: %.0f MB/s; appending %lld tokens: %.2f MB, %.1f ms\n",
              1e-6 * static_cast<double>(bytes) / making, static_cast<long long>(kAnswer),
              1e-6 * static_cast<double>(appended), 1e3 * appending);
  std::printf("same tokens: %s\n", same ? "yes" : "NO");
  return same && fork_share < 0.01 ? 0 : 1;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: quire_bench_snapshot MODEL STRATEGY TOKENS [DIRECTORY]\n");
    return 2;
  }
  return quire::bench::run(argv[1], argv[2], std::atoll(argv[3]), argc > 4 ? argv[4] : "/tmp");
}
