// What tests/peers/make_chat_golden.py wrote: conversations, and what the templates' programs make of them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/chat/chat_format.h"
#include "lib/support/os_file.h"
#include "tests/source_path.h"

namespace quire::test {

inline const nlohmann::json& chat_golden() {
  static const auto kGolden =
      nlohmann::json::parse(read_text_file(source_path("tests/unit/chat/golden.json"), 1 << 20).value());
  return kGolden;
}

inline size_t n_golden_conversations() { return chat_golden()["conversations"].size(); }

struct GoldenConversation {
  explicit GoldenConversation(size_t i) {
    const auto& golden = chat_golden()["conversations"][i];
    for (const auto& m : golden["messages"]) {
      messages.push_back({m[0].get_ref<const std::string&>(), m[1].get_ref<const std::string&>()});
    }
    options.begin_answer = golden["answer"];
    options.thinking = golden["thinking"];
    options.date = parse_chat_date(chat_golden()["date"].get<std::string>()).value();
  }

  std::vector<ChatMessage> messages;
  ChatOptions options;
};

}  // namespace quire::test
