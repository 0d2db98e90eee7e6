#include "lib/backend/cuda/step_graphs.h"

#include <algorithm>
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
  const auto known = std::ranges::find_if(steps_, [&](const Step& step) { return equal(step.commands, commands); });
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
  if (!step.made && possible()) {
    step.made = make(step);
    n_failures_ = step.made ? 0 : n_failures_ + 1;
  }
  if (!step.made) return call_all(commands);
  return device_.check(device_.api().launch_graph(step.graph, stream_), "launching a step");
}

}  // namespace quire::cuda
