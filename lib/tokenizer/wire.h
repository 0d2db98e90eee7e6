// Reading protobuf's wire format: just enough for a SentencePiece model file.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "lib/support/status.h"

namespace quire::wire {

enum class Type : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Field {
  uint32_t number = 0;
  Type type = Type::kVarint;
  uint64_t value = 0;      // kVarint, kFixed32, kFixed64
  std::string_view bytes;  // kBytes
  int64_t bytes_at = 0;    // offset of `bytes` in the file
  float as_float() const { return std::bit_cast<float>(static_cast<uint32_t>(value)); }
};

// Takes the fields of one message one by one. Every length is checked against what is left.
class Reader {
 public:
  // `at` is the message's offset in the file, for error messages.
  Reader(std::string_view message, int64_t at) : message_(message), base_(at) {}

  bool done() const { return position_ == message_.size(); }
  int64_t offset() const { return base_ + static_cast<int64_t>(position_); }

  Result<Field> next() {
    Field field;
    QUIRE_ASSIGN(const uint64_t tag, varint());
    if (tag >> 3 == 0 || tag >> 32 != 0) return bad("no valid field number");
    field.number = static_cast<uint32_t>(tag >> 3);
    field.type = static_cast<Type>(tag & 7);
    switch (field.type) {
      case Type::kVarint: {
        QUIRE_ASSIGN(field.value, varint());
        return field;
      }
      case Type::kFixed64:
      case Type::kFixed32: {
        const size_t n = field.type == Type::kFixed64 ? 8 : 4;
        if (message_.size() - position_ < n) return bad("ends within a number");
        for (size_t i = n; i-- > 0;) field.value = field.value << 8 | static_cast<uint8_t>(message_[position_ + i]);
        position_ += n;
        return field;
      }
      case Type::kBytes: {
        QUIRE_ASSIGN(const uint64_t length, varint());
        if (length > message_.size() - position_) return bad("a field reaches beyond its message");
        field.bytes = message_.substr(position_, static_cast<size_t>(length));
        field.bytes_at = offset();
        position_ += static_cast<size_t>(length);
        return field;
      }
    }
    return bad("unknown wire type");  // groups among them: no writer has used them in these files
  }

 private:
  Status bad(const char* what) const { return Status(Code::kBadFile, what, offset()); }

  Result<uint64_t> varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (done()) return bad("ends within a number");
      const auto byte = static_cast<uint8_t>(message_[position_++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return bad("a number of more than 64 bits");
  }

  std::string_view message_;
  size_t position_ = 0;
  int64_t base_;
};

}  // namespace quire::wire
