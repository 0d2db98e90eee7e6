// Options that several subcommands share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "quire/quire.h"

namespace cli {

// What a subcommand runs once the command line is parsed; returns the exit status.
using Action = std::function<int()>;

struct ModelArguments {
  std::string directory;
  int32_t n_threads = 0;
};

struct SessionArguments {
  std::string strategy = "full";
  int32_t kv_type = QUIRE_TYPE_DEFAULT;
  int32_t overflow = QUIRE_OVERFLOW_DEFAULT;
};

struct SamplingArguments {
  float temperature = 0;
  int32_t top_k = 0;
  float top_p = 0;
  float min_p = 0;
  float typical = 0;
  float repeat_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  int32_t penalty_last_n = 0;
  float dry_multiplier = 0;
  float dry_base = 1.75f;
  int32_t dry_allowed_length = 2;
  int32_t dry_last_n = 0;
  std::vector<std::string> dry_breakers;
  std::vector<std::string> logit_bias;  // ID=BIAS
  int64_t min_tokens = 0;
  double deadline_seconds = 0;
  int32_t n_top_logprobs = 0;
  uint64_t seed = 0;
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

void add_model_options(CLI::App& command, ModelArguments& arguments);
// The help text shows arguments.overflow, as it stands, as the default.
void add_session_options(CLI::App& command, SessionArguments& arguments);
void add_sampling_options(CLI::App& command, SamplingArguments& arguments);

// One per subcommand; each sets `action` when its subcommand is chosen.
void add_run(CLI::App& app, Action& action);
void add_info(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_eval_passkey(CLI::App& eval, Action& action);
void add_eval_ppl(CLI::App& eval, Action& action);

}  // namespace cli
