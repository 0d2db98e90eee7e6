// Adapters merged into a model's weights while these are loaded: W' = W + scale * B A in float32.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/model/adapter_files.h"
#include "lib/model/piece_loader.h"

namespace quire {

struct AdapterSource {
  std::string directory;
  double scale = 1;
};

// What a loaded model says of an adapter that was merged into it.
struct MergedAdapter {
  std::string identity;
  double scale = 1;
  bool changes_queries_or_keys = false;
};

class AdapterMerge {
 public:
  // Reads the adapters' tensor files once, to name them. own: the model's tensors; a copy of one that PEFT saved beside
  // a change of it is no replacement. `cancel`, which may be null, is polled before each piece, below too. Errors:
  // those of AdapterFiles::open and identity; kInvalidArgument where two adapters replace the same tensor, but by equal
  // copies of one base.
  Status open(const std::vector<AdapterSource>& sources, const ModelConfig& model, const TensorFiles& own,
              TensorFiles::Access access, const CancelToken* cancel = nullptr);

  const std::vector<MergedAdapter>& merged() const { return merged_; }
  // The replacement of a weight and the files that hold it; nullptr: none.
  struct Replacement {
    std::shared_ptr<const TensorFiles> files;
    std::string tensor;
    std::string copy;  // the content of a copy of the base weight, as a hash; empty: it is none
  };
  const Replacement* replacement(const std::string& weight) const;

  // The changes of one weight [out][in], ready to be added.
  struct Delta {
    std::vector<float> a;  // [rank][in]
    std::vector<float> b;  // [out][rank], times the scale
    int64_t rank, in;
  };
  Result<std::vector<Delta>> deltas(const std::string& weight, const CancelToken* cancel = nullptr) const;
  // Adds them to rows [first_row, first_row + n) of the weight.
  static void add(const std::vector<Delta>& deltas, int64_t first_row, int64_t n, float* rows);
  // The same for PieceLoader; empty where there are none. Borrows them.
  static PieceLoader::Change adding(const std::vector<Delta>& deltas);

 private:
  std::vector<std::shared_ptr<const AdapterFiles>> adapters_;
  std::vector<MergedAdapter> merged_;
  std::map<std::string, Replacement> replacements_;
};

}  // namespace quire
