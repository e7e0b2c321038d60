// What the files of the flow. methods share.
#pragma once

#include <vector>

#include "api/services.h"
#include "mycojobs/records.h"

namespace mycojobs::api {

Result<Flow> load_flow(Call&);  // the record of the parameter `id`; whether the caller may is not asked
Result<Flow> read_flow(Call&);  // the same, if the caller may read it
nlohmann::json shown(const Flow&);
std::vector<Param> flow_params(std::vector<Param> more = {});  // id, context_id and these
void add_flow_controls(Services&, std::vector<Method>&);

}  // namespace mycojobs::api
