// Memory: a long document in a small KV budget, and the planner against what is really allocated.
//
//   quire_bench_memory spill MODEL STRATEGY TOKENS [DECODED [SPILL_DIRECTORY]]
//       reads TOKENS made-up tokens with the KV cache all in memory, then in a tenth of it with the rest in a file,
//       once with an I/O thread and once without; fails if a token differs or if memory ever went above the budget.
//       Of the records that decoding asked for it says how many were in memory and how many the file was read for: if
//       few are read, tokens ask for the same ones again and again
//   quire_bench_memory noise MODEL STRATEGY TOKENS [DECODED [SPILL_DIRECTORY]]
//       the same with keys and values of noise instead of a text that is read
//   quire_bench_memory plan MODEL STRATEGY TOKENS
//       fails if planned and counted bytes differ by more than a tenth
//
//   quire_bench_memory forks MODEL STRATEGY TOKENS BUDGET_BYTES [DIRECTORY]
//       saves a session of TOKENS keys of noise, opens it in a runtime whose KV caches have BUDGET_BYTES, and asks it
//       ten questions in ten forks at once, then once more; fails if a token is another than with everything in memory,
//       or if memory went above the budget by more than the scratch memory of a step
//
// Bytes are counted by the runtime's allocator callbacks.
#include <atomic>
#include <cstring>
#include <string>

#include "lib/model/memory_plan.h"
#include "lib/model/strategy_context.h"
#include "tests/bench/sessions.h"

namespace quire::bench {
namespace {

constexpr int64_t kScratch = int64_t{100} << 20;

class CountedMemory {
 public:
  int64_t peak() const { return peak_ - before_; }
  // From here on; what is held now is not counted.
  void start() { before_ = bytes_.load(), peak_ = before_; }
  RuntimeOptions options() {
    RuntimeOptions options;
    options.alloc = [](void* self, size_t size, size_t alignment) {
      auto* memory = static_cast<CountedMemory*>(self);
      memory->add(size, 1);
      return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    };
    options.free = [](void* self, void* block, size_t size, size_t) {
      static_cast<CountedMemory*>(self)->add(size, -1);
      std::free(block);
    };
    options.alloc_user = this;
    return options;
  }

 private:
  static void raise(std::atomic<int64_t>& peak, int64_t to) {
    for (int64_t seen = peak; seen < to && !peak.compare_exchange_weak(seen, to);) {
    }
  }
  void add(size_t size, int sign) { raise(peak_, bytes_ += sign * static_cast<int64_t>(size)); }

