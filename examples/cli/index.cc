// quire index: read a document once, and keep what was read in a file for `quire run --document`, or in a store.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "document.h"
#include "engine.h"
#include "generation.h"
#include "interrupt.h"
#include "memory_check.h"
#include "output.h"
#include "snapshot.h"
#include "store.h"

namespace cli {
namespace {

// For questions and answers behind the document.
constexpr int64_t kExpectedRoom = 1024;
constexpr size_t kMostTitleBytes = 1024;  // as of quire_store_put

struct IndexArguments {
  ModelArguments model;
  SessionArguments session;
  StoreArguments store;
  std::string file, out, title;
  std::string reuse = "exact";
  bool has_title = false;  // the user's own, and not the file's name
  bool parse_special = false;
  bool json = false;
};

[[noreturn]] void cannot_write(const std::string& path) {
  throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
}

// Before hours of reading: whether a file can be made there. Nothing of that name is touched: it may be a link that
// leads nowhere, or what another command wrote a moment ago.
void check_can_be_made(const std::string& path) {
  std::string other = (std::filesystem::path(path).parent_path() / ".quire-XXXXXX").string();
  const int descriptor = mkstemp(other.data());
  if (descriptor < 0) cannot_write(path);
  close(descriptor);
  std::remove(other.c_str());
}

bool opens_for_writing(const std::string& path) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor >= 0) close(descriptor);
  return descriptor >= 0;
}

// Of a snapshot: what is new is written behind it, or all of it to a new file that takes its place.
void check_can_go_on(const std::string& path) {
  if (!opens_for_writing(path)) check_can_be_made(path);
}

// Of a store: entries are new files, and a lock is held meanwhile.
void check_takes_entries(const std::string& directory) {
  check_can_be_made(directory + "/");
  const std::string locks = directory + "/store.lock";
  if (!opens_for_writing(locks)) cannot_write(locks);
}

void check_title(const std::string& title) {
  if (title.size() <= kMostTitleBytes && title == valid_utf8(title)) return;
  throw UsageError("--title must be UTF-8 of at most " + std::to_string(kMostTitleBytes) + " bytes");
}

// After each call that may take seconds and that nothing stops.
void heed_interrupt() {
  if (interrupted()) throw Interrupted();
}

// The snapshot's session, whose text becomes the document. Throws if nothing of it can be kept then: the file may be of
// another document.
Session load_and_edit(const IndexArguments& arguments, const Engine& engine, const std::string& document,
                      uint32_t flags, quire_edit_result* edited) {
  check_is_document(arguments.out);
  Session session = engine.load_session(arguments.out, arguments.session);
  const std::vector<int32_t> before = tokens_of(session.get());
  const bool approximate = arguments.reuse == "approximate";
  auto options = initialised(quire_edit_options_init);
  options.flags = flags;
  options.reuse = approximate ? QUIRE_EDIT_APPROXIMATE : QUIRE_EDIT_EXACT;
  edit_text(session.get(), document, options, edited);
  heed_interrupt();
  const std::vector<int32_t> now = tokens_of(session.get());
  const auto differs = std::mismatch(before.begin(), before.end(), now.begin(), now.end()).first - before.begin();
  // Many documents begin alike; of a short one nothing is kept where its first chunk changed.
  const auto n_shorter = static_cast<int64_t>(std::min(before.size(), now.size()));
  if (edited->n_kept > 1 || edited->n_moved > 0 || (differs > 1 && 2 * differs >= n_shorter)) return session;
  throw std::runtime_error(arguments.out + " has nothing of the document " + arguments.file +
                           " that could be kept: from token " + std::to_string(differs) +
                           " on they differ; remove the file to read the document anew" +
                           (approximate ? "" : ", or take over what comes later with --reuse approximate"));
}

