// The quire command: read a long document, ask, and get the answer as it is made.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>

#include "advice.h"
#include "arguments.h"
#include "interrupt.h"
#include "output.h"
#include "quire_handles.h"

namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;
constexpr int kInterrupted = 130;

constexpr const char* kFooter = R"help(
Strategies (-s) let a model read far beyond the length it was trained for, L tokens:
  full                      every earlier token at its true distance; good up to L
  dca                       Dual Chunk Attention: every earlier token, distances kept below L;
                            options chunk=, cap=, preset=, local=, logit_scale=
  dca_topk                  reads as dca; answers see the chunks that fit their queries best;
                            options chunk=, chunks=, one_in=, represent=, reading=
  longheads                 for each head the few chunks that fit its query best; reads little of a long
                            text per token; options chunk=, chunks=, forced=, select=, begin=, init=
  streaming_llm             the first few tokens and the most recent ones; constant memory, forgets
                            the middle; options sinks=, recent=
  auto                      one of these, by the checkpoint and the length of the text; says which
  + pi(factor=F) | ntk(factor=F) | yarn(factor=F) | llama3(factor=F) | dynamic_ntk(factor=F) |
    longrope | none | base(theta=T)
                            changes the rotary embedding, e.g. "dca + yarn(factor=4)"; alone it means full + ...

`quire strategies` lists them all, with every argument.

Examples:
  quire run -m model -s dca -f report.txt -p "What was decided? " -n 64
  quire index report.txt -m model -s dca -o report.quire
  quire run -m model --document report.quire -p "What was decided? " -n 64
  quire run -m model -s dca --store library -f report.txt -p "What was decided? " -n 64
  cat *.log | quire run -m model -s streaming_llm -f - -p "Summary: " --json
  quire chat -m model -s auto
  quire plan -s "dca(chunk=4, cap=7)" --train-len 8 --tokens 12
  quire estimate -m model -s dca --tokens 65536
  quire eval passkey -m model -s dca --tokens 4096 16384 --trials 20
  quire eval needle -m model -s dca --tokens 4096,16384 --svg needle.svg
  quire bench -m model -s dca --depth 0,8192

Exit status: 0 success, 1 failure (a file, standard output, the model, memory, text beyond the reach), 2 wrong usage (an
option, a strategy expression, lengths that make no sense), 130 interrupted by Ctrl-C.)help";

int report(int status, const char* what, const char* code = nullptr) {
  std::fprintf(stderr, code ? "quire: %s [%s]\n" : "quire: %s\n", what, code);
  return status;
}

int run_action(const CLI::App& app, const cli::Action& action) {
  try {
    const int status = action();
    cli::close_output();
    return status;
  } catch (const cli::Interrupted& e) {
    return report(kInterrupted, e.what());
  } catch (const cli::UsageError& e) {
    return report(kUsage, e.what());
  } catch (const cli::QuireFailure& e) {
    const int status = report(e.is_usage() ? kUsage : kFailure, e.what(), quire_get_status_name(e.status()));
    std::fputs(cli::advice_for(app, e), stderr);
    return status;
  } catch (const std::exception& e) {
    return report(kFailure, e.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  cli::prepare_output();
  CLI::App app("Quire runs language models on documents much longer than the models were trained for.", "quire");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("quire ") + quire_get_version_string());
  app.require_subcommand(1);

  cli::Action action;
  cli::add_run(app, action);
  cli::add_index(app, action);
  cli::add_verify(app, action);
  cli::add_ls(app, action);
  cli::add_rm(app, action);
  cli::add_chat(app, action);
  cli::add_info(app, action);
  cli::add_quantize(app, action);
  cli::add_plan(app, action);
  cli::add_estimate(app, action);
  cli::add_strategies(app, action);
  cli::add_bench(app, action);
  CLI::App* eval = app.add_subcommand("eval", "Measure how well a strategy reads long documents");
  eval->require_subcommand(1);
  eval->footer(R"help(
passkey   right answers by document length: the quickest look at how far a strategy reads
needle    the same by length and by where in the document the answer lies; draws a heat map
multikey  keys of several names in one document, each asked for
topics    sections with a topic each, asked for by number
ppl       perplexity of a text of yours, whole or in sliding windows

Example:
  quire eval needle --help)help");
  cli::add_eval_needle(*eval, action);
  cli::add_eval_facts(*eval, action);
  cli::add_eval_passkey(*eval, action);
  cli::add_eval_ppl(*eval, action);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {  // --help and --version
      std::ostringstream text;
      const int status = app.exit(e, text, text);
      return run_action(app, [&] {
        cli::print_text(text.str());
        return status;
      });
    }
    report(kUsage, cli::usage_message(app, e).c_str());
    std::fputs("Try `quire --help`, or `quire COMMAND --help`.\n", stderr);
    return kUsage;
  }
  cli::install_interrupt_handler();
  return run_action(app, action);
}
