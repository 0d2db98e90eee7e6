#include "lib/kv/selection_state.h"

#include <algorithm>

namespace quire {

SelectionState::SelectionState(Backend& backend, const KvGeometry& geometry, int n_layers, int n_query_heads,
                               const ChunkSelection& selection, TierAccount& account)
    : backend_(backend),
      account_(account),
      chunk_(selection.count > 0 ? selection.chunk : geometry.chunk),
      head_dim_(geometry.head_dim),
      n_query_heads_(selection.keeps_queries() ? n_query_heads : 0),
      pages_(static_cast<size_t>(n_layers)) {
  if (selection.count > 0) {
    n_vectors_ = selection.n_vectors(n_query_heads, geometry.n_kv_heads);
    type_ = selection.vector_type(geometry.type);
    page_bytes_ = static_cast<int64_t>(backend.representation_page_bytes(n_vectors_, geometry.head_dim, type_));
  }
}

int64_t SelectionState::pages_for(int64_t n_tokens) const {
  return ceil_div(ceil_div(n_tokens, chunk_), Representations::kPageChunks);
}

int64_t SelectionState::bytes_for(int64_t n_tokens) const {
  if (page_bytes_ == 0) return 0;
  const auto layers = static_cast<int64_t>(pages_.size());
  const int64_t rows = layers * 2 * chunk_;
  return pages_for(n_tokens) * layers * page_bytes_ +
         rows * n_query_heads_ * head_dim_ * static_cast<int64_t>(sizeof(float));
}

void SelectionState::share(SelectionState& other) {
  other.n_shared_ = other.pages_.empty() ? 0 : static_cast<int64_t>(other.pages_[0].size());
  other.queries_shared_ = other.queries_ != nullptr;
  n_shared_ = other.n_shared_;
  queries_shared_ = other.queries_shared_;
  pages_ = other.pages_;
  n_pages_ = other.n_pages_;
  queries_ = other.queries_;
  queries_bytes_ = other.queries_bytes_;
  std::ranges::copy(other.queries_chunk_, queries_chunk_);
  account_.hold_shared(bytes());
}

int64_t SelectionState::bytes_to_add(int64_t first, int64_t n_tokens) const {
  if (page_bytes_ == 0) return 0;
  const int64_t copied = pages_to_copy(first) * static_cast<int64_t>(pages_.size()) * page_bytes_;
  return std::max<int64_t>(0, bytes_for(n_tokens) - bytes()) + copied + (queries_shared_ ? queries_bytes_ : 0);
}

Status SelectionState::reserve(int64_t first, int64_t n_tokens) {
  if (page_bytes_ == 0) return {};
  if (queries_shared_) QUIRE_TRY(account_.own(backend_, queries_));
  queries_shared_ = false;
  if (!queries_ && n_query_heads_ > 0) {
    QUIRE_ASSIGN(queries_, account_.allocate_shared(backend_, bytes_for(0), MemoryKind::kDevice));
    queries_bytes_ = bytes_for(0);
  }
  const auto n = static_cast<size_t>(pages_for(n_tokens));
  for (; pages_to_copy(first) > 0; --n_shared_) {
    for (auto& pages : pages_) QUIRE_TRY(account_.own(backend_, pages[static_cast<size_t>(n_shared_) - 1]));
  }
  for (auto& pages : pages_) {
    pages.reserve(n);
    while (pages.size() < n) {
      QUIRE_ASSIGN(auto page, account_.allocate_shared(backend_, page_bytes_, MemoryKind::kDevice));
      pages.push_back(std::move(page));
      ++n_pages_;
    }
  }
  return {};
}

std::vector<std::shared_ptr<Buffer>> SelectionState::pages_of(int64_t first, int64_t end) const {
  std::vector<std::shared_ptr<Buffer>> all;
  for (int64_t page = first / chunk_ / Representations::kPageChunks; page < complete_pages(end); ++page) {
    for (const auto& pages : pages_) all.push_back(pages[static_cast<size_t>(page)]);
  }
  return all;
}

Status SelectionState::adopt(int64_t first, int64_t end, std::vector<std::shared_ptr<Buffer>> pages) {
  if (page_bytes_ == 0) return {};
  const size_t n_layers = pages_.size();
  const auto begin = static_cast<size_t>(first / chunk_ / Representations::kPageChunks);
  const auto n_complete = static_cast<size_t>(end / chunk_ / Representations::kPageChunks);
  const auto n = static_cast<size_t>(complete_pages(end));
  for (auto& own : pages_) own.reserve(n);
  const auto more = static_cast<int64_t>(n - std::min(n, pages_[0].size()));  // others take the place of one's own
  account_.hold_shared(more * static_cast<int64_t>(n_layers) * page_bytes_);
  const int64_t n_in_last = end / chunk_ % Representations::kPageChunks;
  const auto copy = [&](Queue& queue, const Buffer& from, Buffer& to) {
    return backend_.copy_representations(queue, from, n_vectors_, static_cast<int>(head_dim_), type_, n_in_last, to);
  };
  for (size_t i = (n_complete - begin) * n_layers; i < pages.size(); ++i) {
    const Status status = account_.own(backend_, pages[i], copy);  // of a page that its holder writes more to
    if (status.ok()) continue;
    account_.let_go_shared(more * static_cast<int64_t>(n_layers) * page_bytes_);
    return status;
  }
  for (size_t page = begin; page < n; ++page) {
    for (size_t layer = 0; layer < n_layers; ++layer) {
      auto& own = pages_[layer];
      if (page == own.size()) {
        own.emplace_back();
        ++n_pages_;
      }
      std::swap(own[page], pages[(page - begin) * n_layers + layer]);
    }
  }
  n_shared_ = static_cast<int64_t>(n_complete);
  std::ranges::fill(queries_chunk_, -1);
  return {};
}

void SelectionState::extend(int64_t first, int64_t n) {
  if (!queries_) return;
  const int64_t now = first / chunk_, then = (first + n) / chunk_;
  const int kept = queries_chunk_[1] == now ? 1 : 0;
  queries_chunk_[kept] = first % chunk_ == 0 && n >= chunk_ ? -1 : now;
  queries_chunk_[1 - kept] = then == now ? -1 : then;
}

void SelectionState::truncate(int64_t n_tokens, bool others) {
  const auto n = static_cast<size_t>(pages_for(n_tokens));
  for (auto& pages : pages_) {
    while (pages.size() > n) {
      pages.pop_back();
      --n_pages_;
      account_.let_go_shared(page_bytes_);
    }
  }
  // What will be written to the pages again takes the place of what others read there.
  n_shared_ = others ? static_cast<int64_t>(n) : std::min(n_shared_, static_cast<int64_t>(n));
  // Queries of a later chunk, or of a chunk that the text has not begun, mean nothing now.
  for (int64_t& chunk : queries_chunk_) {
    if (chunk != n_tokens / chunk_ || n_tokens % chunk_ == 0) chunk = -1;
  }
}

void SelectionState::drop_queries() {
  if (!queries_) return;
  account_.let_go_shared(queries_bytes_);
  queries_.reset();
  queries_bytes_ = 0;
  queries_shared_ = false;
  std::ranges::fill(queries_chunk_, -1);
}

int64_t SelectionState::exact_boundary(int64_t n_tokens) const {
  const int64_t chunk = n_tokens / chunk_;
  const bool known = n_query_heads_ == 0 || queries_chunk_[0] == chunk || queries_chunk_[1] == chunk;
  return known ? n_tokens : chunk * chunk_;
}

Rows SelectionState::queries_in_progress(int layer, int64_t chunk) const {
  const int64_t width = int64_t{n_query_heads_} * head_dim_;
  for (int place = 0; place < 2; ++place) {
    if (queries_chunk_[place] != chunk) continue;
    return {queries_.get(), (layer * 2 + place) * chunk_ * width, width};
  }
  return {};
}

}  // namespace quire
