#include "lib/session/session.h"

#include <cstdint>

#include "lib/model/memory_plan.h"
#include "lib/model/strategy_context.h"
#include "lib/support/content_hash.h"

namespace quire {
namespace {

// What sessions of a runtime that share chunks have in common. Where chunks are selected it is the model object as
// well: its steps, one at a time, write representations and copy them.
PrefixHash prefix_root(const Model& model, const Strategy& strategy, const std::string& fingerprint) {
  std::string root = fingerprint + " " + model.device;
  if (strategy.selects_chunks()) root += " " + std::to_string(reinterpret_cast<uintptr_t>(&model));
  return content_checksum(std::as_bytes(std::span(root)));
}

// Whether the session's KV cache can be made.
Status check_kv(const LlamaModel& llama, const Strategy& strategy, const SessionOptions& options) {
  MemoryRequest request;
  request.kv_type = options.kv_type;
  request.old_text = options.old_text;
  request.compressed_budget_bytes = options.compressed_budget_bytes;
  return quire::check_kv(llama.backend(), llama.config(), strategy, request);
}

Status closed_status() { return Status(Code::kClosed, "the session was closed"); }

}  // namespace

Status Session::check(const Model& model, const SessionOptions& options) {
  if (model.runtime->closed()) return Status(Code::kClosed, "the runtime was closed");
  QUIRE_TRY(list_adapters(model, options).status());
  QUIRE_ASSIGN(const auto strategy, choose_strategy(model, options));
  QUIRE_TRY(check_kv(*model.llama, *strategy, options));
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
  QUIRE_ASSIGN(auto session, make(std::move(model), std::move(options), nullptr));
  QUIRE_TRY(session->announce());
  return session;
}

Result<std::shared_ptr<Session>> Session::make(std::shared_ptr<Model> model, SessionOptions options,
                                               std::shared_ptr<const BlockSource> snapshot) {
  if (model->runtime->closed()) return Status(Code::kClosed, "the runtime was closed");
  QUIRE_ASSIGN(AdapterList adapters, list_adapters(*model, options));
  QUIRE_ASSIGN(const std::shared_ptr<const Strategy> strategy, choose_strategy(*model, options));
  const LlamaModel& llama = *model->llama;
  Runtime& runtime = *model->runtime;
  Backend& backend = llama.backend();
  QUIRE_TRY(check_kv(llama, *strategy, options));
  QUIRE_ASSIGN(Ropes ropes, llama.create_ropes(*strategy));
  ChunkStoreOptions store;
  store.budget_bytes = first_budget(backend, options);
  store.host_budget_bytes = options.kv_budget_bytes;
  store.spill_directory = options.spill_directory;
  store.spill_budget_bytes = options.spill_budget_bytes;
  store.compressed_budget_bytes = options.compressed_budget_bytes;
  store.host_memory = &runtime.allocator();
  store.residency = model->residency;
  store.runtime_host = runtime.kv_host();
  store.runtime_compressed = runtime.kv_compressed();
  store.runtime_file = runtime.kv_file();
  store.io = runtime.io();
  store.stored_div = strategy->stored_div();
  store.old = options.old_text;
  store.windowed = window_layers(llama.config(), *strategy, options.keep_behind_windows);
  if (strategy->drops_text()) store.seen = [strategy](int64_t next_query) { return strategy->retained(next_query); };
  store.n_query_heads = llama.config().n_query_heads;
  store.selection = strategy->selection();
  store.snapshot = std::move(snapshot);
  if (options.reuse_prefixes && !strategy->condenses()) {
    store.prefixes = runtime.prefixes();
    store.cache = &runtime.prefix_cache();
    store.prefix_root =
        prefix_root(*model, *strategy, quire::fingerprint(origin_of(*model, adapters, *strategy, options)));
  }
  QUIRE_ASSIGN(auto kv, ChunkStore::create(backend, llama.kv_geometry(*strategy, options.kv_type),
                                           llama.config().n_layers, store));
  auto contents = std::make_unique<SessionContents>(*strategy, llama.config(), std::move(ropes), std::move(kv));
  return std::shared_ptr<Session>(
      new Session(std::move(model), std::move(options), strategy, std::move(adapters), std::move(contents)));
}

Status Session::announce() {
  Runtime& runtime = *model_->runtime;
  for (const SessionMessage& message : due_messages()) {
    runtime.log().write(message.is_warning() ? LogLevel::kWarning : LogLevel::kInfo, message.text);
  }
  return runtime.add_session(shared_from_this()) ? Status() : Status(Code::kClosed, "the runtime was closed");
}

Session::Session(std::shared_ptr<Model> model, SessionOptions options, std::shared_ptr<const Strategy> strategy,
                 AdapterList adapters, std::unique_ptr<SessionContents> contents)
    : model_(std::move(model)),
      options_(std::move(options)),
      strategy_(std::move(strategy)),
      adapters_(std::move(adapters)),
      contents_(std::move(contents)) {
  stats_.reach = strategy_->reach();
  if (!strategy_->notice().empty()) due_messages_.push_back({MessageCode::kAutoChoice, strategy_->notice()});
  std::string warning = adapter_base_warning(*model_, adapters_, *strategy_);
  if (!warning.empty()) due_messages_.push_back({MessageCode::kAdapterBase, std::move(warning)});
}

Session::~Session() { release_contents(std::move(contents_)); }

std::string Session::fingerprint() const { return quire::fingerprint(origin()); }

// ---- the turn of a call

// Waits for the end of another call, or of a stream whose last handle was released.
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
  publish(0);
  turn_.give_back();
  changed_.notify_all();
}

