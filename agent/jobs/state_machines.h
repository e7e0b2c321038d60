// The state machines, from agent/model/states.toml. advance() returns the next state, or no value if the event is not
// possible in the state. Code, Redis, logs and the manual use the same words. Pure and thread-safe.
#pragma once

#include <optional>
#include <string_view>

#include "jobs/transitions.h"
#include "model/records.h"

namespace mycojobs {

// Job
//   dispatched --claim--> started --succeed--> finished
//    | ^  ^                | |  \---fail-----> error
//    | |  '---release------' '---cancel------> error (detail cancelled)
//    | '--unpark-- waiting_for_prerequisites --fail, cancel--> error
//    |----park---------------^
//    '---cancel, fail (dead letter)--> error
// A job is released if its lease has expired, the agent drains, or a retry is scheduled. finished and error are
// terminal.
std::optional<JobStatus> advance(JobStatus, JobEvent);
bool is_terminal(JobStatus);

// FlowNode
//   pending --> ready --> dispatched --> running --> completed | failed
//   running --> ready (lease lost, retry scheduled); cancelled from every state before completed and failed
//   pending --fail--> failed (a gate that cannot open, a need that failed)
//   failed --handle--> completed (handled by its error node, or the flow continues without it)
//   failed, cancelled --retry--> pending. No other event changes a settled node.
std::optional<NodeStatus> advance(NodeStatus, NodeEvent);
bool is_terminal(NodeStatus);

// Flow: dispatched --start--> started --finish--> finished | --fail--> error; dispatched --fail--> error;
//       error --retry--> started
std::optional<FlowStatus> advance(FlowStatus, RunEvent);
bool is_terminal(FlowStatus);

// Message: dispatched --acknowledge--> acknowledged --process--> processed; error from both
std::optional<MessageStatus> advance(MessageStatus, MessageEvent);
bool is_terminal(MessageStatus);

std::string_view to_string(JobEvent);
std::string_view to_string(NodeEvent);
std::string_view to_string(RunEvent);
std::string_view to_string(MessageEvent);

}  // namespace mycojobs
