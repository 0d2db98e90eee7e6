#include "lib/model/piece_loader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "lib/support/content_hash.h"
#include "lib/support/quantization.h"

namespace quire {

// One pass over the bytes of a tensor.
class PieceLoader::Reading {
 public:
  static Result<Reading> begin(const Source& source, std::span<const int64_t> shape) {
    QUIRE_ASSIGN(auto view, source.files->view(source.tensor, shape));
    if (view.interleaved_rows != 0 && shape[0] % view.interleaved_rows != 0) {
      return Status(Code::kBadFile, "tensor " + source.tensor + " has " + std::to_string(shape[0]) +
                                        " rows; expected whole heads of " + std::to_string(view.interleaved_rows));
    }
    Reading reading(source, std::move(view));
    if (source.hash) {
      QUIRE_ASSIGN(reading.hash_, source.files->start_hash(source.tensor));
    }
    return reading;
  }

  ElementType type() const { return view_.type; }
  int64_t bytes() const { return view_.bytes; }
  const void* mapped() const { return view_.mapped; }
  int64_t interleaved_rows() const { return view_.interleaved_rows; }
  // The next `bytes`: where they are mapped, or in `memory`, which may be null if they are.
  Result<const std::byte*> next(int64_t bytes, std::byte* memory) {
    const std::byte* piece = memory;
    if (view_.mapped) {
      piece = static_cast<const std::byte*>(view_.mapped) + at_;
    } else {
      QUIRE_TRY(source_.files->read(source_.tensor, at_, {memory, static_cast<size_t>(bytes)}));
    }
    if (hash_) hash_->add({piece, static_cast<size_t>(bytes)});
    at_ += bytes;
    if (hash_ && at_ == view_.bytes) *source_.hash = hash_->hex();
    return piece;
  }

 private:
  Reading(const Source& source, TensorFiles::View view) : source_(source), view_(std::move(view)) {}

