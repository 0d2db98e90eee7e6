#include "lib/tokenizer/regex.h"

#include <algorithm>
#include <new>
#include <vector>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace quire {
namespace {

// PCRE2's memory comes from operator new, as all memory of this layer.
void* allocate(PCRE2_SIZE n_bytes, void*) { return ::operator new(n_bytes, std::nothrow); }
void release(void* memory, void*) { ::operator delete(memory); }

struct GeneralDeleter {
  void operator()(pcre2_general_context* context) const { pcre2_general_context_free(context); }
};
struct CompileDeleter {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};
struct MatchDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct DataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};

template <typename T, typename Deleter>
std::unique_ptr<T, Deleter> or_throw(T* made) {
  if (!made) throw std::bad_alloc();
  return std::unique_ptr<T, Deleter>(made);
}

using GeneralPtr = std::unique_ptr<pcre2_general_context, GeneralDeleter>;
using CodePtr = std::unique_ptr<pcre2_code, CodeDeleter>;

std::string message_of(int error) {
  PCRE2_UCHAR text[200] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// What a match may cost at first. Most cost far less; one that costs more is tried again with more, which counts as
// work.
constexpr uint32_t kFirstLimit = 256;
constexpr uint32_t kMaxNesting = 64;
constexpr uint32_t kMaxHeapKib = 64 << 10;  // of one match

struct Matcher {
  Matcher(const pcre2_code* with_code, pcre2_general_context* general)
      : code(with_code),
        context(or_throw<pcre2_match_context, MatchDeleter>(pcre2_match_context_create(general))),
        data(or_throw<pcre2_match_data, DataDeleter>(pcre2_match_data_create(1, general))) {
    pcre2_set_heap_limit(context.get(), kMaxHeapKib);
  }

  // 1: a match, whose place is in `begin` and `end`; 0: none. Negative: PCRE2's error.
  int match(std::string_view text, size_t from, uint32_t options, size_t* work) {
    for (size_t limit = kFirstLimit;; limit *= 4) {
      const auto allowed = static_cast<uint32_t>(std::min<size_t>(limit, UINT32_MAX));
      pcre2_set_match_limit(context.get(), allowed);
      int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                              PCRE2_NO_UTF_CHECK | options, data.get(), context.get());
      if (found == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter takes its stack from the heap
        found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                            PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT | options, data.get(), context.get());
      }
      if (found == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
      if (found == PCRE2_ERROR_NOMATCH) return 0;
      if (found >= 0) {
        const PCRE2_SIZE* place = pcre2_get_ovector_pointer(data.get());
        begin = place[0];
        end = place[1];
        return 1;
      }
      if (found != PCRE2_ERROR_MATCHLIMIT || *work < limit) return found;
      *work -= limit;
    }
  }

  const pcre2_code* code;
  std::unique_ptr<pcre2_match_context, MatchDeleter> context;
  std::unique_ptr<pcre2_match_data, DataDeleter> data;
  size_t begin = 0, end = 0;
};

size_t next_character(std::string_view text, size_t at) {
  do {
    ++at;
  } while (at < text.size() && (text[at] & 0xC0) == 0x80);
  return at;
}

// Runs of one character or two: what backtracks on any text, does so on them. The expression's own characters, and some
// of each common kind.
std::vector<std::string> hard_texts(const std::string& expression) {
  std::vector<std::string> units{"a", "A", "1", " ", "\n", ".", "\xCC\x81", "\xE3\x81\x82", "aA", "a ", " \n"};
  for (const char c : expression) {
    const std::string unit(1, c);
    if (units.size() < 64 && static_cast<uint8_t>(c) < 0x80 &&
        std::find(units.begin(), units.end(), unit) == units.end()) {
      units.push_back(unit);
    }
  }
  return units;
}

CodePtr compile_code(const std::string& expression, uint32_t options, pcre2_general_context* general, int* error,
                     PCRE2_SIZE* offset) {
  const auto context = or_throw<pcre2_compile_context, CompileDeleter>(pcre2_compile_context_create(general));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), kMaxNesting);
  // Lines as in Oniguruma's Ruby syntax: ^ and $ are at each.
  CodePtr code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE | options,
                    error, offset, context.get()));
  if (!code && *error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
  return code;
}

