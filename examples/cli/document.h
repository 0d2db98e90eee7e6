// Files in, JSON out.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace cli {

// Keeps the order in which fields are written.
using Json = nlohmann::ordered_json;

// The file's bytes; "-" is stdin. Throws std::runtime_error with the system's reason, or why they are no UTF-8.
std::string read_document(const std::string& path);
// Throws std::runtime_error for a document without words: an answer would not be about it.
void check_has_words(const std::string& path, const std::string& text);

// Writes a file anew. Throws std::runtime_error with the system's reason.
void write_document(const std::string& path, const std::string& text);
// Throws as write_document would: to be called before hours of work. What the file holds stays.
void check_writable(const std::string& path);

// The text with U+FFFD for what is not UTF-8.
std::string valid_utf8(const std::string& text);

// What the files of a model hold, without loading it (quire_model_describe_files).
Json describe_files(const std::string& path);

// One line on stdout. Text that is not UTF-8 (a path can be anything) is replaced, never refused.
void print_json(const Json& value);

// Bytes, for people: "1.5 MiB".
std::string human_bytes(int64_t n_bytes);

}  // namespace cli
