// dca: Dual Chunk Attention.
//
// Idea        Full attention whose relative positions never leave the trained range, without training. The text is cut
//             into chunks of s tokens; keys take their position in their chunk; a query takes one of three positions,
//             for keys of its own chunk, of the chunk before, and of all older ones.
// Paper       An et al. 2024, "Training-Free Long-Context Scaling of Large Language Models", equations 2-9. With
//             r = i mod s: intra (eq. 2-4) r, successive (eq. 7) min(s + r, C), inter (eq. 5-6) C; one softmax over
//             all.
// Variants    Two integers describe the paper and every published implementation: s and the cap C (see kPresets).
// Invariants  1 <= s <= C <= 2s - 1. Distances lie in [0, min(i - j, C)], are true up to i - j = C - s and for all
//             i <= C: texts of up to C + 1 tokens see plain attention.
// Ablation    parts=intra_inter: keys of the chunk before as of older ones; parts=intra: of the own chunk alone.
// Temperature logit_scale multiplies logits by m^2, m = max(1, 1 + c ln(n / L)) with n = i + 1, on the query alone.
// Complexity  O(n) keys per token; three spans, of which the one of all older chunks has key positions that begin anew
//             with each chunk.
// Memory      Keys and values of all tokens: per token 2 * n_layers * n_kv_heads * head_dim elements.
#include <algorithm>
#include <array>
#include <cmath>

#include "lib/strategy/dual_chunk.h"
#include "lib/strategy/methods.h"

namespace quire {
namespace {

struct Preset {
  std::string_view name;
  int64_t cap_quarters;   // C = floor(cap_quarters * L / 4); 0: the paper's L - 1
  int64_t local_divisor;  // s = C - L / local_divisor; 0: the paper's floor(3L / 4)
};

// The paper's text, the files of its repository (which call C "chunk_size" and C - s "local window"), and vLLM, which
// takes C as the whole trained length.
constexpr std::array<Preset, 6> kPresets = {{{"paper", 0, 0},
                                             {"chunkllama", 3, 8},
                                             {"chunkllama_flashdec", 3, 16},
                                             {"chunkqwen", 3, 16},
                                             {"chunkllama_ppl", 3, 4},
                                             {"vllm", 4, 8}}};

struct LogitScale {
  std::string_view name;
  double slope;
};

constexpr std::array<LogitScale, 3> kLogitScales = {{{"none", 0}, {"yarn_0.05", 0.05}, {"yarn_0.1", 0.1}}};

constexpr std::string_view kParts[] = {"all", "intra_inter", "intra"};  // in the order of DualChunkMap::Parts

template <typename Table>
std::vector<std::string_view> row_names(const Table& table) {
  std::vector<std::string_view> names;
  for (const auto& row : table) names.push_back(row.name);
  return names;
}

class DualChunk final : public Strategy {
 public:
  DualChunk(const DualChunkMap& map, double logit_slope, int64_t train_len)
      : map_(map), logit_slope_(logit_slope), train_len_(train_len) {}

  void plan(int64_t first_query, int64_t n_queries, Plan& plan) const override {
    map_.plan(first_query, n_queries, KeysSeen::kAll, plan);
    if (logit_slope_ == 0) return;
    for (int64_t i = first_query; i < first_query + n_queries; ++i) plan.query_scale.push_back(logit_scale(i));
  }

  std::vector<KeyRange> retained(int64_t next_query) const override {
    const bool intra = map_.parts == DualChunkMap::Parts::kIntra;
    return {{intra ? next_query / map_.chunk * map_.chunk : 0, kNoLimit}};
  }

 private:
  float logit_scale(int64_t i) const {
    const double n = static_cast<double>(i) + 1;
    const double m = std::max(1.0, 1 + logit_slope_ * std::log(n / static_cast<double>(train_len_)));
    return static_cast<float>(m * m);
  }

