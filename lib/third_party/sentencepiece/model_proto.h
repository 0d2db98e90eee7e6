// A model as the sources in this folder see it: plain values with the accessors of the classes that protobuf generates
// from sentencepiece_model.proto, of which this is the part that segmentation uses. Written for Quire.
#ifndef MODEL_PROTO_H_
#define MODEL_PROTO_H_

#include <string>
#include <utility>
#include <vector>

namespace quire::sentencepiece {

class TrainerSpec {
 public:
  bool byte_fallback() const { return byte_fallback_; }
  void set_byte_fallback(bool value) { byte_fallback_ = value; }

 private:
  bool byte_fallback_ = false;
};

class NormalizerSpec {
 public:
  const std::string &precompiled_charsmap() const { return precompiled_charsmap_; }
  bool add_dummy_prefix() const { return add_dummy_prefix_; }
  bool remove_extra_whitespaces() const { return remove_extra_whitespaces_; }
  bool escape_whitespaces() const { return escape_whitespaces_; }
  void set_precompiled_charsmap(std::string value) { precompiled_charsmap_ = std::move(value); }
  void set_add_dummy_prefix(bool value) { add_dummy_prefix_ = value; }
  void set_remove_extra_whitespaces(bool value) { remove_extra_whitespaces_ = value; }
  void set_escape_whitespaces(bool value) { escape_whitespaces_ = value; }

 private:
  std::string precompiled_charsmap_;
  bool add_dummy_prefix_ = true;
  bool remove_extra_whitespaces_ = true;
  bool escape_whitespaces_ = true;
};

class ModelProto {
 public:
  class SentencePiece {
   public:
    enum Type { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

    SentencePiece(std::string piece, float score, Type type) : piece_(std::move(piece)), score_(score), type_(type) {}
    const std::string &piece() const { return piece_; }
    float score() const { return score_; }
    Type type() const { return type_; }

   private:
    std::string piece_;
    float score_;
    Type type_;
  };

  const std::vector<SentencePiece> &pieces() const { return pieces_; }
  const SentencePiece &pieces(int id) const { return pieces_[id]; }
  int pieces_size() const { return static_cast<int>(pieces_.size()); }
  const TrainerSpec &trainer_spec() const { return trainer_spec_; }
  std::vector<SentencePiece> *mutable_pieces() { return &pieces_; }
  TrainerSpec *mutable_trainer_spec() { return &trainer_spec_; }

 private:
  std::vector<SentencePiece> pieces_;
  TrainerSpec trainer_spec_;
};

}  // namespace quire::sentencepiece
#endif  // MODEL_PROTO_H_
