// The time of a generated token by the length of the text before it, and the part of it that goes into choosing chunks.
//
//   quire_bench_growth MODEL [--threads N] [--strategy EXPRESSION]... [--depth N]...
//
// One line of JSON for each depth and strategy: the median of 48 tokens, and the time that the backend needs a token to
// score the chunks and take the best, both in milliseconds. Texts have random keys and values, in float16. growth.py
// draws them.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/bench/sessions.h"
#include "tests/unit/model/watched_backend.h"

namespace quire::bench {
namespace {

constexpr int64_t kTokens = 48;

struct Arguments {
  std::string model;
  int threads = 1;
  std::vector<std::string> strategies;
  std::vector<int64_t> depths;
};

[[noreturn]] void usage(const std::string& problem) {
  std::fprintf(stderr, "%s\nusage: quire_bench_growth MODEL [--threads N] [--strategy EXPRESSION]... [--depth N]...\n",
               problem.c_str());
  std::exit(2);
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (!name.starts_with("--")) {
      arguments.model = name;
      continue;
    }
    if (++i == argc) usage(name + " wants a value");
    const std::string value = argv[i];
    if (name == "--threads") {
      arguments.threads = std::atoi(value.c_str());
    } else if (name == "--strategy") {
      arguments.strategies.push_back(value);
    } else if (name == "--depth") {
      arguments.depths.push_back(std::atoll(value.c_str()));
    } else {
      usage(name + " is unknown");
    }
  }
  if (arguments.model.empty()) usage("MODEL is missing");
  return arguments;
}

// Notes how long its real backend, of the CPU, which works at once, takes to choose chunks.
class TimedBackend : public test::WatchedBackend {
 public:
  TimedBackend(std::unique_ptr<Backend> real, double& selecting)
      : WatchedBackend(*real), owned_(std::move(real)), selecting_(selecting) {}

  Status select_chunks(Exec exec, const PreparedStep& step, const SelectArgs& args) override {
    Status status;
    selecting_ += seconds([&] { status = WatchedBackend::select_chunks(exec, step, args); });
    return status;
  }

 private:
  const std::unique_ptr<Backend> owned_;
  double& selecting_;
};

int run(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  double selecting = 0;  // written by the engine's thread, while this one waits for a token
  RuntimeOptions runtime;
  runtime.n_threads = arguments.threads;
  runtime.wrap_backend = [&selecting](std::unique_ptr<Backend> real) {
    return std::make_unique<TimedBackend>(std::move(real), selecting);
  };
  const auto model = take(load_model(std::make_shared<Runtime>(runtime), arguments.model, {}));
  for (const int64_t depth : arguments.depths) {
    for (const std::string& strategy : arguments.strategies) {
      SessionOptions options;
      options.strategy = strategy;
      options.overflow = OverflowPolicy::kExtrapolate;
      const auto session = take(Session::create(model, options));
      check(session->fill_random(depth, 1));
      generate(session, 4);  // what is made once is made
      selecting = 0;
      const double token = token_seconds(session, kTokens);
      const nlohmann::ordered_json row = {
          {"depth", depth}, {"strategy", strategy}, {"ms", 1e3 * token}, {"selecting_ms", 1e3 * selecting / kTokens}};
      std::printf("%s\n", row.dump().c_str());
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }
