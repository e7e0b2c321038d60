// The state machines, drawn where they live. advance() answers the state that follows, or nothing if the event is not
// possible there. The same words stand in code, Redis, logs and the manual.
#pragma once

#include <optional>
#include <string_view>

#include "mycojobs/records.h"

namespace mycojobs {

// Job
//   dispatched --claim--> started --succeed--> finished
//    | ^  ^                | |  \---fail-----> error
//    | |  '---release------' '---cancel------> error (detail cancelled)
//    | '--unpark-- waiting_for_prerequisites --fail, cancel--> error
//    |----park---------------^
//    '---cancel, fail (dead letter)--> error
// release: the lease ran out, the agent drained, or a retry is due. finished and error absorb.
enum class JobEvent { park, unpark, claim, release, succeed, fail, cancel };
std::optional<JobStatus> advance(JobStatus, JobEvent);
bool is_terminal(JobStatus);

// FlowNode
//   pending --> ready --> dispatched --> running --> completed | failed
//   running --> ready (lease lost, retry due); cancelled from every state before completed and failed
//   pending --fail--> failed (a gate that will not open, a need that failed)
//   failed --handle--> completed (taken over by its error node, or the flow goes on without it)
//   failed, cancelled --retry--> pending. But for this a node stays as it has settled.
enum class NodeEvent { dependencies_met, dispatch, start, complete, fail, release, cancel, handle, retry };
std::optional<NodeStatus> advance(NodeStatus, NodeEvent);
bool is_terminal(NodeStatus);

// Flow: dispatched --start--> started --finish--> finished | --fail--> error; dispatched --fail--> error;
//       error --retry--> started
enum class RunEvent { start, finish, fail, retry };
std::optional<FlowStatus> advance(FlowStatus, RunEvent);
bool is_terminal(FlowStatus);

// Message: dispatched --acknowledge--> acknowledged --process--> processed; error from both
enum class MessageEvent { acknowledge, process, fail };
std::optional<MessageStatus> advance(MessageStatus, MessageEvent);
bool is_terminal(MessageStatus);

std::string_view word(JobEvent);
std::string_view word(NodeEvent);
std::string_view word(RunEvent);
std::string_view word(MessageEvent);

}  // namespace mycojobs
