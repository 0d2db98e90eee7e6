// quire bench: how fast a model reads and writes at given depths of a session, and how much of the machine that takes.
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <thread>

#include "document.h"
#include "engine.h"
#include "interrupt.h"
#include "memory_bandwidth.h"
#include "output.h"
#include "progress.h"
#include "validators.h"

namespace cli {
namespace {

struct BenchArguments {
  ModelArguments model;
  SessionArguments session;
  std::vector<int64_t> depths = {0};
  int64_t n_prompt = 512;
  int64_t n_generate = 64;
  int32_t n_repeats = 5;
  uint64_t seed = 0;
  bool json = false;
};

// Rates of the repeats.
using Rates = std::vector<double>;

struct Row {
  int64_t depth = 0;
  Rates prefill;  // tokens a second; empty if not asked for
  Rates decode;
  int64_t kv_bytes = 0;                  // held after filling
  int64_t bytes_per_decoded_token = -1;  // weights and visible keys and values; -1: not known
};

double median(Rates rates) {
  std::sort(rates.begin(), rates.end());
  const size_t half = rates.size() / 2;
  return rates.size() % 2 == 1 ? rates[half] : (rates[half - 1] + rates[half]) / 2;
}

double fastest(const Rates& rates) { return *std::max_element(rates.begin(), rates.end()); }

int64_t element_bytes(int32_t type) { return type == QUIRE_TYPE_F32 ? 4 : 2; }

int64_t longest_text(const BenchArguments& arguments) {
  const int64_t depth = *std::max_element(arguments.depths.begin(), arguments.depths.end());
  return depth + 1 + std::max(arguments.n_prompt, arguments.n_generate);
}

// Keys that a token sees: young ones in kv_type, old ones in kv_old_type.
struct VisibleKeys {
  int64_t young = 0;
  int64_t old = 0;
};

// Tokens of a stored chunk, which the canonical form of any strategy names.
int64_t chunk_of(const std::string& strategy) {
  for (const std::string name : {"kv_chunk=", "chunk="}) {  // longheads stores the chunks that it chooses
    if (const size_t at = strategy.find(name); at != std::string::npos)
      return std::stoll(strategy.substr(at + name.size()));
  }
  throw std::runtime_error("no length of chunks in " + strategy);
}

// Of the embedding table, which is kept as it is stored, whatever the matrices are kept as.
int64_t table_bytes(const std::string& model) {
  const Json files = describe_files(model);
  for (const Json& tensor : files["tensors"]) {
    const auto name = tensor["name"].get<std::string>();
    // There may be a prefix in a directory.
    if (name == "token_embd.weight" || name.ends_with("model.embed_tokens.weight"))
      return tensor["bytes"].get<int64_t>();
  }
  throw std::runtime_error("no embedding table in " + model);
}

// What does not change while it runs.
class Bench {
 public:
  explicit Bench(const BenchArguments& arguments)
      : arguments_(arguments),
        engine_(arguments.model),
        info_(engine_.info()),
        weight_bytes_per_token_(info_.weight_bytes - table_bytes(arguments.model.path)),
        session_(engine_.create_session(arguments.session, longest_text(arguments))),
        strategy_(strategy_of(session_.get())),
        selects_(strategy_.starts_with("longheads") || strategy_.starts_with("dca_topk")),
        chunk_(chunk_of(strategy_)),
        window_(std::stoll(engine_.metadata("sliding_window_tokens"))),
        n_windowed_(some_layers_slide() ? std::stoi(engine_.metadata("sliding_window_layers")) : 0),
        kv_bytes_per_old_token_(narrows()
                                    ? engine_.plan_memory(arguments.session, longest_text(arguments)).kv_bytes_per_token
                                    : kv_bytes_per_token()) {}

  const std::string& strategy() const { return strategy_; }
  const quire_model_info& info() const { return info_; }
  const Rates& read_rates() const { return read_rates_; }

  // In layers that keep what lies behind a window.
  int64_t kv_bytes_per_token() const {
    return (info_.n_layers - n_windowed_) * kv_bytes_of_layer() + kept_in_windows();
  }
  // Whether old text is read in another type, and what a token of it takes then.
  bool narrows() const { return arguments_.session.kv_old_type != QUIRE_TYPE_DEFAULT; }
  int64_t kv_bytes_per_old_token() const { return kv_bytes_per_old_token_; }
  // From how many tokens before a token's own chunk on.
  int64_t old_after() const {
    const int64_t after = arguments_.session.old_after;
    return after == QUIRE_OLD_AT_ONCE ? 0 : after == 0 ? 4096 : after;
  }
  // All weights but the embedding table, of which a token reads one row. Where the head is tied to it, that is a matrix
  // of its own in memory.
  int64_t weight_bytes_per_token() const { return weight_bytes_per_token_; }

