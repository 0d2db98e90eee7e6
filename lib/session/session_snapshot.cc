// Sessions that stand where another one does: saved, loaded and forked ones.
#include <algorithm>

#include "lib/session/session.h"
#include "lib/support/os_append_file.h"
#include "lib/support/os_file.h"
#include "lib/support/os_output_file.h"

namespace quire {
namespace {

// The records and their like, on their way into the file.
class SavingSink : public BlockSink {
 public:
  // total: bytes of all blocks; known: may be null; closing: the session's.
  SavingSink(SnapshotWriter& writer, const EarlierRecords* known, const SaveControl& control, int64_t total,
             const CancelToken& closing)
      : writer_(writer), known_(known), control_(control), total_(total), both_{&closing, control.cancel} {}
  Result<int64_t> add(std::span<const std::byte> block) override {
    QUIRE_TRY(check_cancel());
    QUIRE_ASSIGN(const int64_t number, writer_.add(block));
    report(static_cast<int64_t>(block.size()));
    return number;
  }
  Result<int64_t> add_known(RecordKind kind, int64_t chunk, int64_t index) override {
    const int64_t block = known_ ? known_->block(kind, chunk, index) : -1;
    if (block < 0) return -1;
    QUIRE_TRY(check_cancel());
    const int64_t number = writer_.keep(block);
    report(writer_.block_bytes(number));
    return number;
  }

 private:
  Status check_cancel() const {
    return cancel_.cancelled() ? Status(Code::kCancelled, "saving was cancelled") : Status();
  }
  void report(int64_t bytes) {
    done_ += bytes;
    if (control_.progress) control_.progress(done_, total_);
  }

  SnapshotWriter& writer_;
  const EarlierRecords* const known_;
  const SaveControl& control_;
  const int64_t total_;
  const CancelToken* const both_[2];
  const CancelToken cancel_{both_};
  int64_t done_ = 0;
};

class FileSource : public BlockSource {
 public:
  explicit FileSource(std::shared_ptr<const SnapshotFile> file) : file_(std::move(file)) {}
  int64_t block_bytes(int64_t block) const override { return file_->block_bytes(block); }
  Status read(int64_t block, std::span<std::byte> out) const override { return file_->read(block, out); }
  void will_read(int64_t block) const override { file_->will_read(block); }

 private:
  std::shared_ptr<const SnapshotFile> file_;
};

// kBadFile: the type is not known.
Result<ElementType> kv_type_of(const std::string& name) {
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
    if (name == element_name(type)) return type;
  }
  return Status(Code::kBadFile, "keys and values of the type \"" + name + "\", which is not known");
}

Result<ElementType> old_type_of(const std::string& name) {
  for (const ElementType type : {ElementType::kInt8, ElementType::kInt4}) {
    if (name == element_name(type)) return type;
  }
  return Status(Code::kBadFile, "old keys and values of the type \"" + name + "\", which is not known");
}

int64_t snapshot_version(const Strategy& strategy, const SessionOptions& options) {
  if (strategy.window_layers()) return SnapshotFile::kWindowVersion;
  return options.old_text.narrows() ? SnapshotFile::kNarrowVersion : SnapshotFile::kVersion;
}

}  // namespace

SnapshotOrigin Session::origin_of(const Model& model, const AdapterList& adapters, const Strategy& strategy,
                                  const SessionOptions& options) {
  SnapshotOrigin origin;
  origin.model = model.llama->identity();
  for (const AdapterList::Entry& e : adapters.entries()) origin.adapters.push_back({e.adapter->identity, e.scale});
  origin.strategy = strategy.canonical();
  origin.kv_type = element_name(options.kv_type);
  if (options.old_text.narrows()) {
    origin.kv_old_type = element_name(options.old_text.type);
    origin.old_after = options.old_text.after;
  }
  return origin;
}

SnapshotOrigin Session::origin() const { return origin_of(*model_, adapters_, *strategy_, options_); }

Result<SnapshotOrigin> Session::identify(const Model& model, const SessionOptions& options) {
  if (model.runtime->closed()) return Status(Code::kClosed, "the runtime was closed");
  QUIRE_ASSIGN(const AdapterList adapters, list_adapters(model, options));
  QUIRE_ASSIGN(const auto strategy, choose_strategy(model, options));
  return origin_of(model, adapters, *strategy, options);
}

