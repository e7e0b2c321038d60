#include "jobs/state_machines.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace mycojobs {
namespace {

template <class Transitions, class State, class Event>
std::optional<State> find_target(const Transitions& transitions, State from, Event event) {
  for (const auto& transition : transitions) {
    if (transition.from == from && transition.event == event) return transition.to;
  }
  return std::nullopt;
}

template <class State, std::size_t N>
bool contains(const State (&states)[N], State state) {
  return std::find(std::begin(states), std::end(states), state) != std::end(states);
}

template <class Event>
std::string_view event_name(Event event) {
  const auto index = static_cast<std::size_t>(event);
  return index < std::size(StateNames<Event>::kTable) ? StateNames<Event>::kTable[index] : std::string_view("?");
}

}  // namespace

std::optional<JobStatus> advance(JobStatus from, JobEvent event) {
  return find_target(kJobStatusTransitions, from, event);
}
std::optional<NodeStatus> advance(NodeStatus from, NodeEvent event) {
  return find_target(kNodeStatusTransitions, from, event);
}
std::optional<FlowStatus> advance(FlowStatus from, RunEvent event) {
  return find_target(kFlowStatusTransitions, from, event);
}
std::optional<MessageStatus> advance(MessageStatus from, MessageEvent event) {
  return find_target(kMessageStatusTransitions, from, event);
}

bool is_terminal(JobStatus status) { return contains(kJobStatusTerminals, status); }
bool is_terminal(NodeStatus status) { return contains(kNodeStatusTerminals, status); }
bool is_terminal(FlowStatus status) { return contains(kFlowStatusTerminals, status); }
bool is_terminal(MessageStatus status) { return contains(kMessageStatusTerminals, status); }

std::string_view to_string(JobEvent event) { return event_name(event); }
std::string_view to_string(NodeEvent event) { return event_name(event); }
std::string_view to_string(RunEvent event) { return event_name(event); }
std::string_view to_string(MessageEvent event) { return event_name(event); }

}  // namespace mycojobs
