#include "lib/session/session.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "lib/model/strategy_context.h"
#include "lib/session/stream.h"
#include "lib/support/content_hash.h"
#include "lib/support/make_room.h"

namespace quire {
namespace {

Status closed_status() { return Status(Code::kClosed, "the session was closed"); }

}  // namespace

Status Session::check(const Model& model, const SessionOptions& options) {
  if (model.runtime->closed()) return Status(Code::kClosed, "the runtime was closed");
  QUIRE_TRY(list_adapters(model, options).status());
  QUIRE_ASSIGN(const auto strategy, choose_strategy(model, options));
  return check_reach(*strategy, options);
}

Status Session::check_reach(const Strategy& strategy, const SessionOptions& options) {
  const int64_t reach = strategy.reach();
  if (options.overflow != OverflowPolicy::kError || options.expected_tokens <= reach) return {};
  return Status(Code::kOverflow,
                "expected_tokens is " + std::to_string(options.expected_tokens) + "; " + strategy.canonical() +
                    " can serve " + std::to_string(reach) + " tokens",
                options.expected_tokens);
}

Result<std::shared_ptr<Session>> Session::create(std::shared_ptr<Model> model, SessionOptions options) {
  if (model->runtime->closed()) return Status(Code::kClosed, "the runtime was closed");
  QUIRE_ASSIGN(AdapterList adapters, list_adapters(*model, options));
  QUIRE_ASSIGN(auto strategy, choose_strategy(*model, options));
  if (!strategy->notice().empty()) model->runtime->log().write(LogLevel::kInfo, strategy->notice());
  const LlamaModel& llama = *model->llama;
  Backend& backend = llama.backend();
  QUIRE_ASSIGN(auto rope, backend.create_rope(strategy->rope(), strategy->kv_chunk()));
  Runtime& runtime = *model->runtime;
  ChunkStoreOptions store;
  store.budget_bytes = options.kv_budget_bytes;
  store.spill_directory = options.spill_directory;
  store.spill_budget_bytes = options.spill_budget_bytes;
  store.runtime_memory = runtime.kv_memory();
  store.runtime_file = runtime.kv_file();
  store.io = runtime.io();
  store.raw_keys = strategy->stores_raw_keys();
  if (strategy->selects_chunks()) store.n_query_heads = llama.config().n_query_heads;
  QUIRE_ASSIGN(auto kv, ChunkStore::create(backend, llama.kv_geometry(*strategy, options.kv_type),
                                           llama.config().n_layers, store));
  std::shared_ptr<Session> session(new Session(std::move(model), std::move(options), std::move(strategy),
                                               std::move(rope), std::move(kv), std::move(adapters)));
  if (const std::string warning = session->base_warning(); !warning.empty()) {
    runtime.log().write(LogLevel::kWarning, warning);
  }
  if (!runtime.add_session(session)) return Status(Code::kClosed, "the runtime was closed");
  return session;
}

Result<std::unique_ptr<const Strategy>> Session::choose_strategy(const Model& model, const SessionOptions& options) {
  const ModelConfig& config = model.llama->config();
  const StrategyContext context =
      strategy_context(config, {options.expected_tokens, options.kv_type, options.kv_budget_bytes,
                                options.prefill_block, !options.spill_directory.empty()});
  QUIRE_ASSIGN(auto strategy, make_strategy(options.strategy, context));
  if (!strategy->condenses() || options.adapters.empty()) return strategy;
  return Status(Code::kUnsupported,
                strategy->canonical() +
                    ": beacon weights are made for the model without adapters; merge those that they "
                    "were trained with into the model");
}

Session::Session(std::shared_ptr<Model> model, SessionOptions options, std::unique_ptr<const Strategy> strategy,
                 std::shared_ptr<const Rope> rope, std::unique_ptr<ChunkStore> kv, AdapterList adapters)
    : model_(std::move(model)),
      options_(std::move(options)),
      strategy_(std::move(strategy)),
      adapters_(std::move(adapters)),
      rope_(std::move(rope)),
      kv_(std::move(kv)) {
  stats_.reach = strategy_->reach();
}

Session::~Session() = default;

Result<AdapterList> Session::list_adapters(const Model& model, const SessionOptions& options) {
  std::vector<AdapterList::Entry> entries;
  for (size_t i = 0; i < options.adapters.size(); ++i) {
    const SessionAdapter& a = options.adapters[i];
    if (a.adapter->model.get() != &model) {
      return Status(Code::kInvalidArgument,
                    "adapters[" + std::to_string(i) + "] was loaded for another model than the session's",
                    static_cast<int64_t>(i));
    }
    entries.push_back({a.adapter->adapter.get(), a.scale});
  }
  return AdapterList::make(std::move(entries));
}

std::string Session::base_warning() const {
  if (strategy_->names_frequencies()) return {};
  const auto turns = [](const auto& a) { return a.changes_queries_or_keys; };
  const auto& merged = model_->llama->weights().merged;
  const auto& own = adapters_.entries();
  if (std::none_of(merged.begin(), merged.end(), turns) &&
      std::none_of(own.begin(), own.end(), [&](const auto& e) { return turns(*e.adapter); })) {
    return {};
  }
  char theta[32];
  const auto end = std::to_chars(theta, theta + sizeof theta, model_->llama->config().rope_theta).ptr;
  return "the adapter changes queries or keys, and may need the RoPE base or scaling that it was trained with, which "
         "its "
         "files cannot say: add `+ base(theta=...)` or a scaling to the strategy, with theta=" +
         std::string(theta, end) + " if the model's own is right";
}

std::string Session::fingerprint() const {
  ContentHash hash;
  hash.add_text("quire session 1").add_text(model_->llama->identity());
  for (const AdapterList::Entry& e : adapters_.entries()) hash.add_text(e.adapter->identity).add_real(e.scale);
  hash.add_text(strategy_->canonical()).add_text(element_name(options_.kv_type));
  return hash.hex();
}

Status Session::begin_call() const {
  MutexLock lock(mutex_);
  for (;;) {
    if (state_ != State::kOpen) return closed_status();
    if (model_->runtime->closed()) return Status(Code::kClosed, "the runtime was closed");
    if (stream_is_open() && !stream_released_) {
      return Status(Code::kBusy, "a stream is open on this session: read it to its end event, or close it");
    }
    if (!stream_is_open() && !turn_.taken()) break;
    changed_.wait(mutex_);
  }
  turn_.take();
  return {};
}

void Session::end_call() const {
  turn_.assert_held();
  MutexLock lock(mutex_);
  publish();
  turn_.give_back();
  changed_.notify_all();
}

void Session::publish() const {
  stats_.n_tokens = n_settled();
  stats_.n_pending = n_pending();
  const ChunkStoreStats kv = kv_->stats();
  stats_.kv_bytes = kv.bytes;
  stats_.kv_record_bytes = kv_->record_bytes();
  stats_.kv_bytes_peak = kv.bytes_peak;
  stats_.kv_chunks = kv.n_records;
  stats_.kv_chunks_resident = kv.n_resident;
  stats_.kv_chunks_evicted = kv.n_evicted;
  stats_.kv_file_bytes = kv.file_bytes;
  stats_.kv_chunks_read = kv.n_read;
  stats_.kv_chunks_written = kv.n_written;
}

Status Session::check_open() const {
  MutexLock lock(mutex_);
  return state_ == State::kOpen ? Status() : closed_status();
}

Status Session::feed_text(std::string_view text, bool parse_special, bool add_bos, std::span<const TextLabel> labels) {
  const Call call(*this);
  QUIRE_TRY(call.status());
  for (size_t i = 0; i < labels.size(); ++i) {
    const auto& label = labels[i];
    if (label.begin >= 0 && label.begin <= label.end && label.end <= static_cast<int64_t>(text.size())) continue;
    return Status(Code::kInvalidArgument,
                  "labels[" + std::to_string(i) + "] is bytes " + std::to_string(label.begin) + " to " +
                      std::to_string(label.end) + " of a text of " + std::to_string(text.size()),
                  static_cast<int64_t>(i));
  }
  const bool first = tokens_.empty() && pending_.empty();
  std::vector<int64_t> starts;
  QUIRE_ASSIGN(const auto ids, model_->llama->tokenizer().encode(text, {first, add_bos, parse_special},
                                                                 labels.empty() ? nullptr : &starts));
  std::vector<LabelAttention> added;
  for (const TextLabel& label : labels) {
    const auto from = std::lower_bound(starts.begin(), starts.end(), label.begin);
    const auto to = std::lower_bound(from, starts.end(), label.end);
    added.push_back({label.id, from - starts.begin(), to - from, 0});
  }
  const int64_t before = n_settled() + n_pending();
  make_room(labels_, added.size());
  pending_.insert(pending_.end(), ids.begin(), ids.end());
  for (LabelAttention& label : added) {
    label.first_token += before;
    labels_.push_back(label);
  }
  return {};
}

Status Session::label_attention(std::vector<LabelAttention>* labels) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  if (!strategy_->selects_chunks()) {
    return Status(Code::kUnsupported, strategy_->canonical() + " sees what it sees by position: it chooses no chunks");
  }
  *labels = labels_;
  share_choices(selected_, strategy_->kv_chunk(), *labels);
  return {};
}

