// How well chunks are chosen: where the attention of an answer's tokens lies, and which rank the vectors of chunks give
// the chunk that it should be in.
//
//   quire_chunk_ranks MODEL IDS STRATEGY N_TOKENS
//
// IDS is a file of numbers: the first and the end index of the tokens of a passage, and then the tokens of a text that
// asks for it. STRATEGY is dca_topk(...): its chunks and their vectors are judged, but a generated token sees all keys,
// so that its queries and its attention are those of dca. Prints the greedy answer's tokens, and a JSON object a line:
// for each of them that was computed, layer and KV head, the share of the attention that falls on the passage, the rank
// of its best chunk by attention, and the rank by the strategy's vectors, of n_chunks chunks that could be chosen.
// Ranks begin with 1. The first token of an answer is chosen by the text's last token, which sees all keys anyway.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/backend/cpu/cpu_step.h"
#include "tests/bench/sessions.h"
#include "tests/unit/model/watched_backend.h"

namespace quire::bench {
namespace {

struct Passage {
  int64_t first_token = 0;
  int64_t end_token = 0;
};

class RankingBackend : public test::WatchedBackend {
 public:
  RankingBackend(std::unique_ptr<Backend> real, Passage passage)
      : WatchedBackend(*real), owned_(std::move(real)), passage_(passage) {}

  // Where queries choose, they take all chunks.
  Result<std::unique_ptr<PreparedStep>> prepare_step(Exec exec, int n_query_heads,
                                                     std::span<const StepSequence> sequences) override {
    std::vector<StepSequence> all(sequences.begin(), sequences.end());
    for (StepSequence& sequence : all) {
      if (sequence.plan->most_selected() > 0) sequence.plan = with_count(*sequence.plan, n_chunks(sequence) + 1);
    }
    return WatchedBackend::prepare_step(exec, n_query_heads, all);
  }

  Status select_chunks(Exec exec, const PreparedStep& step, const SelectArgs& args) override {
    const cpu::CpuStep& prepared = cpu::cpu_step(step);
    const StepSequence& sequence = prepared.at(args.sequence);
    const ChunkSelection& selection = sequence.plan->selection;
    const int64_t not_free = selection.n_last + 1;
    ranks_.clear();
    for (int head = 0; head < prepared.n_query_heads; head += group(prepared, sequence)) {
      int64_t least = 1, most = n_chunks(sequence);
      while (least < most) {
        const int64_t rank = (least + most) / 2;
        QUIRE_TRY(select(exec, sequence, prepared.n_query_heads, rank + not_free, args));
        (took_passage(sequence, head) ? most : least) = took_passage(sequence, head) ? rank : rank + 1;
      }
      ranks_.push_back(least);
    }
    return select(exec, sequence, prepared.n_query_heads, n_chunks(sequence) + 1, args);
  }

  Status attention(Exec exec, const PreparedStep& step, std::span<const AttentionArgs> sequences) override {
    std::vector<AttentionArgs> all(sequences.begin(), sequences.end());
    for (AttentionArgs& args : all) {
      if (!args.selection) continue;
      args.selection = chosen_.get();
      args.selection_offset = 0;
    }
    QUIRE_TRY(WatchedBackend::attention(exec, step, all));
    for (const AttentionArgs& args : all) {
      if (args.selection && args.shares.out) print(cpu::cpu_step(step), args);
    }
    return {};
  }

 private:
  static int64_t n_chunks(const StepSequence& sequence) {
    return (sequence.first_key + sequence.n) / sequence.plan->selection.chunk + 1;
  }
  static int group(const cpu::CpuStep& step, const StepSequence& sequence) {
    return step.n_query_heads / sequence.geometry.n_kv_heads;
  }

  static std::shared_ptr<Plan> with_count(const Plan& plan, int64_t count) {
    auto other = std::make_shared<Plan>(plan);
    other->selection.count = count;
    other->selection.one_in = 0;
    other->selection.n_sticky = 0;
    other->sticky.clear();
    return other;
  }

  // Leaves in chosen_ what the query would take if it took so many chunks.
  Status select(Exec exec, const StepSequence& sequence, int n_query_heads, int64_t count, SelectArgs args) {
    StepSequence one = sequence;
    one.plan = with_count(*sequence.plan, count);
    width_ = one.plan->most_selected();
    QUIRE_ASSIGN(const auto step, owned_->prepare_step(exec, n_query_heads, {&one, 1}));
    const auto bytes = static_cast<size_t>(n_query_heads * width_) * sizeof(int32_t);
    QUIRE_ASSIGN(chosen_, owned_->allocate(bytes, MemoryKind::kDevice));
    args.sequence = 0;
    args.out = chosen_.get();
    args.out_offset = 0;
    return owned_->select_chunks(exec, *step, args);
  }

