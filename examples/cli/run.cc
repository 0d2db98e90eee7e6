// quire run: feed a document and a prompt, stream the answer.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "citations.h"
#include "conversation.h"
#include "document.h"
#include "engine.h"
#include "generation.h"
#include "memory_check.h"
#include "output.h"
#include "progress.h"
#include "snapshot.h"
#include "statistics.h"
#include "store.h"
#include "validators.h"

namespace cli {
namespace {

struct RunArguments {
  ModelArguments model;
  SessionArguments session;
  SamplingArguments sampling;
  ChatArguments chat;
  std::string file;
  std::string document;  // a snapshot's path
  StoreArguments store;
  std::string prompt;
  int64_t max_tokens = 128;
  bool as_chat = false;
  bool parse_special = false;
  bool json = false;
  bool stats = false;
  int32_t n_citations = 0;
};

// A session with all that is to be read, and which part of that is the document.
struct OpenedText {
  Session session;
  CitedDocument document;
  quire_store_match match = {};  // of a store
  double read_seconds = 0;       // until now
  Json reuse = {};               // the same as it is printed; null: there is none
};

double per_second(int64_t n, int64_t ns) { return ns > 0 ? 1e9 * static_cast<double>(n) / static_cast<double>(ns) : 0; }

void print_answer(const Answer& answer, const quire_session* session, bool with_tiers, const Json& citations,
                  const Json& reuse) {
  const quire_session_stats stats = get_stats(session);
  Json found = {{"text", answer.text},
                {"top_logprobs", answer.top_logprobs},
                {"kv_file_bytes", get_tier_stats(session, QUIRE_TIER_FILE).bytes},
                {"tokens", answer.tokens},
                {"finish_reason", finish_name(answer.finish_reason)},
                {"n_prompt_tokens", stats.n_prefilled},
                {"n_reused_tokens", stats.n_reused},
                {"n_generated_tokens", answer.tokens.size()},
                {"n_drafted_tokens", stats.n_drafted},
                {"n_accepted_tokens", stats.n_accepted},
                {"n_pending_tokens", stats.n_pending},
                {"prefill_seconds", 1e-9 * static_cast<double>(stats.prefill_ns)},
                {"decode_seconds", 1e-9 * static_cast<double>(stats.decode_ns)},
                {"prefill_tokens_per_second", per_second(stats.n_prefilled, stats.prefill_ns)},
                {"decode_tokens_per_second", per_second(stats.n_generated, stats.decode_ns)},
                {"kv_bytes_peak", get_first_tier_stats(session).bytes_peak},
                {"strategy", strategy_of(session)}};
  if (with_tiers) found["tiers"] = tier_json(session);
  if (!citations.is_null()) found["citations"] = citations;
  if (!reuse.is_null()) found["store"] = reuse;
  print_json(found);
}

// Ends the answer's line, and sums up for a person who watches.
void print_summary(const Answer& answer, const quire_session* session) {
  if (!answer.text.empty() && answer.text.back() != '\n') print_text("\n");
  flush_output();
  if (!progress_wanted()) return;
  const quire_session_stats stats = get_stats(session);
  std::fprintf(stderr, "[%lld tokens read at %.0f/s, %zu generated at %.1f/s, KV cache %s, ended by %s]\n",
               static_cast<long long>(stats.n_prefilled), per_second(stats.n_prefilled, stats.prefill_ns),
               answer.tokens.size(), per_second(stats.n_generated, stats.decode_ns),
               human_bytes(get_first_tier_stats(session).bytes_peak).c_str(), finish_name(answer.finish_reason));
}

// Document and prompt as two segments, as quire_session_feed_text would take them; their length is wanted beforehand.
std::vector<int32_t> tokenize(const Engine& engine, const std::string& document, const RunArguments& arguments) {
  const Tokenizer tokenizer = engine.tokenizer();
  const uint32_t flags = arguments.parse_special ? QUIRE_TEXT_PARSE_SPECIAL : 0;
  std::vector<int32_t> ids;
  for (const std::string* text : {&document, &arguments.prompt}) {
    if (text->empty()) continue;
    const auto part = encode(tokenizer.get(), *text, ids.empty() ? flags : flags | QUIRE_TEXT_CONTINUE);
    ids.insert(ids.end(), part.begin(), part.end());
  }
  return ids;
}

// The strategy may depend on the length of prompt and answer.
int64_t expected_tokens(int64_t n_prompt, const RunArguments& arguments) {
  const int64_t most = std::numeric_limits<int64_t>::max() - n_prompt;
  return n_prompt + std::min(arguments.max_tokens, most);
}

// Where no strategy is named: one that reaches so far, if plain attention does not.
SessionArguments session_for(const Engine& engine, int64_t n_prompt, const RunArguments& arguments) {
  SessionArguments session = arguments.session;
  const bool is_long = expected_tokens(n_prompt, arguments) > engine.info().train_len;
  if (session.strategy.empty() && is_long) session.strategy = "auto";
  return session;
}

Session open_session(const Engine& engine, int64_t n_prompt, const RunArguments& arguments) {
  const SessionArguments used = session_for(engine, n_prompt, arguments);
  Session session = engine.create_session(used, expected_tokens(n_prompt, arguments));
  check_memory(engine, used, n_prompt);
  return session;
}

// Fed as texts, so that the session knows their bytes; the ids are those that were counted.
OpenedText open_text(const Engine& engine, const std::string& document, const RunArguments& arguments) {
  const std::vector<int32_t> ids = tokenize(engine, document, arguments);
  Session session = open_session(engine, static_cast<int64_t>(ids.size()), arguments);
  if (arguments.n_citations == 0) {
    feed_tokens(session.get(), ids.data(), ids.size());
    return {std::move(session), {}};
  }
  const uint32_t flags = arguments.parse_special ? QUIRE_TEXT_PARSE_SPECIAL : 0;
  CitedDocument cited{arguments.file.empty() ? "prompt" : arguments.file};
  if (!document.empty()) {
    feed_document(session.get(), document, flags);
    cited.end = get_stats(session.get()).n_pending;
  }
  if (!arguments.prompt.empty()) feed_text(session.get(), arguments.prompt, flags);
  return {std::move(session), std::move(cited)};
}

// The prompt behind what was read before.
OpenedText open_document(const Engine& engine, const RunArguments& arguments) {
  Session session = engine.load_session(arguments.document, arguments.session);
  if (const int64_t n_pending = get_stats(session.get()).n_pending; n_pending > 0) {
    std::fprintf(stderr, "quire: warning: %s is not complete: %lld more tokens are read now, and not saved\n",
                 arguments.document.c_str(), static_cast<long long>(n_pending));
  }
  const quire_session_stats stats = get_stats(session.get());
  const uint32_t flags = arguments.parse_special ? QUIRE_TEXT_PARSE_SPECIAL : 0;
  if (!arguments.prompt.empty()) feed_text(session.get(), arguments.prompt, flags);
  return {std::move(session), {arguments.document, stats.n_tokens + stats.n_pending}};
}

// What fails in a store costs time later, and no answer now.
bool succeeds(const std::function<void()>& step) {
  try {
    step();
    return true;
  } catch (const QuireFailure& failure) {
    std::fprintf(stderr, "quire: warning: %s [%s]\n", failure.what(), quire_get_status_name(failure.status()));
    return false;
  }
}

// Reads the rest of the document of n_tokens until the deadline, and puts it into the store. Returns the seconds of
// that.
double read_and_put(const Engine& engine, quire_store* store, quire_session* session, const SessionArguments& used,
                    int64_t n_tokens, const RunArguments& arguments) {
  const bool has_room = succeeds([&] { check_store_room(arguments.store, engine, used, session, n_tokens); });
  SamplingArguments reading;
  reading.deadline = arguments.sampling.deadline;
  const auto begin = std::chrono::steady_clock::now();
  const int32_t finish_reason = generate(session, {reading, {}, 0, false}).finish_reason;
  if (has_room) succeeds([&] { put(store, session, title_of(arguments.file)); });
  if (finish_reason == QUIRE_FINISH_CANCELLED) throw Interrupted();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// With what is left of the deadline: where that is nothing, the answer ends at once.
SamplingArguments after(double seconds, SamplingArguments sampling) {
  if (sampling.deadline > 0) sampling.deadline = std::max(1e-3, sampling.deadline - seconds);
  return sampling;
}

// The prompt behind a document that the store has, or has from then on.
OpenedText open_with_store(const Engine& engine, quire_store* store, const std::string& document,
                           const RunArguments& arguments) {
  const uint32_t flags = arguments.parse_special ? QUIRE_TEXT_PARSE_SPECIAL : 0;
  const std::vector<int32_t> ids = tokenize(engine, document, arguments);
  const size_t n_document = encode(engine.tokenizer().get(), document, flags).size();
  const auto n_prompt = static_cast<int64_t>(ids.size());
  const SessionArguments used = session_for(engine, n_prompt, arguments);
  StoredSession opened = open_stored(engine, store, ids, used, expected_tokens(n_prompt, arguments));
  check_memory(engine, used, n_prompt);
  report_reuse(opened.match, ids.size());
  quire_session* session = opened.session.get();
  auto n_known = static_cast<size_t>(opened.match.n_tokens);
  double read_seconds = 0;
  if (n_known < n_document) {
    feed_document(session, document, flags);  // and not as ids: --cite names its bytes and pages
    try {
      read_seconds = read_and_put(engine, store, session, used, static_cast<int64_t>(n_document), arguments);
    } catch (const QuireFailure& failure) {
      if (!remove_damaged(store, opened.match, failure)) throw;
      opened.session.reset();
      return open_with_store(engine, store, document, arguments);
    }
    n_known = n_document;
  }
  if (n_known < ids.size()) feed_tokens(session, ids.data() + n_known, ids.size() - n_known);
  Json reuse = {{"name", opened.match.name}, {"n_reused_tokens", opened.match.n_computed}};
  if (opened.match.n_computed == 0) reuse["reason"] = opened.match.reason;
  return {std::move(opened.session),
          {arguments.file, static_cast<int64_t>(n_document)},
          opened.match,
          read_seconds,
          std::move(reuse)};
}

// Document and prompt are one message.
OpenedText open_chat(const Engine& engine, const std::string& document, const RunArguments& arguments) {
  const auto messages = first_messages(arguments.chat, with_document(document, arguments.prompt));
  const int64_t n_prompt = count_chat_tokens(engine.tokenizer().get(), messages, arguments.chat);
  Session session = open_session(engine, n_prompt, arguments);
  feed_messages(session.get(), messages, arguments.chat);
  CitedDocument cited;
  if (arguments.n_citations > 0) {
    cited = find_in_messages(engine.tokenizer().get(), session.get(), arguments.file, document);
  }
  return {std::move(session), std::move(cited)};
}

void check_chat_options(const RunArguments& arguments) {
  const ChatArguments& chat = arguments.chat;
  if (arguments.as_chat && arguments.parse_special) {
    throw UsageError("--parse-special does not go with --chat: messages are text");
  }
  if (arguments.as_chat && !arguments.document.empty()) {
    throw UsageError("--document does not go with --chat: it was read as text, and is no part of a message");
  }
  const bool given = !chat.system.empty() || !chat.template_name.empty() || !chat.date.empty() || chat.no_thinking;
  if (given && !arguments.as_chat) throw UsageError("--system, --chat-template, --date and --no-thinking need --chat");
}

// The exit status. That not all was read is said to everybody: there is no answer then.
int finish(const Answer& answer, const quire_session_stats& stats) {
  if (answer.finish_reason == QUIRE_FINISH_CANCELLED) throw Interrupted();
  if (!answer.tokens.empty() || stats.n_pending == 0) return 0;
  std::fprintf(stderr, "quire: reading ended by %s: %lld of %lld tokens were read\n", finish_name(answer.finish_reason),
               static_cast<long long>(stats.n_tokens), static_cast<long long>(stats.n_tokens + stats.n_pending));
  return 1;
}

int run(const RunArguments& arguments) {
  if (arguments.file.empty() && arguments.document.empty() && arguments.prompt.empty()) {
    throw UsageError("run needs a document (-f, --document) or a prompt (-p)");
  }
  if (!arguments.store.directory.empty() && (arguments.file.empty() || arguments.as_chat)) {
    throw UsageError("--store needs a document (-f), and does not go with --chat, where it is part of a message");
  }
  if (arguments.sampling.n_top_logprobs > 0 && !arguments.json) throw UsageError("--top-logprobs needs --json");
  check_chat_options(arguments);
  const std::vector<quire_logit_bias> biases = logit_bias(arguments.sampling);
  // The document first: a misspelt path should not cost the time of loading a model.
  const std::string document = arguments.file.empty() ? "" : read_document(arguments.file);
  if (!arguments.file.empty()) check_has_words(arguments.file, document);
  if (!arguments.document.empty()) describe_snapshot(arguments.document);
  const Store store = arguments.store.directory.empty() ? nullptr : open_store(arguments.store);
  const Engine engine(arguments.model);
  check_tokens(biases, engine.tokenizer().get());
  OpenedText opened = !arguments.document.empty() ? open_document(engine, arguments)
                      : store                     ? open_with_store(engine, store.get(), document, arguments)
                      : arguments.as_chat         ? open_chat(engine, document, arguments)
                                                  : open_text(engine, document, arguments);
  const bool cite = arguments.n_citations > 0;
  const auto answer_it = [&] {
    return generate(opened.session.get(), {after(opened.read_seconds, arguments.sampling), biases, arguments.max_tokens,
                                           !arguments.json, cite, opened.document.end});
  };
  Answer answer;
  try {
    answer = answer_it();
  } catch (const QuireFailure& failure) {
    const bool has_printed = !arguments.json && get_stats(opened.session.get()).n_generated > 0;
    if (!remove_damaged(store.get(), opened.match, failure) || has_printed) throw;
    opened.session.reset();
    opened = open_with_store(engine, store.get(), document, arguments);
    answer = answer_it();
  }
  const quire_session* session = opened.session.get();
  std::vector<Citation> citations;
  if (cite)
    citations =
        get_citations(engine.tokenizer().get(), session, opened.document, static_cast<size_t>(arguments.n_citations));
  if (arguments.json) {
    print_answer(answer, session, arguments.stats, cite ? citations_json(citations, opened.document) : Json(),
                 opened.reuse);
  } else {
    print_summary(answer, session);
    if (arguments.stats) print_tiers(session);
    if (cite) print_citations(citations, opened.document);
  }
  return finish(answer, get_stats(session));
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* command = app.add_subcommand("run", "Read a document, then a prompt, and stream the answer");
  add_model_options(*command, arguments->model);
  add_session_options(*command, arguments->session);
  command->get_option("--strategy")
      ->description(
          "strategy expression, see `quire --help` (default: full, or auto where that does not reach far enough)");
  command->add_option("-f,--file", arguments->file, "document in UTF-8, fed as it is; - reads stdin")
      ->type_name("FILE");
  command
      ->add_option("--document", arguments->document,
                   "what `quire index` wrote, instead of -f: nothing is read again; its strategy and KV type hold")
      ->excludes("--file")
      ->type_name("FILE");
  add_store_options(*command, arguments->store);
  command->add_option("-p,--prompt", arguments->prompt, "text fed after the document, as its own segment")
      ->type_name("TEXT");
  command->add_option("-n,--max-tokens", arguments->max_tokens, "generate at most N tokens (default: 128)")
      ->check(whole_number(0))
      ->type_name("N");
  command->add_flag("--chat", arguments->as_chat,
                    "document and prompt are a message to a chat model, which answers; see `quire chat`");
  add_chat_options(*command, arguments->chat);
  add_sampling_options(*command, arguments->sampling);
  command->add_flag("--parse-special", arguments->parse_special,
                    "\"<s>\" and the like in the texts are control tokens (only for texts you trust)");
  command
      ->add_option("--cite", arguments->n_citations,
                   "then print the N passages of the document (default: 3) that the answer looked at most, with their "
                   "pages if it has form feeds: each ends a page, from page 1 on")
      ->expected(0, 1)
      ->default_str("3")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  command->add_flag("--json", arguments->json, "print one JSON object at the end");
  command->add_flag("--stats", arguments->stats,
                    "say at the end where the KV cache lies, and what moved (with --json: \"tiers\")");
  command->footer(R"help(
Without -s, what is longer than the model was trained for, prompt and answer together, is read with -s auto.

With --store the tokens of document and prompt that an entry begins with are not read again, and the document is put
there. How many they were is said on stderr, or why there were none.

Examples:
  quire run -m model -f book.txt -s dca -p "The murderer is" -n 32
  quire run -m model --document book.quire -p "The murderer is" -n 32 --cite
  quire run -m model -f book.txt -s dca --store library -p "The murderer is" -n 32
  quire run -m model --chat -f report.txt -p "What was decided?" --system "Answer briefly."
  quire run -m model -p "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 7)help");
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace cli
