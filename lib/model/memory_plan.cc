#include "lib/model/memory_plan.h"

#include <algorithm>

#include "lib/format/safetensors.h"
#include "lib/kv/compressed_tier.h"
#include "lib/kv/file_tier.h"
#include "lib/kv/tier_budget.h"
#include "lib/model/checkpoint.h"
#include "lib/model/forward_pass.h"
#include "lib/model/strategy_context.h"
#include "lib/model/weight_layout.h"

namespace quire {
namespace {

// Matrices as they are counted.
struct Matrices {
  const Backend& backend;
  const MemoryRequest& request;
  const CheckpointFiles& files;
  int64_t n_rows;              // that they are multiplied with at most, together
  int64_t weight_bytes = 0;    // of all
  size_t workspace_bytes = 0;  // of the product that needs most

  Status add(const WeightParts& matrix) {
    QUIRE_ASSIGN(const auto parts, matrix_parts(files, matrix, request.weight_type, request.activation_type));
    weight_bytes += static_cast<int64_t>(backend.matrix_bytes(parts, matrix.k));
    workspace_bytes = std::max(workspace_bytes, backend.matmul_workspace_bytes(parts, matrix.k, n_rows));
    return {};
  }
};

Status count_weights(const MemoryRequest& request, const ModelConfig& config, const CheckpointFiles& files,
                     Matrices& matrices, MemoryPlan& plan) {
  const auto add_vector = [&](const WeightParts& vector) {
    plan.weight_bytes += vector.rows() * static_cast<int64_t>(sizeof(float));
  };
  for (int layer = 0; layer < config.n_layers; ++layer) {
    const LayerLayout l = layer_layout(config, layer);
    for (const WeightParts* matrix : l.matrices()) QUIRE_TRY(matrices.add(*matrix));
    for (const WeightParts* vector : l.vectors()) add_vector(*vector);
  }
  const WeightLayout layout = weight_layout(config);
  QUIRE_TRY(matrices.add(layout.lm_head));
  add_vector(layout.final_norm);
  QUIRE_ASSIGN(const auto embedding, matrix_parts(files, layout.embedding, 0, ElementType::kF32));
  const int64_t table =
      layout.embedding.rows() * static_cast<int64_t>(row_bytes(embedding[0].type, layout.embedding.k));
  (request.map ? plan.mapped_bytes : plan.weight_bytes) += table;
  return {};
}

Status count_beacon(const ModelConfig& config, const CheckpointFiles& files, Matrices& matrices, MemoryPlan& plan) {
  const auto float_bytes = static_cast<int64_t>(sizeof(float));
  for (int layer = 0; layer < config.n_layers; ++layer) {
    const LayerLayout l = beacon_layer_layout(config, layer);
    for (const WeightParts* matrix : l.matrices()) {
      if (!matrix->parts.empty()) QUIRE_TRY(matrices.add(*matrix));
    }
    for (const WeightParts* vector : l.biases()) plan.weight_bytes += vector->rows() * float_bytes;
  }
  QUIRE_TRY(matrix_parts(files, beacon_embedding_layout(config), 0, ElementType::kF32).status());
  plan.weight_bytes += config.hidden_size * float_bytes;
  return {};
}

// Sets of angles that the layers of a session rotate by.
size_t n_ropes(const ModelConfig& config) {
  return size_t{1} + (config.has_nope_layers() ? 1 : 0) + (config.window_rope_theta > 0 ? 1 : 0);
}

// What a session's KV cache has in its layers.
struct KvShape {
  KvShape(const Strategy& of, const ModelConfig& config, const MemoryRequest& request)
      : strategy(of), windowed(window_layers(config, of, request.keeps_behind_windows)) {
    n_layers = config.n_layers - windowed.n();
  }
  const Strategy& strategy;
  WindowLayers windowed;
  int64_t n_layers;  // the others
};

// Chunks of condensed entries after n tokens.
int64_t condensed_chunks(const Strategy& strategy, int64_t n) {
  return ceil_div(strategy.condensed_entries(n), strategy.kv_chunk());
}

// Of records with the layers of their kind.
struct Chunks {
  int64_t full = 0;  // condensed ones included
  int64_t narrow = 0;
  int64_t all = 0;       // full, narrow or both
  int64_t windowed = 0;  // of layers with a window
};

// How many of the chunks [from, until) have keys before `end` in one of these ranges, which ascend by their begin.
int64_t count_chunks(std::span<const KeyRange> ranges, int64_t chunk, int64_t end, int64_t from, int64_t until) {
  int64_t n = 0, counted = from;
  for (const KeyRange& range : ranges) {
    const int64_t end_chunk = std::min(ceil_div(std::min(range.end, end), chunk), until);
    n += std::max<int64_t>(0, end_chunk - std::max(counted, range.begin / chunk));
    counted = std::max(counted, end_chunk);
  }
  return n;
}

// Chunks that are held when the block of tokens [first, end) has been stored, where those that queries before `query`
// alone see were dropped.
Chunks chunks_for(const KvShape& shape, const MemoryRequest& request, int64_t first, int64_t end, int64_t query) {
  const Strategy& strategy = shape.strategy;
  const int64_t chunk = strategy.kv_chunk();
  const int64_t full_from = request.old_text.before(first, chunk) / chunk - ChunkStore::kSpareChunks;
  const int64_t narrow_until = request.old_text.before(end - 1, chunk) / chunk;
  std::vector<KeyRange> ranges = strategy.retained(query);
  const int64_t condensed = condensed_chunks(strategy, end);
  Chunks chunks;
  chunks.full = count_chunks(ranges, chunk, end, std::max<int64_t>(0, full_from), kNoLimit) + condensed;
  chunks.narrow = count_chunks(ranges, chunk, end, 0, narrow_until);
  chunks.all = count_chunks(ranges, chunk, end, 0, kNoLimit) + condensed;
  if (shape.windowed.any()) {
    if (!shape.windowed.keeps_all) ranges.clear();
    ranges.push_back({shape.windowed.first_seen(query), kNoLimit});
    std::ranges::sort(ranges, {}, &KeyRange::begin);
    chunks.windowed = count_chunks(ranges, chunk, end, 0, kNoLimit);
  }
  return chunks;
}

// What is held in a block: in all, and without what is dropped where room is lacking.
struct HeldChunks {
  Chunks all;
  Chunks seen;
};

HeldChunks chunks_after(const KvShape& shape, const MemoryRequest& request, int64_t first, int64_t end) {
  const int64_t first_spare = ChunkStore::first_spare_query(first, shape.strategy.kv_chunk());
  return {chunks_for(shape, request, first, end, first_spare), chunks_for(shape, request, first, end, first)};
}

// Those of the block, of all in which the text is read, whose chunks weigh most. It need not be the last one: where
// text is dropped, or becomes narrow, a block takes more whose tokens are in more chunks, or at a group's end, and a
// window is held whole when it is condensed. All that comes round again within the last kMostBlocks.
template <typename Weight>
HeldChunks most_chunks(const KvShape& shape, const MemoryRequest& request, const Weight& weight) {
  const Strategy& strategy = shape.strategy;
  constexpr int64_t kMostBlocks = 16384;
  const int64_t n = request.n_tokens, block = std::min(request.prefill_block, strategy.window_end(0));
  int64_t first = std::max<int64_t>(0, n - kMostBlocks * block);
  if (!strategy.condenses()) {
    first = first / block * block;
  } else if (first > 0) {  // blocks begin anew where a window ends
    const int64_t window = strategy.window_end(0);
    first = first > window ? strategy.window_end(first - window) : 0;
  }
  HeldChunks most;
  while (first < n) {
    const int64_t end = std::min({n, first + block, strategy.window_end(first)});
    const HeldChunks chunks = chunks_after(shape, request, first, end);
    if (weight(chunks) > weight(most)) most = chunks;
    first = end;
  }
  return most;
}

// Of the memory that the model computes on; 0: no limit. A device without a budget has what weights and work leave.
int64_t first_budget(const Backend& backend, const MemoryRequest& request, const MemoryPlan& plan) {
  if (!backend.has_own_memory()) return request.kv_budget_bytes;
  const int64_t has = backend.device_bytes() - backend.device_bytes_for_work() - plan.weight_bytes;
  const int64_t left = std::max<int64_t>(1, has);
  return request.device_budget_bytes == 0 ? left : std::min(left, request.device_budget_bytes);
}

struct Records {
  int64_t full = 0, narrow = 0;              // how many
  int64_t full_bytes = 0, narrow_bytes = 0;  // of one
  int64_t full_element = 0;                  // of its elements
  int64_t bytes() const { return full * full_bytes + narrow * narrow_bytes; }
};

// Most bytes of compressed memory that counts records in full.
int64_t most_compressed(const Records& r) {
  return CompressedTier::most_bytes(r.full_bytes, r.full_element, r.full) +
         (r.narrow_bytes > 0 ? CompressedTier::most_bytes(r.narrow_bytes, 1, r.narrow) : 0);
}

Status too_much(int64_t needed, const char* where, const MemoryRequest& request, int64_t budget) {
  return Status(Code::kBudget, "the KV cache needs " + std::to_string(needed) + " bytes of " + where + " for " +
                                   std::to_string(request.n_tokens) + " tokens; the session's budget is " +
                                   std::to_string(budget));
}

// Below the host's memory, where that is the first tier, each record has its place as soon as it is made, whether it
// ever leaves memory or not: in the file, else in compressed memory, where it counts in full until it was compressed.
// seen: those for which there must be room.
Status count_places(const Records& held, const Records& seen, const MemoryRequest& request, bool none_leaves,
                    MemoryPlan& plan) {
  if (request.spill) {
    const int64_t budget = request.spill_budget_bytes;
    // What is spare leaves slots to records of its own type alone.
    const int64_t least = held.narrow > 0 ? held.bytes() : seen.bytes();
    if (budget > 0 && least > budget) return too_much(least, "the file", request, budget);
    plan.spill_bytes = FileTier::most_bytes(held.full_bytes, held.full) +
                       (held.narrow > 0 ? FileTier::most_bytes(held.narrow_bytes, held.narrow) : 0);
    if (budget > 0) plan.spill_bytes = std::min(plan.spill_bytes, budget);
    return {};
  }
  if (request.compressed_budget_bytes == 0 || !none_leaves) return {};
  const int64_t least = most_compressed(seen);
  if (least > request.compressed_budget_bytes)
    return too_much(least, "compressed memory", request, request.compressed_budget_bytes);
  plan.compressed_bytes = std::min(most_compressed(held), request.compressed_budget_bytes);
  return {};
}

Status count_kv(const Backend& backend, const MemoryRequest& request, const ModelConfig& config,
                const Strategy& strategy, MemoryPlan& plan) {
  const KvGeometry geometry{config.n_kv_heads, config.head_dim, strategy.kv_chunk(), request.kv_type};
  QUIRE_TRY(backend.can_serve({geometry, config.n_query_heads, strategy.selection(), request.old_text}));
  const auto record = static_cast<int64_t>(backend.kv_record_bytes(geometry));
  const auto narrow = static_cast<int64_t>(
      request.old_text.narrows() ? backend.kv_record_bytes(narrow_geometry(geometry, request.old_text)) : size_t{0});
  const KvShape shape(strategy, config, request);
  const auto records_of = [&](const Chunks& c) {
    return Records{shape.n_layers * c.full + shape.windowed.n() * c.windowed, shape.n_layers * c.narrow, record, narrow,
                   static_cast<int64_t>(element_bytes(geometry.type))};
  };
  const auto bytes_of_all = [&](const HeldChunks& c) { return records_of(c.all).bytes(); };
  const auto bytes_of_seen = [&](const HeldChunks& c) { return records_of(c.seen).bytes(); };
  plan.kv_bytes_per_token =
      (shape.n_layers * (narrow > 0 ? narrow : record) + (shape.windowed.keeps_all ? shape.windowed.n() * record : 0)) /
      geometry.chunk;
  if (strategy.selects_chunks()) {
    const ChunkSelection& selection = strategy.selection();
    const int vectors = selection.n_vectors(config.n_query_heads, config.n_kv_heads);
    const auto page = static_cast<int64_t>(
        backend.representation_page_bytes(vectors, config.head_dim, selection.vector_type(geometry.type)));
    const int64_t queries =
        selection.keeps_queries() ? 2 * selection.chunk * config.n_query_heads * config.head_dim * 4 : 0;
    const int64_t represented = ceil_div(request.n_tokens, selection.chunk);
    plan.representation_bytes = shape.n_layers * (ceil_div(represented, Representations::kPageChunks) * page + queries);
  }
  const Records held = records_of(most_chunks(shape, request, bytes_of_all).all);
  const Records seen = records_of(most_chunks(shape, request, bytes_of_seen).seen);  // for which there must be room
  const int64_t records = held.bytes();
  const int64_t all = records + plan.representation_bytes;
  plan.kv_bytes = all;
  const bool compresses = request.compressed_budget_bytes > 0;
  if (compresses) {
    const int64_t needed = CompressedTier::least_bytes(record, held.full_element) +
                           (narrow > 0 ? CompressedTier::least_bytes(narrow, 1) : 0);
    if (needed > request.compressed_budget_bytes) {
      return Status(Code::kBudget, "the KV cache needs " + std::to_string(needed) +
                                       " bytes of compressed memory at least; the session's budget is " +
                                       std::to_string(request.compressed_budget_bytes));
    }
    plan.compressed_bytes = needed;
  }
  // Beside a lower tier, records pass through a staging buffer of one record, of the larger ones.
  const bool on_device = backend.has_own_memory();
  const bool below_host = compresses || request.spill;
  const bool spills = on_device || below_host;
  const int64_t staging = spills ? std::max(record, narrow) : 0;
  const int64_t budget = first_budget(backend, request, plan);
  const bool fits = budget == 0 || all + staging <= budget;
  if (!on_device) QUIRE_TRY(count_places(held, seen, request, fits, plan));
  if (fits) {
    if (!on_device) {
      plan.kv_bytes = all + staging;
      return {};
    }
    // What is missing to the spare bytes of the device is written behind: of the records that leave next. Where chunks
    // are chosen these are others in each step.
    const int64_t missing = spare_bytes(budget) - (budget - all - staging);
    if (missing <= 0) return {};
    plan.host_bytes = strategy.selects_chunks() ? records : std::min(records, round_up(missing, record));
    if (request.kv_budget_bytes > 0) plan.host_bytes = std::min(plan.host_bytes, request.kv_budget_bytes);
    return {};
  }
  const int64_t block = std::min(request.prefill_block, strategy.window_end(0));
  // The block that needs most of them at once may come before the one after which most is held.
  const int64_t most_full = most_chunks(shape, request, [](const HeldChunks& c) { return c.seen.full; }).seen.full;
  const int64_t in_step =
      std::min(most_full, ceil_div(block, geometry.chunk) + 1 + condensed_chunks(strategy, request.n_tokens)) * record +
      std::min<int64_t>(seen.narrow, 1) * narrow;
  const int64_t least = plan.representation_bytes + (spills ? in_step + staging : seen.bytes());
  if (least > budget) {
    return Status(Code::kBudget, "the KV cache needs " + std::to_string(least) + " bytes of " +
                                     (on_device ? "device " : "") + "memory for " + std::to_string(request.n_tokens) +
                                     " tokens; the session's budget is " + std::to_string(budget));
  }
  plan.kv_bytes = budget;
  plan.in_windows = spills;
  int64_t lower = records;  // what is not in the tiers so far
  if (on_device) {
    plan.host_bytes = request.kv_budget_bytes == 0 ? records : std::min(request.kv_budget_bytes, records);
    lower -= plan.host_bytes;
    // Neither memory has a part of a record.
    const auto whole = [&](int64_t bytes) { return narrow > 0 ? bytes : bytes / record * record; };
    const int64_t both = whole(budget - plan.representation_bytes - staging) + whole(plan.host_bytes);
    if (!below_host && seen.bytes() > both) {
      return Status(Code::kBudget, "the KV cache needs " + std::to_string(seen.bytes()) + " bytes for " +
                                       std::to_string(request.n_tokens) + " tokens; the budgets leave " +
                                       std::to_string(both) + " of device and host memory");
    }
  }
  if (request.spill && on_device) plan.spill_bytes = lower;
  if (compresses && lower > 0) {
    plan.compressed_bytes = std::min(request.compressed_budget_bytes, most_compressed(held));
  }
  return {};
}

// Queries of a step at most.
int64_t most_queries(const MemoryRequest& request, const Strategy& strategy) {
  return std::min({request.n_tokens, request.prefill_block, strategy.window_end(0)});
}

// Its rows: beacons have some, too.
int64_t most_rows(const MemoryRequest& request, const Strategy& strategy) {
  return most_queries(request, strategy) +
         std::min(strategy.most_new_entries(), strategy.condensed_entries(request.n_tokens));
}

int64_t scratch_bytes(const MemoryRequest& request, const ModelConfig& config, const Strategy& strategy,
                      const Matrices& matrices, const MemoryPlan& plan) {
  const Backend& backend = matrices.backend;
  const KvGeometry geometry{config.n_kv_heads, config.head_dim, strategy.kv_chunk(), request.kv_type};
  const int64_t n = most_queries(request, strategy);
  int64_t floats = config.vocab_size;
  const int64_t selected = strategy.chunks_selected(request.n_tokens - 1);
  floats += n * config.n_query_heads * selected;
  if (plan.in_windows) floats += n * config.n_query_heads * (config.head_dim + 2);
  // What the strategy has dropped is not looked at.
  const KvShape shape(strategy, config, request);
  const int64_t held =
      most_chunks(shape, request, [](const HeldChunks& c) { return c.seen.all; }).seen.all * geometry.chunk;
  const int64_t keys = selected > 0 ? request.n_tokens : std::min(request.n_tokens, held);
  const auto workspace = [&](int64_t queries) {
    return backend.attention_workspace_bytes(geometry, config.n_query_heads, queries, keys,
                                             selected > 0 ? strategy.selection() : ChunkSelection());
  };
  return floats * static_cast<int64_t>(sizeof(float)) +
         static_cast<int64_t>(ForwardPass::activation_bytes(backend, config, matrices.n_rows) +
                              backend.workspace_for(matrices.workspace_bytes, std::max(workspace(n), workspace(1))) +
                              n_ropes(config) * backend.rope_bytes(config.head_dim, strategy.kv_chunk()));
}

Result<ModelConfig> read_config(const MemoryRequest& request, const Checkpoint& checkpoint) {
  ModelConfig config = checkpoint.config();
  if (!request.beacon_directory.empty()) {
    QUIRE_ASSIGN(config.beacon, load_beacon_settings(request.beacon_directory));
  }
  QUIRE_TRY(check_beacons(config));
  return config;
}

Result<std::unique_ptr<const Strategy>> strategy_for(const Backend& backend, const ModelConfig& config,
                                                     const MemoryRequest& request) {
  const bool on_device = backend.has_own_memory();
  const StrategyContext context = strategy_context(
      config,
      {request.expected_tokens, request.kv_type, on_device ? request.device_budget_bytes : request.kv_budget_bytes,
       request.prefill_block, on_device || request.spill ? kNoLimit : request.compressed_budget_bytes, request.old_text,
       request.keeps_behind_windows});
  return make_strategy(request.strategy, context);
}

}  // namespace

Result<std::unique_ptr<const Strategy>> plan_strategy(const Backend& backend, const MemoryRequest& request) {
  QUIRE_ASSIGN(const Checkpoint checkpoint, Checkpoint::open_configuration(request.path));
  QUIRE_ASSIGN(const ModelConfig config, read_config(request, checkpoint));
  return strategy_for(backend, config, request);
}

Status check_kv(const Backend& backend, const ModelConfig& config, const Strategy& strategy,
                const MemoryRequest& request) {
  const KvGeometry geometry{config.n_kv_heads, config.head_dim, strategy.kv_chunk(), request.kv_type};
  QUIRE_TRY(backend.can_serve({geometry, config.n_query_heads, strategy.selection(), request.old_text}));
  if (request.compressed_budget_bytes == 0) return {};
  const auto record = static_cast<int64_t>(backend.kv_record_bytes(geometry));
  const auto element = static_cast<int64_t>(element_bytes(geometry.type));
  int64_t needed = CompressedTier::least_bytes(record, element);
  if (request.old_text.narrows()) {  // a tier of its own, which shares the budget
    const auto narrow = static_cast<int64_t>(backend.kv_record_bytes(narrow_geometry(geometry, request.old_text)));
    needed = std::max(needed, CompressedTier::most_bytes(record, element, 0) + CompressedTier::least_bytes(narrow, 1));
  }
  if (needed <= request.compressed_budget_bytes) return {};
  return Status(Code::kBudget, "the KV cache needs " + std::to_string(needed) +
                                   " bytes of compressed memory at least; the session's budget is " +
                                   std::to_string(request.compressed_budget_bytes));
}

Result<std::unique_ptr<const Strategy>> check_strategy(const Backend& backend, const MemoryRequest& request) {
  QUIRE_ASSIGN(const Checkpoint checkpoint, Checkpoint::open_configuration(request.path));
  QUIRE_ASSIGN(const ModelConfig config, read_config(request, checkpoint));
  QUIRE_ASSIGN(auto strategy, strategy_for(backend, config, request));
  QUIRE_TRY(check_kv(backend, config, *strategy, request));
  return strategy;
}

Result<MemoryPlan> plan_memory(const Backend& backend, const MemoryRequest& request) {
  MemoryPlan plan;
  QUIRE_ASSIGN(Checkpoint checkpoint, Checkpoint::open(request.path));
  QUIRE_ASSIGN(const ModelConfig config, read_config(request, checkpoint));
  QUIRE_ASSIGN(const auto strategy, strategy_for(backend, config, request));
  CheckpointFiles files;
  QUIRE_ASSIGN(files.own, checkpoint.open_tensors(TensorFiles::Access::kRead));
  files.beacon = files.own;
  if (!request.beacon_directory.empty()) {
    QUIRE_ASSIGN(files.beacon, open_safetensors(request.beacon_directory, TensorFiles::Access::kRead));
  }
  Matrices matrices{backend, request, files, most_rows(request, *strategy)};
  QUIRE_TRY(count_weights(request, config, files, matrices, plan));
  if (config.beacon.window > 0) QUIRE_TRY(count_beacon(config, files, matrices, plan));
  const bool packed = request.packed && !backend.matrix_layout().empty();
  (packed ? plan.mapped_bytes : plan.weight_bytes) += matrices.weight_bytes;
  QUIRE_TRY(count_kv(backend, request, config, *strategy, plan));
  plan.scratch_bytes = scratch_bytes(request, config, *strategy, matrices, plan);
  plan.reach = strategy->reach();
  plan.strategy = strategy->canonical();
  return plan;
}

}  // namespace quire
