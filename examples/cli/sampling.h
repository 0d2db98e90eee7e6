// Sampling options of the command line as the library takes them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "arguments.h"

namespace cli {

// "ID=BIAS", or nothing if the text is not that.
std::optional<quire_logit_bias> parse_logit_bias(const std::string& text);

// Owns what the stream options point at.
class Sampling {
 public:
  explicit Sampling(const SamplingArguments& arguments);
  // Sets the fields of sampling, stopping and the deadline.
  void apply(quire_stream_options& options) const;

 private:
  void make_chain();

  const SamplingArguments& arguments_;
  std::vector<quire_sampler> chain_;  // empty: the simple fields say it all
  std::vector<quire_logit_bias> logit_bias_;
  std::vector<quire_text> stop_, dry_breakers_;
};

}  // namespace cli
