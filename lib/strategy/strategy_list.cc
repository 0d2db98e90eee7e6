#include "lib/strategy/strategy_list.h"

#include <algorithm>

namespace quire {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

// Members of a JSON object.
class Members {
 public:
  Members& add(std::string_view key, const std::string& value) {
    text_ += (text_.empty() ? "" : ", ") + quoted(key) + ": " + value;
    return *this;
  }
  std::string object() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

template <typename Items, typename ToText>
std::string list(const Items& items, const ToText& to_text) {
  std::string text;
  for (const auto& item : items) text += (text.empty() ? "" : ", ") + to_text(item);
  return "[" + text + "]";
}

const char* type_name(ArgumentUse::Type type) {
  switch (type) {
    case ArgumentUse::Type::kInteger:
      return "integer";
    case ArgumentUse::Type::kNumber:
      return "number";
    case ArgumentUse::Type::kChoice:
      return "choice";
    default:
      return "word";
  }
}

std::string argument_object(const ArgumentDoc& doc, const ArgumentUse& use, bool required) {
  Members members;
  members.add("name", quoted(doc.name)).add("type", quoted(type_name(use.type)));
  const bool is_number = use.type == ArgumentUse::Type::kInteger || use.type == ArgumentUse::Type::kNumber;
  if (is_number) {
    members.add("min", use.least).add("max", use.most);
    if (use.step > 1) members.add("step", std::to_string(use.step));
  }
  if (use.type == ArgumentUse::Type::kChoice) members.add("choices", list(use.choices, quoted));
  if (use.fallback) members.add("default", is_number ? *use.fallback : quoted(*use.fallback));
  members.add("required", required ? "true" : "false");
  // An argument that stands alone in `with` needs no other: the parser then just reads it where it is given.
  if (!doc.with.empty() && !doc.with.starts_with(std::string(doc.name) + "=")) members.add("with", quoted(doc.with));
  return members.add("description", quoted(doc.text)).object();
}

// What the reader of `term` asks for when it is given `arguments`.
Result<ArgumentLog> uses_of(const ListedTerm& term, std::string_view arguments, const StrategyContext& context) {
  ArgumentLog log;
  const std::string expression = std::string(term.name) + "(" + std::string(arguments) + ")";
  QUIRE_TRY(make_logged_strategy(expression, context, &log).status());
  std::erase_if(log, [&](const ArgumentUse& use) { return use.term != term.name; });
  return log;
}

Result<std::string> term_object(const ListedTerm& term, const StrategyContext& context) {
  std::vector<std::string> objects;
  for (const ArgumentDoc& doc : term.arguments) {
    QUIRE_ASSIGN(const ArgumentLog log, uses_of(term, doc.with, context));
    const auto use = std::find_if(log.begin(), log.end(), [&](const ArgumentUse& u) { return u.name == doc.name; });
    if (use == log.end()) {
      return Status(Code::kInternal, std::string(term.name) + " does not read its argument " + std::string(doc.name));
    }
    objects.push_back(argument_object(doc, *use, !use->fallback && doc.with.empty()));
  }
  return Members()
      .add("name", quoted(term.name))
      .add("kind", quoted(term.kind))
      .add("description", quoted(term.text))
      .add("arguments", list(objects, [](const std::string& object) { return object; }))
      .object();
}

}  // namespace

Result<std::string> list_strategies(const StrategyContext& given) {
  StrategyContext context = given;
  context.beacon.emplace();  // as published: a model that has none refuses the strategy, not its arguments
  const auto pairs = static_cast<size_t>(context.turning_dim() / 2);
  context.longrope = LongRopeFactors{};
  context.longrope->short_factors.assign(pairs, 1);
  context.longrope->long_factors.assign(pairs, 1);
  context.longrope->original = context.train_len;
  context.longrope->attention_factor = 1;
  if (context.expected_tokens == 0) context.expected_tokens = context.train_len;
  std::vector<std::string> objects;
  for (const ListedTerm& term : listed_terms()) {
    Result<std::string> object = term_object(term, context);
    if (object.ok()) {
      objects.push_back(*object);
    } else if (object.status().code() == Code::kInternal) {
      return object.status();
    } else {  // nothing of it works with so short a trained length, or so many heads
      objects.push_back(Members()
                            .add("name", quoted(term.name))
                            .add("kind", quoted(term.kind))
                            .add("description", quoted(term.text))
                            .add("obstacle", quoted(object.status().message()))
                            .add("arguments", "[]")
                            .object());
    }
  }
  return Members()
      .add("train_len", std::to_string(context.train_len))
      .add("terms", list(objects, [](const std::string& object) { return object; }))
      .object();
}

}  // namespace quire