// With a budget that is too small, reading goes as far as it can, and on from there with a larger one. `out`: where the
// last n_new tokens will be written; empty: into room that others leave.
void check_room(const Engine& engine, const SessionArguments& arguments, int64_t n_tokens, int64_t n_new,
                const std::string& out) {
  try {
    const auto n_bytes = static_cast<double>(check_memory(engine, arguments, n_tokens));
    if (out.empty() || n_new == 0) return;
    check_disk(out, static_cast<int64_t>(n_bytes * static_cast<double>(n_new) / static_cast<double>(n_tokens)));
  } catch (const QuireFailure& failure) {
    if (failure.status() != QUIRE_ERROR_BUDGET || arguments.kv_budget_bytes == 0) throw;
    std::fprintf(stderr, "quire: warning: %s; what is read until then is saved\n", failure.what());
  }
}

// The same options with what the snapshot's session has, where they leave that open.
SessionArguments with_those_of(const std::string& snapshot, SessionArguments arguments) {
  const Json origin = describe_snapshot(snapshot)["origin"];
  arguments.strategy = origin["strategy"].get<std::string>();
  for (const int32_t type : {QUIRE_TYPE_F32, QUIRE_TYPE_F16, QUIRE_TYPE_BF16, QUIRE_TYPE_INT8, QUIRE_TYPE_INT4}) {
    if (origin["kv_type"] == type_name(type)) arguments.kv_type = type;
    if (origin.value("kv_old_type", "") == type_name(type)) arguments.kv_old_type = type;
  }
  const int64_t old_after = origin.value("old_after", int64_t{0});
  arguments.old_after = origin.contains("old_after") && old_after == 0 ? QUIRE_OLD_AT_ONCE : old_after;
  return arguments;
}

// The snapshot's session, which can be saved there when it has read what is pending.
Session go_on(const IndexArguments& arguments, const Engine& engine, const std::string& document, uint32_t flags,
              quire_edit_result* edited) {
  Session session = load_and_edit(arguments, engine, document, flags, edited);
  const quire_session_stats stats = get_stats(session.get());
  if (stats.n_pending == 0) return session;
  check_can_go_on(arguments.out);
  check_room(engine, with_those_of(arguments.out, arguments.session), stats.n_tokens + stats.n_pending, stats.n_pending,
             arguments.out);
  return session;
}

// A new session, or the snapshot's, with all of the document processed or pending.
Session open_session(const IndexArguments& arguments, const Engine& engine, const std::string& document, bool goes_on,
                     quire_edit_result* edited) {
  const uint32_t flags = arguments.parse_special ? QUIRE_TEXT_PARSE_SPECIAL : 0;
  if (goes_on) return go_on(arguments, engine, document, flags, edited);
  const std::vector<int32_t> ids = encode(engine.tokenizer().get(), document, flags);
  heed_interrupt();
  const auto n_tokens = static_cast<int64_t>(ids.size());
  Session session = engine.create_session(arguments.session, n_tokens + kExpectedRoom);
  check_room(engine, arguments.session, n_tokens, n_tokens, arguments.out);
  feed_document(session.get(), document, flags);  // and not as ids: `run --cite` names its bytes
  heed_interrupt();
  return session;
}

// Processes what is pending and saves the session: as far as it came, if Ctrl-C or an error ends it.
int32_t read_and_save(quire_session* session, const std::function<void()>& save_it) {
  const int64_t n_before = get_stats(session).n_tokens;
  const auto save = [&] {
    if (get_stats(session).n_tokens > n_before) save_it();
  };
  int32_t finish_reason = QUIRE_FINISH_NONE;
  try {
    finish_reason = generate(session, {SamplingArguments(), {}, 0, false}).finish_reason;
  } catch (const QuireFailure&) {
    save();
    throw;
  }
  save();
  return finish_reason;
}

void print_result(const IndexArguments& arguments, const quire_session_stats& stats, const quire_edit_result& edited,
                  bool done_before) {
  Json found = {{"path", arguments.out}};
  found.update(describe_snapshot(arguments.out));
  found["n_kept_tokens"] = edited.n_kept;
  found["n_moved_tokens"] = stats.n_moved;
  found["n_prompt_tokens"] = stats.n_prefilled;
  found["prefill_seconds"] = 1e-9 * static_cast<double>(stats.prefill_ns);
  if (arguments.json) {
    print_json(found);
  } else {
    std::string text = arguments.out + (done_before ? ": complete already, " : ": ") + snapshot_summary(found);
    if (edited.n_tokens > 0 && !done_before) {
      text += "; " + std::to_string(edited.n_kept) + " tokens kept, " + std::to_string(stats.n_moved) +
              " taken over, " + std::to_string(stats.n_prefilled) + " computed";
    }
    print_text(text + "\n");
  }
}

