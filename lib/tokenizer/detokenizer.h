// Token ids to text, one at a time: gives out whole code points only, and watches for stop strings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/tokenizer/tokenizer.h"

namespace quire {

class Detokenizer {
 public:
  // at_text_start: the first token begins a text, so that the dummy prefix's space is dropped.
  // The tokenizer must outlive this object. Stop strings must not be empty.
  Detokenizer(const Tokenizer& tokenizer, std::vector<std::string> stop_strings, bool at_text_start);

  // Adds a token and returns the text that can be given out now: whole code points, none of which can still become part
  // of a stop string. If a stop string is completed, the text before it is returned and stopped() tells which; of
  // several that end with this token the one that begins first counts, then the longest.
  // A token without bytes (a control token) gives no text, but ends an incomplete code point, as decode() does. Stop
  // strings are sought in the text that is given out: one with such tokens between its characters counts.
  Result<std::string> add(int32_t token);
  // What was held back, invalid bytes as U+FFFD, up to a stop string: one may end with the U+FFFD of a character that
  // stays incomplete, and one that was added later may stand in what was held back for another. Nothing after a stop
  // string was found.
  std::string finish();
  int stopped() const { return stopped_; }  // index of the stop string found, or -1

  // What the tokens so far have left behind, while no stop string was found.
  struct State {
    std::string held;
    bool drop_space = false;
  };
  State state() const { return {held_, drop_space_}; }
  void restore(const State& state);
  // Sought in text that was not given out yet; they count on behind the others.
  void add_stop_strings(const std::vector<std::string>& more);

 private:
  bool cut_at_stop(std::string& text);

  const Tokenizer& tokenizer_;
  std::vector<std::string> stop_strings_;
  bool drop_space_;
  int stopped_ = -1;
  std::string held_;
};

}  // namespace quire
