// What loading says to a damaged model.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/abi/harness.h"
#include "tests/fault/model_copy.h"

namespace quire::test {

class DamagedModel : public testing::Test {
 protected:
  // Loads both ways; each must come to the status and name all the parts.
  void expect(const ModelCopy& copy, quire_status status, const std::vector<std::string>& parts) {
    expect(copy.path(), status, parts);
  }
  void expect(const std::string& path, quire_status status, const std::vector<std::string>& parts) {
    for (const int32_t load : {QUIRE_LOAD_MMAP, QUIRE_LOAD_READ}) {
      quire_model_options options;
      quire_model_options_init(&options, sizeof options);
      options.load = load;
      quire_model* model = nullptr;
      Outcome outcome;
      outcome.status = quire_model_load(runtime_.get(), path.data(), path.size(), &options, &model, &outcome.error);
      EXPECT_EQ(outcome.status, status) << outcome.text();
      EXPECT_EQ(model != nullptr, status == QUIRE_OK);
      quire_model_release(model);
      for (const std::string& part : parts) {
        EXPECT_NE(std::string(outcome.error.message).find(part), std::string::npos)
            << "no \"" << part << "\" in: " << outcome.error.message;
      }
    }
  }

  // Whatever was refused before, the runtime loads a good model and nothing was left behind.
  void TearDown() override {
    const ModelCopy copy("short_128");
    Owned<quire_model> model;
    Outcome outcome;
    EXPECT_EQ(load_model(runtime_.get(), copy.path(), &model, &outcome), QUIRE_OK) << outcome.text();
    model.reset();
    runtime_.reset();
    EXPECT_TRUE(memory_.wait_destroyed());
    EXPECT_EQ(memory_.bytes(), 0);
  }

  HostMemory memory_;
  Owned<quire_runtime> runtime_ = make_runtime(2, &memory_);
};

}  // namespace quire::test
