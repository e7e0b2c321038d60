// What the store's calls have done, as metrics: counted where an answer says that it has happened, so that every way
// there is counted once.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/metrics.h"
#include "mycojobs/flows.h"
#include "mycojobs/store.h"

namespace mycojobs {

// By what a job is counted: the type whose queue it came from, else its record's.
std::string counted_type(std::string_view queue, const Fields& record);
// The queue's script type; runner: of any runner; router; other: no name of a queue that we know the like of.
std::string_view counted_queue(std::string_view queue);

void count_claims(Metrics&, Id context, const ClaimReply&);
void count_renewals(Metrics&, Id context, std::span<const Renewal>);
void count_reports(Metrics&, Id context, std::span<const Report>, std::span<const Result<void>> answers);
void count_tick(Metrics&, Id context, const TickReply&);
void count_submitted(Metrics&, std::span<const Job>, const NewJobs&);
void count_commit(Metrics&, const FlowCommit&);

}  // namespace mycojobs
