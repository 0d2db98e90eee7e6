// Operations of a step that are noted, to be queued together, and graphs of steps that come again.
//
// To launch a kernel takes the host about as long as a small kernel runs, and a step that decodes a token has hundreds
// of them. A CUDA graph has them all, and is launched as one. What differs from token to token lies in device memory,
// so a step that decodes mostly makes the same calls with the same arguments as the one before: then the graph that was
// made of that one is launched again. Which calls these are is nobody's concern but the comparison's: a graph does what
// the calls would do.
#pragma once

#include <list>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include "lib/backend/cuda/cuda_device.h"
#include "lib/support/status.h"

namespace quire::cuda {

// A call of a function of the device's table, with its arguments.
class Command {
 public:
  explicit Command(const char* what) : what_(what) {}
  virtual ~Command() = default;
  // For messages: a literal.
  const char* what() const { return what_; }
  virtual int call(const DeviceApi& api, Stream stream) const = 0;
  // Whether both are calls of one function with equal arguments.
  virtual bool equals(const Command& other) const = 0;

 private:
  const char* const what_;
};

// Of the function that a member of the table points to.
template <auto kFunction>
class CommandOf;
template <typename... Arguments, int (*DeviceApi::*kFunction)(Stream, Arguments...)>
class CommandOf<kFunction> final : public Command {
 public:
  CommandOf(const char* what, const std::decay_t<Arguments>&... arguments) : Command(what), arguments_(arguments...) {}
  int call(const DeviceApi& api, Stream stream) const override {
    return std::apply([&](const auto&... each) { return (api.*kFunction)(stream, each...); }, arguments_);
  }
  bool equals(const Command& other) const override {
    const auto* same = dynamic_cast<const CommandOf*>(&other);
    return same && same->arguments_ == arguments_;
  }

 private:
  const std::tuple<std::decay_t<Arguments>...> arguments_;
};

using Commands = std::vector<std::unique_ptr<const Command>>;

// The steps that a stream was given lately. One thread at a time; nothing is queued when it is destroyed.
class StepGraphs {
 public:
  StepGraphs(const CudaDevice& device, Stream stream) : device_(device), stream_(stream) {}
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Queues a step's calls. When they come for the second time a graph is made of them, which is launched from then on.
  // Where that fails, for want of memory say, calls are made as they are, and the next time is another attempt.
  // kMostFailures of them one after the other are enough.
  Status queue(Commands commands);
  // Whether graphs can be made here; otherwise noting calls is in vain.
  bool possible() const { return n_failures_ < kMostFailures && device_.api().begin_graph != nullptr; }

  // Steps that are kept, the latest ones: sessions that decode in turn have one each.
  static constexpr size_t kMostSteps = 8;
  static constexpr int kMostFailures = 3;

 private:
  struct Step {
    Commands commands;
    Graph graph = nullptr;  // of these calls, if `made`; else of others, to be changed into theirs
    bool made = false;
  };
  Status call_all(const Commands& commands) const;
  bool make(Step& step) const;

  const CudaDevice& device_;
  const Stream stream_;
  std::list<Step> steps_;  // by their last use
  int n_failures_ = 0;     // since a graph was made
};

}  // namespace quire::cuda