// The end of a command that read all of the document, or not.
int finish(const quire_session_stats& stats, const std::string& place, int32_t finish_reason) {
  if (stats.n_pending == 0) return 0;
  const std::string message = std::string("reading ended by ") + finish_name(finish_reason);
  const std::string read = place + " has " + std::to_string(stats.n_tokens) + " of " +
                           std::to_string(stats.n_tokens + stats.n_pending) + " tokens";
  if (finish_reason == QUIRE_FINISH_REACH) {
    throw QuireFailure(QUIRE_ERROR_OVERFLOW,
                       message + ": " + read + "; with another strategy all is read anew, into another file");
  }
  if (stats.n_tokens > 0) std::fprintf(stderr, "quire: %s; the same command goes on from there\n", read.c_str());
  if (finish_reason == QUIRE_FINISH_CANCELLED) throw Interrupted();
  throw std::runtime_error(message);
}

int index_into_file(const IndexArguments& arguments, const std::string& document) {
  const bool goes_on = find_snapshot(arguments.out).has_value();
  if (!goes_on) check_can_be_made(arguments.out);
  const Engine engine(arguments.model);
  quire_edit_result edited = initialised(quire_edit_result_init);
  const Session session = open_session(arguments, engine, document, goes_on, &edited);
  const bool done_before = get_stats(session.get()).n_pending == 0;
  int32_t finish_reason = QUIRE_FINISH_NONE;
  if (!done_before) {
    finish_reason = read_and_save(session.get(), [&] { save_session(session.get(), arguments.out); });
  }
  const quire_session_stats stats = get_stats(session.get());
  if (stats.n_pending == 0) print_result(arguments, stats, edited, done_before);
  return finish(stats, arguments.out, finish_reason);
}

// The entry's own: one that had all of the text already keeps what it was called.
std::string stored_title(quire_store* store, const quire_store_match& stored) {
  const Json described = describe_store(store);
  for (const Json& entry : described["entries"]) {
    if (entry["name"] == stored.name) return entry["title"].get<std::string>();
  }
  return "";  // another process removed it a moment ago
}

void print_stored(const IndexArguments& arguments, const std::string& title, const quire_store_match& reused,
                  const quire_store_match& stored, const quire_session_stats& stats) {
  if (!arguments.json) {
    print_text(arguments.store.directory + "/" + stored.name + ": " + std::to_string(stored.n_tokens) + " tokens, " +
               std::to_string(reused.n_computed) + " of them reused\n");
    if (arguments.has_title && title != arguments.title) {
      std::fprintf(stderr, "quire: the entry keeps its title, %s\n", printable(title).c_str());
    }
    return;
  }
  print_json({{"store", arguments.store.directory},
              {"name", stored.name},
              {"title", title},
              {"n_tokens", stored.n_tokens},
              {"n_reused_tokens", reused.n_computed},
              {"n_prompt_tokens", stats.n_prefilled},
              {"prefill_seconds", 1e-9 * static_cast<double>(stats.prefill_ns)}});
}

int read_into_store(const IndexArguments& arguments, const Engine& engine, quire_store* store,
                    const std::string& document, const std::vector<int32_t>& ids) {
  const uint32_t flags = arguments.parse_special ? QUIRE_TEXT_PARSE_SPECIAL : 0;
  const auto n_tokens = static_cast<int64_t>(ids.size());
  StoredSession opened = open_stored(engine, store, ids, arguments.session, n_tokens + kExpectedRoom);
  quire_session* session = opened.session.get();
  check_store_room(arguments.store, engine, arguments.session, session, n_tokens);
  const std::string place = arguments.store.budget_bytes > 0 ? "" : arguments.store.directory + "/";
  check_room(engine, arguments.session, n_tokens, n_tokens - opened.match.n_computed, place);
  feed_document(session, document, flags);
  heed_interrupt();
  quire_store_match stored{};
  int32_t finish_reason = QUIRE_FINISH_NONE;
  try {
    finish_reason = read_and_save(session, [&] { stored = put(store, session, arguments.title); });
  } catch (const QuireFailure& failure) {
    if (!remove_damaged(store, opened.match, failure)) throw;
    opened.session.reset();
    return read_into_store(arguments, engine, store, document, ids);
  }
  const quire_session_stats stats = get_stats(session);
  if (stats.n_pending == 0) print_stored(arguments, stored_title(store, stored), opened.match, stored, stats);
  return finish(stats, arguments.store.directory, finish_reason);
}

