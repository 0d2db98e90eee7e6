#include "snapshot.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cancel_on_interrupt.h"

namespace cli {
namespace {

void check(quire_status status, Error& error, const std::string& path) {
  if (status >= 0) return;
  const std::string message = error.get()->message;
  throw QuireFailure(status, message.starts_with(path) ? message : path + ": " + message);
}

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

void check_is_document(const std::string& path) {
  const Json description = describe_snapshot(path);
  if (description["n_generated"] != 0) throw std::runtime_error(path + " has generated tokens: it is no document");
  if (description["n_gaps"] != 0) throw std::runtime_error(path + " has positions of its own");
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
  if (description["n_approximate"] != 0) text += description["n_approximate"].dump() + " of them approximate, ";
  return text + human_bytes(description["bytes"].get<int64_t>());
}

}  // namespace cli
