#include "snapshot.h"

#include <bit>
#include <fstream>
#include <stdexcept>

#include "cancel_on_interrupt.h"

namespace cli {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers in snapshots are little-endian");

void check(quire_status status, Error& error, const std::string& path) {
  if (status >= 0) return;
  const std::string message = error.get()->message;
  throw QuireFailure(status, message.starts_with(path) ? message : path + ": " + message);
}

// The file's layout, as far as its text goes.
class SnapshotText {
 public:
  struct Block {
    uint64_t at, n_bytes;
  };

  explicit SnapshotText(const std::string& path) : path_(path), file_(path, std::ios::binary | std::ios::ate) {
    constexpr uint64_t kFooterBytes = 64;
    size_ = file_ ? static_cast<uint64_t>(file_.tellg()) : 0;
    if (describe_snapshot(path)["version"] != 1 || size_ < kFooterBytes) fail();
    read(size_ - kFooterBytes, &footer_, sizeof footer_);
    if (footer_.index_bytes > size_) fail();
    std::string json(footer_.index_bytes, '\0');
    read(footer_.index_at, json.data(), json.size());
    index_ = Json::parse(json, nullptr, false);
  }

  Block block(const std::string& name) const {
    const Json::json_pointer member("/text/" + name);
    if (!index_.is_object() || !index_.contains(member) || !index_[member].is_number_unsigned()) fail();
    const auto number = index_[member].get<uint64_t>();
    if (number >= footer_.n_blocks) fail();
    constexpr uint64_t kEntryBytes = 32;
    Block found{};
    read(footer_.index_at + footer_.index_bytes + number * kEntryBytes, &found, sizeof found);
    return found;
  }

  std::vector<int32_t> tokens() const {
    const Block found = block("tokens");
    if (found.n_bytes > size_) fail();
    std::vector<int32_t> ids(found.n_bytes / sizeof(int32_t));
    read(found.at, ids.data(), ids.size() * sizeof(int32_t));
    return ids;
  }

 private:
  void read(uint64_t at, void* out, uint64_t n_bytes) const {
    if (at > size_ || n_bytes > size_ - at) fail();
    file_.seekg(static_cast<std::streamoff>(at));
    file_.read(static_cast<char*>(out), static_cast<std::streamsize>(n_bytes));
    if (!file_) fail();
  }
  [[noreturn]] void fail() const { throw std::runtime_error(path_ + ": its tokens cannot be read"); }

  const std::string path_;
  mutable std::ifstream file_;
  uint64_t size_ = 0;
  struct {
    uint64_t magic, index_at, index_bytes, n_blocks;
  } footer_{};
  Json index_;
};

}  // namespace

Json describe_snapshot(const std::string& path) {
  Error error;
  size_t needed = 0;
  check(quire_snapshot_describe(path.data(), path.size(), nullptr, 0, &needed, error.get()), error, path);
  std::string text(needed, '\0');
  check(quire_snapshot_describe(path.data(), path.size(), text.data(), text.size(), &needed, error.get()), error, path);
  return Json::parse(text);
}

void verify_snapshot(const std::string& path) {
  const CancelOnInterrupt cancel;
  Progress progress("verifying", "MiB");
  auto options = initialised(quire_snapshot_options_init);
  options.cancel = cancel.get();
  options.progress = show_mebibytes;
  options.progress_user_data = &progress;
  Error error;
  const quire_status status = quire_snapshot_verify(path.data(), path.size(), &options, error.get());
  progress.clear();
  if (status == QUIRE_ERROR_CANCELLED) throw Interrupted();
  check(status, error, path);
}

std::optional<Json> find_snapshot(const std::string& path) {
  try {
    return describe_snapshot(path);
  } catch (const QuireFailure& failure) {
    if (failure.status() != QUIRE_ERROR_NOT_FOUND) throw;
    return std::nullopt;
  }
}

std::vector<int32_t> snapshot_document(const std::string& path) {
  const SnapshotText text(path);
  if (text.block("generated").n_bytes > 0) throw std::runtime_error(path + " has generated tokens: it is no document");
  if (text.block("positions").n_bytes > 0) throw std::runtime_error(path + " has positions of its own");
  return text.tokens();
}

void save_session(quire_session* session, const std::string& path) {
  Progress progress("writing", "MiB");
  auto options = initialised(quire_snapshot_options_init);
  options.progress = show_mebibytes;
  options.progress_user_data = &progress;
  Error error;
  const quire_status status = quire_session_save(session, path.data(), path.size(), &options, error.get());
  progress.clear();
  error.check(status, "cannot save the session");
}

std::string snapshot_summary(const Json& description) {
  std::string text = description["n_tokens"].dump() + " tokens, ";
  if (description["n_pending"] != 0) text += description["n_pending"].dump() + " more to be read, ";
  return text + human_bytes(description["bytes"].get<int64_t>());
}

}  // namespace cli
