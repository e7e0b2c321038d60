// What a flow hands to a job besides results: the field `flow_data` of its record, written when the job is queued.
//
//   {"inputs": {name: value}, "signals": {name: payload}, "each": {"index": 0, "count": 20, "value": ...},
//    "joins": {"parts": [ids of the jobs whose results it reads as one list]}}
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "mycojobs/records.h"

namespace mycojobs {

inline constexpr const char* kFlowDataField = "flow_data";

struct FlowData {
  std::shared_ptr<const nlohmann::json> values;  // inputs, signals, each: those that there are; for the script
  std::map<std::string, std::vector<Id>> joins;  // by node
};
// Of a record that anybody may have written: what does not fit is left out.
FlowData flow_data_of(const Job&);
// MYCOJOBS_INPUT_<NAME>, MYCOJOBS_EACH, MYCOJOBS_EACH_INDEX: a text as it is, all else as JSON.
TextMap flow_environment(const FlowData&);

// The inputs that a flow's record repeats; null: it has none, or what stands there is no map.
nlohmann::json inputs_of(const Flow&);

}  // namespace mycojobs
