// Does the steps of tests/conformance/*.json through quire.hpp. tests/conformance/README.md says what they are.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/cpp/with_model.h"
#include "tests/source_path.h"

namespace quire_cpp {
namespace {

using nlohmann::json;
using quire::Session;
using Outcome = quire::Result<json>;

// The step's result, or the error of the call that stands in an expression. For functions that return an Outcome.
#define TRY(name, call) \
  auto name = call;     \
  if (!name) return name.error()
#define DO(call) \
  if (auto done = call; !done) return done.error()

template <typename E>
E constant(const json& name) {
  return quire::from_name<E>(name.get<std::string>()).value();
}

// Takes options out of a step one by one, so that one that nobody takes is a failure.
class Options {
 public:
  explicit Options(const json& options) : left_(options) {}
  template <typename T>
  void take(const char* key, T* into) {
    if (const auto found = left_.find(key); found != left_.end()) {
      if constexpr (std::is_enum_v<T>) {
        *into = constant<T>(*found);
      } else {
        *into = found->get<T>();
      }
      left_.erase(found);
    }
  }
  void expect_empty() const { EXPECT_TRUE(left_.empty()) << "unknown options: " << left_; }

 private:
  json left_;
};

quire::SessionOptions session_options(const json& step) {
  quire::SessionOptions options;
  if (step.contains("strategy")) options.strategy = step["strategy"].get<std::string>();
  Options given(step.value("options", json::object()));
  given.take("kv_type", &options.kv_type);
  given.take("kv_old_type", &options.kv_old_type);
  given.take("old_after", &options.old_after);
  given.take("overflow", &options.overflow);
  given.take("prefill_block", &options.prefill_block);
  given.take("expected_tokens", &options.expected_tokens);
  given.take("kv_host_budget_bytes", &options.kv_host_budget_bytes);
  given.expect_empty();
  return options;
}

quire::StreamOptions stream_options(const json& step) {
  quire::StreamOptions options;
  Options given(step.at("options"));
  given.take("max_tokens", &options.max_tokens);
  given.take("temperature", &options.temperature);
  given.take("top_k", &options.top_k);
  given.take("top_p", &options.top_p);
  given.take("min_p", &options.min_p);
  given.take("seed", &options.seed);
  given.take("stop", &options.stop_strings);
  given.take("stop_ids", &options.stop_ids);
  given.take("min_tokens", &options.min_tokens);
  given.take("max_undelivered", &options.max_undelivered);
  given.take("draft_tokens", &options.draft_tokens);
  given.take("draft_match", &options.draft_match);
  given.take("n_top_logprobs", &options.n_top_logprobs);
  given.take("ignore_eos", &options.ignore_eos);
  given.take("score", &options.score);
  given.take("keep_logits", &options.keep_logits);
  given.take("cite", &options.cite);
  given.expect_empty();
  return options;
}

quire::TextOptions text_options(const json& step) {
  quire::TextOptions options;
  options.parse_special = step.value("parse_special", false);
  options.add_bos = step.value("add_bos", true);
  return options;
}

std::string finish_name(quire::Finish finish) {
  return finish == quire::Finish::kNone ? "" : std::string(quire::name(finish));
}

// What the steps of one case work on.
class Case {
 public:
  explicit Case(const quire::Model& model) : model_(model), tokenizer_(quire::Tokenizer::of(model).value()) {}

  Outcome run(const json& step) {
    const auto found = steps().find(step.at("do").get<std::string>());
    if (found == steps().end()) {
      ADD_FAILURE() << "unknown step: " << step;
      return json::object();
    }
    return (this->*found->second)(step);
  }

 private:
  using Step = Outcome (Case::*)(const json&);
  static const std::map<std::string, Step>& steps();

  Session& session(const json& step) { return sessions_.at(step.at("session").get<std::string>()); }
  Outcome counts(Session& session) {
    TRY(found, session.token_counts());
    return json{{"n_tokens", found->n_tokens}, {"n_pending", found->n_pending}};
  }
  std::string path(const json& name) { return folder_.file(name.get<std::string>() + ".quire"); }