  // Throws where the keys and values of `depth` tokens could never be held.
  void check_fits(int64_t depth) const;
  Row measure(int64_t depth, const std::function<void()>& show);

 private:
  // Of a token.
  int64_t kv_bytes_of_layer() const {
    return 2 * element_bytes(arguments_.session.kv_type) * info_.n_kv_heads * info_.head_dim;
  }
  bool some_layers_slide() const {
    return info_.sliding_window == 0 && strategy_.find("ignore_window=1") == std::string::npos;
  }
  // Of a token, in layers with a window that keep what lies behind it.
  int64_t kept_in_windows() const {
    return arguments_.session.keep_behind_windows ? n_windowed_ * kv_bytes_of_layer() : 0;
  }
  double prefill(int64_t depth);
  double decode(int64_t depth);
  void fill(int64_t depth);
  VisibleKeys visible_keys(int64_t depth) const;
  int64_t visible_bytes(int64_t depth) const;

  const BenchArguments& arguments_;
  const Engine engine_;
  const quire_model_info info_;
  const int64_t weight_bytes_per_token_;
  const Session session_;
  const std::string strategy_;
  const bool selects_;  // what a token reads depends on what it says: all keys are kept, some are read
  const int64_t chunk_;
  const int64_t window_;      // tokens
  const int32_t n_windowed_;  // layers that have it while others do not
  const int64_t kv_bytes_per_old_token_;
  const MemoryBandwidth memory_;
  Rates read_rates_;
};

// The session stands with `depth` tokens in the cache and one more that the next stream computes first.
void Bench::fill(int64_t depth) {
  reset(session_.get());
  Error error;
  error.check(quire_session_fill_random(session_.get(), depth + 1, arguments_.seed, error.get()),
              "cannot fill the KV cache to depth " + std::to_string(depth));
}

// Opens a stream, reads it to its end and returns the seconds until its last token, which is when max_tokens tokens
// were computed (one more follows before the end event); or until its end if no token was asked for.
double time_stream(quire_session* session, int64_t max_tokens) {
  auto options = initialised(quire_stream_options_init);
  options.flags = QUIRE_STREAM_IGNORE_EOS;
  options.max_tokens = max_tokens;
  const auto start = std::chrono::steady_clock::now();
  auto end = start;
  const int32_t finish = run_stream(session, options, [&](const quire_event& event) {
    const bool last = event.kind == QUIRE_EVENT_TOKEN || (event.kind == QUIRE_EVENT_END && max_tokens == 0);
    if (last) end = std::chrono::steady_clock::now();
    return true;
  });
  if (finish == QUIRE_FINISH_CANCELLED) throw Interrupted();
  if (finish == QUIRE_FINISH_REACH) throw std::runtime_error("the strategy's reach was used up before the end");
  return std::chrono::duration<double>(end - start).count();
}

// Exactly n_prompt tokens are computed: the waiting one, and what is fed.
double Bench::prefill(int64_t depth) {
  fill(depth);
  std::vector<int32_t> ids(static_cast<size_t>(arguments_.n_prompt - 1));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 7919 + 3) % size_t(info_.vocab_size));
  feed_tokens(session_.get(), ids.data(), ids.size());
  return static_cast<double>(arguments_.n_prompt) / time_stream(session_.get(), 0);
}

double Bench::decode(int64_t depth) {
  fill(depth);
  return static_cast<double>(arguments_.n_generate) / time_stream(session_.get(), arguments_.n_generate);
}

// How many keys a query at this depth may see, condensed entries included.
VisibleKeys Bench::visible_keys(int64_t depth) const {
  const int64_t own = depth / chunk_ * chunk_;
  const int64_t old_end = narrows() && own > old_after() ? (own - old_after()) / chunk_ * chunk_ : 0;
  if (selects_) return {depth + 1 - old_end, old_end};
  // Scalings change no visibility, and some come with a checkpoint alone.
  const std::string visibility = strategy_.substr(0, strategy_.find(" + "));
  auto options = initialised(quire_strategy_options_init);
  options.strategy = visibility.data();
  options.strategy_len = visibility.size();
  options.train_len = info_.train_len;
  options.n_heads = info_.n_query_heads;
  auto view = initialised(quire_position_view_init);
  view.first_query = depth;
  view.n_queries = 1;
  view.n_keys = depth + 1;
  VisibleKeys visible;
  std::vector<double> distances(static_cast<size_t>(depth + 1));
  for (const int32_t kind : {QUIRE_KV_TEXT, QUIRE_KV_CONDENSED}) {
    view.key_kind = kind;
    Error error;
    error.check(quire_strategy_get_positions(&options, &view, distances.data(), distances.size(), nullptr, error.get()),
                "counting the keys that a token sees");
    // A model's own sliding window cuts what any strategy shows.
    const bool cut = info_.sliding_window > 0 && visibility.find("ignore_window=1") == std::string::npos;
    const int64_t first = cut ? std::max<int64_t>(0, depth + 1 - info_.sliding_window) : 0;
    const int64_t young = kind == QUIRE_KV_TEXT ? std::max(first, old_end) : first;
    const auto count = [&](int64_t begin, int64_t end) {
      return std::count_if(distances.begin() + begin, distances.begin() + end, [](double d) { return !std::isnan(d); });
    };
    visible.old += count(first, young);
    visible.young += count(young, depth + 1);
  }
  return visible;
}

