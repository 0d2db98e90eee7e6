#include "snapshot.h"

#include <array>
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

// A file of which any part can be read; what lies outside it is an error.
class Bytes {
 public:
  explicit Bytes(const std::string& path) : path_(path), file_(path, std::ios::binary | std::ios::ate) {
    size_ = file_ ? static_cast<uint64_t>(file_.tellg()) : 0;
  }
  uint64_t size() const { return size_; }

  void read(uint64_t at, void* out, uint64_t n_bytes) {
    if (at > size_ || n_bytes > size_ - at) fail();
    file_.seekg(static_cast<std::streamoff>(at));
    file_.read(static_cast<char*>(out), static_cast<std::streamsize>(n_bytes));
    if (!file_) fail();
  }
  [[noreturn]] void fail() const { throw std::runtime_error(path_ + ": its tokens cannot be read"); }

 private:
  const std::string path_;
  std::ifstream file_;
  uint64_t size_ = 0;
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

std::vector<int32_t> snapshot_tokens(const std::string& path) {
  constexpr uint64_t kFooterBytes = 64, kEntryBytes = 32;
  Bytes file(path);
  if (describe_snapshot(path)["version"] != 1 || file.size() < kFooterBytes) file.fail();
  struct {
    uint64_t magic, index_at, index_bytes, n_blocks;
  } footer;
  file.read(file.size() - kFooterBytes, &footer, sizeof footer);
  if (footer.index_bytes > file.size()) file.fail();
  std::string text(footer.index_bytes, '\0');
  file.read(footer.index_at, text.data(), text.size());
  const Json index = Json::parse(text, nullptr, false);
  const Json::json_pointer name("/text/tokens");
  if (!index.is_object() || !index.contains(name) || !index[name].is_number_unsigned()) file.fail();
  const auto block = index[name].get<uint64_t>();
  if (block >= footer.n_blocks) file.fail();
  struct {
    uint64_t at, n_bytes;
  } entry;
  file.read(footer.index_at + footer.index_bytes + block * kEntryBytes, &entry, sizeof entry);
  if (entry.n_bytes > file.size()) file.fail();
  std::vector<int32_t> tokens(entry.n_bytes / sizeof(int32_t));
  file.read(entry.at, tokens.data(), tokens.size() * sizeof(int32_t));
  return tokens;
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
