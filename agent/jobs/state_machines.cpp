#include "jobs/state_machines.h"

#include <array>
#include <cstddef>
#include <span>

namespace mycojobs {
namespace {

// The allowed transitions of each state machine. advance() returns no status for any other pair of status and event.
template <class State, class Event>
struct Transition {
  State from;
  Event event;
  State to;
};

constexpr auto kJobTransitions = std::to_array<Transition<JobStatus, JobEvent>>({
    {JobStatus::dispatched, JobEvent::park, JobStatus::waiting_for_prerequisites},
    {JobStatus::dispatched, JobEvent::claim, JobStatus::started},
    {JobStatus::dispatched, JobEvent::fail, JobStatus::error},
    {JobStatus::dispatched, JobEvent::cancel, JobStatus::error},
    {JobStatus::waiting_for_prerequisites, JobEvent::unpark, JobStatus::dispatched},
    {JobStatus::waiting_for_prerequisites, JobEvent::fail, JobStatus::error},
    {JobStatus::waiting_for_prerequisites, JobEvent::cancel, JobStatus::error},
    {JobStatus::started, JobEvent::release, JobStatus::dispatched},
    {JobStatus::started, JobEvent::succeed, JobStatus::finished},
    {JobStatus::started, JobEvent::fail, JobStatus::error},
    {JobStatus::started, JobEvent::cancel, JobStatus::error},
});

constexpr auto kNodeTransitions = std::to_array<Transition<NodeStatus, NodeEvent>>({
    {NodeStatus::pending, NodeEvent::dependencies_met, NodeStatus::ready},
    {NodeStatus::pending, NodeEvent::fail, NodeStatus::failed},
    {NodeStatus::pending, NodeEvent::cancel, NodeStatus::cancelled},
    {NodeStatus::ready, NodeEvent::dispatch, NodeStatus::dispatched},
    {NodeStatus::ready, NodeEvent::cancel, NodeStatus::cancelled},
    {NodeStatus::dispatched, NodeEvent::start, NodeStatus::running},
    {NodeStatus::dispatched, NodeEvent::cancel, NodeStatus::cancelled},
    {NodeStatus::running, NodeEvent::complete, NodeStatus::completed},
    {NodeStatus::running, NodeEvent::fail, NodeStatus::failed},
    {NodeStatus::running, NodeEvent::release, NodeStatus::ready},
    {NodeStatus::running, NodeEvent::cancel, NodeStatus::cancelled},
    {NodeStatus::failed, NodeEvent::handle, NodeStatus::completed},
    {NodeStatus::failed, NodeEvent::retry, NodeStatus::pending},
    {NodeStatus::cancelled, NodeEvent::retry, NodeStatus::pending},
});

constexpr auto kFlowTransitions = std::to_array<Transition<FlowStatus, RunEvent>>({
    {FlowStatus::dispatched, RunEvent::start, FlowStatus::started},
    {FlowStatus::dispatched, RunEvent::fail, FlowStatus::error},
    {FlowStatus::started, RunEvent::finish, FlowStatus::finished},
    {FlowStatus::started, RunEvent::fail, FlowStatus::error},
    {FlowStatus::error, RunEvent::retry, FlowStatus::started},
});

constexpr auto kMessageTransitions = std::to_array<Transition<MessageStatus, MessageEvent>>({
    {MessageStatus::dispatched, MessageEvent::acknowledge, MessageStatus::acknowledged},
    {MessageStatus::dispatched, MessageEvent::fail, MessageStatus::error},
    {MessageStatus::acknowledged, MessageEvent::process, MessageStatus::processed},
    {MessageStatus::acknowledged, MessageEvent::fail, MessageStatus::error},
});

template <class Transitions, class State, class Event>
std::optional<State> find_target(const Transitions& transitions, State from, Event event) {
  for (const auto& transition : transitions) {
    if (transition.from == from && transition.event == event) return transition.to;
  }
  return std::nullopt;
}

template <class Event>
std::string_view event_name(std::span<const std::string_view> names, Event event) {
  const auto index = static_cast<std::size_t>(event);
  return index < names.size() ? names[index] : std::string_view("?");
}

constexpr auto kJobEventNames =
    std::to_array<std::string_view>({"park", "unpark", "claim", "release", "succeed", "fail", "cancel"});
constexpr auto kNodeEventNames = std::to_array<std::string_view>(
    {"dependencies_met", "dispatch", "start", "complete", "fail", "release", "cancel", "handle", "retry"});
constexpr auto kFlowEventNames = std::to_array<std::string_view>({"start", "finish", "fail", "retry"});
constexpr auto kMessageEventNames = std::to_array<std::string_view>({"acknowledge", "process", "fail"});

}  // namespace

std::optional<JobStatus> advance(JobStatus from, JobEvent event) { return find_target(kJobTransitions, from, event); }
std::optional<NodeStatus> advance(NodeStatus from, NodeEvent event) {
  return find_target(kNodeTransitions, from, event);
}
std::optional<FlowStatus> advance(FlowStatus from, RunEvent event) {
  return find_target(kFlowTransitions, from, event);
}
std::optional<MessageStatus> advance(MessageStatus from, MessageEvent event) {
  return find_target(kMessageTransitions, from, event);
}

bool is_terminal(JobStatus status) { return status == JobStatus::finished || status == JobStatus::error; }
bool is_terminal(NodeStatus status) {
  return status == NodeStatus::completed || status == NodeStatus::failed || status == NodeStatus::cancelled;
}
bool is_terminal(FlowStatus status) { return status == FlowStatus::finished || status == FlowStatus::error; }
bool is_terminal(MessageStatus status) { return status == MessageStatus::processed || status == MessageStatus::error; }

std::string_view to_string(JobEvent event) { return event_name(kJobEventNames, event); }
std::string_view to_string(NodeEvent event) { return event_name(kNodeEventNames, event); }
std::string_view to_string(RunEvent event) { return event_name(kFlowEventNames, event); }
std::string_view to_string(MessageEvent event) { return event_name(kMessageEventNames, event); }

}  // namespace mycojobs