int64_t Bench::visible_bytes(int64_t depth) const {
  const VisibleKeys keys = visible_keys(depth);
  return (kv_bytes_per_token() - kept_in_windows()) * keys.young +
         (kv_bytes_per_old_token() - kept_in_windows()) * keys.old +
         n_windowed_ * kv_bytes_of_layer() * std::min(depth + 1, window_);
}

void Bench::check_fits(int64_t depth) const {
  const int64_t needed = visible_bytes(depth);
  const int64_t machine = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  if (needed <= machine) return;
  throw std::runtime_error("--depth " + std::to_string(depth) + " needs a KV cache of " + human_bytes(needed) +
                           "; this machine has " + human_bytes(machine) + " of memory");
}

Row Bench::measure(int64_t depth, const std::function<void()>& show) {
  Row row;
  row.depth = depth;
  fill(depth);
  row.kv_bytes = get_first_tier_stats(session_.get()).bytes;
  if (!selects_) row.bytes_per_decoded_token = weight_bytes_per_token() + visible_bytes(depth);
  // The first turn warms up; reads of memory take turns with decoding, so that both see the same load.
  for (int32_t turn = 0; turn <= arguments_.n_repeats; ++turn) {
    const double prefilled = arguments_.n_prompt > 0 ? prefill(depth) : 0;
    const double decoded = arguments_.n_generate > 0 ? decode(depth) : 0;
    const double read = memory_.measure(arguments_.model.n_threads);
    show();
    if (turn == 0) continue;
    if (arguments_.n_prompt > 0) row.prefill.push_back(prefilled);
    if (arguments_.n_generate > 0) row.decode.push_back(decoded);
    read_rates_.push_back(read);
  }
  return row;
}

Json to_json(const Rates& rates) {
  return {{"min", *std::min_element(rates.begin(), rates.end())}, {"median", median(rates)}, {"max", fastest(rates)}};
}

// Of the read bandwidth: the fastest of each, as other work on the machine only ever slows one of them down.
Json read_fraction(const Row& row, const Rates& read_rates) {
  if (row.bytes_per_decoded_token < 0) return nullptr;
  return fastest(row.decode) * static_cast<double>(row.bytes_per_decoded_token) / fastest(read_rates);
}

Json to_json(const Row& row, const BenchArguments& a, const Rates& read_rates) {
  Json json = {{"depth", row.depth}, {"kv_bytes", row.kv_bytes}};
  if (!row.prefill.empty()) {
    json["prefill"] = {{"n_tokens", a.n_prompt}, {"tokens_per_second", to_json(row.prefill)}};
  }
  if (row.decode.empty()) return json;
  const Json n_bytes = row.bytes_per_decoded_token < 0 ? Json(nullptr) : Json(row.bytes_per_decoded_token);
  json["decode"] = {{"n_tokens", a.n_generate},
                    {"tokens_per_second", to_json(row.decode)},
                    {"bytes_per_token", n_bytes},
                    {"of_read_bandwidth", read_fraction(row, read_rates)}};
  return json;
}

void print_rates(int64_t depth, const char* what, int64_t n, const Rates& rates, const std::string& more) {
  print("%9lld  %-8s %5lld  %9.1f  %9.1f  %9.1f%s\n", static_cast<long long>(depth), what, static_cast<long long>(n),
        *std::min_element(rates.begin(), rates.end()), median(rates), fastest(rates), more.c_str());
}

void print_rows(const BenchArguments& a, const Bench& bench, const std::vector<Row>& rows) {
  std::string old;
  if (bench.narrows()) {
    old = ", " + human_bytes(bench.kv_bytes_per_old_token()) + " in " + type_name(a.session.kv_old_type) + " after " +
          std::to_string(bench.old_after());
  }
  print("%s\nweights %s, KV cache %s a token in %s%s, %d threads, memory reads %.1f GB/s\n\n", bench.strategy().c_str(),
        human_bytes(bench.info().weight_bytes).c_str(), human_bytes(bench.kv_bytes_per_token()).c_str(),
        type_name(a.session.kv_type), old.c_str(), a.model.n_threads, 1e-9 * fastest(bench.read_rates()));
  print("%9s  %-8s %5s  %9s  %9s  %9s  %s\n", "depth", "tokens", "", "min/s", "median/s", "max/s", "of reads");
  for (const Row& row : rows) {
    if (!row.prefill.empty()) print_rates(row.depth, "prefill", a.n_prompt, row.prefill, "");
    if (row.decode.empty()) continue;
    char fraction[32] = "";
    const Json of_reads = read_fraction(row, bench.read_rates());
    if (!of_reads.is_null()) std::snprintf(fraction, sizeof fraction, "  %.2f", of_reads.get<double>());
    print_rates(row.depth, "decode", a.n_generate, row.decode, fraction);
  }
}

