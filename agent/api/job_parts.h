// What the job. and message. methods and the events of a job share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "api/services.h"
#include "mycojobs/records.h"
#include "service/jobs.h"

namespace mycojobs::api {

// A job as a client says it; what it may say is checked where it is made (service/jobs.h).
Result<Job> read_job(const nlohmann::json&);
nlohmann::json status_of(const Job&, const std::string& key);  // JobState
// methods_job_control.cpp. one: the parameters that name a job.
void add_job_controls(Services&, const std::vector<Param>& one, std::vector<Method>&);

}  // namespace mycojobs::api
