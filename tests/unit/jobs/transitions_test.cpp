#include "jobs/state_machines.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "model/enums.h"

namespace mycojobs {
namespace {

// A table of transitions: events in columns, states in rows, '-' for an impossible event. Every pair is checked.
template <class State, class Event>
void expect_table(const std::string& drawn, std::size_t events) {
  std::istringstream lines(drawn);
  std::string line;
  std::string cell;
  std::getline(lines, line);
  std::istringstream head(line);
  for (std::size_t e = 0; e < events; ++e) {
    ASSERT_TRUE(head >> cell);
    EXPECT_EQ(to_string(static_cast<Event>(e)), cell);
  }
  EXPECT_FALSE(head >> cell);
  EXPECT_EQ(to_string(static_cast<Event>(events)), "?") << "the table lacks an event";
  std::size_t rows = 0;
  while (std::getline(lines, line)) {
    std::istringstream row(line);
    row >> cell;
    const auto from = parse<State>(cell);
    ASSERT_TRUE(from) << cell;
    ++rows;
    bool absorbs = true;
    for (std::size_t e = 0; e < events; ++e) {
      ASSERT_TRUE(row >> cell) << line;
      const auto to = advance(*from, static_cast<Event>(e));
      EXPECT_EQ(to ? to_string(*to) : "-", cell) << to_string(*from) << " + " << to_string(static_cast<Event>(e));
      // A terminal state can be left only by "retry" and "handle".
      const auto event = to_string(static_cast<Event>(e));
      absorbs = absorbs && (!to || event == "retry" || event == "handle");
    }
    EXPECT_EQ(is_terminal(*from), absorbs) << to_string(*from);
  }
  EXPECT_EQ(rows, words<State>().size());
}

TEST(Transitions, OfAJobMatchTheDiagram) {
  expect_table<JobStatus, JobEvent>(
      "park unpark claim release succeed fail cancel\n"
      "dispatched waiting_for_prerequisites - started - - error error\n"
      "waiting_for_prerequisites - dispatched - - - error error\n"
      "started - - - dispatched finished error error\n"
      "error - - - - - - -\n"
      "finished - - - - - - -",
      7);
}

TEST(Transitions, OfANodeMatchTheDiagram) {
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

TEST(Transitions, OfAFlowMatchTheDiagram) {
  expect_table<FlowStatus, RunEvent>(
      "start finish fail retry\n"
      "dispatched started - error -\n"
      "started - finished error -\n"
      "error - - - started\n"
      "finished - - - -",
      4);
}

TEST(Transitions, OfAMessageMatchTheDiagram) {
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
