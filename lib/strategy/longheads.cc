// longheads: each head of each token attends to a few chunks, chosen by its own query.
//
// Idea        A head attends to at most `chunks` chunks of `chunk` keys: the first, the last ones, and those whose
//             representation matches its query best; they are packed to consecutive positions, so that no distance
//             leaves the trained range. Training-free.
// Paper       Lu et al. 2024, "LongHeads: Multi-Head Attention is Secretly a Long Context Processor", section 2: Eq.
//             1-2 (chunk representation), Eq. 3 (selection), position remapping; section 4 (ablations, Table 4).
// Here        Forced chunks: first, previous and own (`code`, as the authors' program has it) or first and own
//             (`paper`). The query sees itself in prefill as in decode. Queries before `begin` see plain attention.
//             The authors' program, when it decodes the last token of a chunk, takes that chunk for a past one and
//             drops the chunk before it; here the last token of a chunk sees what the others see.
//             With grouped KV heads each query head has its own representation and selection; `select=group` shares
//             one selection in a group, by the sum of its heads' scores. `init=full`: given tokens see plain attention,
//             only generated ones select (the paper's NTK and PI initialisations, with such a scaling).
//             positions=dca: the chosen keys stand where Dual Chunk Attention puts them (dual_chunk.h), not packed:
//             a combination of two papers that neither has. (dca_topk chooses there by the mean of the keys.)
// Ablations   pick=worst|random; first=free|never (the first chunk like any other, or not at all);
//             select=layer|first_layer (the paper's fixed head and fixed layer).
// Invariants  At most chunk * chunks keys per query and head. Packed: no distance at or beyond chunk * chunks <= L, and
//             texts of up to `begin` tokens see plain attention. positions=dca: those of dca.
// Complexity  O(chunk * chunks) keys and n / chunk scores per token and head.
// Memory      Keys and values of all tokens (they may be spilled); per chunk, layer and query head a vector of head_dim
//             elements (`vectors`), which stays in memory.
#include <algorithm>
#include <optional>

#include "lib/strategy/methods.h"
#include "lib/strategy/rope_scaling.h"
#include "lib/strategy/selecting.h"