// Labels end where the text ends.
void Session::cut_labels(int64_t n_tokens) {
  for (LabelAttention& label : labels_) {
    label.n_tokens = std::min(label.n_tokens, std::max<int64_t>(0, n_tokens - label.first_token));
  }
  std::erase_if(labels_, [&](const LabelAttention& label) { return label.first_token >= n_tokens; });
}

Status Session::check_ids(std::span<const int32_t> ids) const {
  const int32_t vocab = model_->llama->config().vocab_size;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    return Status(Code::kInvalidToken,
                  "token id " + std::to_string(ids[i]) + " at index " + std::to_string(i) +
                      " is outside the vocabulary of " + std::to_string(vocab),
                  static_cast<int64_t>(i));
  }
  return {};
}

Status Session::feed_tokens(std::span<const int32_t> ids) {
  QUIRE_TRY(check_ids(ids));
  const Call call(*this);
  QUIRE_TRY(call.status());
  pending_.insert(pending_.end(), ids.begin(), ids.end());
  return {};
}

Status Session::feed_positions(std::span<const int32_t> ids, std::span<const int64_t> positions) {
  constexpr int64_t kMost = int64_t{1} << 40;
  QUIRE_TRY(check_ids(ids));
  const Call call(*this);
  QUIRE_TRY(call.status());
  if (!strategy_->takes_positions()) {
    return Status(Code::kUnsupported, strategy_->canonical() + " sets distances of its own; positions are for full");
  }
  const int64_t before = n_settled() + n_pending();
  int64_t least = positions_.position(before), gaps = positions_.n_gaps();
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < least || positions[i] >= kMost) {
      return Status(Code::kInvalidArgument,
                    "positions[" + std::to_string(i) + "] is " + std::to_string(positions[i]) + "; expected " +
                        std::to_string(least) + " or more, and less than " + std::to_string(kMost),
                    static_cast<int64_t>(i));
    }
    if (positions[i] > least && ++gaps > TextPositions::kMaxGaps) {
      return Status(Code::kInvalidArgument,
                    "positions[" + std::to_string(i) + "] comes after one gap too many; a text has at most " +
                        std::to_string(TextPositions::kMaxGaps),
                    static_cast<int64_t>(i));
    }
    least = positions[i] + 1;
  }
  TextPositions longer = positions_;
  longer.append(before, positions);
  pending_.insert(pending_.end(), ids.begin(), ids.end());
  positions_ = std::move(longer);
  return {};
}

