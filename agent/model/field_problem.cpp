#include "model/field_problem.h"

#include <algorithm>

namespace mycojobs {

std::string join(const std::vector<FieldProblem>& problems) {
  std::string out;
  for (std::size_t i = 0; i < std::min(problems.size(), kMaxFieldProblems); ++i) {
    if (!out.empty()) out += "; ";
    out += problems[i].message;
  }
  if (problems.size() > kMaxFieldProblems)
    out += "; and " + std::to_string(problems.size() - kMaxFieldProblems) + " more";
  return out;
}

}  // namespace mycojobs
