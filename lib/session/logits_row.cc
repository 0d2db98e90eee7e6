#include "lib/session/logits_row.h"

#include <utility>

namespace quire {

Result<std::shared_ptr<LogitsRow>> LogitsRow::make(Backend& backend, int64_t n) {
  QUIRE_ASSIGN(auto buffer, backend.allocate(static_cast<size_t>(n) * sizeof(float), MemoryKind::kDevice));
  return std::shared_ptr<LogitsRow>(new LogitsRow(backend, std::move(buffer)));
}

Result<std::vector<float>> LogitsRow::read() const {
  std::vector<float> all(buffer_->size() / sizeof(float));
  QUIRE_ASSIGN(const auto queue, backend_.create_queue());
  QUIRE_TRY(backend_.download(*queue, *buffer_, 0, all.data(), buffer_->size()));
  QUIRE_TRY(finish_queue(backend_, *queue));
  return all;
}

}  // namespace quire