Status Session::discard_pending() {
  const Call call(*this);
  QUIRE_TRY(call.status());
  pending_.clear();
  positions_.cut(n_settled());
  cut_labels(n_settled());
  return {};
}

Status Session::reset() {
  const Call call(*this);
  QUIRE_TRY(call.status());
  cut(0);
  return {};
}

Status Session::truncate(int64_t n_tokens) {
  const Call call(*this);
  QUIRE_TRY(call.status());
  const int64_t settled = n_settled();
  const int64_t all = settled + n_pending();
  if (n_tokens < 0 || n_tokens > all) {
    return Status(Code::kInvalidArgument,
                  "n_tokens is " + std::to_string(n_tokens) + "; expected 0 to " + std::to_string(all));
  }
  if (n_tokens >= settled) {
    pending_.resize(static_cast<size_t>(n_tokens - settled));
    positions_.cut(n_tokens);
    cut_labels(n_tokens);
  } else {
    cut(n_tokens);
  }
  return {};
}

// Forgets what comes after n_tokens settled ones. The last of them is read again, for its logits; if the store cannot
// go on from there exactly, so are the ones from the last place where it can.
void Session::cut(int64_t n_tokens) {
  int64_t boundary = kv_->exact_boundary(std::max<int64_t>(0, std::min(n_computed_, n_tokens - 1)));
  for (const KeyRange& range : strategy_->retained(boundary)) {
    if (!kv_->holds(range.begin, std::min(range.end, boundary))) boundary = 0;
  }
  n_computed_ = boundary;
  cut_store();
  tokens_.resize(static_cast<size_t>(n_tokens));
  while (!generated_.empty() && generated_.back().begin >= n_tokens) generated_.pop_back();
  if (!generated_.empty()) generated_.back().end = std::min(generated_.back().end, n_tokens);
  pending_.clear();
  positions_.cut(n_tokens);
  cut_labels(n_tokens);
  selected_.clear();
  last_logits_.clear();
  kept_logits_.clear();
  kept_scores_.clear();
  reread_end_ = n_tokens;
}

void Session::reserve_generated() {
  make_room(tokens_, 1);
  if (strategy_->plans_generated_apart()) make_room(generated_, 1);
}