  std::atomic<int64_t> bytes_{0}, peak_{0};
  int64_t before_ = 0;
};

struct Run {
  std::vector<int32_t> tokens;
  SessionStats stats;
  double prefill_per_s = 0, decode_per_s = 0;
  // While decoding, of a token: records asked for, those of them that were in memory then (prefetched ones included),
  // and what was read from the file.
  double records = 0, in_memory = 0, read_records = 0, read_bytes = 0;
};

struct Document {
  int64_t n_tokens = 0;
  bool noise = false;  // its keys and values
  int64_t n_decoded = 0;
};

Run read_document(const std::shared_ptr<Model>& model, const SessionOptions& options, const Document& document) {
  const auto session = take(Session::create(model, options));
  if (document.noise) {
    check(session->fill_random(document.n_tokens, 1));
  } else {
    feed(*session, document.n_tokens);
  }
  Run run;
  run.tokens = generate(session, 1);
  const SessionStats read = stats_of(*session);
  const auto decoded = generate(session, document.n_decoded - 1);
  run.tokens.insert(run.tokens.end(), decoded.begin(), decoded.end());
  run.stats = stats_of(*session);
  const auto of_token = [&](int64_t SessionStats::*count) {
    return static_cast<double>(run.stats.*count - read.*count) / static_cast<double>(document.n_decoded - 1);
  };
  run.in_memory = of_token(&SessionStats::kv_hits);
  run.records = run.in_memory + of_token(&SessionStats::kv_misses);
  run.read_records = of_token(&SessionStats::kv_chunks_read);
  run.read_bytes = of_token(&SessionStats::kv_file_bytes_read);
  if (!document.noise) {
    run.prefill_per_s = static_cast<double>(run.stats.n_prefilled) * 1e9 / static_cast<double>(run.stats.prefill_ns);
  }
  run.decode_per_s = 1e9 / of_token(&SessionStats::decode_ns);
  session->close();  // gives its memory back before it returns
  return run;
}

int spill(const std::string& directory, const std::string& strategy, const Document& document,
          const std::string& file) {
  CountedMemory memory;
  const auto model = take(load_model(std::make_shared<Runtime>(memory.options()), directory, {}));
  RuntimeOptions alone;
  alone.n_io_threads = -1;
  const auto model_alone = take(load_model(std::make_shared<Runtime>(alone), directory, {}));
  SessionOptions options;
  options.strategy = strategy;
  options.overflow = OverflowPolicy::kExtrapolate;
  const Run all = read_document(model, options, document);
  options.kv_budget_bytes = all.stats.kv_bytes_peak / 10;
  options.spill_directory = file;
  const Run tenth = read_document(model, options, document);
  // Once more, now that scratch memory is there and somebody holds the RoPE tables: what is allocated is the KV cache.
  const auto holder = take(Session::create(model, options));
  memory.start();
  const Run again = read_document(model, options, document);
  const Run without = read_document(model_alone, options, document);

  std::printf("%lld tokens%s, %s\n", static_cast<long long>(document.n_tokens), document.noise ? " of noise" : "",
              strategy.c_str());
  std::printf("%-22s %14s %14s %12s %12s   %s\n", "", "KV in memory", "in the file", "prefill/s", "decode/s",
              "a decoded token: records, in memory, from the file, bytes read");
  const auto row = [](const char* name, const Run& run, int64_t peak) {
    std::printf("%-22s %14lld %14lld %12.0f %12.1f", name, static_cast<long long>(peak),
                static_cast<long long>(run.stats.kv_file_bytes), run.prefill_per_s, run.decode_per_s);
    if (run.records > 0) {
      std::printf("   %26.1f %10.3f %14.3f %11.0f", run.records, run.in_memory / run.records,
                  run.read_records / run.records, run.read_bytes);
    }
    std::printf("\n");
  };
  row("all in memory", all, all.stats.kv_bytes_peak);
  row("a tenth, no I/O thread", without, without.stats.kv_bytes_peak);
  row("a tenth in memory", tenth, memory.peak());
  std::printf(
      "budget %lld bytes; decode at %.2f of the speed in memory; %lld records read (%lld without an I/O thread), %lld "
      "written\n",
      static_cast<long long>(options.kv_budget_bytes), tenth.decode_per_s / all.decode_per_s,
      static_cast<long long>(tenth.stats.kv_chunks_read), static_cast<long long>(without.stats.kv_chunks_read),
      static_cast<long long>(tenth.stats.kv_chunks_written));
  const bool same = all.tokens == tenth.tokens && all.tokens == again.tokens && all.tokens == without.tokens;
  const bool within = memory.peak() <= options.kv_budget_bytes;
  std::printf("same tokens: %s; never above the budget: %s\n", same ? "yes" : "NO", within ? "yes" : "NO");
  return same && within ? 0 : 1;
}

// Asks each session its own question, all at once.
std::vector<std::vector<int32_t>> ask(const std::vector<std::shared_ptr<Session>>& sessions) {
  std::vector<std::shared_ptr<GenerationStream>> streams;
  int32_t question = 0;
  for (const auto& session : sessions) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 24; ++i) tokens.push_back(3 + (17 * ++question) % 200);
    check(session->feed_tokens(tokens));
    StreamOptions options;
    options.max_tokens = 12;
    options.ignore_eos = true;
    streams.push_back(take(GenerationStream::open(session, options)));
  }
  std::vector<std::vector<int32_t>> answers;
  for (const auto& stream : streams) answers.push_back(tokens_of(*stream));
  return answers;
}

