// Long documents with a sentence hidden in them, and the question about it: what the passkey and needle tasks ask.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine.h"

namespace cli {

// The passkey prompt (Mohtashami and Jaggi 2023, "Landmark Attention"): kPrefix, filler, the key, filler, the question.
inline constexpr const char* kPrefix =
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
    "about the important information there.\n";
inline constexpr const char* kFiller =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n";
inline constexpr const char* kPasskeyNeedle = "The pass key is {key}. Remember it. {key} is the pass key.";
inline constexpr const char* kPasskeyQuestion = "What is the pass key? The pass key is";
inline constexpr int64_t kPasskeyAnswerTokens = 8;

// A stateless generator: the n-th draw of a trial depends on (seed, trial, n) alone.
uint64_t draw(uint64_t seed, uint64_t trial, uint64_t n);
// Five digits, the trial's draw 0.
std::string draw_key(uint64_t seed, uint64_t trial);
// `text` with the key in place of each "{key}".
std::string fill_in(std::string text, const std::string& key);

int64_t count_tokens(const quire_tokenizer* tokenizer, std::string_view text, uint32_t flags = 0);

// A text in pieces between which a needle may stand: sentences, each with the blanks after it; paragraphs without an
// end of a sentence are cut between words. The pieces make up the text, and a newline at its end where it has none.
std::vector<std::string> split_sentences(std::string_view text);

struct Document {
  std::string text;
  int64_t n_tokens = 0;
  double depth = 0;  // tokens of haystack before the needle, of all its tokens
};

// Says how many pieces stand before the needle, given the tokens of each piece.
using Placement = std::function<size_t(const std::vector<int64_t>& piece_tokens)>;

// What one document is made for: its needle, the question about it, and `length` tokens in all, of which
// `answer_tokens` stay free for the answer.
struct Task {
  std::string needle;
  std::string question;
  int64_t length = 0;
  int64_t answer_tokens = 0;
  // Ends so many tokens earlier, to within a word: the end of a piece then comes before the first whole one. Empty: as
  // long as whole pieces make it.
  std::optional<int64_t> shorter;
};

// The longest end of a piece, from the beginning of one of its words on, that has at most n_tokens tokens.
std::string end_of_piece(const quire_tokenizer* tokenizer, const std::string& piece, int64_t n_tokens);

// kPrefix, as many pieces (from `first_piece` on, again and again) as the task's length allows, with the needle among
// them, and the question. Throws UsageError where not even needle and question fit.
Document make_document(const quire_tokenizer* tokenizer, const std::vector<std::string>& pieces, size_t first_piece,
                       const Task& task, const Placement& place);

// What greedy decoding says after `prompt` in a session made empty, up to max_tokens or until `enough(text so far)`.
// `show` sees how many tokens of the prompt are read. Throws Interrupted after Ctrl-C.
std::string ask(quire_session* session, const std::string& prompt, int64_t max_tokens,
                const std::function<void(int64_t done)>& show, const std::function<bool(const std::string&)>& enough);

// The same after `text` in a session as it stands.
std::string go_on(quire_session* session, const std::string& text, int64_t max_tokens);

// Whether the answer stands in the text as whole words, in capitals or not.
bool says(const std::string& text, const std::string& answer);

}  // namespace cli