Status Session::storable_text(StorableText* storable) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  const TextState& text = contents_->text;
  const int64_t n = text.n_plain();
  const auto plain = text.tokens().first(static_cast<size_t>(n));
  storable->tokens.assign(plain.begin(), plain.end());
  storable->is_all = n == text.n_tokens();
  storable->n_computed = std::min(n, text.n_computed());
  const auto kv = contents_->kv().snapshot_size(text.n_computed(), strategy_->condensed_entries(text.n_computed()));
  constexpr int64_t kPerBlock = 32 + 64, kPerToken = 64, kRest = 1 << 14;  // of the container, and of the text
  storable->snapshot_bytes = kv.bytes + (kv.n_blocks + 8) * kPerBlock + text.n_tokens() * kPerToken +
                             static_cast<int64_t>(sizeof(float)) * model_->llama->config().vocab_size + kRest;
  return {};
}

Status Session::save(const std::string& path, const SaveControl& control) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  if (!control.whole) {
    const auto done = save_behind(path, control);
    if (!done.ok()) return unless_closed(done.status());
    if (done.value()) return {};
  }
  return unless_closed(save_whole(path, control));
}

Status Session::save_to(ByteSink& sink, const SaveControl& control) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  // While this call has the turn: who closes the session waits for all that the sink does.
  struct GiveUp {
    ByteSink* sink;
    ~GiveUp() {
      if (sink) sink->give_up();
    }
  } failed{&sink};
  QUIRE_ASSIGN(const auto writer, SnapshotWriter::create(sink, snapshot_version(*strategy_, options_)));
  QUIRE_TRY(unless_closed(write_snapshot(*writer, nullptr, control)));
  failed.sink = nullptr;
  return {};
}

Status Session::save_whole(const std::string& path, const SaveControl& control) const {
  QUIRE_ASSIGN(const auto file, OutputFile::create(path, {.owner_only = control.owner_only}));
  QUIRE_ASSIGN(const auto writer, SnapshotWriter::create(*file, snapshot_version(*strategy_, options_)));
  QUIRE_TRY(write_snapshot(*writer, nullptr, control));
  note_saved(writer->mark());
  return {};
}

// False: nothing was appended, and the file is to be written as a whole. What is wrong with the file that is there is
// no error: another one takes its place.
Result<bool> Session::save_behind(const std::string& path, const SaveControl& control) const {
  if (!contents_->saved_as) return false;
  const auto file = AppendFile::open(path);
  if (!file) return false;
  const auto base = SnapshotFile::open(file, *contents_->saved_as);
  const auto last = SnapshotFile::open(file);
  if (!base.ok() || !last.ok()) return false;
  const auto index = read_index(*base.value());
  if (!index.ok()) return false;

  const TextState& text = contents_->text;
  const ChunkStore& kv = contents_->kv();
  const int64_t chunk = kv.geometry().chunk, n_tokens = text.n_computed();
  const int64_t n_entries = strategy_->condensed_entries(n_tokens), n_unchanged = text.n_unchanged();
  EarlierRecords::Numbers n_records{}, unchanged{}, now{};
  for (const RecordKind kind : kAllRecordKinds) {
    const auto k = static_cast<size_t>(kind);
    n_records[k] = kv.n_records(kind);
    unchanged[k] = kv.saved_keys(kind, n_unchanged, strategy_->condensed_entries(n_unchanged));
    now[k] = kv.saved_keys(kind, n_tokens, n_entries);
  }
  const EarlierRecords known(index.value().kv, chunk, n_records, unchanged, now);
  const int64_t kept =
      kv.saved_bytes(n_tokens, n_entries, [&](RecordKind kind, int64_t c) { return known.block(kind, c, 0) >= 0; });
  const int64_t unused = last.value()->end() - kept;
  if (kept == 0 || unused > kv.snapshot_size(n_tokens, n_entries).bytes) return false;

  if (!file->cut(last.value()->end()).ok()) return false;
  const auto writer = SnapshotWriter::append(*file, *base.value(), last.value()->end());
  const Status status = write_snapshot(*writer, &known, control);
  if (status.code() == Code::kBusy) return false;
  QUIRE_TRY(status);
  note_saved(writer->mark());
  return true;
}

void Session::note_saved(const SnapshotMark& mark) const {
  contents_->saved_as = mark;
  contents_->text.mark_saved();
}

Status Session::write_snapshot(SnapshotWriter& writer, const EarlierRecords* known, const SaveControl& control) const {
  const TextState& text = contents_->text;
  const int64_t n_tokens = text.n_computed(), n_entries = strategy_->condensed_entries(n_tokens);
  ChunkStore& kv = contents_->kv();
  SavingSink sink(writer, known, control, kv.snapshot_size(n_tokens, n_entries).bytes, closing_);
  SnapshotIndex index;
  index.origin = origin();
  index.expected_tokens = options_.expected_tokens;
  index.overflow = options_.overflow;
  index.title = control.title;
  QUIRE_ASSIGN(index.kv, kv.save(n_tokens, n_entries, sink));
  QUIRE_ASSIGN(const auto last_logits, contents_->kept.last_logits());
  QUIRE_ASSIGN(const Json json, write_index(writer, index, text, last_logits, contents_->sticky));
  return writer.finish(json);
}

