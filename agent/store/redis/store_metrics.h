// Metrics of store calls. Each event is counted when the reply of the store confirms it, so that it is counted exactly
// once, regardless of the caller. Thread-safe. Every function returns at once if no metrics are collected.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/claim_store.h"
#include "store/flow_store.h"
#include "store/lease_store.h"
#include "store/submit_store.h"
#include "telemetry/metrics.h"

namespace mycojobs {

// Script types that are valid values of a label: the types of this build's executors (compared with the table of
// executors by tests/executors/contract_test.cpp), and the types that runners of the context serve. Any other type,
// which a client can choose freely, is counted as `other`; this bounds the number of time series.
using TypeNames = std::set<std::string, std::less<>>;
const TypeNames& built_in_types();
inline const TypeNames kNoTypeNames;
// Returns script_type if it is a valid label value, otherwise "other".
std::string_view script_type_label(std::string_view script_type, const TypeNames& served);
// Returns the label value of a job: the type of the queue that contained it, or, for other queues, of its record.
std::string job_type_label(std::string_view queue, const Fields& record, const TypeNames& served);
// Returns the label value of a queue: its script type, `runner` (queues of single runners), `router`, or `other`.
std::string_view queue_label(std::string_view queue, const TypeNames& served);

// Creates the series that alert rules and rates use, with the value 0. Without it, their first event would be invisible
// to rate(). Called whenever an agent acquires or renews its runner id.
void initialize_series(Metrics&, Id context, std::span<const std::string> types);
void count_claims(Metrics&, Id context, const ClaimReply&);
void count_renewals(Metrics&, Id context, std::span<const Renewal>);
void count_reports(Metrics&, Id context, std::span<const Report>, std::span<const Result<void>> answers);
void count_tick(Metrics&, Id context, const TickReply&);
void count_submitted(Metrics&, std::span<const Job>, const NewJobs&, const TypeNames& served);
void count_commit(Metrics&, const FlowCommit&);

}  // namespace mycojobs