void Session::publish(int64_t n_undelivered) const {
  stats_.n_tokens = contents_->text.n_settled() - n_undelivered;
  stats_.n_pending = contents_->text.n_pending();
  const ChunkStoreStats kv = contents_->kv().stats();
  stats_.kv_bytes = kv.bytes;
  stats_.kv_record_bytes = contents_->kv().record_bytes();
  stats_.kv_bytes_peak = kv.bytes_peak;
  stats_.kv_chunks = kv.n_records;
  stats_.kv_chunks_resident = kv.n_resident;
  stats_.kv_chunks_evicted = kv.n_evicted;
  stats_.kv_host = kv.host;
  stats_.kv_compressed = kv.compressed;
  stats_.kv_chunks_in_file = kv.n_in_file;
  stats_.kv_file_bytes = kv.file_bytes;
  stats_.kv_chunks_read = kv.n_read;
  stats_.kv_chunks_written = kv.n_written;
  stats_.kv_chunks_in_snapshot = kv.n_in_snapshot;
  stats_.kv_chunks_restored = kv.n_restored;
  stats_.kv_full_bytes = kv.full_bytes;
  stats_.kv_narrow_bytes = kv.narrow_bytes;
  stats_.kv_file_bytes_read = kv.bytes_read;
  stats_.kv_file_bytes_written = kv.bytes_written;
  stats_.kv_bytes_restored = kv.bytes_restored;
  stats_.kv_hits = kv.n_hits;
  stats_.kv_misses = kv.n_misses;
  stats_.kv_chunks_left = kv.n_left;
  stats_.kv_stall_ns = kv.stall_ns;
  stats_.kv_written_behind = kv.n_written_behind;
}

// ---- questions

