// The one user of PCRE2: regular expressions by which a text is cut before it is tokenized.
//
// They come from files that nobody vouches for, and a regular expression can take any time. Two limits keep the work
// for a text near its length. When an expression is compiled, its work is counted on texts that tend to be hard, and it
// is refused if that grows faster than they do. When it is used, PCRE2 counts how often it goes back to try something
// else: of that, a text may take a number in proportion to its length.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "lib/support/status.h"

namespace quire {

// Immutable after creation: any thread.
class Regex {
 public:
  // Most bytes of an expression, in PCRE2's syntax.
  static constexpr size_t kMaxBytes = 16 << 10;

  // An expression in PCRE2's syntax, from regex_for_pcre2() or the library's own. Errors: kBadFile (not valid),
  // kUnsupported (it takes too long).
  // generate_code: false for the interpreter, which is used where a system refuses to run generated code; for tests.
  static Result<Regex> compile(const std::string& expression, bool generate_code = true);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Where in a text the matches are, one after the other. For one text at a time, one thread.
  class Search {
   public:
    explicit Search(const Regex& regex);
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;

    // Begins with a text, valid UTF-8, which must stay until the next. `work`: what remains of the work that may be
    // spent; may be shared by several searches.
    void start(std::string_view text, size_t* work);
    // The next match, [*begin, *end); empty ones too. Errors: kUnsupported (no work remains).
    Result<bool> next(size_t* begin, size_t* end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

  // The work that a text of so many bytes may take.
  static size_t work_for(size_t n_bytes) { return (1 << 16) + 64 * n_bytes; }

 private:
  struct Code;
  explicit Regex(std::unique_ptr<const Code> code);
  std::unique_ptr<const Code> code_;
};

}  // namespace quire
