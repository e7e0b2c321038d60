// Functions that are shared by the files of the `flow.` methods.
#pragma once

#include <vector>

#include "api/services.h"
#include "model/records.h"

namespace mycojobs::api {

// Converts a flow to JSON, with decoded inputs and results and without its definition.
nlohmann::json flow_to_json(const Flow&);
nlohmann::json result_of_flow(const Flow&);                    // FlowResult
std::vector<Param> flow_params(std::vector<Param> more = {});  // id, context_id, then `more`
void add_flow_controls(Services&, std::vector<Method>&);

}  // namespace mycojobs::api
