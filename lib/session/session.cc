#include "lib/session/session.h"

#include <algorithm>
#include <utility>

#include "lib/session/stream.h"

namespace quire {
namespace {

Status closed_status() { return Status(Code::kClosed, "the session was closed"); }

}  // namespace

Result<std::shared_ptr<Session>> Session::create(std::shared_ptr<Model> model, SessionOptions options) {
  if (model->runtime->closed()) return Status(Code::kClosed, "the runtime was closed");
  QUIRE_ASSIGN(auto strategy, choose_strategy(*model, options));
  if (!strategy->notice().empty()) model->runtime->log().write(LogLevel::kInfo, strategy->notice());
  Backend& backend = model->runtime->backend();
  QUIRE_ASSIGN(auto rope, backend.create_rope(strategy->rope(), strategy->kv_chunk()));
  Runtime& runtime = *model->runtime;
  std::shared_ptr<Session> session(
      new Session(std::move(model), std::move(options), std::move(strategy), std::move(rope)));
  if (!runtime.add_session(session)) return Status(Code::kClosed, "the runtime was closed");
  return session;
}

Result<std::unique_ptr<const Strategy>> Session::choose_strategy(const Model& model, const SessionOptions& options) {
  const ModelConfig& config = model.llama->config();
  const int64_t elements = int64_t{2} * config.n_layers * config.n_kv_heads * config.head_dim;
  StrategyContext context = model.llama->strategy_context(options.expected_tokens);
  context.kv_budget = {options.kv_budget_bytes, elements * static_cast<int64_t>(element_bytes(options.kv_type)),
                       options.prefill_block};
  return make_strategy(options.strategy, context);
}

Session::Session(std::shared_ptr<Model> model, SessionOptions options, std::unique_ptr<const Strategy> strategy,
                 std::unique_ptr<Rope> rope)
    : model_(std::move(model)),
      options_(std::move(options)),
      strategy_(std::move(strategy)),
      rope_(std::move(rope)),
      kv_(std::make_unique<ChunkStore>(model_->runtime->backend(),
                                       model_->llama->kv_geometry(*strategy_, options_.kv_type),
                                       model_->llama->config().n_layers, options_.kv_budget_bytes)) {
  stats_.reach = strategy_->reach();
}

Session::~Session() = default;

Status Session::begin_call(std::unique_lock<std::mutex>& lock) const {
  lock = std::unique_lock(mutex_);
  auto stream = stream_.lock();
  if (stream && stream->abandoned_) {
    stream->changed_.wait(lock, [&] { return stream->finished_; });
    stream = stream_.lock();
  }
  if (closed_) return closed_status();
  if (model_->runtime->closed()) return Status(Code::kClosed, "the runtime was closed");
  if (stream) return Status(Code::kBusy, "a stream is open on this session: read it to its end event, or close it");
  return {};
}

Status Session::check_open() const {
  std::lock_guard lock(mutex_);
  return closed_ ? closed_status() : Status();
}

Status Session::feed_text(std::string_view text, bool parse_special, bool add_bos) {
  std::unique_lock<std::mutex> lock;
  QUIRE_TRY(begin_call(lock));
  const bool first = tokens_.empty() && pending_.empty();
  lock.unlock();  // a long text takes a while; statistics stay readable
  QUIRE_ASSIGN(const auto ids, model_->llama->tokenizer().encode(text, {first, add_bos, parse_special}));
  return feed_tokens(ids);
}

Status Session::feed_tokens(std::span<const int32_t> ids) {
  const int32_t vocab = model_->llama->config().vocab_size;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      return Status(Code::kInvalidToken,
                    "token id " + std::to_string(ids[i]) + " at index " + std::to_string(i) +
                        " is outside the vocabulary of " + std::to_string(vocab),
                    static_cast<int64_t>(i));
    }
  }
  std::unique_lock<std::mutex> lock;
  QUIRE_TRY(begin_call(lock));
  pending_.insert(pending_.end(), ids.begin(), ids.end());
  stats_.n_pending = static_cast<int64_t>(pending_.size());
  return {};
}

Status Session::discard_pending() {
  std::unique_lock<std::mutex> lock;
  QUIRE_TRY(begin_call(lock));
  pending_.clear();
  stats_.n_pending = 0;
  return {};
}

Status Session::reset() {
  std::unique_lock<std::mutex> lock;
  QUIRE_TRY(begin_call(lock));
  kv_->truncate(0);
  tokens_.clear();
  pending_.clear();
  last_logits_.clear();
  kept_logits_.clear();
  kept_scores_.clear();
  n_computed_ = 0;
  update_stats();
  return {};
}

