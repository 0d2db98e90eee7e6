// A LoRA adapter on a backend, and how sessions use several: beside the weights, never in them.
//
// y = x W^T + sum over adapters of scale * (x A^T) B^T (Hu et al. 2021, "LoRA", arXiv:2106.09685, eq. 3), on the rows
// of one session only. Replaced tensors (PEFT's modules_to_save) stand in the weight's place.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/model/adapter_files.h"
#include "lib/model/piece_loader.h"
#include "lib/model/weight_layout.h"

namespace quire {

struct LlamaWeights;

enum class Projection { kQ, kK, kV, kO, kGate, kUp, kDown };
constexpr int kProjections = 7;

struct LowRank {
  std::unique_ptr<Matrix> a;  // [rank, in]; null for the embedding, whose A is looked up
  std::unique_ptr<Matrix> b;  // [out, rank]; null: the adapter does not change this weight
  double scale = 0;
};

struct AdapterLayer {
  std::array<LowRank, kProjections> projections;
  std::array<std::unique_ptr<Buffer>, kLayerNorms> norms;  // f32; null: not replaced, here and below
};

// Immutable once loaded; shared by sessions. Any thread.
struct Adapter {
  std::vector<AdapterLayer> layers;
  std::unique_ptr<Table> embedding;    // [vocab, hidden]
  std::unique_ptr<Table> embedding_a;  // [vocab, rank]: A transposed
  LowRank embedding_change;
  LowRank head_change;
  std::unique_ptr<Buffer> final_norm;
  std::unique_ptr<Matrix> lm_head;

  std::vector<std::string> replaced;  // the names of the model's tensors in whose place others stand
  std::string identity;               // of the files' content
  std::string base_model;             // metadata
  int64_t max_rank = 0;
  int64_t n_tensors = 0;
  int64_t n_parameters = 0;
  int64_t bytes = 0;
  bool replaces_norms = false;
  bool changes_queries_or_keys = false;
};

// Adapters of one session in their order, each with its scale.
class AdapterList {
 public:
  struct Entry {
    const Adapter* adapter;
    double scale;
  };

  AdapterList() = default;
  // Borrows the adapters. Error: kInvalidArgument where two of them replace the same tensor.
  static Result<AdapterList> make(std::vector<Entry> entries);

  bool empty() const { return entries_.empty(); }
  const std::vector<Entry>& entries() const { return entries_; }
  int64_t max_rank() const;
  // What stands in the place of a weight: the given one, or a replacement.
  const Table& embedding(const LlamaWeights& weights) const;
  const Matrix& lm_head(const LlamaWeights& weights) const;
  const Buffer& final_norm(const LlamaWeights& weights) const;
  const Buffer& norm(int layer, LayerNorm which, const Buffer& own) const;

 private:
  std::vector<Entry> entries_;
};

// Loads a PEFT LoRA directory for a model. Not to be used again after load().
class AdapterLoader {
 public:
  // `weights`: of the model that the adapter is for. All must outlive the loader. Progress is of bytes that were read,
  // of those of the tensor file to be hashed and those of its tensors to be loaded.
  AdapterLoader(Backend& backend, std::string directory, const ModelConfig& config, const LlamaWeights& weights,
                LoadControl control);
  // Errors: those of AdapterFiles::open, kOutOfMemory, kCancelled, kClosed.
  Result<std::unique_ptr<Adapter>> load();

 private:
  Status open();
  Status load_embedding();
  Status load_head();
  Status load_layer(int layer);
  Status load_low_rank(const std::string& weight, LowRank& change, const RowOrder& order = {});
  Status load_embedding_change(const std::string& weight);
  Status load_matrix(const std::string& tensor, int64_t rows, int64_t columns, std::unique_ptr<Matrix>& matrix,
                     const RowOrder& order = {});
  Status load_norm(const WeightParts& layout, std::unique_ptr<Buffer>& norm);
  PieceLoader::Source source(const std::string& tensor) const { return {files_->shared_tensors(), tensor}; }
  // The tensor that replaces `weight`, unless it is a copy of the model's own; nullptr: none.
  Result<const std::string*> replacement(const std::string& weight) const;
  void count(size_t bytes, int64_t n_parameters);
  void advance(int64_t bytes);
  void advance(const std::string& tensor);

  Backend& backend_;
  const std::string directory_;
  const ModelConfig& config_;
  const LlamaWeights& weights_;
  const LoadControl control_;
  std::shared_ptr<const AdapterFiles> files_;
  std::unique_ptr<Adapter> adapter_;
  int64_t done_ = 0;
  int64_t total_ = 0;
  PieceLoader pieces_;  // last: the engine is done with what stands above when that goes
};

}  // namespace quire