  const Source& source_;
  TensorFiles::View view_;
  std::optional<ContentHash> hash_;
  int64_t at_ = 0;
};

namespace {

// out row i becomes row source(i) of n rows of row_bytes.
template <typename RowSource>
void reorder(const std::byte* rows, int64_t n, size_t row_bytes, const RowSource& source, std::byte* out) {
  for (int64_t row = 0; row < n; ++row) {
    std::memcpy(out + static_cast<size_t>(row) * row_bytes, rows + static_cast<size_t>(source(row)) * row_bytes,
                row_bytes);
  }
}

// Of rows of which those of the halves of each `run` alternate, where the one lies that becomes row `row`.
int64_t interleaved_source(int64_t row, int64_t run) {
  const int64_t in_run = row % run, half = in_run / (run / 2), index = in_run % (run / 2);
  return row - in_run + 2 * index + half;
}

}  // namespace

PieceLoader::PieceLoader(Backend& backend, const LoadControl& control)
    : backend_(backend),
      engine_(control.engine ? *control.engine : inline_),
      cancel_(control.cancel),
      piece_bytes_(control.piece_bytes),
      make_room_(control.make_room) {}

PieceLoader::~PieceLoader() { (void)engine_.finish(); }

Result<std::byte*> PieceLoader::staging(std::unique_ptr<Buffer>& slot, int64_t bytes) {
  if (!slot || slot->size() < static_cast<size_t>(bytes)) {
    slot.reset();
    QUIRE_ASSIGN(slot, backend_.allocate(static_cast<size_t>(bytes), MemoryKind::kStaging));
  }
  return static_cast<std::byte*>(slot->host());
}

Status PieceLoader::load_rows(const Source& source, int64_t rows, const Change& change, const RowOrder& order,
                              Matrix& matrix, int64_t first_row) {
  const int64_t k = matrix.k;
  QUIRE_ASSIGN(Reading reading, Reading::begin(source, std::array{rows, k}));
  const ElementType type = change ? ElementType::kF32 : reading.type();
  const auto stored_row = static_cast<int64_t>(row_bytes(reading.type(), k));
  const auto packed_row = static_cast<int64_t>(row_bytes(type, k));
  const int64_t interleaved = reading.interleaved_rows();
  // Heads stay whole.
  const int64_t run = std::max<int64_t>({interleaved, order.rows > 0 ? order.head.head_dim : 1, 1});
  const int64_t step = std::clamp<int64_t>(piece_bytes_ / packed_row / run * run, run, rows);
  for (int64_t row = 0; row < rows; row += step) {
    QUIRE_TRY(poll());
    const int64_t n = std::min(step, rows - row);
    const int slot = std::exchange(turn_, 1 - turn_);
    std::byte* memory = nullptr;
    if (!reading.mapped()) {
      QUIRE_ASSIGN(memory, staging(stored_[slot], step * stored_row));
    }
    QUIRE_ASSIGN(const std::byte* piece, reading.next(n * stored_row, memory));
    if (interleaved > 1) {
      QUIRE_ASSIGN(std::byte* const out, staging(deinterleaved_[slot], step * stored_row));
      reorder(
          piece, n, static_cast<size_t>(stored_row), [&](int64_t r) { return interleaved_source(r, interleaved); },
          out);
      piece = out;
    }
    if (change) {
      QUIRE_ASSIGN(std::byte* const wide, staging(widened_[slot], step * packed_row));
      auto* values = reinterpret_cast<float*>(wide);
      dequantize(reading.type(), piece, n * k, values);
      change(row, n, values);
      piece = wide;
    }
    if (order.rows > 0) {
      QUIRE_ASSIGN(std::byte* const out, staging(ordered_[slot], step * packed_row));
      reorder(
          piece, n, static_cast<size_t>(packed_row), [&](int64_t r) { return order.source(row + r) - row; }, out);
      piece = out;
    }
    QUIRE_TRY(engine_.start([this, &matrix, type, piece, at = first_row + row, n] {
      return backend_.load_rows(matrix, type, piece, at, n);
    }));
  }
  if (reading.mapped()) {
    QUIRE_TRY(finish());
    source.files->drop(source.tensor);
  }
  return {};
}

Result<std::unique_ptr<Table>> PieceLoader::load_table(const Source& source, int64_t rows, int64_t columns,
                                                       const Change& change) {
  QUIRE_TRY(finish());  // both slots are free
  QUIRE_ASSIGN(Reading reading, Reading::begin(source, std::array{rows, columns}));
  const ElementType type = change ? ElementType::kF32 : reading.type();
  const auto stored_row = static_cast<int64_t>(row_bytes(reading.type(), columns));
  const int64_t step = std::clamp<int64_t>(piece_bytes_ / stored_row, 1, rows);
  const bool stays_mapped = reading.mapped() && !change;
  std::shared_ptr<Buffer> table;
  if (!stays_mapped) {
    QUIRE_ASSIGN(table, backend_.allocate(static_cast<size_t>(rows) * row_bytes(type, columns), MemoryKind::kStaging));
  }
  for (int64_t row = 0; row < rows; row += step) {
    QUIRE_TRY(poll());
    const int64_t n = std::min(step, rows - row);
    std::byte* memory = nullptr;
    if (change && !reading.mapped()) {
      QUIRE_ASSIGN(memory, staging(stored_[0], step * stored_row));
    } else if (!stays_mapped) {
      memory = static_cast<std::byte*>(table->host()) + row * stored_row;
    }
    QUIRE_ASSIGN(const std::byte* piece, reading.next(n * stored_row, memory));
    if (change) {
      float* values = static_cast<float*>(table->host()) + row * columns;
      dequantize(reading.type(), piece, n * columns, values);
      change(row, n, values);
    }
  }
  if (reading.mapped()) source.files->drop(source.tensor);  // read again row by row, as tokens ask for them
  return with_room(static_cast<size_t>(rows) * row_bytes(type, columns), [&] {
    if (stays_mapped) return backend_.create_table(rows, columns, type, reading.mapped(), source.files);
    return backend_.create_table(rows, columns, type, table->host(), table);
  });
}

Status PieceLoader::read_values(const Source& source, std::span<const int64_t> shape, std::vector<float>& values) {
  QUIRE_ASSIGN(Reading reading, Reading::begin(source, shape));
  const BlockFormat format = block_format(reading.type());
  const auto size = static_cast<int64_t>(format.bytes);
  const int64_t blocks = reading.bytes() / size;
  const int64_t step = std::clamp<int64_t>(piece_bytes_ / size, 1, std::max<int64_t>(1, blocks));
  std::vector<std::byte> stored(static_cast<size_t>(reading.mapped() ? 0 : std::min(step, blocks) * size));
  const size_t first = values.size();
  for (int64_t at = 0; at < blocks; at += step) {
    QUIRE_TRY(poll());
    const int64_t n = std::min(step, blocks - at);
    QUIRE_ASSIGN(const std::byte* piece, reading.next(n * size, stored.data()));
    const size_t begin = values.size();
    values.resize(begin + static_cast<size_t>(n * format.elements));
    dequantize(reading.type(), piece, n * format.elements, values.data() + begin);
  }
  if (const int64_t run = reading.interleaved_rows(); run > 1) {
    const std::vector<float> stored_order(values.begin() + static_cast<int64_t>(first), values.end());
    reorder(
        std::as_bytes(std::span(stored_order)).data(), static_cast<int64_t>(stored_order.size()), sizeof(float),
        [&](int64_t r) { return interleaved_source(r, run); },
        std::as_writable_bytes(std::span(values).subspan(first)).data());
  }
  return {};
}

Result<std::unique_ptr<Buffer>> PieceLoader::load_buffer(std::vector<float> values) {
  if (!queue_) {
    QUIRE_ASSIGN(queue_, backend_.create_queue());
  }
  const size_t bytes = values.size() * sizeof(float);
  QUIRE_ASSIGN(auto buffer, with_room(bytes, [&] { return backend_.allocate(bytes, MemoryKind::kDevice); }));
  auto kept = std::make_shared<const std::vector<float>>(std::move(values));
  QUIRE_TRY(engine_.start([this, kept, bytes, target = buffer.get()]() -> Status {
    QUIRE_TRY(backend_.upload(*queue_, kept->data(), *target, 0, bytes));
    return finish_queue(backend_, *queue_);
  }));
  return buffer;
}

}  // namespace quire
