// Hand-written attention plans that between them use everything in lib/plan/plan.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/plan/plan.h"

namespace quire::test {

struct PlanCase {
  std::string name;
  int64_t stored_div;  // for text keys that are stored so
  // Appends the blocks of queries [first, first + n). What a query sees depends on its index and head alone.
  void (*append)(int64_t first, int64_t n, int n_heads, Plan& plan);
};

const std::vector<PlanCase>& plan_cases();

inline Plan make_plan(const PlanCase& plan_case, int64_t first, int64_t n, int n_heads) {
  Plan plan;
  plan_case.append(first, n, n_heads, plan);
  return plan;
}

}  // namespace quire::test
