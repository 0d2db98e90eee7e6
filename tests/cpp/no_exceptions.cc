// A client compiled with -fno-exceptions: errors are values, and that is all it needs.
//
//   cpp_no_exceptions MODEL_DIR
#include <cstdio>

#include "quire/quire.hpp"

namespace {

int fail(const quire::Error& error) {
  std::fprintf(stderr, "%s\n", error.message().c_str());
  return 1;
}

}  // namespace

int main(int, char** argv) {
  auto runtime = quire::Runtime::create();
  if (!runtime) return fail(runtime.error());
  std::int64_t loaded = 0;
  quire::ModelOptions watched;
  watched.progress = [&](std::int64_t done, std::int64_t) { loaded = done; };
  auto model = quire::Model::load(*runtime, argv[1], watched);
  if (!model) return fail(model.error());
  auto session = quire::Session::create(*model);
  if (!session) return fail(session.error());
  if (auto fed = session->feed_text("Once upon a time"); !fed) return fail(fed.error());
  quire::StreamOptions options;
  options.max_tokens = 8;
  options.ignore_eos = true;
  auto stream = quire::Stream::open(*session, options);
  if (!stream) return fail(stream.error());
  std::size_t n_tokens = 0;
  for (const quire::Event& event : *stream) n_tokens += event.kind() == quire::EventKind::kToken;
  if (stream->failure()) return fail(*stream->failure());
  const auto wrong = quire::Model::load(*runtime, "/no/such/folder");
  return n_tokens == 8 && loaded > 0 && !wrong && wrong.error().status() == quire::Status::kNotFound ? 0 : 1;
}