Status Session::check_open() const {
  MutexLock lock(mutex_);
  return state_ == State::kOpen ? Status() : closed_status();
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

// ---- the session's stream

Result<Session::Work> Session::begin_work() {
  QUIRE_TRY(begin_call());
  return Work(*this);
}

// Under one lock: the scheduler may give the stream a step as soon as it knows it.
Status Session::open_stream(const std::shared_ptr<StreamControl>& stream) {
  turn_.assert_held();
  MutexLock lock(mutex_);
  publish(0);
  turn_.give_back();
  changed_.notify_all();
  if (state_ != State::kOpen) return closed_status();
  if (!model_->runtime->scheduler().add(stream)) return Status(Code::kClosed, "the runtime was closed");
  stream_ = stream;
  stream_released_ = false;
  return {};
}

Session::Work Session::begin_step() {
  MutexLock lock(mutex_);
  turn_.take();
  return Work(*this);
}

void Session::end_step(const StepCost& cost, int64_t n_undelivered) {
  turn_.assert_held();
  const int64_t scratch = model_->pass->scratch_bytes() + contents_->ropes().bytes();
  MutexLock lock(mutex_);
  stats_.n_prefilled += cost.n_prompt;
  stats_.n_reused += cost.n_reused;
  stats_.n_moved += cost.n_moved;
  stats_.n_drafted += cost.n_drafted;
  stats_.n_accepted += cost.n_accepted;
  stats_.prefill_ns += cost.prefill.count();
  stats_.decode_ns += cost.decode.count();
  stats_.scratch_bytes = scratch;
  publish(n_undelivered);
  turn_.give_back();
  changed_.notify_all();
}

void Session::count_delivered() {
  MutexLock lock(mutex_);
  ++stats_.n_tokens;
  ++stats_.n_generated;
}

void Session::count_cancel(int64_t tasks_after, std::chrono::nanoseconds latency) {
  MutexLock lock(mutex_);
  stats_.tasks_after_cancel = tasks_after;
  stats_.cancel_latency_ns = latency.count();
}

void Session::stream_released(const StreamControl& stream) {
  MutexLock lock(mutex_);
  if (stream_.lock().get() == &stream) stream_released_ = true;
  changed_.notify_all();
}

void Session::stream_finished(const StreamControl& stream) {
  MutexLock lock(mutex_);
  if (stream_released_) forget_stream(stream);
  changed_.notify_all();
}

void Session::stream_ended(const StreamControl& stream) {
  MutexLock lock(mutex_);
  forget_stream(stream);
  changed_.notify_all();
}

void Session::forget_stream(const StreamControl& stream) {
  if (stream_.lock().get() != &stream) return;
  stream_.reset();
  stream_released_ = false;
}

std::vector<SessionMessage> Session::due_messages() const {
  MutexLock lock(mutex_);
  return due_messages_;
}

void Session::message_delivered(MessageCode code) {
  MutexLock lock(mutex_);
  std::erase_if(due_messages_, [&](const SessionMessage& message) { return message.code == code; });
}

// ---- the end

Status Session::unless_closed(Status status) const {
  return status.code() == Code::kCancelled && closing_.cancelled() ? closed_status() : status;
}

std::shared_ptr<StreamControl> Session::stream_now() const {
  MutexLock lock(mutex_);
  return stream_.lock();
}

void Session::request_stop() {
  if (const auto stream = stream_now()) stream->request_stop();
}

void Session::engine_stopped() {
  if (const auto stream = stream_now()) stream->engine_stopped();
  changed_.notify_all();  // also who waited for the end of a released stream, which may be gone altogether
}

void Session::close() {
  std::shared_ptr<StreamControl> stream;
  {
    MutexLock lock(mutex_);
    if (state_ != State::kOpen) {
      while (state_ != State::kClosed) changed_.wait(mutex_);
      return;
    }
    state_ = State::kClosing;  // from here on nothing begins: neither a call nor a stream
    closing_.cancel();
    stream = stream_.lock();
    changed_.notify_all();
  }
  if (stream) stream->session_closes();
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
  release_contents(std::move(contents_));
}

// What others can take over of it is kept.
void Session::release_contents(std::unique_ptr<SessionContents> contents) noexcept {
  if (contents && !keeps_nothing_) model_->runtime->prefix_cache().keep(contents->release_kv(), model_.get());
}

}  // namespace quire
