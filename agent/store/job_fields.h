// What both stores agree on: which fields a job begins and ends with, and when two jobs are the same.
#pragma once

#include <string>
#include <string_view>

#include "mycojobs/job_end.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

// The fields of a new record, as its creator gave them: without those that claims and ends write, without status and
// times of ours. Error: invalid (see validate()); id 0 is allowed.
Result<Fields> new_job_fields(const Job&);
// The same of a job that its flow queues, also of a node that the flow runs itself, which has no script.
Result<Fields> planned_fields(const Job&);
// Where it is queued once its flow says so: with a supervisor of its own, the router's queue for that host, or that
// runner's. Of a job that stands alone: the queue of the runner that it is for, if its record names one
// ("supervisor_url": runner:<id>), else that of its script type.
std::string queue_of_new(const Job&);
std::string queue_of_planned(const Job&);
std::string queue_of_supervisor(const std::string& url);  // of those whose "supervisor_url" this is
std::string runner_queue(std::string_view id);            // "mj:queue:runner20": jobs that must run on this runner
inline std::string runner_queue(Id runner) { return runner_queue(std::to_string(runner)); }
// Where jobs wait for a supervisor at this address. Each host has a queue of its own, so that the jobs of one that is
// slow stand before no others'. kRouterQueue: the address names no host, and its jobs will be refused.
std::string router_queue(std::string_view address);
inline constexpr const char *kRouterQueue = "mj:queue:router", *kRouterQueues = "mj:queue:router:";
// The fields of an end, the status first.
Fields end_fields(const JobEnd&);
// Those of a record that its end has written, in the same order: what the digest of the end is of.
Fields end_fields_of(const Fields& record);
// By which the store tells an end from another one: of one that is reported again, of a record that was changed since.
std::string digest_of_end(const Fields&);
// Script, type, environment, timeout, dependencies, prerequisites, retries and policy: what makes a second submission
// of an id (or of an idempotency key) the same one.
bool same_content(const Job&, const Job&);
// What a script answers that writes a new record: new, exists or used, the key, the record. Error conflict: used, or
// there with other content.
Result<Job> accepted(std::string_view word, const std::string& key, const Fields& record, const Job& wanted);
// Of a field that any client may have written; 0: no whole number.
std::uint64_t number_of(const std::string& text);
// Fields of a runner's record that its owner writes.
Fields runner_fields(const Runner&);

}  // namespace mycojobs
