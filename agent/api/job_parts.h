// What the job. and message. methods and the events of a job share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "api/services.h"
#include "domain/sender.h"
#include "inspect/jobs.h"
#include "mycojobs/records.h"

namespace mycojobs::api {

// A new job as a client says it, as this sender's; id 0: the next free one.
Result<Job> read_job(const nlohmann::json&, const Sender&);
// Whether the caller may do this with the job of that key. runner: that runs it, or ran it last; 0: none, or no such
// job.
Result<void> may_with_job(const Call&, Action, const std::string& key, Id runner);
nlohmann::json status_of(const Job&, const std::string& key);  // JobState
// The job that a call names, once it may do this with it.
Result<JobView> find_job(Call&, Action);
// methods_job_control.cpp. one: the parameters that name a job.
void add_job_controls(Services&, const std::vector<Param>& one, std::vector<Method>&);

}  // namespace mycojobs::api