namespace quire {
namespace {

constexpr int64_t kLeastChunks = 3;
constexpr std::string_view kForced[] = {"code", "paper"};
// In the order of ChunkSelection's enumerations.
constexpr std::string_view kSelect[] = {"head", "group", "layer", "first_layer"};
constexpr std::string_view kPick[] = {"best", "worst", "random"};
constexpr std::string_view kFirst[] = {"forced", "free", "never"};
constexpr std::string_view kInit[] = {"none", "full"};
constexpr std::string_view kPositions[] = {"packed", "dca"};
constexpr std::string_view kVectors[] = {"f32", "bf16"};

// Where keys stand: the arguments dca_chunk and dca_cap of positions=dca.
Result<std::optional<DualChunkMap>> read_map(const Arguments& arguments, bool packed, int64_t train_len,
                                             CanonicalTerm& canonical) {
  if (packed) {
    for (const std::string_view name : {"dca_chunk", "dca_cap"}) {
      if (arguments.has(name)) return arguments.refuse(name, std::string(name) + " goes with positions=dca");
    }
    return std::optional<DualChunkMap>();
  }
  QUIRE_ASSIGN(const DualChunkMap map, read_dual_chunk(arguments, train_len));
  canonical.add("positions", "dca").add_integer("dca_chunk", map.chunk).add_integer("dca_cap", map.cap);
  return std::optional(map);
}

// What is chosen, and by whom.
Result<ChunkSelection> read_selection(const Arguments& arguments, int64_t train_len, bool packed) {
  constexpr int64_t kDefaultChunk = 256, kDefaultChunks = 16, kMostChunks = 65536;
  if (train_len < kLeastChunks * kChunkStep) {
    return arguments.refuse(
        "train_len", "train_len is " + std::to_string(train_len) + "; longheads needs at least 3 chunks of 16 tokens");
  }
  ChunkSelection selection;
  const int64_t usual_chunk = std::clamp(train_len / 8 / kChunkStep * kChunkStep, kChunkStep, kDefaultChunk);
  QUIRE_ASSIGN(selection.chunk,
               arguments.integer("chunk", kChunkStep, train_len / kLeastChunks, usual_chunk, kChunkStep));
  const int64_t trained = train_len / selection.chunk;  // packed, chunk * chunks positions are used
  QUIRE_ASSIGN(selection.count, arguments.integer("chunks", kLeastChunks, packed ? trained : kMostChunks,
                                                  std::min(kDefaultChunks, trained)));
  QUIRE_ASSIGN(const size_t forced, arguments.choice("forced", kForced));
  selection.n_last = forced == 0 ? 2 : 1;
  QUIRE_ASSIGN(const size_t select, arguments.choice("select", kSelect));
  QUIRE_ASSIGN(const size_t pick, arguments.choice("pick", kPick));
  QUIRE_ASSIGN(const size_t first, arguments.choice("first", kFirst));
  selection.sharing = static_cast<ChunkSelection::Sharing>(select);
  selection.pick = static_cast<ChunkSelection::Pick>(pick);
  selection.first = static_cast<ChunkSelection::First>(first);
  QUIRE_ASSIGN(const size_t vectors, arguments.choice("vectors", kVectors));
  if (vectors == 1) selection.attention_type = ElementType::kBF16;
  return selection;
}

Result<std::unique_ptr<Strategy>> make_longheads(const Arguments& arguments, const MethodModel& model,
                                                 CanonicalTerm& canonical) {
  QUIRE_ASSIGN(const size_t positions, arguments.choice("positions", kPositions));
  const bool packed = positions == 0;
  QUIRE_ASSIGN(const ChunkSelection selection, read_selection(arguments, model.train_len, packed));
  const int64_t seen = selection.chunk * selection.count;
  QUIRE_ASSIGN(const int64_t begin, arguments.integer("begin", seen, packed ? model.train_len : kMaxTrainLen, seen));
  QUIRE_ASSIGN(const size_t init, arguments.choice("init", kInit));
  canonical.add_integer("chunk", selection.chunk)
      .add_integer("chunks", selection.count)
      .add_integer("begin", begin)
      .add("forced", kForced[selection.n_last == 2 ? 0 : 1])
      .add("select", kSelect[static_cast<size_t>(selection.sharing)])
      .add("init", kInit[init]);
  if (selection.pick != ChunkSelection::Pick::kBest) canonical.add("pick", kPick[static_cast<size_t>(selection.pick)]);
  if (selection.first != ChunkSelection::First::kForced) {
    canonical.add("first", kFirst[static_cast<size_t>(selection.first)]);
  }
  if (selection.attention_type == ElementType::kBF16) canonical.add("vectors", "bf16");
  QUIRE_ASSIGN(const auto dual_chunk, read_map(arguments, packed, model.train_len, canonical));
  return std::unique_ptr<Strategy>(
      std::make_unique<SelectingStrategy>(selection, dual_chunk, begin, init == 1, model.train_len));
}

constexpr ArgumentDoc kArguments[] = {
    {"chunk", "tokens of a chunk"},
    {"chunks", "chunks that a head sees"},
    {"begin", "queries before it see every key"},
    {"forced", "chunks that are always seen: first, previous and own, or first and own"},
    {"select", "who chooses together"},
    {"init", "what given tokens see: what they choose, or every key"},
    {"pick", "which chunks are chosen (an ablation)"},
    {"first", "how the first chunk is treated (an ablation)"},
    {"positions", "where chosen keys stand: packed, or as with dca"},
    {"dca_chunk", "chunk of the distances of dca", "positions=dca"},
    {"dca_cap", "largest distance between chunks", "positions=dca"},
    {"vectors", "type of a chunk's vectors: bf16 takes half the memory, and may choose otherwise"},
};

}  // namespace

const Method kLongHeads{.name = "longheads",
                        .text = "for each head the few chunks that fit its query best",
                        .arguments = kArguments,
                        .make = make_longheads,
                        .needs_far_keys = true,
                        .has_kv_chunk = false};

}  // namespace quire
