#include "lib/tokenizer/detokenizer.h"

#include <algorithm>

#include "lib/support/utf8.h"

namespace quire {
namespace {

// Length of the longest end of `text` that is the beginning, but not the whole, of `stop`.
size_t overlap(std::string_view text, std::string_view stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.ends_with(stop.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

Detokenizer::Detokenizer(const Tokenizer& tokenizer, std::vector<std::string> stop_strings, bool at_text_start)
    : tokenizer_(tokenizer),
      stop_strings_(std::move(stop_strings)),
      drop_space_(at_text_start && tokenizer.has_dummy_prefix()) {
  // They are compared with text that holds whole code points only (add_stop_strings too).
  for (std::string& stop : stop_strings_) stop = utf8_sanitize(stop);
}

Result<std::string> Detokenizer::add(int32_t token) {
  std::string bytes;
  QUIRE_TRY(tokenizer_.append_bytes(token, ControlText::kNone, bytes));
  if (stopped_ >= 0) return std::string();
  const bool has_bytes = !bytes.empty();
  if (has_bytes) {
    if (drop_space_ && bytes[0] == ' ') bytes.erase(0, 1);
    drop_space_ = false;
  }
  held_ += bytes;

  // held_ is valid text, then perhaps the beginning of a code point, which a token without bytes ends. Stop strings are
  // sought in the text as it is given out, so replaced bytes count as U+FFFD.
  const size_t whole = has_bytes ? utf8_complete_prefix(held_) : held_.size();
  std::string text = utf8_sanitize(std::string_view(held_).substr(0, whole));
  const std::string unfinished = held_.substr(whole);

  if (cut_at_stop(text)) {
    held_.clear();
    return text;
  }
  size_t keep = 0;
  for (const std::string& stop : stop_strings_) keep = std::max(keep, overlap(text, stop));
  held_ = text.substr(text.size() - keep) + unfinished;
  text.resize(text.size() - keep);
  return text;
}

std::string Detokenizer::finish() {
  std::string text = utf8_sanitize(held_);
  held_.clear();
  cut_at_stop(text);
  return text;
}

// Leaves what comes before the stop string that counts, if there is one.
bool Detokenizer::cut_at_stop(std::string& text) {
  size_t first = std::string::npos;
  for (size_t i = 0; i < stop_strings_.size(); ++i) {
    const size_t at = text.find(stop_strings_[i]);
    if (at == std::string::npos || at > first) continue;
    if (at == first && stop_strings_[i].size() <= stop_strings_[static_cast<size_t>(stopped_)].size()) continue;
    first = at;
    stopped_ = static_cast<int>(i);
  }
  if (first == std::string::npos) return false;
  text.resize(first);
  return true;
}

void Detokenizer::add_stop_strings(const std::vector<std::string>& more) {
  for (const std::string& stop : more) stop_strings_.push_back(utf8_sanitize(stop));
}

void Detokenizer::restore(const State& state) {
  held_ = state.held;
  drop_space_ = state.drop_space;
  stopped_ = -1;
}

}  // namespace quire
