// Options that several subcommands share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "quire/quire.h"

namespace CLI {
class App;
}

namespace cli {

// What a subcommand runs once the command line is parsed; returns the exit status.
using Action = std::function<int()>;

struct AdapterArgument {
  std::string directory;
  double scale = 1;
};

struct ModelArguments {
  std::string path;
  int32_t n_threads = 0;
  int32_t weight_type = QUIRE_TYPE_DEFAULT;
  int32_t activation_type = QUIRE_TYPE_DEFAULT;
  std::vector<AdapterArgument> merge;
  std::string beacon;
  std::string device = "auto";
  std::string packed_directory;
};

struct SessionArguments {
  std::string strategy;  // empty: "full", or that of the saved session
  int32_t kv_type = QUIRE_TYPE_DEFAULT;
  int32_t kv_old_type = QUIRE_TYPE_DEFAULT;
  int64_t old_after = 0;  // as quire_session_options
  bool keep_behind_windows = false;
  int32_t overflow = QUIRE_OVERFLOW_DEFAULT;
  int64_t expected_tokens = 0;  // 0: what the subcommand knows of its text
  int64_t kv_budget_bytes = 0;
  int64_t device_budget_bytes = 0;
  int64_t compressed_budget_bytes = 0;
  std::string spill_directory;
  std::vector<AdapterArgument> adapters;
};

struct SamplingArguments {
  float temperature = 0;
  int32_t top_k = 0;
  float top_p = 0;
  float min_p = 0;
  uint64_t seed = 0;
  float typical = 0;
  float repetition = 1, frequency = 0, presence = 0;
  int32_t penalty_range = 64;
  float dry = 0, dry_base = 1.75f;
  int32_t dry_length = 2;
  std::vector<std::string> dry_breakers;  // empty: the library's
  std::vector<std::string> logit_bias;    // ID=BIAS
  int64_t min_tokens = 0;
  double deadline = 0;  // seconds
  int32_t n_top_logprobs = 0;
  int32_t draft_tokens = 8, draft_match = 2;
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

void add_model_options(CLI::App& command, ModelArguments& arguments);
// The help text shows arguments.overflow, as it stands, as the default.
// The bar on stderr; part of add_model_options.
void add_quiet_option(CLI::App& command);
void add_session_options(CLI::App& command, SessionArguments& arguments);
void add_sampling_options(CLI::App& command, SamplingArguments& arguments);

// One per subcommand; each sets `action` when its subcommand is chosen.
void add_run(CLI::App& app, Action& action);
void add_index(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_ls(CLI::App& app, Action& action);
void add_rm(CLI::App& app, Action& action);
void add_chat(CLI::App& app, Action& action);
void add_info(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_estimate(CLI::App& app, Action& action);
void add_quantize(CLI::App& app, Action& action);
void add_strategies(CLI::App& app, Action& action);
void add_eval_passkey(CLI::App& eval, Action& action);
void add_eval_ppl(CLI::App& eval, Action& action);
void add_eval_needle(CLI::App& eval, Action& action);
void add_eval_facts(CLI::App& eval, Action& action);
void add_bench(CLI::App& app, Action& action);

}  // namespace cli
