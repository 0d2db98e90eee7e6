// The tiers below memory: how fast records move, and what a session with a quarter of its KV cache in memory waits.
//
//   quire_bench_tiers MODEL TEXT STRATEGY TOKENS [KV_TYPE [ROUNDS [DIRECTORY]]]      KV_TYPE: bf16, f16 (default), f32
//
// Reads the first TOKENS tokens of the file TEXT and generates, first with everything in memory; then, ROUNDS times in
// turn (default: 3), with a quarter of that in memory and the rest in a file, in as much compressed memory before a
// file, and in compressed memory alone. Fails if a token differs or a budget was exceeded. The records of that session
// are what the tiers' own rates are measured with, beside memcpy and files of the same size in the same run. Figures
// are medians.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>
#include <random>
#include <string>

#include "lib/format/snapshot_file.h"
#include "lib/kv/compressed_tier.h"
#include "lib/kv/file_tier.h"
#include "tests/bench/sessions.h"

namespace quire::bench {
namespace {

constexpr int64_t kAnswer = 32;
constexpr size_t kMostRecords = 160;

using Bytes = std::vector<std::byte>;

struct Bench {
  std::shared_ptr<Model> model;
  std::string text, directory;
  int64_t n_tokens;
  int rounds;
};

std::shared_ptr<Session> read_text(const Bench& bench, const SessionOptions& options) {
  auto session = take(Session::create(bench.model, options));
  check(
      session->feed_text(std::string_view(bench.text).substr(0, static_cast<size_t>(8 * bench.n_tokens)), false, true));
  if (stats_of(*session).n_pending > bench.n_tokens) check(session->truncate(bench.n_tokens));
  return session;
}

// Records of the session, as they are in a snapshot.
std::vector<Bytes> records_of(Session& session, const std::string& directory) {
  const std::string path = directory + "/quire_bench_tiers.quire";
  check(session.save(path, {}));
  const auto file = take(SnapshotFile::open(take(ReadFile::open(path))));
  const int64_t bytes = stats_of(session).kv_record_bytes;
  std::vector<Bytes> records;
  for (int64_t block = 0; block < file->n_blocks() && records.size() < kMostRecords; ++block) {
    if (file->block_bytes(block) != bytes) continue;
    records.emplace_back(static_cast<size_t>(bytes));
    check(file->read(block, records.back()));
  }
  std::filesystem::remove(path);
  return records;
}

// Bytes a second of writing and reading all records.
struct Rates {
  std::vector<double> write, read;
};

void measure_tier(Tier& tier, const std::vector<Bytes>& records, Rates& rates) {
  const auto slots = take(tier.take_slots(static_cast<int64_t>(records.size())));
  Bytes record(records[0].size());
  const auto bytes = static_cast<double>(records.size() * record.size());
  rates.write.push_back(bytes / seconds([&] {
                          for (size_t i = 0; i < slots.size(); ++i) check(tier.write(slots[i], records[i].data()));
                        }));
  rates.read.push_back(bytes / seconds([&] {
                         for (const int64_t slot : slots) check(tier.read(slot, record.data()));
                       }));
  for (const int64_t slot : slots) tier.free_slot(slot);
}

// How a file is read: in the order of the records or in another one, and so many records announced before each.
struct Reading {
  bool cold = false;  // the file is synced and dropped from the page cache before
  bool in_order = true;
  size_t n_announced = 0;
};

// The system's own calls, a record each.
void measure_file(const std::string& directory, const std::vector<Bytes>& records, const Reading& how, Rates& rates) {
  const std::string path = directory + "/quire_bench_tiers.file";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) std::exit((std::perror(path.c_str()), 1));
  const size_t size = records[0].size();
  const auto bytes = static_cast<double>(records.size() * size);
  Bytes record(size);
  std::vector<size_t> order(records.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (!how.in_order) std::shuffle(order.begin(), order.end(), std::mt19937(1));
  const auto place = [&](size_t i) { return static_cast<off_t>(order[i] * size); };
  const auto check_size = [&](ssize_t n) {
    if (n != static_cast<ssize_t>(size)) std::exit((std::perror(path.c_str()), 1));
  };
  rates.write.push_back(bytes / seconds([&] {
                          for (size_t i = 0; i < records.size(); ++i) {
                            check_size(::pwrite(fd, records[order[i]].data(), size, place(i)));
                          }
                          if (how.cold) ::fdatasync(fd);
                        }));
  if (how.cold) ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  if (!how.in_order) ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  rates.read.push_back(bytes / seconds([&] {
                         size_t announced = 1;
                         for (size_t i = 0; i < records.size(); ++i) {
                           const size_t soon = std::min(records.size(), i + 1 + how.n_announced);
                           for (announced = std::max(announced, i + 1); announced < soon; ++announced) {
                             ::posix_fadvise(fd, place(announced), static_cast<off_t>(size), POSIX_FADV_WILLNEED);
                           }
                           check_size(::pread(fd, record.data(), size, place(i)));
                         }
                       }));
  ::close(fd);
  std::filesystem::remove(path);
}

void measure_tiers(const Bench& bench, const std::vector<Bytes>& records, ElementType type) {
  const auto size = static_cast<int64_t>(records[0].size());
  const auto width = static_cast<int64_t>(element_bytes(type));
  Rates memory, cached, disk, apart, announced, compressed, file;
  Allocator allocator;
  const int64_t room = CompressedTier::most_bytes(size, width, static_cast<int64_t>(records.size()));
  const auto tier = take(CompressedTier::create(allocator, {size, width, room}, nullptr));
  for (int round = 0; round < bench.rounds; ++round) {
    Bytes to(static_cast<size_t>(size));
    memory.read.push_back(static_cast<double>(records.size()) * static_cast<double>(size) / seconds([&] {
                            for (const Bytes& record : records) std::memcpy(to.data(), record.data(), record.size());
                          }));
    measure_file(bench.directory, records, {}, cached);
    measure_file(bench.directory, records, {.cold = true}, disk);
    measure_file(bench.directory, records, {.cold = true, .in_order = false}, apart);
    measure_file(bench.directory, records, {.cold = true, .in_order = false, .n_announced = 8}, announced);
    measure_tier(*tier, records, compressed);
    measure_tier(*take(FileTier::create(bench.directory, size, 0)), records, file);
  }
  std::printf("%zu records of %lld bytes\n", records.size(), static_cast<long long>(size));
  const double copy = median(memory.read);
  std::printf("%-34s %10s %10s   of memcpy (%.0f MB/s)\n", "MB/s", "write", "read", 1e-6 * copy);
  const auto row = [&](const char* name, const Rates& rates) {
    const double to = median(rates.write), from = median(rates.read);
    std::printf("%-34s %10.0f %10.0f   %.3f %.3f\n", name, 1e-6 * to, 1e-6 * from, to / copy, from / copy);
  };
  row("compressed tier", compressed);
  row("file tier", file);
  row("pwrite, pread in the page cache", cached);
  row("disk: synced, dropped, read", disk);
  row("disk, in no order", apart);
  row("disk, in no order, 8 announced", announced);
}

int run(Bench bench, const std::string& strategy, ElementType type) {
  SessionOptions options;
  options.strategy = strategy;
  options.kv_type = type;
  options.overflow = OverflowPolicy::kExtrapolate;
  const auto whole = read_text(bench, options);
  const std::vector<int32_t> expected = generate(whole, kAnswer);
  const SessionStats all = stats_of(*whole);
  measure_tiers(bench, records_of(*whole, bench.directory), type);
  whole->close();

  struct Case {
    const char* name;
    int64_t compressed;
    bool file;
    std::vector<double> prefill, decode;
    SessionStats stats;
  };
  const int64_t quarter = all.kv_bytes_peak / 4;
  Case cases[] = {{"all in memory", 0, false, {}, {}, {}},
                  {"a quarter, and a file", 0, true, {}, {}, {}},
                  {"a quarter, as much compressed, file", quarter, true, {}, {}, {}},
                  {"a quarter, and compressed", 4 * all.kv_bytes_peak, false, {}, {}, {}}};
  bool good = true;
  for (int round = 0; round < bench.rounds; ++round) {
    for (Case& c : cases) {
      SessionOptions with = options;
      if (&c != cases) with.kv_budget_bytes = quarter;
      with.compressed_budget_bytes = c.compressed;
      if (c.file) with.spill_directory = bench.directory;
      const auto session = read_text(bench, with);
      const std::vector<int32_t> tokens = generate(session, kAnswer);
      c.stats = stats_of(*session);
      c.prefill.push_back(1e-9 * static_cast<double>(c.stats.prefill_ns));
      c.decode.push_back(1e-9 * static_cast<double>(c.stats.decode_ns));
      good = good && tokens == expected && (&c == cases || c.stats.kv_bytes_peak <= quarter) &&
             c.stats.kv_compressed.bytes_peak <= c.compressed;
      session->close();
    }
  }
  std::printf("%lld tokens, %s, %s; KV cache of %.1f MB\n", static_cast<long long>(bench.n_tokens), strategy.c_str(),
              element_name(type), 1e-6 * static_cast<double>(all.kv_bytes_peak));
  std::printf("%-36s %9s %9s %10s %11s %10s %10s %7s\n", "", "prefill", "decode", "in memory", "compressed", "MB of it",
              "file reads", "stall");
  for (const Case& c : cases) {
    const SessionStats& s = c.stats;
    const auto share = [](int64_t part, int64_t rest) {
      return part + rest == 0 ? 1.0 : static_cast<double>(part) / static_cast<double>(part + rest);
    };
    std::printf("%-36s %8.2fx %8.2fx %10.2f %11.2f %10.1f %10lld %6.0f%%\n", c.name,
                median(c.prefill) / median(cases[0].prefill), median(c.decode) / median(cases[0].decode),
                share(s.kv_hits, s.kv_misses), share(s.kv_compressed.n_hits, s.kv_chunks_read),
                1e-6 * static_cast<double>(s.kv_compressed.bytes_peak), static_cast<long long>(s.kv_chunks_read),
                100.0 * static_cast<double>(s.kv_stall_ns) / static_cast<double>(s.prefill_ns + s.decode_ns));
  }
  std::printf("same tokens, and no budget exceeded: %s\n", good ? "yes" : "NO");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  using quire::ElementType;
  if (argc < 5) {
    std::fprintf(stderr, "usage: quire_bench_tiers MODEL TEXT STRATEGY TOKENS [KV_TYPE [ROUNDS [DIRECTORY]]]\n");
    return 2;
  }
  const std::string name = argc > 5 ? argv[5] : "f16";
  const ElementType type = name == "bf16" ? ElementType::kBF16 : name == "f32" ? ElementType::kF32 : ElementType::kF16;
  std::ifstream file(argv[2], std::ios::binary);
  quire::bench::Bench bench;
  bench.model =
      quire::bench::take(quire::load_model(std::make_shared<quire::Runtime>(quire::RuntimeOptions()), argv[1], {}));
  bench.text.assign(std::istreambuf_iterator<char>(file), {});
  bench.n_tokens = std::atoll(argv[4]);
  bench.rounds = argc > 6 ? std::atoi(argv[6]) : 3;
  bench.directory = argc > 7 ? argv[7] : "/tmp";
  return quire::bench::run(std::move(bench), argv[3], type);
}
