// Functions that are shared by the `job.` and `message.` methods and the events of a job.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "api/services.h"
#include "model/records.h"
#include "service/job_service.h"

namespace mycojobs::api {

// Decodes a job of a client. Error `invalid`. The fields that a client may set are checked later
// (service/job_service.h).
Result<Job> parse_job(const nlohmann::json&);
nlohmann::json job_state_to_json(const Job&, const std::string& key);  // a JobState (rpc/result_schemas.cpp)
void add_job_control_methods(Services&, std::vector<Method>&);

}  // namespace mycojobs::api
