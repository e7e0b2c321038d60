#include "jobs/state_machines.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "model/enums.h"

namespace mycojobs {
namespace {

// Compares advance() with the expected table. Its first line lists the events. Each further line has a state and, for
// each event, the next state, or '-' if the event is impossible in this state.
template <class State, class Event>
void expect_table(const std::string& expected_table, std::size_t event_count) {
  std::istringstream lines(expected_table);
  std::string line;
  std::string cell;
  std::getline(lines, line);
  std::istringstream header(line);
  for (std::size_t i = 0; i < event_count; ++i) {
    ASSERT_TRUE(header >> cell);
    EXPECT_EQ(to_string(static_cast<Event>(i)), cell);
  }
  EXPECT_FALSE(header >> cell);
  EXPECT_EQ(to_string(static_cast<Event>(event_count)), "?") << "the table lacks an event";
  std::size_t row_count = 0;
  while (std::getline(lines, line)) {
    std::istringstream row(line);
    row >> cell;
    const auto state = parse<State>(cell);
    ASSERT_TRUE(state) << cell;
    ++row_count;
    bool has_exit = false;
    for (std::size_t i = 0; i < event_count; ++i) {
      ASSERT_TRUE(row >> cell) << line;
      const auto event = static_cast<Event>(i);
      const auto next_state = advance(*state, event);
      EXPECT_EQ(next_state ? to_string(*next_state) : "-", cell) << to_string(*state) << " + " << to_string(event);
      // A terminal state can be left only by "retry" and "handle".
      has_exit = has_exit || (next_state && to_string(event) != "retry" && to_string(event) != "handle");
    }
    EXPECT_EQ(is_terminal(*state), !has_exit) << to_string(*state);
  }
  EXPECT_EQ(row_count, enum_names<State>().size());
}

TEST(Transitions, JobTableMatchesTheDiagram) {
  expect_table<JobStatus, JobEvent>(
      "park unpark claim release succeed fail cancel\n"
      "dispatched waiting_for_prerequisites - started - - error error\n"
      "waiting_for_prerequisites - dispatched - - - error error\n"
      "started - - - dispatched finished error error\n"
      "error - - - - - - -\n"
      "finished - - - - - - -",
      7);
}

TEST(Transitions, NodeTableMatchesTheDiagram) {
  expect_table<NodeStatus, NodeEvent>(
      "dependencies_met dispatch start complete fail release cancel handle retry\n"
      "pending ready - - - failed - cancelled - -\n"
      "ready - dispatched - - - - cancelled - -\n"
      "dispatched - - running - - - cancelled - -\n"
      "running - - - completed failed ready cancelled - -\n"
      "completed - - - - - - - - -\n"
      "failed - - - - - - - completed pending\n"
      "cancelled - - - - - - - - pending",
      9);
}

TEST(Transitions, FlowTableMatchesTheDiagram) {
  expect_table<FlowStatus, RunEvent>(
      "start finish fail retry\n"
      "dispatched started - error -\n"
      "started - finished error -\n"
      "error - - - started\n"
      "finished - - - -",
      4);
}

TEST(Transitions, MessageTableMatchesTheDiagram) {
  expect_table<MessageStatus, MessageEvent>(
      "acknowledge process fail\n"
      "dispatched acknowledged - error\n"
      "acknowledged - processed error\n"
      "error - - -\n"
      "processed - - -",
      3);
}

}  // namespace
}  // namespace mycojobs