  DualChunkMap map_;
  double logit_slope_;
  int64_t train_len_;
};

Result<DualChunkMap> read_map(const Arguments& arguments, const Preset& preset, int64_t train_len) {
  const bool paper = preset.local_divisor == 0;
  // Position L itself was never trained; vLLM's definition uses it all the same.
  const int64_t largest_cap = preset.cap_quarters == 4 ? train_len : train_len - 1;
  if (largest_cap < 1) return arguments.refuse("train_len", "train_len is 1; expected at least 2");
  if (arguments.has("local") && (paper || arguments.has("chunk"))) {
    return arguments.refuse("local", paper ? "preset paper has no local; give chunk and cap"
                                           : "local is cap - chunk; give one of local and chunk");
  }
  const int64_t usual_cap = paper ? train_len - 1 : preset.cap_quarters * train_len / 4;
  QUIRE_ASSIGN(int64_t cap, arguments.integer("cap", 1, largest_cap, usual_cap));
  int64_t chunk = 3 * train_len / 4;
  if (paper || arguments.has("chunk")) {
    QUIRE_ASSIGN(chunk, arguments.integer("chunk", 1, train_len, chunk));
    if (!arguments.has("cap")) cap = std::min(cap, 2 * chunk - 1);
  } else {
    QUIRE_ASSIGN(const int64_t local, arguments.integer("local", 0, train_len, train_len / preset.local_divisor));
    chunk = cap - local;
  }
  if (chunk < 1 || cap < chunk || cap > 2 * chunk - 1) {
    const std::string_view culprit = arguments.has("local")   ? "local"
                                     : arguments.has("chunk") ? "chunk"
                                     : arguments.has("cap")   ? "cap"
                                                              : "train_len";
    return arguments.refuse(culprit, "chunk " + std::to_string(chunk) + " and cap " + std::to_string(cap) +
                                         "; expected 1 <= chunk <= cap <= min(2 * chunk - 1, " +
                                         std::to_string(largest_cap) + ")");
  }
  return DualChunkMap{chunk, cap};
}

}  // namespace

void DualChunkMap::plan(int64_t first_query, int64_t n_queries, KeysSeen seen, Plan& plan) const {
  // Chunks [first, end).
  const auto chunks = [&](int64_t first, int64_t end) {
    Span span;
    span.first_key = span.key_base = first * chunk;
    span.count = (end - first) * chunk;
    span.q_cap = static_cast<double>(cap);  // alone makes the position C two chunks on: i is at least 2s > C there
    return span;
  };
  const int64_t end = first_query + n_queries;
  for (int64_t begin = first_query; begin < end;) {
    const int64_t own = begin / chunk;
    const int64_t block_end = std::min(end, (own + 1) * chunk);
    std::vector<Span> spans;
    if (own > 1 && parts != Parts::kIntra) {
      spans.push_back(chunks(0, own - 1));
      spans.back().key_period = chunk;
    }
    if (own > 0 && parts != Parts::kIntra) {
      spans.push_back(chunks(own - 1, own));
      spans.back().q_offset = static_cast<double>(parts == Parts::kAll ? -spans.back().key_base : cap);
    }
    spans.push_back(chunks(own, own + 1));
    spans.back().q_offset = static_cast<double>(-spans.back().key_base);
    spans.back().count = block_end - spans.back().first_key;
    plan.add_block(begin, block_end - begin, spans, seen);
    begin = block_end;
  }
}

namespace {

Result<std::unique_ptr<Strategy>> make_dual_chunk(const Arguments& arguments, const MethodModel& model,
                                                  CanonicalTerm& canonical) {
  QUIRE_ASSIGN(const size_t preset, arguments.choice("preset", row_names(kPresets)));
  QUIRE_ASSIGN(DualChunkMap map, read_map(arguments, kPresets[preset], model.train_len));
  QUIRE_ASSIGN(const size_t scale, arguments.choice("logit_scale", row_names(kLogitScales)));
  QUIRE_ASSIGN(const size_t parts, arguments.choice("parts", kParts));
  map.parts = static_cast<DualChunkMap::Parts>(parts);
  canonical.add("preset", kPresets[preset].name)
      .add_integer("chunk", map.chunk)
      .add_integer("cap", map.cap)
      .add("logit_scale", kLogitScales[scale].name);
  if (parts != 0) canonical.add("parts", kParts[parts]);
  return std::unique_ptr<Strategy>(std::make_unique<DualChunk>(map, kLogitScales[scale].slope, model.train_len));
}

constexpr ArgumentDoc kArguments[] = {
    {"preset", "whose chunk and cap are the defaults"},
    {"chunk", "tokens of a chunk (s); distances inside it are true"},
    {"cap", "largest distance between chunks (C)"},
    {"local", "cap - chunk, instead of chunk", "preset=chunkllama"},
    {"logit_scale", "how logits grow with the position"},
    {"parts", "which chunks are seen (an ablation)"},
};

}  // namespace

const Method kDualChunk{.name = "dca",
                        .text = "Dual Chunk Attention: every earlier token, distances folded into the trained range",
                        .arguments = kArguments,
                        .make = make_dual_chunk,
                        .needs_far_keys = true};

}  // namespace quire
