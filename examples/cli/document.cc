#include "document.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "interrupt.h"
#include "output.h"
#include "quire_handles.h"

namespace cli {
namespace {

// Where the text stops to be UTF-8; its size if it does not.
size_t find_invalid_utf8(std::string_view text) {
  const auto byte = [&](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
  for (size_t i = 0; i < text.size();) {
    const unsigned first = byte(i), second = byte(i + 1);
    const size_t n = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    bool valid = n > 0;
    for (size_t k = 1; k < n; ++k) valid = valid && (byte(i + k) & 0xC0) == 0x80;
    // Forms that are too long, surrogates, and what lies beyond U+10FFFF.
    if (first == 0xE0) valid = valid && second >= 0xA0;
    if (first == 0xED) valid = valid && second < 0xA0;
    if (first == 0xF0) valid = valid && second >= 0x90;
    if (first == 0xF4) valid = valid && second < 0x90;
    if (!valid) return i;
    i += n;
  }
  return text.size();
}

// Text of Latin letters in UTF-16 is bytes of 0 by half, and may be valid UTF-8.
bool seems_utf16(std::string_view text) {
  const std::string_view begin = text.substr(0, 4096);
  const auto n_zeros = static_cast<size_t>(std::count(begin.begin(), begin.end(), '\0'));
  return begin.starts_with("\xFF\xFE") || begin.starts_with("\xFE\xFF") || n_zeros * 3 > begin.size();
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw QuireFailure(QUIRE_ERROR_INVALID_TEXT, path + " " + why);
}

void check_is_text(const std::string& path, std::string_view text) {
  if (text.starts_with("%PDF-")) {
    refuse(path, "is a PDF file, not text; `pdftotext " + path + " FILE.txt` makes text of it (Debian: poppler-utils)");
  }
  if (text.starts_with("PK\x03\x04")) {
    refuse(path, "is a ZIP archive, as word processors and e-books are (docx, odt, epub), not text; `pandoc -t plain " +
                     path + " -o FILE.txt` makes text of these");
  }
  if (seems_utf16(text)) {
    refuse(path, "seems to be UTF-16, not UTF-8; `iconv -f UTF-16 -t UTF-8 " + path + " >FILE.txt` converts it");
  }
  if (const size_t at = find_invalid_utf8(text); at < text.size()) {
    const auto line = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n') + 1;
    refuse(path, "is not valid UTF-8 at byte " + std::to_string(at) + " (line " + std::to_string(line) +
                     "); older text of Western Europe: `iconv -f WINDOWS-1252 -t UTF-8 " + path +
                     " >FILE.txt` converts it");
  }
}

// What failed, and errno's reason. A signal may be that, while a program or a person at the other end is waited for.
[[noreturn]] void fail(const std::string& what) {
  const int reason = errno;
  if (reason == EINTR && interrupted()) throw Interrupted();
  throw std::runtime_error(what + ": " + std::strerror(reason));
}

// A read would not end by a signal that comes just before it.
void wait_for_more(int descriptor) {
  constexpr int kPollMs = 50;
  pollfd input{descriptor, POLLIN, 0};
  while (poll(&input, 1, kPollMs) <= 0) {
    if (interrupted()) throw Interrupted();
  }
}

}  // namespace

std::string read_document(const std::string& path) {
  struct Opened {
    ~Opened() {
      if (descriptor > STDIN_FILENO) close(descriptor);
    }
    int descriptor;
  };
  const Opened file{path == "-" ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.descriptor < 0) fail("cannot open " + path);
  std::string text;
  char block[1 << 16];
  for (;;) {
    wait_for_more(file.descriptor);
    const ssize_t n = read(file.descriptor, block, sizeof block);
    if (n == 0) break;
    if (n > 0) text.append(block, static_cast<size_t>(n));
    if (n < 0 && errno != EINTR) fail("cannot read " + path);
  }
  check_is_text(path, text);
  return text;
}

void check_has_words(const std::string& path, const std::string& text) {
  if (text.find_first_not_of(" \t\r\n\f\v") != std::string::npos) return;
  throw std::runtime_error(path + (text.empty() ? " is empty"
                                                : " is empty but for white space; a scanned PDF has pictures of its "
                                                  "text: `ocrmypdf` reads them"));
}

void write_document(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) fail("cannot write " + path);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int reason = errno;
  const bool closed = std::fclose(file) == 0;
  if (!written) errno = reason;
  if (!written || !closed) fail("cannot write " + path);
}

void check_writable(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "wbx");  // a file of this call's own
  if (file != nullptr) {
    std::fclose(file);
    std::remove(path.c_str());
    return;
  }
  if (errno == EEXIST) file = std::fopen(path.c_str(), "ab");
  if (file == nullptr) fail("cannot write " + path);
  std::fclose(file);
}

std::string valid_utf8(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

Json describe_files(const std::string& path) {
  Error error;
  size_t needed = 0;
  error.check(quire_model_describe_files(path.data(), path.size(), nullptr, 0, &needed, error.get()),
              "reading " + path);
  std::string text(needed, '\0');
  error.check(quire_model_describe_files(path.data(), path.size(), text.data(), text.size(), &needed, error.get()),
              "reading " + path);
  return Json::parse(text);
}

void print_json(const Json& value) {
  print_text(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

std::string human_bytes(int64_t n_bytes) {
  const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(n_bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

}  // namespace cli