int index_into_store(const IndexArguments& arguments, const std::string& document) {
  const Store store = open_store(arguments.store);
  check_takes_entries(arguments.store.directory);
  const Engine engine(arguments.model);
  const uint32_t flags = arguments.parse_special ? QUIRE_TEXT_PARSE_SPECIAL : 0;
  const std::vector<int32_t> ids = encode(engine.tokenizer().get(), document, flags);
  heed_interrupt();
  return read_into_store(arguments, engine, store.get(), document, ids);
}

int index(IndexArguments arguments) {
  if (arguments.out.empty() == arguments.store.directory.empty()) {
    throw UsageError("index needs a file to write (--output) or a store (--store), and not both");
  }
  if (!arguments.title.empty() && arguments.store.directory.empty()) throw UsageError("--title needs --store");
  if (arguments.reuse != "exact" && arguments.out.empty()) {
    throw UsageError("--reuse needs --output: a store keeps exact texts only");
  }
  // First what can be wrong in little time.
  check_title(arguments.title);
  const std::string document = read_document(arguments.file);
  check_has_words(arguments.file, document);
  arguments.has_title = !arguments.title.empty();
  if (!arguments.has_title) arguments.title = title_of(arguments.file);
  return arguments.out.empty() ? index_into_store(arguments, document) : index_into_file(arguments, document);
}

}  // namespace

void add_index(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<IndexArguments>();
  CLI::App* command = app.add_subcommand("index", "Read a document once and keep what was read in a file or a store");
  command->add_option("document", arguments->file, "document in UTF-8, fed as it is; - reads stdin")
      ->required()
      ->type_name("FILE");
  command->add_option("-o,--output", arguments->out, "file to write, usually *.quire; if it is there, reading goes on")
      ->type_name("FILE");
  add_store_options(*command, arguments->store);
  command->add_option("--title", arguments->title, "of the document in the store (default: the file's name)")
      ->type_name("TEXT");
  command
      ->add_option("--reuse", arguments->reuse,
                   "what a changed document keeps of the file: exact: all before the change; approximate: later chunks "
                   "too, as they were read with the old text (default: exact)")
      ->check(CLI::IsMember({"exact", "approximate"}));
  add_model_options(*command, arguments->model);
  add_session_options(*command, arguments->session);
  command->get_option("--expected-tokens")
      ->description(
          "length of text that auto, beacon, dynamic_ntk and longrope prepare for (default: the document and " +
          std::to_string(kExpectedRoom) + " tokens)");
  command->add_flag("--parse-special", arguments->parse_special,
                    "\"<s>\" and the like in the document are control tokens (only for texts you trust)");
  command->add_flag("--json", arguments->json, "print one JSON object at the end");
  command->footer(R"help(
Ctrl-C saves what was read so far, and the same command goes on from there. So it does where a document has changed: what
comes before the change is not read again. With --reuse approximate most of what comes behind it is not either: it stays
as it was read with the old text (README.md says what that costs). Model, strategy, KV type and adapters stay those of the
file. With --store what the store has of the document is not read again, and the document is put there.

A form feed ends a page, as pdftotext writes it; pages count from 1. They are kept as labels of the text, which
`quire run --cite` names. A document without form feeds has none.

Examples:
  quire index book.txt -m model -s dca -o book.quire
  quire run -m model --document book.quire -p "The murderer is" -n 32
  quire index book.txt -m model -o book.quire --reuse approximate    (a chapter was replaced)
  quire index book.txt -m model -s dca --store library --title "The book"
  quire ls library)help");
  command->callback([arguments, &action] { action = [arguments] { return index(*arguments); }; });
}

}  // namespace cli
