// The one file that uses SentencePiece: its normalizer and its segmentation of a normalized text. What its processor
// does around them (unknown characters, bytes, places in the text) is done here, into the caller's vectors.
#include "lib/tokenizer/sentencepiece_encoder.h"

#include <array>
#include <exception>
#include <new>
#include <string>

#include "lib/third_party/sentencepiece/bpe_model.h"
#include "lib/third_party/sentencepiece/model_proto.h"
#include "lib/third_party/sentencepiece/normalizer.h"
#include "lib/third_party/sentencepiece/unigram_model.h"
#include "lib/tokenizer/tokenizer.h"

namespace quire {
namespace {

namespace sp = sentencepiece;

Status as_status(Code code, const sp::util::Status& status) {
  return status.ok() ? Status() : Status(code, "SentencePiece: " + status.message());
}

// Thrown through SentencePiece where an encoding is to stop.
struct Stopped {};

// Calls into SentencePiece, which throws where its data structures cannot be built or an invariant fails.
template <typename Call>
Status guarded(Code code, Call&& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const Stopped&) {
    return encoding_cancelled();
  } catch (const std::exception& error) {
    return Status(code, std::string("SentencePiece: ") + error.what());
  }
}

void fill_proto(const SentencePieceModel& model, sp::ModelProto& proto) {
  proto.mutable_trainer_spec()->set_byte_fallback(model.byte_fallback);
  auto& pieces = *proto.mutable_pieces();
  pieces.reserve(model.pieces.size());
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    // Byte 0xFF occurs in no text, so whatever a text says, it cannot become a control piece.
    const bool control = piece.type == PieceType::kControl;
    pieces.emplace_back(control ? "\xFF" + std::to_string(id) : piece.text, piece.score,
                        static_cast<sp::ModelProto::SentencePiece::Type>(piece.type));
  }
}

}  // namespace

struct SentencePieceEncoder::Parts {
  // The rules for a text and what applies them. The normalizer refers to the rules.
  struct Rules {
    sp::NormalizerSpec spec;
    std::unique_ptr<sp::normalizer::Normalizer> normalizer;
  };

  sp::ModelProto proto;
  std::unique_ptr<sp::ModelInterface> model;  // refers to proto
  std::array<Rules, 2> rules;                 // without and with the dummy prefix; refer to the model
  std::array<int32_t, 256> byte_ids{};        // of the byte pieces, if the model spells unknown characters as bytes
};

SentencePieceEncoder::SentencePieceEncoder(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
SentencePieceEncoder::~SentencePieceEncoder() = default;

Result<std::unique_ptr<const SentencePieceEncoder>> SentencePieceEncoder::make(const SentencePieceModel& model) {
  auto parts = std::make_unique<Parts>();
  fill_proto(model, parts->proto);
  QUIRE_TRY(guarded(Code::kBadFile, [&]() -> Status {
    if (model.algorithm == PieceAlgorithm::kBpe) {
      parts->model = std::make_unique<sp::bpe::Model>(parts->proto);
    } else {
      parts->model = std::make_unique<sp::unigram::Model>(parts->proto);
    }
    QUIRE_TRY(as_status(Code::kBadFile, parts->model->status()));
    for (const bool dummy_prefix : {false, true}) {
      auto& [spec, normalizer] = parts->rules[dummy_prefix];
      spec.set_precompiled_charsmap(model.charsmap);
      spec.set_add_dummy_prefix(dummy_prefix);
      spec.set_remove_extra_whitespaces(model.remove_extra_whitespaces);
      spec.set_escape_whitespaces(model.escape_whitespaces);
      normalizer = std::make_unique<sp::normalizer::Normalizer>(spec);
      normalizer->SetPrefixMatcher(parts->model->prefix_matcher());
      QUIRE_TRY(as_status(Code::kBadFile, normalizer->status()));
    }
    return {};
  }));
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type != PieceType::kByte) continue;
    parts->byte_ids[static_cast<size_t>(byte_of_piece(model.pieces[id].text))] = static_cast<int32_t>(id);
  }
  return std::unique_ptr<const SentencePieceEncoder>(new SentencePieceEncoder(std::move(parts)));
}

Status SentencePieceEncoder::encode(std::string_view text, bool dummy_prefix, int64_t text_begin,
                                    const CancelToken* cancel, std::vector<int32_t>& ids,
                                    std::vector<int64_t>* starts) const {
  std::string normalized;
  std::vector<size_t> origin;  // of each byte of `normalized`, and of its end: the byte of the text that it stems from
  sp::EncodeResult pieces;
  const sp::Poll poll = [cancel] {
    if (cancel && cancel->cancelled()) throw Stopped();
  };
  QUIRE_TRY(guarded(Code::kInternal, [&] {
    const auto status = parts_->rules[dummy_prefix].normalizer->Normalize(text, &normalized, &origin, poll);
    if (status.ok()) pieces = parts_->model->Encode(normalized, poll);
    return as_status(Code::kInternal, status);
  }));
  const auto append = [&](int32_t id, size_t at) {
    ids.push_back(id);
    if (starts) starts->push_back(text_begin + static_cast<int64_t>(origin[at]));
  };
  const bool byte_fallback = parts_->proto.trainer_spec().byte_fallback();
  size_t at = 0;  // in `normalized`, which the pieces cover without gaps
  bool after_unknown = false;
  for (const auto& [piece, id] : pieces) {
    const bool unknown = parts_->model->IsUnknown(id);
    if (unknown && byte_fallback) {
      for (const char byte : piece) append(parts_->byte_ids[static_cast<unsigned char>(byte)], at);
    } else if (!(unknown && after_unknown)) {
      append(id, at);
    }
    after_unknown = unknown;
    at += piece.size();
  }
  return {};
}

}  // namespace quire
