// Functions that are shared by the files of the `flow.` methods.
#pragma once

#include <vector>

#include "api/services.h"
#include "model/records.h"

namespace mycojobs::api {

// Converts a flow to JSON, with decoded inputs and results and without its definition.
nlohmann::json flow_to_json(const Flow&);
nlohmann::json flow_result_to_json(const Flow&);  // a FlowResult (rpc/result_schemas.cpp)
void add_flow_control_methods(Services&, std::vector<Method>&);

}  // namespace mycojobs::api
