// The inputs of a job as its script sees them: results that a node with `each` has given stand as one list, under that
// node's name; each of the others stands once, as in JobFacts::inputs.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mycojobs/executor.h"

namespace mycojobs {

// Points into the facts.
struct SeenInputs {
  std::vector<std::pair<std::string, const JobInput*>> single;
  std::map<std::string, std::vector<const JobInput*>> joined;  // in order; null: it has left nothing
};
SeenInputs seen_inputs(const JobFacts&);

}  // namespace mycojobs