int forks(const std::string& directory, const std::string& strategy, int64_t n_tokens, int64_t budget,
          const std::string& file) {
  constexpr int kForks = 10;
  const std::string path = file + "/quire_bench_forks.quire";
  SessionOptions options;
  options.strategy = strategy;
  options.overflow = OverflowPolicy::kExtrapolate;
  const auto fork_all = [](const std::shared_ptr<Session>& session) {
    std::vector<std::shared_ptr<Session>> all;
    for (int f = 0; f < kForks; ++f) all.push_back(take(session->fork()));
    return all;
  };
  std::vector<std::vector<int32_t>> expected;
  int64_t whole = 0;
  double seconds_in_memory = 0;
  {
    const auto model = take(load_model(std::make_shared<Runtime>(RuntimeOptions()), directory, {}));
    const auto session = take(Session::create(model, options));
    check(session->fill_random(n_tokens, 1));
    check(session->save(path, {}));
    whole = stats_of(*session).kv_bytes;
    const auto forks = fork_all(session);
    const double begin = wall_seconds();
    expected = ask(forks);
    seconds_in_memory = wall_seconds() - begin;
  }
  CountedMemory memory;
  RuntimeOptions small = memory.options();
  small.kv_memory_bytes = budget;
  const auto model = take(load_model(std::make_shared<Runtime>(small), directory, {}));
  memory.start();
  LoadOptions loading;
  loading.session.spill_directory = file;
  const auto session = take(Session::load(model, path, loading));
  bool same = true;
  std::printf("%lld tokens, %s: %lld bytes of KV; ten questions in ten forks at once, in %lld bytes\n",
              static_cast<long long>(n_tokens), strategy.c_str(), static_cast<long long>(whole),
              static_cast<long long>(budget));
  for (const char* const round : {"first", "again"}) {
    const auto forks = fork_all(session);
    const double begin = wall_seconds();
    same = ask(forks) == expected && same;
    const double seconds = wall_seconds() - begin;
    int64_t n_read = 0;
    for (const auto& fork : forks) n_read += stats_of(*fork).kv_chunks_restored;
    const double read = static_cast<double>(n_read * stats_of(*session).kv_record_bytes);
    std::printf("%s: %.2f times the time with all in memory; read from the snapshot %.2f times\n", round,
                seconds / seconds_in_memory, read / static_cast<double>(whole));
  }
  const int64_t scratch = memory.peak() - budget;
  std::printf("memory at most %lld bytes (all in memory: %lld); same tokens: %s\n",
              static_cast<long long>(memory.peak()), static_cast<long long>(whole), same ? "yes" : "NO");
  std::remove(path.c_str());
  return same && scratch < kScratch ? 0 : 1;
}

int plan(const std::string& directory, const std::string& strategy, int64_t n_tokens) {
  CountedMemory memory;
  const auto runtime = std::make_shared<Runtime>(memory.options());
  MemoryRequest request;
  request.path = directory;
  request.strategy = strategy;
  request.n_tokens = n_tokens;
  const MemoryPlan planned = take(plan_memory(*take(runtime->devices().open("")).backend, request));
  const auto model = take(load_model(runtime, directory, {}));
  SessionOptions options;
  options.strategy = strategy;
  options.overflow = OverflowPolicy::kExtrapolate;
  const auto session = take(Session::create(model, options));
  feed(*session, n_tokens - 8);
  generate(session, 8);
  const int64_t expected = planned.weight_bytes + planned.kv_bytes + planned.scratch_bytes;
  const int64_t counted = memory.peak();
  const double ratio = static_cast<double>(expected) / static_cast<double>(counted);
  std::printf("%lld tokens, %s: planned %lld bytes (weights %lld, KV %lld, scratch %lld), counted %lld: %.3f\n",
              static_cast<long long>(n_tokens), strategy.c_str(), static_cast<long long>(expected),
              static_cast<long long>(planned.weight_bytes), static_cast<long long>(planned.kv_bytes),
              static_cast<long long>(planned.scratch_bytes), static_cast<long long>(counted), ratio);
  return ratio > 0.9 && ratio < 1.1 ? 0 : 1;
}

int run(int argc, char** argv) {
  const std::string what = argc > 4 ? argv[1] : "";
  if (what == "spill" || what == "noise") {
    const Document document{std::atoll(argv[4]), what == "noise",
                            argc > 5 ? std::max<int64_t>(2, std::atoll(argv[5])) : 2048};
    return spill(argv[2], argv[3], document, argc > 6 ? argv[6] : "/tmp");
  }
  if (what == "plan") return plan(argv[2], argv[3], std::atoll(argv[4]));
  if (what == "forks" && argc > 5) {
    return forks(argv[2], argv[3], std::atoll(argv[4]), std::atoll(argv[5]), argc > 6 ? argv[6] : "/tmp");
  }
  std::fprintf(stderr,
               "usage: quire_bench_memory spill|noise MODEL STRATEGY TOKENS [DECODED [SPILL_DIRECTORY]]\n"
               "       quire_bench_memory plan MODEL STRATEGY TOKENS\n"
               "       quire_bench_memory forks MODEL STRATEGY TOKENS BUDGET_BYTES [DIRECTORY]\n");
  return 2;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }
