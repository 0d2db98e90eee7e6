#include "store.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cancel_on_interrupt.h"
#include "validators.h"

namespace cli {

namespace fs = std::filesystem;

void add_store_options(CLI::App& command, StoreArguments& arguments) {
  CLI::Option* store = command.add_option("--store", arguments.directory,
                                          "directory that keeps documents that were read; made where it is missing");
  store->type_name("DIR");
  command
      .add_option("--store-budget", arguments.budget_bytes,
                  "room for all of the store, such as 20GB: what was used longest ago leaves (default: no limit)")
      ->transform(byte_count())
      ->needs(store)
      ->type_name("BYTES");
}

namespace {

Store open(const std::string& directory, int64_t budget_bytes, uint32_t flags) {
  auto options = initialised(quire_store_options_init);
  options.flags = flags;
  options.budget_bytes = budget_bytes;
  Error error;
  quire_store* store = nullptr;
  error.check(quire_store_open(directory.data(), directory.size(), &options, &store, error.get()),
              "cannot open the store");
  return Store(store);
}

}  // namespace

Store open_store(const StoreArguments& arguments) { return open(arguments.directory, arguments.budget_bytes, 0); }

Store open_existing_store(const std::string& directory) { return open(directory, 0, QUIRE_STORE_MUST_EXIST); }

bool is_store(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(fs::path(path) / "store.lock", error);
}

Json describe_store(quire_store* store) {
  // It may grow between the question for its length and that for its text.
  for (;;) {
    Error error;
    size_t needed = 0;
    error.check(quire_store_describe(store, nullptr, 0, &needed, error.get()), "cannot list the store");
    std::string text(needed + 4096, '\0');
    const quire_status status = quire_store_describe(store, text.data(), text.size(), &needed, error.get());
    if (status == QUIRE_ERROR_BUFFER_TOO_SMALL) continue;
    error.check(status, "cannot list the store");
    text.resize(needed);
    return Json::parse(text);
  }
}

void verify_entry(quire_store* store, const std::string& name) {
  const CancelOnInterrupt cancel;
  Progress progress("verifying", "MiB");
  auto options = initialised(quire_snapshot_options_init);
  options.cancel = cancel.get();
  options.progress = show_mebibytes;
  options.progress_user_data = &progress;
  Error error;
  const quire_status status = quire_store_verify(store, name.data(), name.size(), &options, error.get());
  progress.clear();
  if (status == QUIRE_ERROR_CANCELLED) throw Interrupted();
  if (status < 0) throw QuireFailure(status, error.get()->message);
}

std::string title_of(const std::string& file) {
  return file == "-" ? "stdin" : valid_utf8(fs::path(file).filename().string());
}

void check_store_room(const StoreArguments& store, const Engine& engine, SessionArguments arguments,
                      const quire_session* session, int64_t n_tokens) {
  if (store.budget_bytes == 0) return;
  // An entry has all keys and values, in whatever tier they lie.
  arguments.strategy = strategy_of(session);
  arguments.kv_budget_bytes = arguments.device_budget_bytes = arguments.compressed_budget_bytes = 0;
  arguments.spill_directory.clear();
  arguments.adapters.clear();
  quire_memory_plan plan = engine.plan_memory(arguments, n_tokens);
  if (plan.reach < n_tokens && arguments.overflow != QUIRE_OVERFLOW_EXTRAPOLATE) {
    n_tokens = plan.reach;
    plan = engine.plan_memory(arguments, n_tokens);
  }
  // A strategy that drops keys may keep less than what it has while it reads.
  const int64_t least = n_tokens * plan.kv_bytes_per_token;
  if (least <= store.budget_bytes || plan.kv_device_bytes + plan.kv_host_bytes < least) return;
  throw StoreFailure(QUIRE_ERROR_BUDGET, "cannot put the document into the store: the entry of " + store.directory +
                                             " would have at least " + std::to_string(least) +
                                             " bytes; the store's budget is " + std::to_string(store.budget_bytes));
}

StoredSession open_stored(const Engine& engine, quire_store* store, const std::vector<int32_t>& ids,
                          const SessionArguments& arguments, int64_t n_expected) {
  auto match = initialised(quire_store_match_init);
  if (ids.empty()) return {engine.create_session(arguments, n_expected), match};
  Session session = engine.load_stored_session(store, ids, arguments, n_expected, match);
  if (!session) session = engine.create_session(arguments, n_expected);
  return {std::move(session), match};
}

bool remove_damaged(quire_store* store, const quire_store_match& match, const QuireFailure& failure) {
  if (failure.status() != QUIRE_ERROR_BAD_FILE || *match.name == '\0') return false;
  const quire_status status = quire_store_remove(store, match.name, std::strlen(match.name), nullptr);
  if (status < 0 && status != QUIRE_ERROR_NOT_FOUND) return false;
  std::fprintf(stderr, "quire: warning: %s; the entry is removed\n", failure.what());
  return true;
}

quire_store_match put(quire_store* store, quire_session* session, const std::string& title) {
  Progress progress("writing", "MiB");
  auto options = initialised(quire_snapshot_options_init);
  options.progress = show_mebibytes;
  options.progress_user_data = &progress;
  auto match = initialised(quire_store_match_init);
  Error error;
  const quire_status status =
      quire_store_put(store, session, title.data(), title.size(), &options, &match, error.get());
  progress.clear();
  if (status < 0) throw StoreFailure(status, "cannot put the document into the store: " + error.message());
  return match;
}

void report_reuse(const quire_store_match& match, size_t n_tokens) {
  if (match.n_computed > 0) {
    std::fprintf(stderr, "quire: %lld of %zu tokens reused from the store's entry %s\n",
                 static_cast<long long>(match.n_computed), n_tokens, match.name);
  } else {
    std::fprintf(stderr, "quire: nothing reused from the store: %s\n", match.reason);
  }
}

}  // namespace cli
