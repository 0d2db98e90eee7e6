// Runs a test of a kernel in every order that the emulation knows.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/gpu/emulation/block.h"

namespace quire::test {

struct NamedSchedule {
  const char* name;
  emulation::Schedule schedule;
};

class OnEverySchedule : public testing::TestWithParam<NamedSchedule> {
 protected:
  void SetUp() override { emulation::set_launch_options({.schedule = GetParam().schedule, .n_threads = 2}); }
};

inline const auto kSchedules = testing::Values(
    NamedSchedule{"Forward", emulation::Schedule::kForward}, NamedSchedule{"Reverse", emulation::Schedule::kReverse},
    NamedSchedule{"Random", emulation::Schedule::kRandom}, NamedSchedule{"Ahead", emulation::Schedule::kAhead},
    NamedSchedule{"AheadReverse", emulation::Schedule::kAheadReverse});

inline std::string schedule_name(const testing::TestParamInfo<NamedSchedule>& info) { return info.param.name; }

}  // namespace quire::test