Result<std::shared_ptr<Session>> Session::load(std::shared_ptr<Model> model, const std::string& path,
                                               LoadOptions options) {
  QUIRE_ASSIGN(auto file, ReadFile::open(path));
  return load(std::move(model), std::shared_ptr<const ByteSource>(std::move(file)), std::move(options));
}

Result<std::shared_ptr<Session>> Session::load(std::shared_ptr<Model> model, std::shared_ptr<const ByteSource> source,
                                               LoadOptions options) {
  if (model->runtime->closed()) return Status(Code::kClosed, "the runtime was closed");
  const std::string name = source->name();
  QUIRE_ASSIGN(auto opened, SnapshotFile::open(std::move(source)));
  const std::shared_ptr<const SnapshotFile> file = std::move(opened);
  QUIRE_ASSIGN(const SnapshotIndex index, read_index(*file));
  SnapshotOrigin model_only = index.origin;
  model_only.model = model->llama->identity();
  QUIRE_TRY(check_same(index.origin, model_only).with_context(name));
  SessionOptions& o = options.session;
  if (!options.strategy_given) o.strategy = index.origin.strategy;
  if (!options.kv_type_given) {
    auto type = kv_type_of(index.origin.kv_type);
    if (!type.ok()) return type.status().with_context(name);
    o.kv_type = *type;
  }
  if (!index.origin.kv_old_type.empty()) {
    auto type = old_type_of(index.origin.kv_old_type);
    if (!type.ok()) return type.status().with_context(name);
    if (!options.old_text_given) o.old_text = {.type = *type, .after = index.origin.old_after};
  }
  if (!options.overflow_given) o.overflow = index.overflow;
  if (o.expected_tokens == 0) o.expected_tokens = index.expected_tokens;
  QUIRE_ASSIGN(SavedText saved, read_text(*file, *model->tokenizer, model->llama->config().vocab_size));
  if (saved.text.n_computed() != index.kv.n_keys[0]) {
    return Status(Code::kBadFile, name + ": keys and values of " + std::to_string(index.kv.n_keys[0]) +
                                      " tokens; the text has " + std::to_string(saved.text.n_computed()));
  }
  QUIRE_ASSIGN(auto session, make(std::move(model), std::move(options.session), std::make_shared<FileSource>(file)));
  QUIRE_TRY(check_same(index.origin, session->origin()).with_context(name));
  QUIRE_TRY(session->restore(index, std::move(saved), file->mark()).with_context(name));
  QUIRE_TRY(session->announce());
  session->offer_restored();
  return session;
}

// From here on other sessions may read the snapshot, whose reader is the caller's again where loading fails. So this is
// the last step.
void Session::offer_restored() {
  const Call call(*this);
  if (call.status().ok()) contents_->offer_chunks(contents_->text.n_computed(), false);
}

Result<std::shared_ptr<Session>> Session::fork() {
  const Call call(*this);
  QUIRE_TRY(call.status());
  return fork_contents();
}

Result<std::shared_ptr<Session>> Session::fork_contents() {
  turn_.assert_held();
  QUIRE_ASSIGN(auto contents, contents_->fork(model_->llama->config()));
  std::shared_ptr<Session> forked(new Session(model_, options_, strategy_, adapters_, std::move(contents)));
  QUIRE_TRY(forked->publish_contents());
  QUIRE_TRY(forked->announce());
  return forked;
}

// What may be asked of a session that nobody has used yet.
Status Session::publish_contents() {
  const Call call(*this);
  return call.status();
}

Status Session::restore(const SnapshotIndex& index, SavedText saved, const SnapshotMark& mark) {
  const StoreSnapshot& kv = index.kv;
  const Call call(*this);
  QUIRE_TRY(call.status());
  for (const RecordKind kind : {RecordKind::kNarrow, RecordKind::kWindow}) {
    const int64_t n = kv.n_keys[static_cast<size_t>(kind)],
                  expected = contents_->kv().saved_keys(kind, kv.n_keys[0], 0);
    if (n == expected) continue;
    return Status(Code::kBadFile,
                  (kind == RecordKind::kNarrow ? "narrow records of " : "records of layers with a window of ") +
                      std::to_string(n) + " tokens; expected those of " + std::to_string(expected));
  }
  if (kv.n_keys[1] != strategy_->condensed_entries(kv.n_keys[0])) {
    return Status(Code::kBadFile, std::to_string(kv.n_keys[1]) + " condensed entries; the strategy makes " +
                                      std::to_string(strategy_->condensed_entries(kv.n_keys[0])));
  }
  return contents_->restore(std::move(saved), kv, mark);
}

}  // namespace quire
