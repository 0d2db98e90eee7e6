// Asks a document questions, one a line of the input, and prints the answers as they come. Ctrl-C stops an answer, and
// the conversation goes on.
//
//   ask MODEL_DIR FILE
#include <atomic>
#include <csignal>
#include <exception>
#include <iostream>
#include <quire/quire.hpp>
#include <string>

#include "read_file.h"

namespace {

std::atomic<bool> interrupted = false;

// A stream processes what was fed and not yet read, first of all the document. What a cancelled one left is read by the
// next.
void answer(quire::Session& session) {
  quire::StreamOptions options;
  options.max_tokens = 48;
  auto stream = quire::Stream::open(session, options).value();
  interrupted = false;
  for (const quire::Event& event : stream) {
    if (interrupted) stream.cancel().value();
    switch (event.kind()) {
      case quire::EventKind::kPrefill:
        std::cerr << "\rread " << event.done() << " of " << event.total() << " tokens" << std::flush;
        break;
      case quire::EventKind::kWarning:
        std::cerr << "\nwarning: " << event.message() << '\n';
        break;
      case quire::EventKind::kEnd:
        if (event.finish() == quire::Finish::kCancelled) std::cout << "[stopped]";
        break;
      default:
        break;
    }
    std::cout << event.text() << std::flush;
  }
  std::cout << std::endl;
  if (stream.failure()) throw quire::Exception(*stream.failure());
}

void converse(const std::string& model_path, const std::string& document) {
  const auto runtime = quire::Runtime::create().value();
  const auto model = quire::Model::load(runtime, model_path).value();
  quire::SessionOptions options;
  options.strategy = "dca";  // reads texts of many times the model's length, and drops nothing
  auto session = quire::Session::create(model, options).value();
  session.feed_text(document).value();
  for (std::string question; std::getline(std::cin, question);) {
    session.feed_text("\n" + question).value();
    answer(session);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: " << argv[0] << " MODEL_DIR FILE\n";
    return 2;
  }
  std::signal(SIGINT, [](int) { interrupted = true; });
  try {
    converse(argv[1], read_file(argv[2]));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
