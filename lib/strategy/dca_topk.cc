// dca_topk: Dual Chunk Attention that answers from the chunks which fit best.
//
// Idea        A text is read as with dca. Each generated token then reads a fraction of it: in every layer and KV head
//             the chunks in which its query would find most attention, by the mean of their keys. Training-free.
// Paper       A combination that no paper has: the distances of An et al. 2024, "Training-Free Long-Context Scaling of
//             Large Language Models" (arXiv:2402.17463); top-k chunks by the mean of their keys, as Lu et al. 2025,
//             "MoBA: Mixture of Block Attention for Long-Context LLMs" (arXiv:2502.13189); choosing in generation only,
//             as Tang et al. 2024, "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference"
//             (arXiv:2406.10774), whose bounds are represent=minmax.
//             Chunks that the end of the prompt looks at stay, as Li et al. 2024, "SnapKV: LLM Knows What You are
//             Looking for Before Generation" (arXiv:2404.14469), which drops the other keys.
// Here        Keys stand at the distances of Dual Chunk Attention (dual_chunk.h) in reading, in choosing and in
//             answering; up to dca_cap they are the text's. The query heads of a KV head choose together
//             (ChunkSelection::Representation). The first chunk and the last two are always taken.
//             Of its other chunks a generated token takes first the `sticky` ones that the last given token looked at
//             most, and those where the given text ends (Plan::sticky; lib/session/sticky_chunks.h has the rule): what
//             answers a question is found exactly by the token that ends it, and roughly by the means of keys.
//             reading=selected: given tokens choose too.
// Invariants  Distances are those of dca. Texts of up to `begin` tokens see plain attention.
// Complexity  Reading: as dca. A generated token, per layer and KV head: the keys and values of
//             max(chunks, n / chunk / one_in) chunks, and n / chunk means.
// Memory      As dca; per chunk, layer and KV head a vector (minmax: two) in the KV cache's type, which stay in memory.
#include <algorithm>

#include "lib/strategy/methods.h"
#include "lib/strategy/rope_scaling.h"
#include "lib/strategy/selecting.h"

namespace quire {
namespace {

constexpr std::string_view kSelect[] = {"group", "head", "layer"};
constexpr ChunkSelection::Sharing kSharing[] = {ChunkSelection::Sharing::kGroup, ChunkSelection::Sharing::kHead,
                                                ChunkSelection::Sharing::kLayer};
constexpr std::string_view kRepresent[] = {"mean", "minmax"};
constexpr std::string_view kReading[] = {"dense", "selected"};
constexpr int64_t kDefaultChunk = 32, kLeastChunks = 3, kDefaultChunks = 40, kDefaultOneIn = 12, kDefaultSticky = 8;
constexpr int64_t kMostChunks = 65536;

Result<std::unique_ptr<Strategy>> make_dca_topk(const Arguments& arguments, const MethodModel& model,
                                                CanonicalTerm& canonical) {
  if (model.train_len < 2 * kChunkStep) {
    return arguments.refuse("train_len", "train_len is " + std::to_string(model.train_len) +
                                             "; dca_topk needs at least 2 chunks of 16 tokens");
  }
  ChunkSelection selection;
  selection.n_last = 2;
  // Of a model trained for few tokens chunks are smaller, so that the distances begin anew at the edge of one.
  const int64_t usual = std::clamp(model.train_len / 16 / kChunkStep * kChunkStep, kChunkStep, kDefaultChunk);
  QUIRE_ASSIGN(selection.chunk,
               arguments.integer("chunk", kChunkStep, std::min(model.train_len / 2, kMostKvChunk), usual, kChunkStep));
  QUIRE_ASSIGN(selection.count, arguments.integer("chunks", kLeastChunks, kMostChunks, kDefaultChunks));
  QUIRE_ASSIGN(selection.one_in, arguments.integer("one_in", 0, kMostChunks, kDefaultOneIn));
  const int64_t seen = selection.chunk * selection.count;
  QUIRE_ASSIGN(const int64_t begin, arguments.integer("begin", seen, kMaxTrainLen, seen));
  QUIRE_ASSIGN(const size_t select, arguments.choice("select", kSelect));
  QUIRE_ASSIGN(const size_t represent, arguments.choice("represent", kRepresent));
  QUIRE_ASSIGN(const size_t reading, arguments.choice("reading", kReading));
  const int64_t most_sticky = selection.count - kLeastChunks;
  QUIRE_ASSIGN(selection.n_sticky,
               arguments.integer("sticky", 0, most_sticky, std::min(kDefaultSticky, most_sticky / 2)));
  selection.sharing = kSharing[select];
  selection.representation =
      represent == 0 ? ChunkSelection::Representation::kMean : ChunkSelection::Representation::kBounds;
  QUIRE_ASSIGN(const DualChunkMap map, read_dual_chunk(arguments, model.train_len, selection.chunk));
  selection.key_period = map.chunk;
  canonical.add_integer("chunk", selection.chunk)
      .add_integer("chunks", selection.count)
      .add_integer("one_in", selection.one_in)
      .add_integer("begin", begin)
      .add("select", kSelect[select])
      .add("represent", kRepresent[represent])
      .add("reading", kReading[reading])
      .add_integer("sticky", selection.n_sticky)
      .add_integer("dca_chunk", map.chunk)
      .add_integer("dca_cap", map.cap);
  return std::unique_ptr<Strategy>(
      std::make_unique<SelectingStrategy>(selection, map, begin, reading == 0, model.train_len));
}

constexpr ArgumentDoc kArguments[] = {
    {"chunk", "tokens of a chunk"},
    {"chunks", "chunks that a generated token reads in a text of up to one_in times as many"},
    {"one_in", "in longer texts it reads one chunk in so many; 0: never more than chunks="},
    {"begin", "queries before it see every key"},
    {"select", "who chooses together: the query heads of a KV head, each for itself, all of a layer"},
    {"represent", "what stands for a chunk: the mean of its keys, or their bounds"},
    {"reading", "what given tokens see: every key, or what they choose"},
    {"sticky", "of these, chunks that the last given token looked at most"},
    {"dca_chunk", "chunk of the distances of dca"},
    {"dca_cap", "largest distance between its chunks"},
};

}  // namespace

const Method kDcaTopK{.name = "dca_topk",
                      .text = "reads as dca; generated tokens see the chunks that fit their queries best",
                      .arguments = kArguments,
                      .make = make_dca_topk,
                      .needs_far_keys = true};

}  // namespace quire
