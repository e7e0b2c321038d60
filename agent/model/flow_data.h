// Data that a flow passes to a job in addition to results: the field `flow_data` of the job's record, written when the
// job is queued.
//
//   {"flow": name of the flow, "inputs": {name: value}, "signals": {name: payload},
//    "each": {"index": 0, "count": 20, "value": ...}, "joins": {"parts": [ids of the jobs whose results it reads as one
//    list]}, "expand": {"env": [names of variables with references to results],
//    "args": [indexes of arguments with references]}}
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/records.h"

namespace mycojobs {

inline constexpr const char* kFlowDataField = "flow_data";

struct FlowData {
  std::shared_ptr<const nlohmann::json> values;  // inputs, signals, each: the members that exist; passed to the script
  std::map<std::string, std::vector<Id>> joins;  // by node name
  std::string flow_name = {};
  // Texts with references to results of earlier nodes (model/result_references.h): names of variables, and indexes of
  // arguments.
  std::vector<std::string> expanded_variables = {};
  std::vector<std::size_t> expanded_args = {};
  bool has_references() const { return !expanded_variables.empty() || !expanded_args.empty(); }
};
// Parses the field of a job's record. Skips invalid parts, because any client may have written the record.
FlowData parse_flow_data(const Job&);
// Returns a text unchanged, and any other value as JSON: values of a flow in variables and arguments.
std::string to_variable_text(const nlohmann::json&);
// Returns MYCOJOBS_INPUT_<NAME>, MYCOJOBS_EACH and MYCOJOBS_EACH_INDEX, with values from to_variable_text().
TextMap flow_environment(const FlowData&);

// Returns the inputs in a flow's record, or null if they are absent or not a map.
nlohmann::json parse_flow_inputs(const Flow&);

}  // namespace mycojobs