  bool took_passage(const StepSequence& sequence, int head) const {
    const int64_t chunk = sequence.plan->selection.chunk;
    const auto* picks = static_cast<const int32_t*>(chosen_->host()) + head * width_;
    return std::any_of(picks, picks + width_, [&](int32_t pick) {
      return pick >= passage_.first_token / chunk && pick <= (passage_.end_token - 1) / chunk;
    });
  }

  void print(const cpu::CpuStep& step, const AttentionArgs& args) {
    const StepSequence& sequence = step.at(args.sequence);
    const int64_t chunk = sequence.plan->selection.chunk, cells_of_chunk = chunk / AttentionShares::kCell;
    const int64_t n_cells = args.shares.n_cells(), query = sequence.first_key;
    const auto* shares = static_cast<const float*>(args.shares.out->host());
    const int in_group = group(step, sequence);
    const auto range = ChunkSelection::Range{sequence.plan->selection.first_free(), query / chunk - 1};
    for (int head = 0; head < step.n_query_heads; head += in_group) {
      std::vector<double> of_chunk(static_cast<size_t>(ceil_div(n_cells, cells_of_chunk)));
      for (int h = head; h < head + in_group; ++h) {
        for (int64_t c = 0; c < n_cells; ++c) {
          of_chunk[static_cast<size_t>(c / cells_of_chunk)] += double{shares[h * n_cells + c]} / in_group;
        }
      }
      double all = 0, best = 0;
      for (int64_t c = passage_.first_token / chunk; c <= (passage_.end_token - 1) / chunk; ++c) {
        all += of_chunk[static_cast<size_t>(c)];
        best = std::max(best, of_chunk[static_cast<size_t>(c)]);
      }
      const auto better = std::count_if(of_chunk.begin() + range.begin, of_chunk.begin() + range.end,
                                        [&](double share) { return share > best; });
      std::printf(
          "{\"token\": %lld, \"layer\": %d, \"kv_head\": %d, \"share\": %.6f, \"attention_rank\": %lld, "
          "\"rank\": %lld, \"n_chunks\": %lld}\n",
          static_cast<long long>(query), layers_[query], head / in_group, all, static_cast<long long>(better + 1),
          static_cast<long long>(ranks_[static_cast<size_t>(head / in_group)]),
          static_cast<long long>(range.end - range.begin));
    }
    ++layers_[query];
  }

  const std::unique_ptr<Backend> owned_;
  const Passage passage_;
  std::unique_ptr<Buffer> chosen_;  // of the last selection: int32 [n_query_heads][width_]
  int64_t width_ = 0;
  std::vector<int64_t> ranks_;     // of the layer's KV heads
  std::map<int64_t, int> layers_;  // of each query, those that are done
};

int run(const std::string& model_path, const std::string& ids_path, const std::string& strategy, int64_t n_tokens) {
  std::ifstream file(ids_path);
  const std::vector<int64_t> numbers((std::istream_iterator<int64_t>(file)), {});
  if (numbers.size() < 3) {
    std::fprintf(stderr, "%s has no text\n", ids_path.c_str());
    return 1;
  }
  const Passage passage{numbers[0], numbers[1]};
  const std::vector<int32_t> ids(numbers.begin() + 2, numbers.end());
  RuntimeOptions options;
  options.wrap_backend = [&](std::unique_ptr<Backend> real) -> std::unique_ptr<Backend> {
    return std::make_unique<RankingBackend>(std::move(real), passage);
  };
  ModelLoadOptions loading;
  loading.device = "cpu";
  loading.activation_type = ElementType::kF32;
  const auto model = take(load_model(std::make_shared<Runtime>(std::move(options)), model_path, loading));
  SessionOptions with;
  with.strategy = strategy;
  with.overflow = OverflowPolicy::kExtrapolate;
  with.expected_tokens = static_cast<int64_t>(ids.size()) + n_tokens;
  const auto session = take(Session::create(model, with));
  check(session->feed_tokens(ids));
  StreamOptions generating;
  generating.max_tokens = n_tokens;
  generating.cite = true;
  const auto stream = take(GenerationStream::open(session, generating));
  std::vector<int32_t> answer;
  const StreamEvent* event = nullptr;
  while (take(stream->next(-1, &event)) != NextResult::kEnd) {
    if (event && event->type == StreamEvent::Type::kToken) answer.push_back(event->token);
  }
  std::printf("[");
  for (size_t i = 0; i < answer.size(); ++i) std::printf("%s%d", i == 0 ? "" : ", ", answer[i]);
  std::printf("]\n");
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s MODEL IDS STRATEGY N_TOKENS\n", argv[0]);
    return 2;
  }
  return quire::bench::run(argv[1], argv[2], argv[3], std::atoll(argv[4]));
}
