// Sessions that stand where another one does: saved, loaded and forked ones.
#include "lib/session/session.h"
#include "lib/support/os_file.h"
#include "lib/support/os_output_file.h"

namespace quire {
namespace {

// The records and their like, on their way into the file.
class SavingSink : public BlockSink {
 public:
  SavingSink(SnapshotWriter& writer, const SaveControl& control, int64_t total)
      : writer_(writer), control_(control), total_(total) {}
  Result<int64_t> add(std::span<const std::byte> block) override {
    if (control_.cancel && control_.cancel->cancelled()) return Status(Code::kCancelled, "saving was cancelled");
    QUIRE_ASSIGN(const int64_t number, writer_.add(block));
    done_ += static_cast<int64_t>(block.size());
    if (control_.progress) control_.progress(done_, total_);
    return number;
  }

 private:
  SnapshotWriter& writer_;
  const SaveControl& control_;
  const int64_t total_;
  int64_t done_ = 0;
};

class FileSource : public BlockSource {
 public:
  explicit FileSource(std::shared_ptr<const SnapshotFile> file) : file_(std::move(file)) {}
  int64_t block_bytes(int64_t block) const override { return file_->block_bytes(block); }
  Status read(int64_t block, std::span<std::byte> out) const override { return file_->read(block, out); }

 private:
  std::shared_ptr<const SnapshotFile> file_;
};

std::string list(const std::vector<SnapshotOrigin::Adapter>& adapters) {
  if (adapters.empty()) return "no adapters";
  std::string text;
  for (const auto& a : adapters) {
    text += (text.empty() ? "adapter " : ", ") + a.identity + " times " + std::to_string(a.scale);
  }
  return text;
}

// kInvalidArgument that names the first field in which they differ.
Status check_same(const SnapshotOrigin& saved, const SnapshotOrigin& own) {
  const auto refuse = [](const char* field, const std::string& of_snapshot, const std::string& of_session) {
    return Status(Code::kInvalidArgument, std::string("the snapshot is of another session: its ") + field + " is " +
                                              of_snapshot + "; here it is " + of_session);
  };
  if (saved.model != own.model) return refuse("model", saved.model, own.model);
  if (saved.strategy != own.strategy) return refuse("strategy", saved.strategy, own.strategy);
  if (saved.kv_type != own.kv_type) return refuse("kv_type", saved.kv_type, own.kv_type);
  const auto equal = [](const auto& a, const auto& b) { return a.identity == b.identity && a.scale == b.scale; };
  if (!std::equal(saved.adapters.begin(), saved.adapters.end(), own.adapters.begin(), own.adapters.end(), equal)) {
    return refuse("list of adapters", list(saved.adapters), list(own.adapters));
  }
  return {};
}

// kBadFile: the type is not known.
Result<ElementType> kv_type_of(const std::string& name) {
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
    if (name == element_name(type)) return type;
  }
  return Status(Code::kBadFile, "keys and values of the type \"" + name + "\", which is not known");
}

}  // namespace

SnapshotOrigin Session::origin() const {
  SnapshotOrigin origin;
  origin.model = model_->llama->identity();
  for (const AdapterList::Entry& e : adapters_.entries()) origin.adapters.push_back({e.adapter->identity, e.scale});
  origin.strategy = strategy_->canonical();
  origin.kv_type = element_name(options_.kv_type);
  return origin;
}

Status Session::save(const std::string& path, const SaveControl& control) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  QUIRE_ASSIGN(const auto file, OutputFile::create(path));
  return write_snapshot(*file, control);
}

Status Session::save_to(ByteSink& sink, const SaveControl& control) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  return write_snapshot(sink, control);
}

Status Session::write_snapshot(ByteSink& to, const SaveControl& control) const {
  const TextState& text = contents_->text;
  const int64_t n_tokens = text.n_computed(), n_entries = strategy_->condensed_entries(n_tokens);
  ChunkStore& kv = contents_->kv();
  QUIRE_ASSIGN(const auto writer, SnapshotWriter::create(to));
  SavingSink sink(*writer, control, kv.snapshot_size(n_tokens, n_entries).bytes);
  SnapshotIndex index;
  index.origin = origin();
  index.expected_tokens = options_.expected_tokens;
  index.overflow = options_.overflow;
  QUIRE_ASSIGN(index.kv, kv.save(n_tokens, n_entries, sink));
  QUIRE_ASSIGN(const Json json, write_index(*writer, index, text, contents_->kept.last_logits()));
  return writer->finish(json);
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
  if (!options.overflow_given) o.overflow = index.overflow;
  if (o.expected_tokens == 0) o.expected_tokens = index.expected_tokens;
  QUIRE_ASSIGN(SavedText saved, read_text(*file, *model->tokenizer, model->llama->config().vocab_size));
  if (saved.text.n_computed() != index.kv.n_keys[0]) {
    return Status(Code::kBadFile, name + ": keys and values of " + std::to_string(index.kv.n_keys[0]) +
                                      " tokens; the text has " + std::to_string(saved.text.n_computed()));
  }
  QUIRE_ASSIGN(auto session, make(std::move(model), std::move(options.session), std::make_shared<FileSource>(file)));
  QUIRE_TRY(check_same(index.origin, session->origin()).with_context(name));
  QUIRE_TRY(session->restore(index, std::move(saved)).with_context(name));
  QUIRE_TRY(session->announce());
  return session;
}

Result<std::shared_ptr<Session>> Session::fork() {
  const Call call(*this);
  QUIRE_TRY(call.status());
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

Status Session::restore(const SnapshotIndex& index, SavedText saved) {
  const StoreSnapshot& kv = index.kv;
  const Call call(*this);
  QUIRE_TRY(call.status());
  if (kv.n_keys[1] != strategy_->condensed_entries(kv.n_keys[0])) {
    return Status(Code::kBadFile, std::to_string(kv.n_keys[1]) + " condensed entries; the strategy makes " +
                                      std::to_string(strategy_->condensed_entries(kv.n_keys[0])));
  }
  QUIRE_TRY(contents_->kv().restore(kv));
  contents_->restore(std::move(saved.text), std::move(saved.last_logits));
  return {};
}

}  // namespace quire
