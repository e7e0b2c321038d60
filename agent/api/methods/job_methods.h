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
Result<Job> read_job(const nlohmann::json&);
nlohmann::json status_of(const Job&, const std::string& key);  // JobState
// Adds the methods of job_control_methods.cpp. one: the parameters that identify a job.
void add_job_controls(Services&, const std::vector<Param>& one, std::vector<Method>&);

}  // namespace mycojobs::api
