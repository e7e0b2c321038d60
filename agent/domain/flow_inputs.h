// What whoever starts a flow gives it. A definition declares `inputs`; their values stand in it as `given`, so that a
// run keeps them as it keeps its definition, under one hash.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "domain/flow_plan.h"
#include "mycojobs/result.h"

namespace mycojobs {

inline constexpr std::size_t kMaxInputBytes = 64U << 10;  // of all values together, as JSON

// Puts values (an object: name -> value) into a definition, over those that it has. Whether they fit is found when the
// definition is read. Error invalid: they are no object.
Result<void> give_inputs(nlohmann::json& definition, const nlohmann::json& values);
// A value as a person types it, by the type that the definition declares for the name: a string as it is, all else as
// JSON. Error invalid names the input.
Result<nlohmann::json> input_of_text(const nlohmann::json& definition, const std::string& name,
                                     const std::string& text);

nlohmann::json inputs_json(const FlowPlan&);  // name -> value
std::string missing_inputs(const FlowPlan&);  // what is said of inputs without a value; empty: all have one

}  // namespace mycojobs
