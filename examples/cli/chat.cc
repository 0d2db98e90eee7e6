// quire chat: a conversation in the terminal, or line by line from a pipe.
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <memory>
#include <optional>

#include "advice.h"
#include "conversation.h"
#include "document.h"
#include "engine.h"
#include "generation.h"
#include "interrupt.h"
#include "lines.h"
#include "memory_check.h"
#include "output.h"
#include "validators.h"

namespace cli {
namespace {

constexpr const char* kCommands = R"help(/file PATH   attach a document (UTF-8) to the next message; may be repeated
/reset       forget the conversation and what is attached
/help        this list
/quit        leave, as the end of input does
Ctrl-C       stops reading or the answer; at the prompt it leaves
Anything else is a message; begin with // for one that begins with /. Lines that are pasted together are one message.
)help";

struct ChatCommandArguments {
  const CLI::App* command = nullptr;  // that they were given to
  ModelArguments model;
  SessionArguments session;
  SamplingArguments sampling;
  ChatArguments chat;
  int64_t max_tokens = 1024;
  bool list_templates = false;
};

class Chat {
 public:
  explicit Chat(const ChatCommandArguments& arguments)
      : arguments_(arguments),
        biases_(logit_bias(arguments.sampling)),
        engine_(arguments.model),
        session_(engine_.create_session(arguments.session, 0)),
        interactive_(isatty(STDIN_FILENO) != 0) {
    check_tokens(biases_, engine_.tokenizer().get());
    // A template that is not known, or that does not fit, is no reason to type a message first.
    count_chat_tokens(engine_.tokenizer().get(), first_messages(arguments_.chat, ""), arguments_.chat);
  }

  int run() {
    if (interactive_) std::fputs("/help lists commands.\n", stderr);
    for (;;) {
      if (interactive_) std::fputs("> ", stderr);
      const std::optional<std::string> line = lines_.next();
      if (!line || *line == "/quit") break;
      take(*line);
    }
    if (interactive_) std::fputs("\n", stderr);
    return failed_ ? 1 : 0;
  }

 private:
  void take(const std::string& line) {
    try {
      if (line.starts_with("/") && !line.starts_with("//")) {
        command(line);
      } else if (const std::string message = interactive_ ? lines_.with_pasted(line) : line; !is_blank(message)) {
        send(message.substr(message.starts_with("/") ? 1 : 0));
      }
    } catch (const Interrupted&) {
      throw;
    } catch (const QuireFailure& failure) {
      report(std::string(failure.what()) + " [" + quire_get_status_name(failure.status()) + "]");
      std::fputs(advice_for(*arguments_.command, failure), stderr);
    } catch (const UsageError& error) {
      report(error.what());
    }
  }

  static bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == std::string::npos; }

  void report(const std::string& what) {
    std::fprintf(stderr, "quire: %s\n", what.c_str());
    failed_ = failed_ || !interactive_;
  }

  void command(const std::string& line) {
    if (line == "/help") {
      std::fputs(kCommands, stderr);
    } else if (line == "/reset") {
      reset(session_.get());
      attached_.clear();
    } else if (line == "/file" || line.starts_with("/file ")) {
      attach(typed_path(line.substr(5)));
    } else {
      throw UsageError(line + ": no such command; /help lists those that there are");
    }
  }

  void attach(const std::string& path) {
    std::string text;
    if (path.empty()) throw UsageError("/file needs the path of a document");
    if (path == "-") throw UsageError("/file -: stdin has the messages");
    try {
      text = read_document(path);
      check_has_words(path, text);
    } catch (const Interrupted&) {
      if (!forget_interrupt()) throw;
      throw UsageError(path + ": stopped before its end; it is not attached");
    } catch (const std::runtime_error& error) {
      throw UsageError(error.what());
    }
    const size_t n_tokens = encode(engine_.tokenizer().get(), text, QUIRE_TEXT_NO_BOS).size();
    attached_ = with_document(attached_, text);
    std::fprintf(stderr, "[%s goes with the next message: %s, %zu tokens]\n", path.c_str(),
                 human_bytes(static_cast<int64_t>(text.size())).c_str(), n_tokens);
  }

