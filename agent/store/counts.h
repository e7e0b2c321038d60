// What the store's calls have done, as metrics: counted where an answer says that it has happened, so that every way
// there is counted once.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/metrics.h"
#include "mycojobs/flows.h"
#include "mycojobs/store.h"

namespace mycojobs {

// Script types that a label may say: those that executors of this build run (tests/executors/contract_test.cpp compares
// with their table), and those that a runner of the context serves. What anybody may type counts as `other`.
using TypeNames = std::set<std::string, std::less<>>;
const TypeNames& types_of_this_build();
inline const TypeNames kNoTypes;
std::string_view counted_word(std::string_view script_type, const TypeNames& served);
// By what a job is counted: the type whose queue it came from, else its record's.
std::string counted_type(std::string_view queue, const Fields& record, const TypeNames& served);
// The queue's script type; runner: of any runner; router; other.
std::string_view counted_queue(std::string_view queue, const TypeNames& served);

// An agent begins to serve: what rules of alerts and rates ask for begins at 0, so that they see the first of each.
void count_from_zero(Metrics&, Id context, std::span<const std::string> types);
void count_claims(Metrics&, Id context, const ClaimReply&);
void count_renewals(Metrics&, Id context, std::span<const Renewal>);
void count_reports(Metrics&, Id context, std::span<const Report>, std::span<const Result<void>> answers);
void count_tick(Metrics&, Id context, const TickReply&);
void count_submitted(Metrics&, std::span<const Job>, const NewJobs&, const TypeNames& served);
void count_commit(Metrics&, const FlowCommit&);

}  // namespace mycojobs
