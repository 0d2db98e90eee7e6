#include "document.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "output.h"

namespace cli {

std::string read_document(const std::string& path) {
  const bool from_stdin = path == "-";
  std::FILE* opened = from_stdin ? stdin : std::fopen(path.c_str(), "rb");
  if (opened == nullptr) throw std::runtime_error("cannot open " + path + ": " + std::strerror(errno));
  struct Closer {
    void operator()(std::FILE* file) const {
      if (file != stdin) std::fclose(file);
    }
  };
  const std::unique_ptr<std::FILE, Closer> file(opened);
  std::string text;
  char block[1 << 16];
  while (const size_t n = std::fread(block, 1, sizeof block, file.get())) text.append(block, n);
  if (std::ferror(file.get()) != 0) throw std::runtime_error("cannot read " + path + ": " + std::strerror(errno));
  if (text.starts_with("%PDF-")) {
    throw std::runtime_error(path + " is a PDF file, not text; `pdftotext " + path + " FILE.txt` makes text of it " +
                             "(Debian: poppler-utils)");
  }
  return text;
}

void write_document(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int reason = errno;
  if (std::fclose(file) != 0 || !written) {
    throw std::runtime_error("cannot write " + path + ": " + std::strerror(written ? errno : reason));
  }
}

void check_writable(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "ab");
  if (file == nullptr) throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
  std::fclose(file);
}

std::string valid_utf8(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
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
