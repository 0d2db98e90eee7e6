// Reads a document once, and asks it several questions at the same time, each in a fork of the session.
//
//   forks MODEL_DIR FILE QUESTION...
#include <exception>
#include <future>
#include <iostream>
#include <quire/quire.hpp>
#include <string>
#include <vector>

#include "read_file.h"

namespace {

// A fork goes on by itself; what both have read they share.
std::string answer(quire::Session fork, const std::string& question) {
  fork.feed_text(question).value();
  quire::StreamOptions options;
  options.max_tokens = 32;
  return quire::Stream::open(fork, options).value().read_all().value();
}

void ask(const std::string& model_path, const std::string& document, const std::vector<std::string>& questions) {
  const auto runtime = quire::Runtime::create().value();
  const auto model = quire::Model::load(runtime, model_path).value();
  quire::SessionOptions options;
  options.strategy = "dca";
  auto session = quire::Session::create(model, options).value();
  session.feed_text(document).value();
  quire::Stream::open(session).value().read_all().value();  // no tokens asked for: it only reads
  std::vector<std::future<std::string>> answers;
  for (const std::string& question : questions) {
    answers.push_back(std::async(std::launch::async, answer, session.fork().value(), question));
  }
  for (std::size_t i = 0; i < questions.size(); ++i) std::cout << questions[i] << answers[i].get() << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: " << argv[0] << " MODEL_DIR FILE QUESTION...\n";
    return 2;
  }
  try {
    ask(argv[1], read_file(argv[2]), {argv + 3, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