void check(BenchArguments& a) {
  if (a.n_prompt == 0 && a.n_generate == 0) throw UsageError("-p 0 and -n 0 leave nothing to measure");
  if (a.model.n_threads == 0)
    a.model.n_threads = std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
  if (a.session.kv_type == QUIRE_TYPE_DEFAULT) a.session.kv_type = QUIRE_TYPE_F16;
}

int bench(BenchArguments& a) {
  check(a);
  Bench bench(a);
  Progress progress("bench", "turns");
  const int64_t n_turns = static_cast<int64_t>(a.depths.size()) * (a.n_repeats + 1);
  int64_t n_done = 0;
  std::vector<Row> rows;
  for (const int64_t depth : a.depths) bench.check_fits(depth);
  for (const int64_t depth : a.depths) {
    rows.push_back(bench.measure(depth, [&] { progress.show(++n_done, n_turns); }));
  }
  progress.clear();
  if (!a.json) {
    print_rows(a, bench, rows);
    return 0;
  }
  Json list = Json::array();
  for (const Row& row : rows) list.push_back(to_json(row, a, bench.read_rates()));
  Json json = {{"task", "bench"},
               {"model", a.model.path},
               {"strategy", bench.strategy()},
               {"train_len", bench.info().train_len},
               {"kv_type", type_name(a.session.kv_type)},
               {"n_threads", a.model.n_threads},
               {"n_repeats", a.n_repeats},
               {"seed", a.seed},
               {"weight_bytes", bench.info().weight_bytes},
               {"weight_bytes_per_decoded_token", bench.weight_bytes_per_token()},
               {"kv_bytes_per_token", bench.kv_bytes_per_token()},
               {"read_bytes_per_second", to_json(bench.read_rates())},
               {"rows", std::move(list)}};
  if (bench.narrows()) {
    json["kv_old_type"] = type_name(a.session.kv_old_type);
    json["old_after"] = bench.old_after();
    json["kv_bytes_per_old_token"] = bench.kv_bytes_per_old_token();
  }
  print_json(json);
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<BenchArguments>();
  BenchArguments& a = *arguments;
  a.session.overflow = QUIRE_OVERFLOW_EXTRAPOLATE;
  CLI::App* command = app.add_subcommand("bench", "Measure prefill and decode at given depths of a session");
  add_model_options(*command, a.model);
  add_session_options(*command, a.session);
  // quire_strategy_get_positions, which counts the keys to read, ends at 2^24.
  command->add_option("--depth", a.depths, "tokens in the KV cache before: 0,2048,8192 or 0 2048 8192 (default: 0)")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{0}, (int64_t{1} << 24) - 1))
      ->type_name("N...");
  command->add_option("-p,--prompt-tokens", a.n_prompt, "tokens of a prefill; 0: none (default: 512)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24))
      ->type_name("N");
  command->add_option("-n,--generate-tokens", a.n_generate, "tokens to decode; 0: none (default: 64)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24))
      ->type_name("N");
  command->add_option("-r,--repeats", a.n_repeats, "measurements of each, after one to warm up (default: 5)")
      ->check(CLI::Range(1, 1000))
      ->type_name("R");
  command->add_option("--seed", a.seed, "of the random keys and values (default: 0)")
      ->check(whole_number_of_64_bits())
      ->type_name("S");
  command->add_flag("--json", a.json, "print one JSON object");
  command->footer(R"help(
The depth is made by filling the KV cache with random keys and values, so a deep session costs no long prefill; what the
model then says means nothing, how fast it says it does. "of reads" is what decoding reads (all weights but the
embedding table, and the keys and values that the strategy sees; not known for one that chooses as it goes) as a fraction of the rate at which as many threads
read 512 MiB in turns with it; a model that fits in the processor's caches can exceed 1.

Examples:
  quire bench -m model -s dca --depth 0,2048,8192
  quire bench -m model -s streaming_llm --depth 1000000 -p 0 -n 32 --threads 1 --json)help");
  command->callback([arguments, &action] { action = [arguments] { return bench(*arguments); }; });
}

}  // namespace cli
