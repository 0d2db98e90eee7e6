// Answers questions about one document over HTTP: it is read once, and each question goes on in a fork of the session,
// on a thread of its own.
//
//   server MODEL_DIR FILE HOST:PORT
//
// The body of a POST is a question, and that of the response is the answer, which is sent as it comes:
//
//   curl -N --data "What is it about?" http://127.0.0.1:8080/
//
// Several are answered at once. A client that leaves ends its own answer, and Ctrl-C ends the server.
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <exception>
#include <iostream>
#include <quire/quire.hpp>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "http.h"
#include "read_file.h"

namespace {

void answer(Connection& client, quire::Session session) {
  const auto fed = session.feed_text(" " + client.read());
  if (!fed && fed.error().status() == quire::Status::kInvalidText) throw Refused{"400 Bad Request"};
  fed.value();
  quire::StreamOptions options;
  options.max_tokens = 200;
  auto stream = quire::Stream::open(session, options).value();
  client.begin();
  for (const quire::Event& event : stream) client.write(event.text());
  if (stream.failure()) throw quire::Exception(*stream.failure());
  client.end();
}

// Does what one connection asks for. The fork, or why there is none, is from the thread that uses the document.
void serve(int socket, quire::Result<quire::Session> fork) {
  try {
    Connection client(socket);
    try {
      answer(client, std::move(fork).value());
    } catch (const Refused& why) {
      client.refuse(why);
    }
  } catch (const std::exception& error) {
    std::cerr << "a request ended early: " << error.what() << '\n';
  }
}

void serve_on_a_thread(int socket, quire::Session& document) {
  try {
    std::thread(serve, socket, document.fork()).detach();
  } catch (const std::system_error& error) {  // there may be no threads left
    close(socket);
    std::cerr << "a request is not answered: " << error.what() << '\n';
  }
}

// Serves until there is something to read from `end`.
void accept_all(int listener, int end, quire::Session& document) {
  pollfd waited[] = {{listener, POLLIN, 0}, {end, POLLIN, 0}};
  while (poll(waited, 2, -1) >= 0 && waited[1].revents == 0) {
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket >= 0) {
      serve_on_a_thread(socket, document);
    } else {  // there may be no descriptors left
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
}

// What can be read once Ctrl-C or SIGTERM came, which do not end the program then, nor threads that begin later.
int catch_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

void run(const std::string& model_path, const std::string& text, std::string address) {
  auto runtime = quire::Runtime::create().value();
  const auto model = quire::Model::load(runtime, model_path).value();
  quire::SessionOptions options;
  options.strategy = "dca";
  auto document = quire::Session::create(model, options).value();
  document.feed_text(text).value();
  quire::Stream::open(document).value().read_all().value();  // no tokens asked for: it only reads
  const int listener = listen_at(&address), end = catch_signals();
  std::cout << "listening at http://" << address << '/' << std::endl;
  accept_all(listener, end, document);
  runtime.close().value();  // ends the answers
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: " << argv[0] << " MODEL_DIR FILE HOST:PORT\n";
    return 2;
  }
  try {
    run(argv[1], read_file(argv[2]), argv[3]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
