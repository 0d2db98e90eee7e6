// What Quire tells a person about a session, beside the answer.
#pragma once

#include <cstdint>
#include <string>

namespace quire {

enum class MessageCode : int32_t {  // the numbers of QUIRE_WARNING_* and QUIRE_NOTICE_*
  kNone = 0,
  kAdapterBase = 1,
  kUntrainedPositions = 2,
  kAutoChoice = 101,
};

struct SessionMessage {
  MessageCode code = MessageCode::kNone;
  std::string text;

  // Or a notice: nothing is wrong.
  bool is_warning() const { return code < MessageCode::kAutoChoice; }
};

}  // namespace quire
