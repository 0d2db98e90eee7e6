// SPDX-License-Identifier: MIT
//
// quire.hpp - Quire for C++17 and later: a thin layer over quire.h, in headers alone.
//
//   auto runtime = quire::Runtime::create().value();
//   auto model = quire::Model::load(runtime, "model").value();
//   quire::SessionOptions options;
//   options.strategy = "dca";
//   auto session = quire::Session::create(model, options).value();
//   session.feed_text(text).value();
//   quire::StreamOptions go;
//   go.max_tokens = 64;
//   auto stream = quire::Stream::open(session, go).value();
//   for (const quire::Event& event : stream) std::cout << event.text() << std::flush;
//   if (stream.failure()) std::cerr << stream.failure()->message();
//
// quire_NOUN_VERB of C is Noun::verb here, and quire.h says what it does, which errors it has and
// from which threads it may be called. What is different:
//
//   Errors      Calls return a Result, a value or an Error, as std::expected. Nothing throws unless
//               .value() is asked of an error. Compiles with -fno-exceptions too.
//   Handles     Objects own one reference, and copies share what they refer to, like shared_ptr.
//   Options     Structs whose members have C's names and own their strings and arrays; flags are
//               members of type bool. What the library fills are C's structs, under other names.
//   Arguments   Strings are std::string_view, arrays Span, which is made from vectors, arrays,
//               std::span and lists in braces. Both need to live until the call returns.
//   Callbacks   Are std::function. They live as long as the library needs them. Exceptions do not
//               pass through C: where a call waits for the callback it fails, and .value() throws
//               the callback's own exception.
#pragma once

#include "quire/plan.hpp"
#include "quire/store.hpp"
#include "quire/strategy.hpp"
#include "quire/stream.hpp"
