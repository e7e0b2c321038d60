// What the files of the flow. methods share.
#pragma once

#include <vector>

#include "api/services.h"
#include "mycojobs/records.h"

namespace mycojobs::api {

nlohmann::json shown(const Flow&);
nlohmann::json result_of_flow(const Flow&);                    // FlowResult
std::vector<Param> flow_params(std::vector<Param> more = {});  // id, context_id and these
void add_flow_controls(Services&, std::vector<Method>&);

}  // namespace mycojobs::api
