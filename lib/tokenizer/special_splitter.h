// Finds control and added tokens that are written out in a text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/support/status.h"

namespace quire {

// What is left of a text beside a token that claims the white space there, of any script.
std::string_view without_last_spaces(std::string_view text);
std::string_view without_first_spaces(std::string_view text);

// An Aho-Corasick automaton of the tokens' texts, read backwards. Over a text that is read from its end, the automaton
// knows at each place the longest token that begins there, so the work for a byte of text does not depend on the
// tokens.
class SpecialSplitter {
 public:
  struct Token {
    std::string_view text;  // not empty; needed by make() only
    int32_t id = -1;
    bool strip_left = false;  // white space beside it belongs to it
    bool strip_right = false;
  };
  struct Part {
    std::string_view text;  // of the text: what is ordinary, or how the token is written there
    int32_t id = -1;        // -1: ordinary text
  };

  // Most bytes of all tokens together. The automaton takes at most 13 bytes for each.
  static constexpr size_t kMaxBytes = 8 << 20;

  // Of two tokens with one text the first counts. Errors: kBadFile (too many bytes).
  static Result<SpecialSplitter> make(const std::vector<Token>& tokens);

  // Scans from left to right and takes the longest token that begins at each place. Parts of ordinary text are not
  // empty. White space that a token claims for itself (lstrip, rstrip) is dropped, of any script. Ends with the first
  // error of `visit`. n_steps, if given, grows by the number of states tried: less than 3 for a byte of text.
  Status split(std::string_view text, const std::function<Status(const Part&)>& visit,
               int64_t* n_steps = nullptr) const;

 private:
  // A state stands for the last bytes of a token, read backwards. State 0 stands for none. States are numbered by
  // length; the children of a state, which have one byte more, are neighbours in the order of that byte.
  using State = uint32_t;
  struct Found {
    int32_t id;
    uint32_t n_bytes;
    bool strip_left, strip_right;
  };
  static constexpr int32_t kNoToken = -1;

  SpecialSplitter() = default;
  void build(const std::vector<std::pair<std::string, int32_t>>& backwards, size_t n_bytes);
  State child(State state, char byte) const;  // 0: none
  State next(State state, char byte, int64_t& n_steps) const;
  // For each byte of text[begin, end): the longest token that begins there.
  void find(std::string_view text, size_t begin, size_t end, std::vector<int32_t>& longest, int64_t& n_steps) const;

  std::vector<Found> tokens_;
  size_t longest_ = 0;              // bytes of the longest token
  std::vector<uint8_t> byte_;       // by state: its last byte
  std::vector<State> first_child_;  // by state; its children end where those of the next state begin
  std::vector<State> shorter_;      // by state: the longest other state that its last bytes are
  std::vector<int32_t> token_;      // by state: the longest token that its last bytes are, as an index into tokens_
};

}  // namespace quire