void Session::add_generated(int32_t token) {
  if (strategy_->plans_generated_apart()) {
    if (generated_.empty() || generated_.back().end != n_settled()) generated_.push_back({n_settled(), n_settled()});
    ++generated_.back().end;
  }
  tokens_.push_back(token);
}

bool Session::is_generated(int64_t position) const {
  const auto after = std::upper_bound(generated_.begin(), generated_.end(), position,
                                      [](int64_t p, const KeyRange& run) { return p < run.begin; });
  return after != generated_.begin() && position < std::prev(after)->end;
}

Status Session::count_tokens(int64_t* n_tokens, int64_t* n_pending) const {
  SessionStats now;
  QUIRE_TRY(stats(&now));
  if (n_tokens) *n_tokens = now.n_tokens;
  if (n_pending) *n_pending = now.n_pending;
  return {};
}

Status Session::stats(SessionStats* stats) const {
  MutexLock lock(mutex_);
  if (state_ != State::kOpen) return closed_status();
  *stats = stats_;
  return {};
}

Status Session::logits(int64_t first_token, int64_t n_rows, float* out, size_t capacity) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  const auto vocab = static_cast<size_t>(model_->llama->config().vocab_size);
  if (n_rows < 1) return Status(Code::kInvalidArgument, "n_rows is " + std::to_string(n_rows) + "; expected 1 or more");
  if (capacity / vocab < static_cast<size_t>(n_rows)) {
    return Status(Code::kBufferTooSmall, std::to_string(n_rows) + " rows of " + std::to_string(vocab) +
                                             " logits do not fit in " + std::to_string(capacity) + " floats");
  }
  const float* rows = nullptr;
  const auto kept = static_cast<int64_t>(kept_logits_.size() / vocab);
  if (first_token == -1 || first_token == n_computed_ - 1) {
    if (n_rows == 1 && !last_logits_.empty()) rows = last_logits_.data();
  } else if (first_token >= kept_first_ && n_rows <= kept && first_token - kept_first_ <= kept - n_rows) {
    rows = &kept_logits_[static_cast<size_t>(first_token - kept_first_) * vocab];
  }
  if (!rows) {
    return Status(Code::kNotFound, "no logits are kept for " + std::to_string(n_rows) + " rows from token " +
                                       std::to_string(first_token) + "; kept: the last, and " + std::to_string(kept) +
                                       " from " + std::to_string(kept_first_));
  }
  std::copy_n(rows, static_cast<size_t>(n_rows) * vocab, out);
  return {};
}

Status Session::scores(int64_t first_token, int64_t n, float* out) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  const auto kept = static_cast<int64_t>(kept_scores_.size());
  if (n < 1) return Status(Code::kInvalidArgument, "n is " + std::to_string(n) + "; expected 1 or more");
  if (n > kept || first_token < kept_first_ || first_token - kept_first_ > kept - n) {
    return Status(Code::kNotFound, "no scores are kept for " + std::to_string(n) + " tokens from token " +
                                       std::to_string(first_token) + "; kept: " + std::to_string(kept) + " from " +
                                       std::to_string(kept_first_));
  }
  std::copy_n(&kept_scores_[static_cast<size_t>(first_token - kept_first_)], n, out);
  return {};
}

void Session::request_stop() {
  std::shared_ptr<GenerationStream> stream;
  {
    MutexLock lock(mutex_);
    stream = stream_.lock();
  }
  if (stream) (void)stream->cancel();  // closed meanwhile: nothing to stop
}

void Session::engine_stopped() {
  std::shared_ptr<GenerationStream> stream;
  {
    MutexLock lock(mutex_);
    stream = stream_.lock();
  }
  if (stream) stream->engine_stopped();
  changed_.notify_all();  // also who waited for the end of a released stream, which may be gone altogether
}

void Session::close() {
  std::shared_ptr<GenerationStream> stream;
  {
    MutexLock lock(mutex_);
    if (state_ != State::kOpen) {
      while (state_ != State::kClosed) changed_.wait(mutex_);
      return;
    }
    state_ = State::kClosing;  // from here on nothing begins: neither a call nor a stream
    stream = stream_.lock();
    changed_.notify_all();
  }
  if (stream) stream->close();
  {
    MutexLock lock(mutex_);
    while (turn_.taken()) changed_.wait(mutex_);
    turn_.take();
  }
  free_contents();
  MutexLock lock(mutex_);
  turn_.give_back();
  state_ = State::kClosed;
  changed_.notify_all();
}

void Session::free_contents() {
  turn_.assert_held();
  kv_.reset();
  rope_.reset();
  tokens_ = {};
  generated_ = {};
  pending_ = {};
  positions_ = {};
  last_logits_ = kept_logits_ = kept_scores_ = {};
  labels_ = {};
  selected_ = {};
}

}  // namespace quire