Status Session::position(int64_t* n_tokens, int64_t* n_pending) const {
  std::lock_guard lock(mutex_);
  if (closed_) return closed_status();
  if (n_tokens) *n_tokens = n_settled();
  if (n_pending) *n_pending = static_cast<int64_t>(pending_.size());
  return {};
}

Status Session::stats(SessionStats* stats) const {
  std::lock_guard lock(mutex_);
  if (closed_) return closed_status();
  *stats = stats_;
  return {};
}

Status Session::logits(int64_t first_position, int64_t n_rows, float* out, size_t capacity) const {
  std::unique_lock<std::mutex> lock;
  QUIRE_TRY(begin_call(lock));
  const auto vocab = static_cast<size_t>(model_->llama->config().vocab_size);
  if (n_rows < 1) return Status(Code::kInvalidArgument, "n_rows is " + std::to_string(n_rows) + "; expected 1 or more");
  if (capacity / vocab < static_cast<size_t>(n_rows)) {
    return Status(Code::kBufferTooSmall, std::to_string(n_rows) + " rows of " + std::to_string(vocab) +
                                             " logits do not fit in " + std::to_string(capacity) + " floats");
  }
  const float* rows = nullptr;
  const auto kept = static_cast<int64_t>(kept_logits_.size() / vocab);
  if (first_position == -1 || first_position == n_computed_ - 1) {
    if (n_rows == 1 && !last_logits_.empty()) rows = last_logits_.data();
  } else if (first_position >= kept_first_ && n_rows <= kept && first_position - kept_first_ <= kept - n_rows) {
    rows = &kept_logits_[static_cast<size_t>(first_position - kept_first_) * vocab];
  }
  if (!rows) {
    return Status(Code::kNotFound, "no logits are kept for " + std::to_string(n_rows) + " rows from position " +
                                       std::to_string(first_position) + "; kept: the last, and " +
                                       std::to_string(kept) + " from " + std::to_string(kept_first_));
  }
  std::copy_n(rows, static_cast<size_t>(n_rows) * vocab, out);
  return {};
}

Status Session::scores(int64_t first_position, int64_t n, float* out) const {
  std::unique_lock<std::mutex> lock;
  QUIRE_TRY(begin_call(lock));
  const auto kept = static_cast<int64_t>(kept_scores_.size());
  if (n < 1) return Status(Code::kInvalidArgument, "n is " + std::to_string(n) + "; expected 1 or more");
  if (n > kept || first_position < kept_first_ || first_position - kept_first_ > kept - n) {
    return Status(Code::kNotFound, "no scores are kept for " + std::to_string(n) + " tokens from position " +
                                       std::to_string(first_position) + "; kept: " + std::to_string(kept) + " from " +
                                       std::to_string(kept_first_));
  }
  std::copy_n(&kept_scores_[static_cast<size_t>(first_position - kept_first_)], n, out);
  return {};
}

void Session::update_stats() {
  stats_.n_tokens = n_settled();
  stats_.n_pending = static_cast<int64_t>(pending_.size());
  stats_.kv_bytes = kv_->bytes();
  stats_.kv_bytes_peak = kv_->peak_bytes();
  stats_.kv_chunks = kv_->n_records();
  stats_.kv_chunks_evicted = kv_->n_evicted();
}

void Session::request_stop() {
  std::shared_ptr<GenerationStream> stream;
  {
    std::lock_guard lock(mutex_);
    stream = stream_.lock();
  }
  if (stream) (void)stream->cancel();  // closed meanwhile: nothing to stop
}

void Session::engine_stopped() {
  std::lock_guard lock(mutex_);
  if (auto stream = stream_.lock()) {
    stream->finished_ = true;
    stream->changed_.notify_all();
  }
}

void Session::close() {
  request_stop();
  std::unique_ptr<ChunkStore> kv;  // freed without the lock: the host's callback may have locks of its own
  std::unique_lock lock(mutex_);
  if (auto stream = stream_.lock()) {
    stream->changed_.wait(lock, [&] { return stream->finished_; });
    stream->closed_ = true;
    stream->update_wait_event();
    stream->changed_.notify_all();
  }
  stream_.reset();
  closed_ = true;
  kv = std::move(kv_);
  tokens_ = {};
  pending_ = {};
  last_logits_ = kept_logits_ = kept_scores_ = {};
}

}  // namespace quire