  Outcome encode(const json& step) {
    TRY(ids, tokenizer_.encode(step.at("text").get<std::string>(), text_options(step), !step.value("first", true)));
    return json{{"ids", *ids}};
  }
  Outcome decode(const json& step) {
    TRY(text, tokenizer_.decode(step.at("ids").get<std::vector<int32_t>>()));
    return json{{"text", *text}};
  }
  Outcome describe_strategy(const json& step) {
    quire::StrategyOptions options;
    options.strategy = step.at("strategy").get<std::string>();
    options.train_len = step.at("train_len");
    TRY(canonical, quire::describe_strategy(options));
    return json{{"canonical", *canonical}};
  }
  Outcome create(const json& step) {
    TRY(made, Session::create(model_, session_options(step)));
    sessions_[step.at("as")] = *made;
    return json::object();
  }
  Outcome feed(const json& step) {
    DO(session(step).feed_text(step.at("text").get<std::string>(), text_options(step)));
    return counts(session(step));
  }
  Outcome feed_tokens(const json& step) {
    DO(session(step).feed_tokens(step.at("ids").get<std::vector<int32_t>>()));
    return counts(session(step));
  }
  Outcome feed_labelled(const json& step) {
    std::vector<quire::Label> labels;
    for (const json& label : step.at("labels")) labels.push_back({label[0], label[1], label[2]});
    DO(session(step).feed_labelled(step.at("text").get<std::string>(), labels));
    return counts(session(step));
  }
  Outcome feed_messages(const json& step) {
    std::vector<quire::Message> messages;
    for (const json& message : step.at("messages")) {
      messages.push_back({message[0].get_ref<const std::string&>(), message[1].get_ref<const std::string&>()});
    }
    quire::ChatOptions options;
    if (step.contains("template")) options.template_name = step["template"].get<std::string>();
    options.answer = step.value("answer", true);
    DO(session(step).feed_messages(messages, options));
    return counts(session(step));
  }
  Outcome stream(const json& step);
  Outcome get_counts(const json& step) { return counts(session(step)); }
  Outcome tokens(const json& step) {
    TRY(ids, session(step).tokens());
    const size_t first = std::min(step.at("first").get<size_t>(), ids->size());
    const size_t last = std::min(first + step.at("n").get<size_t>(), ids->size());
    return json{{"ids", std::vector<int32_t>(ids->begin() + static_cast<ptrdiff_t>(first),
                                             ids->begin() + static_cast<ptrdiff_t>(last))}};
  }
  Outcome truncate(const json& step) {
    DO(session(step).truncate(step.at("n_tokens")));
    return counts(session(step));
  }
  Outcome discard_pending(const json& step) {
    DO(session(step).discard_pending());
    return counts(session(step));
  }
  Outcome reset(const json& step) {
    DO(session(step).reset());
    return counts(session(step));
  }
  Outcome edit(const json& step) {
    quire::EditOptions options;
    if (step.contains("reuse")) options.reuse = constant<quire::EditReuse>(step["reuse"]);
    TRY(done, session(step).edit_text(step.at("text").get<std::string>(), options));
    return json{{"n_tokens", done->n_tokens}, {"n_kept", done->n_kept}, {"n_moved", done->n_moved}};
  }
  Outcome scores(const json& step) {
    TRY(values, session(step).scores(step.at("first"), step.at("n")));
    return json{{"values", *values}};
  }
  Outcome argmax(const json& step) {
    TRY(row, session(step).logits(step.at("token")));
    return json{{"id", std::max_element(row->begin(), row->end()) - row->begin()}};
  }
  Outcome stats(const json& step) {
    TRY(found, session(step).stats());
    return json{{"n_tokens", found->n_tokens},           {"n_pending", found->n_pending},
                {"n_prefilled", found->n_prefilled},     {"n_generated", found->n_generated},
                {"prefill_ns", found->prefill_ns},       {"decode_ns", found->decode_ns},
                {"kv_chunks", found->kv_chunks},         {"kv_chunks_dropped", found->kv_chunks_dropped},
                {"scratch_bytes", found->scratch_bytes}, {"reach", found->reach},
                {"n_reused", found->n_reused},           {"n_moved", found->n_moved},
                {"kv_full_bytes", found->kv_full_bytes}, {"kv_old_bytes", found->kv_old_bytes},
                {"n_drafted", found->n_drafted},         {"n_accepted", found->n_accepted}};
  }
  Outcome strategy(const json& step) {
    TRY(canonical, session(step).strategy());
    return json{{"canonical", *canonical}};
  }
  static Outcome shares(const quire::Result<std::vector<quire::LabelAttention>>& labels) {
    if (!labels) return labels.error();
    json all = json::array();
    for (const auto& label : *labels) all.push_back({label.id, label.share});
    return json{{"shares", all}};
  }
  Outcome label_attention(const json& step) { return shares(session(step).label_attention()); }
  Outcome label_shares(const json& step) { return shares(session(step).label_shares()); }
  Outcome passages(const json& step) {
    TRY(found, session(step).passages(step.at("most")));
    json all = json::array();
    for (const auto& p : *found) all.push_back({p.feed, p.begin, p.end, p.label_id});
    return json{{"passages", all}};
  }
  Outcome fork(const json& step) {
    TRY(made, session(step).fork());
    sessions_[step.at("as")] = *made;
    return json::object();
  }
  Outcome save(const json& step) {
    DO(session(step).save(path(step.at("to"))));
    return json::object();
  }
  Outcome load(const json& step) {
    TRY(made, Session::load(model_, path(step.at("from"))));
    sessions_[step.at("as")] = *made;
    return counts(*made);
  }
  Outcome close(const json& step) {
    DO(session(step).close());
    return json::object();
  }

