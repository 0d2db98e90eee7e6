#include "lib/abi/snapshot_streams.h"

#include <limits>

#include "lib/abi/boundary.h"

namespace quire::abi {
namespace {

Status read_name(const char* data, size_t size, std::string* out) {
  std::string_view text;
  QUIRE_TRY(read_text(data, size, "name", &text));
  *out = data ? std::string(text) : "the snapshot";
  return {};
}

// kIo, with what the callback said.
Status failed(const char* what, const std::string& name, const quire_error& err) {
  const auto* end = static_cast<const char*>(std::memchr(err.message, 0, sizeof err.message));
  std::string_view said(err.message, end ? static_cast<size_t>(end - err.message) : sizeof err.message);
  if (said.empty()) said = "the callback failed";
  return Status(Code::kIo, std::string("cannot ") + what + " " + name + ": " + std::string(said), -1, err.os_error);
}

// kIo: a callback that was given `wanted` bytes says that it did others.
Status wrong_number(const char* what, const std::string& name, int64_t n, size_t wanted) {
  return Status(Code::kIo, std::string("cannot ") + what + " " + name + ": the callback returned " + std::to_string(n) +
                               " for " + std::to_string(wanted) + " bytes");
}

}  // namespace

// ---- writing

Status CallbackSink::set(const quire_snapshot_writer* writer) {
  quire_snapshot_writer w;
  if (!writer) return invalid("writer is NULL");
  QUIRE_TRY(read_options(writer, 0, "quire_snapshot_writer", &w));
  if (!w.write) return invalid("quire_snapshot_writer.write is NULL");
  QUIRE_TRY(read_name(w.name, w.name_len, &name_));
  writer_ = w;
  return {};
}

Status CallbackSink::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    called_ = true;
    quire_error err{};
    const int64_t n = writer_.write(writer_.user_data, bytes.data(), bytes.size(), &err);
    if (n < 0) return failed("write", name_, err);
    if (n == 0 || static_cast<uint64_t>(n) > bytes.size()) return wrong_number("write", name_, n, bytes.size());
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status CallbackSink::commit() {
  called_ = true;
  quire_error err{};
  if (writer_.commit && writer_.commit(writer_.user_data, &err) < 0) return failed("commit", name_, err);
  return {};
}

void CallbackSink::give_up() {
  if (called_ && writer_.abort) writer_.abort(writer_.user_data);
}

// ---- reading

Status CallbackSource::set(const quire_snapshot_reader* reader) {
  quire_snapshot_reader r;
  if (!reader) return invalid("reader is NULL");
  QUIRE_TRY(read_options(reader, 0, "quire_snapshot_reader", &r));
  QUIRE_TRY(check_range("n_bytes", r.n_bytes, 0, std::numeric_limits<int64_t>::max()));
  if (!r.read) return invalid("quire_snapshot_reader.read is NULL");
  QUIRE_TRY(read_name(r.name, r.name_len, &name_));
  reader_ = r;
  return {};
}

CallbackSource::~CallbackSource() {
  if (owns_ && reader_.destroy) reader_.destroy(reader_.user_data);
}

Status CallbackSource::read_at(int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    quire_error err{};
    const int64_t n = reader_.read(reader_.user_data, offset, out.data(), out.size(), &err);
    if (n < 0) return failed("read", name_, err);
    if (n == 0) {
      return Status(Code::kIo, name_ + " ends at byte " + std::to_string(offset) + " of " + std::to_string(size()),
                    offset);
    }
    if (static_cast<uint64_t>(n) > out.size()) return wrong_number("read", name_, n, out.size());
    out = out.subspan(static_cast<size_t>(n));
    offset += n;
  }
  return {};
}

}  // namespace quire::abi
