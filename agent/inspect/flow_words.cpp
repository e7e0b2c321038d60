#include "inspect/flow_words.h"

#include <algorithm>
#include <array>

namespace mycojobs {
namespace {

constexpr auto kWords = std::to_array<FlowWord>({
    {"creating", FlowStatus::dispatched, "its records are being written"},
    {"new", FlowStatus::dispatched, "it was created, and nobody has started it"},
    {"started", FlowStatus::started, "it has begun, and none of its jobs stands in a queue yet"},
    {"idle", FlowStatus::started, "its jobs stand in their queues, and none runs"},
    {"running", FlowStatus::started, "a job of it runs"},
    {"waiting", FlowStatus::started, "none runs: nodes wait for people, times, signals, prerequisites or other flows"},
    {"paused", FlowStatus::started, "somebody has paused it: what runs goes on, nothing new begins"},
    {"stopping", FlowStatus::started, "a node failed: what runs may end, nothing new begins"},
    {"cancelling", FlowStatus::started, "somebody wants it cancelled: what runs is told to end"},
    {"compensating", FlowStatus::started, "it ends badly: what completed is undone"},
    {"completed", FlowStatus::finished, "all went well"},
    {"failed", FlowStatus::error, "a failure was left over"},
    {"cancelled", FlowStatus::error, "it was cancelled"},
    {"timeout", FlowStatus::error, "its time was over"},
    {"result_too_large", FlowStatus::error, "its nodes gave more than a flow's result may hold"},
});

constexpr std::pair<std::string_view, std::string_view> kDone[] = {
    {"pause", "paused"},     {"resume", "resumed"},   {"approve", "approved"}, {"reject", "rejected"},
    {"signal", "signalled"}, {"cancel", "cancelled"}, {"retry", "retried"}};

}  // namespace

std::vector<FlowWord> flow_words() { return {kWords.begin(), kWords.end()}; }

std::string flow_word(FlowStatus status, std::string_view detail) {
  const auto* known = std::find_if(kWords.begin(), kWords.end(),
                                   [&](const FlowWord& row) { return row.status == status && row.word == detail; });
  if (known != kWords.end()) return std::string(known->word);
  switch (status) {
    case FlowStatus::dispatched:
      return "new";
    case FlowStatus::started:
      return "running";
    case FlowStatus::finished:
      return "completed";
    case FlowStatus::error:
      break;
  }
  return "failed";
}

std::string done_word(std::string_view verb) {
  for (const auto& [word, past] : kDone) {
    if (verb == word) return std::string(past);
  }
  return std::string(verb);
}

}  // namespace mycojobs
