// quire estimate: what a document of a given length would take on this machine: where its KV cache lives, and how long
// reading it and answering take.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "document.h"
#include "engine.h"
#include "memory_check.h"
#include "output.h"

namespace cli {
namespace {

struct EstimateArguments {
  ModelArguments model;
  SessionArguments session;
  int64_t n_tokens = 0;
  bool json = false;
};

double seconds(int64_t ns) { return 1e-9 * static_cast<double>(ns); }

std::string duration(double seconds) {
  char text[32];
  if (seconds < 120) {
    std::snprintf(text, sizeof text, "%.1f s", seconds);
  } else if (seconds < 7200) {
    std::snprintf(text, sizeof text, "%.0f min", seconds / 60);
  } else {
    std::snprintf(text, sizeof text, "%.1f h", seconds / 3600);
  }
  return text;
}

void print_place(const char* place, int64_t n_bytes) {
  if (n_bytes > 0) print("  %-18s %s\n", place, human_bytes(n_bytes).c_str());
}

// "12.5 tokens/s", or for less than one "8.0 s a token".
std::string rate(double seconds_per_token) {
  if (seconds_per_token > 1) return duration(seconds_per_token) + " a token";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f tokens/s", 1 / seconds_per_token);
  return text;
}

void print_estimate(const EstimateArguments& a, const std::string& strategy, const quire_memory_plan& plan,
                    const quire_rate_estimate& rates) {
  print("%s, %lld tokens\n\n", strategy.c_str(), static_cast<long long>(a.n_tokens));
  if (plan.reach < a.n_tokens) {
    print("beyond the reach     of %lld tokens; what follows is what it would take all the same\n\n",
          static_cast<long long>(plan.reach));
  }
  print("memory\n");
  print_place("weights", plan.weight_bytes);
  print_place("working memory", plan.scratch_bytes);
  print("KV cache (%s a token)\n", human_bytes(plan.kv_bytes_per_token).c_str());
  print_place("on the device", plan.kv_device_bytes);
  print_place("in memory", plan.kv_host_bytes);
  print_place("compressed", plan.kv_compressed_bytes);
  print_place("in the file", plan.kv_file_bytes);
  const double prefill = seconds(rates.prefill_ns), token = seconds(rates.decode_token_ns);
  print("\nreading              %s (%s)\n", duration(prefill).c_str(),
        rate(prefill / static_cast<double>(a.n_tokens)).c_str());
  print("answering            %s", rate(token).c_str());
  if (rates.decode_token_cold_ns > rates.decode_token_ns) {
    print("; %s if nothing that it chooses is in memory", rate(seconds(rates.decode_token_cold_ns)).c_str());
  }
  print("\n");
  if (rates.tier_read_bytes_per_second > 0) {
    print("reading back         %s/s\n", human_bytes(rates.tier_read_bytes_per_second).c_str());
  }
  if (rates.measured_tokens < a.n_tokens) {
    print("measured to %lld tokens in %s, extrapolated from there\n", static_cast<long long>(rates.measured_tokens),
          duration(seconds(rates.calibration_ns)).c_str());
  }
}

void print_estimate_json(const EstimateArguments& a, const std::string& strategy, const quire_memory_plan& plan,
                         const quire_rate_estimate& rates) {
  print_json({{"task", "estimate"},
              {"model", a.model.path},
              {"strategy", strategy},
              {"n_tokens", a.n_tokens},
              {"reach", plan.reach == std::numeric_limits<int64_t>::max() ? Json() : Json(plan.reach)},
              {"within_reach", a.n_tokens <= plan.reach},
              {"weight_bytes", plan.weight_bytes},
              {"scratch_bytes", plan.scratch_bytes},
              {"kv_bytes_per_token", plan.kv_bytes_per_token},
              {"kv_device_bytes", plan.kv_device_bytes},
              {"kv_host_bytes", plan.kv_host_bytes},
              {"kv_compressed_bytes", plan.kv_compressed_bytes},
              {"kv_file_bytes", plan.kv_file_bytes},
              {"prefill_seconds", seconds(rates.prefill_ns)},
              {"decode_token_seconds", seconds(rates.decode_token_ns)},
              {"decode_token_cold_seconds", seconds(rates.decode_token_cold_ns)},
              {"measured_tokens", rates.measured_tokens},
              {"tier_read_bytes_per_second", rates.tier_read_bytes_per_second},
              {"calibration_seconds", seconds(rates.calibration_ns)}});
}

int estimate(const EstimateArguments& a) {
  const Engine engine(a.model);
  const quire_memory_plan plan = engine.plan_memory(a.session, a.n_tokens);
  const quire_rate_estimate rates = engine.estimate_rates(a.session, a.n_tokens);
  const std::string strategy = strategy_of(engine.create_session(a.session, a.n_tokens).get());
  a.json ? print_estimate_json(a, strategy, plan, rates) : print_estimate(a, strategy, plan, rates);
  if (plan.reach < a.n_tokens && a.session.overflow != QUIRE_OVERFLOW_EXTRAPOLATE) {
    throw std::runtime_error("a document of " + std::to_string(a.n_tokens) + " tokens does not fit: the reach of " +
                             strategy + " is " + std::to_string(plan.reach) + " tokens");
  }
  check_memory(engine, a.session, a.n_tokens);
  return 0;
}

}  // namespace

void add_estimate(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<EstimateArguments>();
  EstimateArguments& a = *arguments;
  CLI::App* command = app.add_subcommand(
      "estimate", "Say where a document of some length would live here, and how long reading and answering would take");
  add_model_options(*command, a.model);
  add_session_options(*command, a.session);
  command->add_option("--tokens", a.n_tokens, "of the document")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->type_name("N");
  command->add_flag("--json", a.json, "print one JSON object");
  command->footer(R"help(
Memory is what the library plans to take; a budget that is too small is an error that names the bytes needed. So are,
after the figures, a document beyond the strategy's reach, unless --overflow is extrapolate, and one that takes more
memory than the machine has. Rates come from a few steps measured now at small depths, and hold for the machine as busy
as it is now.

Examples:
  quire estimate -m model -s dca --tokens 65536
  quire estimate -m model -s longheads --tokens 200000 --kv-budget 500M --spill-dir /var/tmp)help");
  command->callback([arguments, &action] { action = [arguments] { return estimate(*arguments); }; });
}

}  // namespace cli