  // Feeds a message and prints the answer. If that fails, the session is as it was before.
  void send(const std::string& text) {
    const quire_session_stats before = get_stats(session_.get());
    const int64_t n_before = before.n_tokens + before.n_pending;
    const std::string whole = with_document(attached_, text);
    try {
      const std::vector<Message> next = {{"user", whole}};
      feed_messages(session_.get(), n_before == 0 ? first_messages(arguments_.chat, whole) : next, arguments_.chat);
      if (!attached_.empty()) check_memory(engine_, arguments_.session, n_before + get_stats(session_.get()).n_pending);
      answer();
      attached_.clear();
    } catch (const QuireFailure&) {
      truncate(session_.get(), n_before);
      throw;
    }
  }

  void answer() {
    const Answer answer = generate(session_.get(), {arguments_.sampling, biases_, arguments_.max_tokens});
    if (!answer.text.empty() && answer.text.back() != '\n') print_text("\n");
    flush_output();
    switch (answer.finish_reason) {
      case QUIRE_FINISH_CANCELLED:
        if (!forget_interrupt()) throw Interrupted();
        report_stop();
        break;
      case QUIRE_FINISH_MAX_TOKENS:
      case QUIRE_FINISH_REACH:
      case QUIRE_FINISH_DEADLINE:
        std::fprintf(stderr, "[ended by %s]\n", finish_name(answer.finish_reason));
        break;
      default:
        break;
    }
  }

  // What is read stays; the rest is read before the next message's answer.
  void report_stop() {
    const quire_session_stats stats = get_stats(session_.get());
    if (stats.n_pending > 1) {
      std::fprintf(stderr, "[stopped: %lld tokens are not read yet; the next message reads them, /reset forgets all]\n",
                   static_cast<long long>(stats.n_pending));
    } else {
      std::fputs("[stopped]\n", stderr);
    }
  }

  const ChatCommandArguments& arguments_;
  const std::vector<quire_logit_bias> biases_;
  const Engine engine_;
  const Session session_;
  const bool interactive_;
  Lines lines_;
  std::string attached_;  // to the next message
  bool failed_ = false;   // something did, of what came from a pipe
};

int list_templates() {
  const std::string list = get_text(quire_chat_get_list, "listing the chat templates");
  const Json templates = Json::parse(list)["templates"];
  for (const Json& known : templates) {
    print("%-20s %s\n", known["name"].get<std::string>().c_str(), known["description"].get<std::string>().c_str());
  }
  return 0;
}

int chat(const ChatCommandArguments& arguments) {
  if (arguments.list_templates) return list_templates();
  if (arguments.model.path.empty()) throw UsageError("chat needs a model (-m)");
  if (arguments.sampling.n_top_logprobs > 0) throw UsageError("--top-logprobs is for `quire run --json`");
  return Chat(arguments).run();
}

}  // namespace

void add_chat(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<ChatCommandArguments>();
  arguments->session.strategy = "auto";  // attached documents may be longer than the model's window
  CLI::App* command = app.add_subcommand("chat", "Talk with a model that was trained for it");
  arguments->command = command;
  add_model_options(*command, arguments->model);
  command->get_option("--model")->required(false);
  add_session_options(*command, arguments->session);
  add_chat_options(*command, arguments->chat);
  command->add_option("-n,--max-tokens", arguments->max_tokens, "at most N tokens an answer (default: 1024)")
      ->check(whole_number(1))
      ->type_name("N");
  add_sampling_options(*command, arguments->sampling);
  command->add_flag("--templates", arguments->list_templates, "list the known chat templates");
  command->footer(std::string("\nEach line is a message. Commands:\n") + kCommands + R"help(
Examples:
  quire chat -m model --temperature 0.7
  quire chat -m model --kv-budget 500MB --spill-dir /var/tmp
  printf '/file report.txt\nWhat was decided?\n' | quire chat -m model -s dca)help");
  command->callback([arguments, &action] { action = [arguments] { return chat(*arguments); }; });
}

}  // namespace cli
