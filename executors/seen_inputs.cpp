#include "executors/seen_inputs.h"

#include <set>

#include "domain/flow_data.h"

namespace mycojobs {

SeenInputs seen_inputs(const JobFacts& facts) {
  std::map<Id, const JobInput*> by_id;
  for (const auto& [name, input] : facts.inputs) by_id[input.id] = &input;
  SeenInputs seen;
  std::set<Id> joined;
  for (const auto& [node, ids] : flow_data_of(facts.job).joins) {
    auto& list = seen.joined[node];
    for (const Id id : ids) {
      const auto found = by_id.find(id);
      list.push_back(found == by_id.end() ? nullptr : found->second);
      joined.insert(id);
    }
  }
  for (const auto& [name, input] : facts.inputs) {
    if (!joined.contains(input.id) && !seen.joined.contains(name)) seen.single.emplace_back(name, &input);
  }
  return seen;
}

}  // namespace mycojobs
