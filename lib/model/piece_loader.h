// Brings tensors of files into the backend's memory, a piece at a time: each byte is read once, and hashed as it
// passes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/format/tensor_files.h"
#include "lib/model/load_engine.h"
#include "lib/model/weight_layout.h"
#include "lib/support/cancel.h"

namespace quire {

// How a loader works. All are borrowed and must outlive it.
struct LoadControl {
  const CancelToken* cancel = nullptr;  // polled before each piece
  // Bytes of tensors that were read, on the thread that loads; may be empty.
  std::function<void(int64_t done, int64_t total)> progress;
  LoadEngine* engine = nullptr;  // nullptr: the backend is used on the thread that loads
  // Has others release so many bytes of the device's memory, or what they can. False: none can be had; may be empty.
  std::function<bool(int64_t bytes)> make_room;
  // Read and packed at once, but at least one row, or one head where the rows of heads are put in order.
  int64_t piece_bytes = int64_t{16} << 20;
};

class PieceLoader {
 public:
  PieceLoader(Backend& backend, const LoadControl& control);
  ~PieceLoader();  // waits for the engine
  PieceLoader(const PieceLoader&) = delete;
  PieceLoader& operator=(const PieceLoader&) = delete;

  struct Source {
    std::shared_ptr<const TensorFiles> files;
    std::string tensor;
    std::string* hash = nullptr;  // if not null: becomes TensorFiles::content_hash of the tensor
  };
  // Changes rows [first, first + n) of a tensor in place; empty: the tensor is taken as it is stored.
  using Change = std::function<void(int64_t first, int64_t n, float* rows)>;

  // Errors of all: those of TensorFiles::view and read, kOutOfMemory, kCancelled, kClosed.
  // The tensor [rows][matrix.k] into rows [first_row, first_row + rows) of the matrix, which must stay until finish().
  // A change is made before the rows are put in order.
  Status load_rows(const Source& source, int64_t rows, const Change& change, const RowOrder& order, Matrix& matrix,
                   int64_t first_row);
  // The tensor [rows][columns], in its type, or in f32 if it is changed.
  Result<std::unique_ptr<Table>> load_table(const Source& source, int64_t rows, int64_t columns, const Change& change);
  // Appends the values of a tensor of any accepted type, widened; [rows] or [rows][columns].
  Status read_values(const Source& source, std::span<const int64_t> shape, std::vector<float>& values);
  // A buffer of these values, which is filled when finish() returns.
  Result<std::unique_ptr<Buffer>> load_buffer(std::vector<float> values);
  // What make() makes on the device, which takes so many bytes. Where memory is lacking it is called again as long as
  // others release some.
  template <typename Make>
  auto with_room(size_t bytes, const Make& make) const {
    for (;;) {
      auto made = make();
      const bool lacks_room = !made.ok() && made.status().code() == Code::kOutOfMemory;
      if (!lacks_room || !make_room_ || !make_room_(static_cast<int64_t>(bytes))) return made;
    }
  }
  // Waits until all that was loaded is in its place.
  Status finish() { return engine_.finish(); }
  // kCancelled if loading was cancelled.
  Status poll() const { return check_cancelled(cancel_); }

 private:
  class Reading;
  // Memory for a piece. The two slots are used in turn: while the engine works with one, the other is filled.
  Result<std::byte*> staging(std::unique_ptr<Buffer>& slot, int64_t bytes);

  Backend& backend_;
  InlineLoadEngine inline_;
  LoadEngine& engine_;
  const CancelToken* cancel_;
  const int64_t piece_bytes_;
  const std::function<bool(int64_t)> make_room_;
  std::unique_ptr<Queue> queue_;
  std::unique_ptr<Buffer> stored_[2], deinterleaved_[2], widened_[2], ordered_[2];
  int turn_ = 0;
};

}  // namespace quire
