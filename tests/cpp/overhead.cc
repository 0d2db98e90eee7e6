// The overhead comparison's program for C++: tests/overhead/README.md has the contract.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>

#include "quire/quire.hpp"

namespace {

// The program's own heap. hide_operators.map keeps the library from using these operators as well.
std::size_t n_allocations = 0;

quire::StreamOptions go(std::int64_t n) {
  quire::StreamOptions options;
  options.max_tokens = n;
  options.ignore_eos = true;
  return options;
}

void round(quire::Session& session, const quire::StreamOptions& options, std::int64_t n_prompt) {
  session.truncate(n_prompt).value();
  const std::size_t allocated = n_allocations;
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t n_tokens = 0;
  std::size_t text_size = 0;
  auto stream = quire::Stream::open(session, options).value();
  for (const quire::Event& event : stream) {
    n_tokens += event.kind() == quire::EventKind::kToken;
    text_size += event.text().size();
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (stream.failure() || text_size == 0) throw std::runtime_error("the stream failed");
  std::printf("{\"tokens\":%lld,\"seconds\":%.9f,\"allocations\":%.4f}\n", static_cast<long long>(n_tokens),
              seconds.count(), static_cast<double>(n_allocations - allocated) / static_cast<double>(n_tokens));
  std::fflush(stdout);
}

}  // namespace

void* operator new(std::size_t size) {
  ++n_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  quire::RuntimeOptions one_thread;
  one_thread.n_threads = 1;
  const auto runtime = quire::Runtime::create(one_thread).value();
  const auto model = quire::Model::load(runtime, argv[1]).value();
  quire::SessionOptions options;
  options.strategy = "full";
  options.overflow = quire::Overflow::kExtrapolate;
  auto session = quire::Session::create(model, options).value();
  session.feed_text("Once upon a time").value();
  quire::Stream::open(session).value().read_all().value();
  const std::int64_t n_prompt = session.token_counts().value().n_tokens;
  const quire::StreamOptions timed = go(std::atoll(argv[2]));
  std::puts("{\"ready\":true}");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) round(session, timed, n_prompt);
  return 0;
}