// Compiled so that all work is seen: every place is tried, and every way back.
Status check_work(const std::string& expression, pcre2_general_context* general) {
  constexpr size_t kUnits = 500;
  constexpr size_t kWorkPerByte = 64;
  int error = 0;
  PCRE2_SIZE offset = 0;
  const CodePtr code =
      compile_code(expression, PCRE2_NO_AUTO_POSSESS | PCRE2_NO_START_OPTIMIZE, general, &error, &offset);
  if (!code) return Status(Code::kBadFile, message_of(error), static_cast<int64_t>(offset));
  Matcher matcher(code.get(), general);
  for (const std::string& unit : hard_texts(expression)) {
    std::string text;
    for (size_t i = 0; i < kUnits; ++i) text += unit;
    size_t work = kWorkPerByte * text.size();
    for (size_t at = 0; at < text.size();) {
      const int found = matcher.match(text, at, PCRE2_ANCHORED | PCRE2_NO_JIT, &work);
      if (found < 0) {
        return Status(Code::kUnsupported, "it takes too much work on a text of " + std::to_string(kUnits) +
                                              " times \"" + (unit == "\n" ? std::string("\\n") : unit) + "\"");
      }
      at = found > 0 && matcher.end > at ? matcher.end : next_character(text, at);
    }
  }
  return {};
}

}  // namespace

struct Regex::Code {
  GeneralPtr general;
  CodePtr code;

  ~Code() {
    code.reset();
    if (general) pcre2_jit_free_unused_memory(general.get());  // it would outlive the library
  }
};

Regex::Regex(std::unique_ptr<const Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(const std::string& expression, bool generate_code) {
  if (expression.size() > kMaxBytes) {
    return Status(quire::Code::kUnsupported, "it has " + std::to_string(expression.size()) +
                                                 " bytes; expected at most " + std::to_string(kMaxBytes));
  }
  auto code = std::make_unique<Code>();
  code->general =
      or_throw<pcre2_general_context, GeneralDeleter>(pcre2_general_context_create(allocate, release, nullptr));
  int error = 0;
  PCRE2_SIZE offset = 0;
  code->code = compile_code(expression, 0, code->general.get(), &error, &offset);
  if (!code->code) {
    return Status(quire::Code::kBadFile, message_of(error) + " at byte " + std::to_string(offset) + " of " + expression,
                  static_cast<int64_t>(offset));
  }
  QUIRE_TRY(check_work(expression, code->general.get()));
  // Where code cannot be generated, or memory for it is refused, PCRE2 interprets; the matches are the same.
  if (generate_code) (void)pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE);
  return Regex(std::move(code));
}

struct Regex::Search::State {
  State(const Code& of) : matcher(of.code.get(), of.general.get()) {}
  Matcher matcher;
  std::string_view text;
  size_t from = 0;  // beyond the text: no more
  size_t* work = nullptr;
};

Regex::Search::Search(const Regex& regex) : state_(std::make_unique<State>(*regex.code_)) {}
Regex::Search::~Search() = default;

void Regex::Search::start(std::string_view text, size_t* work) {
  state_->text = text;
  state_->from = 0;
  state_->work = work;
}

Result<bool> Regex::Search::next(size_t* begin, size_t* end) {
  State& state = *state_;
  if (state.from > state.text.size()) return false;
  const int found = state.matcher.match(state.text, state.from, 0, state.work);
  if (found < 0) {
    return Status(quire::Code::kUnsupported, found == PCRE2_ERROR_MATCHLIMIT || found == PCRE2_ERROR_HEAPLIMIT
                                                 ? std::string("the pre-tokenizer's regular expression takes too much "
                                                               "work on this text")
                                                 : "PCRE2: " + message_of(found));
  }
  if (found == 0) {
    state.from = state.text.size() + 1;
    return false;
  }
  *begin = state.matcher.begin;
  *end = state.matcher.end;
  state.from = *end > *begin ? *end : next_character(state.text, *end);
  return true;
}

}  // namespace quire