  quire::Model model_;
  quire::Tokenizer tokenizer_;
  std::map<std::string, Session> sessions_;
  quire::test::TemporaryFolder folder_;
};

const std::map<std::string, Case::Step>& Case::steps() {
  static const std::map<std::string, Step> all = {
      {"encode", &Case::encode},
      {"decode", &Case::decode},
      {"describe_strategy", &Case::describe_strategy},
      {"session", &Case::create},
      {"feed", &Case::feed},
      {"feed_tokens", &Case::feed_tokens},
      {"feed_labelled", &Case::feed_labelled},
      {"feed_messages", &Case::feed_messages},
      {"stream", &Case::stream},
      {"counts", &Case::get_counts},
      {"tokens", &Case::tokens},
      {"truncate", &Case::truncate},
      {"discard_pending", &Case::discard_pending},
      {"reset", &Case::reset},
      {"edit", &Case::edit},
      {"scores", &Case::scores},
      {"argmax", &Case::argmax},
      {"stats", &Case::stats},
      {"strategy", &Case::strategy},
      {"label_attention", &Case::label_attention},
      {"label_shares", &Case::label_shares},
      {"passages", &Case::passages},
      {"fork", &Case::fork},
      {"save", &Case::save},
      {"load", &Case::load},
      {"close", &Case::close},
  };
  return all;
}

Outcome Case::stream(const json& step) {
  TRY(stream, quire::Stream::open(session(step), stream_options(step)));
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::string> kinds;
  std::string text;
  json last;
  for (const quire::Event& event : *stream) {
    const std::string kind(quire::name(event.kind()));
    if (kinds.empty() || kinds.back() != kind) kinds.push_back(kind);
    text += event.text();
    if (event.kind() == quire::EventKind::kToken) {
      tokens.push_back(event.token());
      logprobs.push_back(event.logprob());
    }
    last = {{"finish", finish_name(event.finish())},
            {"stop_index", event.stop_index()},
            {"end_token", event.token()},
            {"n_tokens", event.n_tokens()}};
    if (step.contains("take") && tokens.size() == step["take"].get<size_t>()) break;
  }
  if (stream->failure()) return *stream->failure();
  DO(stream->close());
  last.update({{"tokens", tokens}, {"logprobs", logprobs}, {"kinds", kinds}, {"text", text}});
  return last;
}

// Numbers with a fraction agree to 1e-4, relative or absolute.
bool agree(const json& found, const json& expected) {
  if (expected.is_number_float()) {
    const double a = found.get<double>(), b = expected.get<double>();
    return std::abs(a - b) <= 1e-4 * std::max({1.0, std::abs(a), std::abs(b)});
  }
  if (!expected.is_array()) return found == expected;
  return found.is_array() && found.size() == expected.size() &&
         std::equal(found.begin(), found.end(), expected.begin(), agree);
}

void check(const json& step, const Outcome& outcome) {
  if (!outcome) {
    ASSERT_TRUE(step.contains("error")) << outcome.error().message();
    const json& wanted = step["error"];
    EXPECT_EQ(quire::name(outcome.error().status()), wanted.at("status").get<std::string>());
    if (wanted.contains("offset")) {
      EXPECT_EQ(outcome.error().offset(), wanted["offset"].get<int64_t>());
    }
    EXPECT_THAT(outcome.error().message(), testing::HasSubstr(wanted.value("message", "")));
    return;
  }
  EXPECT_FALSE(step.contains("error")) << "the call succeeded";
  const json expected = step.value("expect", json::object());
  for (const auto& [key, value] : expected.items()) {
    ASSERT_TRUE(outcome->contains(key)) << key;
    EXPECT_TRUE(agree((*outcome)[key], value)) << key << " is " << (*outcome)[key];
  }
}

TEST(Conformance, AllFiles) {
  std::set<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(quire::test::source_path("tests/conformance"))) {
    if (entry.path().extension() == ".json") paths.insert(entry.path());
  }
  int n_cases = 0;
  for (const auto& path : paths) {
    const json file = json::parse(std::ifstream(path));
    quire::RuntimeOptions options;
    options.n_threads = 1;
    auto runtime = quire::Runtime::create(options).value();
    const auto model =
        quire::Model::load(runtime, quire::test::source_path(file.at("model").get<std::string>())).value();
    for (const json& described : file.at("cases")) {
      ++n_cases;
      Case one(model);
      for (const json& step : described.at("steps")) {
        SCOPED_TRACE(path.filename().string() + ", " + described.at("name").get<std::string>() + ": " + step.dump());
        check(step, one.run(step));
      }
    }
  }
  EXPECT_GT(n_cases, 20);
}

}  // namespace
}  // namespace quire_cpp
