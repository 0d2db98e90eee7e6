// A backend of the CPU that notes what steps ask of it: where queries look, and which chunks are sticky for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lib/backend/cpu/cpu_step.h"
#include "tests/unit/model/watched_backend.h"

namespace quire::test {

// Of each query that was asked for, by its index.
struct Looks {
  // The greatest share of each text cell and condensed entry.
  struct Query {
    std::vector<float> cells, entries;
  };
  std::map<int64_t, Query> queries;
  // Of the queries that choose chunks, all in this way.
  ChunkSelection selection;
  std::map<int64_t, std::vector<int32_t>> sticky;
};

class NotingBackend : public WatchedBackend {
 public:
  NotingBackend(std::unique_ptr<Backend> real, std::shared_ptr<Looks> looks)
      : WatchedBackend(*real), owned_(std::move(real)), looks_(std::move(looks)) {}

  Result<std::unique_ptr<PreparedStep>> prepare_step(Exec exec, int n_query_heads,
                                                     std::span<const StepSequence> sequences) override {
    for (const StepSequence& sequence : sequences) {
      for (const QueryBlock& block : sequence.plan->blocks) {
        for (int64_t q = 0; block.selected && q < block.n_queries; ++q) {
          looks_->selection = sequence.plan->selection;
          looks_->sticky[block.first_query + q] = sequence.plan->sticky;
        }
      }
    }
    return WatchedBackend::prepare_step(exec, n_query_heads, sequences);
  }

  Status attention(Exec exec, const PreparedStep& step, std::span<const AttentionArgs> sequences) override {
    const Status status = WatchedBackend::attention(exec, step, sequences);
    for (const AttentionArgs& args : sequences) {
      if (args.shares.out && args.window.last) note(static_cast<const cpu::CpuStep&>(step), args);
    }
    return status;
  }

 private:
  void note(const cpu::CpuStep& step, const AttentionArgs& args) {
    const StepSequence& sequence = step.at(args.sequence);
    const int64_t n_cells = args.shares.n_cells(), n_text = args.shares.n_text_cells();
    const auto* from = static_cast<const float*>(args.shares.out->host());
    for (int64_t row = args.shares.first_row; row < sequence.n; ++row) {
      Looks::Query& query = looks_->queries[sequence.first_key + row];
      query.cells.resize(static_cast<size_t>(n_text));
      query.entries.resize(static_cast<size_t>(args.shares.n_entries));
      for (int head = 0; head < step.n_query_heads; ++head, from += n_cells) {
        for (int64_t c = 0; c < n_cells; ++c) {
          float& most =
              c < n_text ? query.cells[static_cast<size_t>(c)] : query.entries[static_cast<size_t>(c - n_text)];
          most = std::max(most, from[c]);
        }
      }
    }
  }

  const std::unique_ptr<Backend> owned_;
  const std::shared_ptr<Looks> looks_;
};

}  // namespace quire::test
