#include "lib/model/adapter_merge.h"

#include <array>
#include <utility>

namespace quire {
namespace {

std::vector<float> transposed(const std::vector<float>& values, int64_t rows, int64_t columns) {
  std::vector<float> out(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      out[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
    }
  }
  return out;
}

}  // namespace

Status AdapterMerge::open(const std::vector<AdapterSource>& sources, const ModelConfig& model, const TensorFiles& own,
                          TensorFiles::Access access, const CancelToken* cancel) {
  for (size_t i = 0; i < sources.size(); ++i) {
    QUIRE_TRY(check_cancelled(cancel));
    QUIRE_ASSIGN(auto files, AdapterFiles::open(sources[i].directory, model, access));
    QUIRE_ASSIGN(std::string identity, files->identity(cancel));
    for (const auto& [weight, tensor] : files->changes().replacements()) {
      std::string copy;  // the content of a copy of the base weight
      if (files->changes().is_base_copy(weight)) {
        const std::string name = weight == kHeadWeight && model.tie_word_embeddings ? kEmbeddingWeight : weight;
        QUIRE_ASSIGN(copy, files->tensors().content_hash(tensor, cancel));
        QUIRE_ASSIGN(const std::string base, own.find(name) ? own.content_hash(name, cancel) : std::string());
        if (copy == base) continue;
      }
      const auto [at, is_new] = replacements_.emplace(weight, Replacement{files->shared_tensors(), tensor, copy});
      if (is_new || (!copy.empty() && copy == at->second.copy)) continue;
      return Status(Code::kInvalidArgument,
                    sources[i].directory + " replaces " + weight + ", as an adapter before it does");
    }
    merged_.push_back({std::move(identity), sources[i].scale, files->changes().changes_queries_or_keys()});
    adapters_.push_back(std::move(files));
  }
  return {};
}

const AdapterMerge::Replacement* AdapterMerge::replacement(const std::string& weight) const {
  const auto at = replacements_.find(weight);
  return at == replacements_.end() ? nullptr : &at->second;
}

Result<std::vector<AdapterMerge::Delta>> AdapterMerge::deltas(const std::string& weight,
                                                              const CancelToken* cancel) const {
  std::vector<Delta> deltas;
  for (size_t i = 0; i < adapters_.size(); ++i) {
    const LowRankTensors* change = adapters_[i]->changes().low_rank(weight);
    if (!change) continue;
    Delta delta;
    QUIRE_ASSIGN(delta.a, adapters_[i]->read(change->a, std::array{change->rank, change->in}, cancel));
    QUIRE_ASSIGN(delta.b, adapters_[i]->read(change->b, std::array{change->out, change->rank}, cancel));
    delta.rank = change->rank;
    delta.in = change->in;
    if (weight == kEmbeddingWeight) {  // its files hold the change of the transposed table
      std::vector<float> b = transposed(delta.a, change->rank, change->in);
      delta.a = transposed(delta.b, change->out, change->rank);
      delta.b = std::move(b);
      delta.in = change->out;
    }
    const auto scale = static_cast<float>(change->scale * merged_[i].scale);
    for (float& value : delta.b) value *= scale;
    deltas.push_back(std::move(delta));
  }
  return deltas;
}

void AdapterMerge::add(const std::vector<Delta>& deltas, int64_t first_row, int64_t n, float* rows) {
  for (const Delta& delta : deltas) {
    const int64_t in = delta.in;
    for (int64_t row = 0; row < n; ++row) {
      float* out = rows + row * in;
      for (int64_t r = 0; r < delta.rank; ++r) {
        const float b = delta.b[static_cast<size_t>((first_row + row) * delta.rank + r)];
        const float* a = &delta.a[static_cast<size_t>(r * in)];
        for (int64_t c = 0; c < in; ++c) out[c] += b * a[c];
      }
    }
  }
}

PieceLoader::Change AdapterMerge::adding(const std::vector<Delta>& deltas) {
  if (deltas.empty()) return {};
  return [&deltas](int64_t first_row, int64_t n, float* rows) { add(deltas, first_row, n, rows); };
}

}  // namespace quire
