// Functions that are shared by the `job.` and `message.` methods and the events of a job.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "api/services.h"
#include "mycojobs/records.h"
#include "service/jobs.h"

namespace mycojobs::api {

// Decodes a job of a client. Error `invalid`. The fields that a client may set are checked later (service/jobs.h).
Result<Job> read_job(const nlohmann::json&);
nlohmann::json status_of(const Job&, const std::string& key);  // JobState
// Adds the methods of methods_job_control.cpp. one: the parameters that identify a job.
void add_job_controls(Services&, const std::vector<Param>& one, std::vector<Method>&);

}  // namespace mycojobs::api
