#include "lib/backend/cuda/step_graphs.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace quire::cuda {
namespace {

bool equal(const Commands& a, const Commands& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& one, const auto& other) { return one->equals(*other); });
}

}  // namespace

StepGraphs::~StepGraphs() {
  for (const Step& step : steps_) {
    if (step.graph != nullptr) (void)device_.api().destroy_graph(step.graph);
  }
}

Status StepGraphs::call_all(const Commands& commands) const {
  for (const auto& command : commands) {
    QUIRE_TRY(device_.check(command->call(device_.api(), stream_), command->what()));
  }
  return {};
}

// False: the graph is none of the step's calls, which then have not been queued.
bool StepGraphs::make(Step& step) const {
  const DeviceApi& api = device_.api();
  if (api.begin_graph(stream_) != 0) return false;
  const bool called = std::ranges::all_of(step.commands, [&](const auto& c) { return c->call(api, stream_) == 0; });
  return api.end_graph(stream_, &step.graph) == 0 && called;
}

Status StepGraphs::queue(Commands commands) {
  // The latest one is the likeliest.
  const auto is_it = [&](const Step& step) { return equal(step.commands, commands); };
  const auto latest = std::find_if(steps_.rbegin(), steps_.rend(), is_it);
  const auto known = latest == steps_.rend() ? steps_.end() : std::prev(latest.base());
  if (known == steps_.end()) {
    QUIRE_TRY(call_all(commands));
    if (!possible()) return {};
    if (steps_.size() < kMostSteps) {
      steps_.emplace_back();
    } else {
      steps_.splice(steps_.end(), steps_, steps_.begin());
    }
    steps_.back().commands = std::move(commands);
    steps_.back().made = false;
    return {};
  }
  steps_.splice(steps_.end(), steps_, known);
  Step& step = steps_.back();
  const bool is_new = !step.made && possible();
  if (is_new) step.made = make(step);
  if (step.made) {
    const int error = device_.api().launch_graph(step.graph, stream_);
    if (!device_.api().is_out_of_memory(error)) {
      if (is_new) n_failures_ = 0;
      return device_.check(error, "launching a step");
    }
    // The first launch of a graph takes memory.
    (void)device_.api().destroy_graph(std::exchange(step.graph, nullptr));
    step.made = false;
  }
  if (is_new) ++n_failures_;
  return call_all(commands);
}

}  // namespace quire::cuda
