// Matrices as the backend keeps them, in a file from one load of a model to the next
// (quire_model_options.packed_directory).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/format/snapshot_file.h"
#include "lib/model/weight_layout.h"
#include "lib/support/os_file.h"

namespace quire {

// A matrix of a model, in the order of loading.
struct LoadedMatrix {
  std::vector<MatrixPart> parts;
  std::unique_ptr<Matrix>* matrix = nullptr;  // where it is kept
};

// The file is a container of blocks (format/snapshot_file.h), one for each matrix; its index names the backend's
// layout, the tensors that it was made from, and the hashes that were formed while they were read. There is one file
// for a model's path, weight type and beacons: where the model, or the library's layout, became another one, it is
// written anew under the same name. One thread.
class PackedWeights {
 public:
  struct Origin {
    std::string model_path;
    std::string beacon_directory;      // empty: none
    int32_t weight_type = 0;           // as ModelLoader::Options
    int head_dim = 0, rotary_dim = 0;  // of the configuration: rows are put in order by them
  };

  // The backend has a matrix_layout(). It and the files are borrowed.
  PackedWeights(Backend& backend, const std::string& directory, const Origin& origin, const CheckpointFiles& files);

  const std::string& path() const { return path_; }
  // Opens the file. Errors: those of ReadFile and SnapshotFile; kBadFile: it is not of this model or layout.
  Status open();
  // Hashes of the tensors (LlamaWeights::tensor_hashes). Nothing unless open() succeeded.
  const std::map<std::string, std::string>& tensor_hashes() const { return tensor_hashes_; }
  // The next matrix, over the file's memory, which it keeps. Null: the file does not have it as it should be.
  std::unique_ptr<Matrix> next(std::span<const MatrixPart> parts, int64_t k);

  // Writes the file, whose directory is made if its parent is there. Errors: those of OutputFile; kCancelled.
  Status write(std::span<const LoadedMatrix> matrices, const std::map<std::string, std::string>& tensor_hashes,
               const CancelToken* cancel) const;

 private:
  Status read_index();

  Backend& backend_;
  const CheckpointFiles& files_;
  const std::string directory_;
  const std::string order_;  // of the rows of heads
  std::string path_;
  std::shared_ptr<ReadFile> file_;        // mapped
  std::unique_ptr<SnapshotFile> blocks_;  // null: not opened
  std::map<std::string, std::string> tensor_hashes_;
  int64_t next_ = 0;
};

}  // namespace quire
