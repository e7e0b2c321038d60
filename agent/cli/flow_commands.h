// Commands of flows: the stores that they work on, and a flow as it moves.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cli/session.h"
#include "coordinator/progress.h"
#include "inspect/flows.h"
#include "mycojobs/flows.h"
#include "service/flows.h"

namespace mycojobs {

struct OpenedFlows {
  Opened opened;
  std::unique_ptr<FlowStore> flows;  // goes before its session
  RunCache cache;
  Store& store() { return *opened.store; }
  service::FlowStores stores() { return {*opened.store, *flows, cache}; }
};
Result<OpenedFlows> open_flows(const Invocation&, bool with_agent);
Result<OpenedFlows> open_flows_to_answer(const Invocation&);  // as open_to_answer()
void reopen_flows(const Invocation&, OpenedFlows&, bool with_agent);

// "12" or "flow:12".
std::optional<Id> flow_id(std::string_view text);
Result<Id> flow_argument(const Invocation&);  // the first argument
// " --context 3" where it is not the default: for commands that are shown.
std::string context_words(const Invocation&);

// On stderr, if the flow needs a coordinator and none leads its context.
void warn_if_nobody_leads(const Invocation&, OpenedFlows&);

// A flow as it moves: redrawn in place on a terminal, else a line for each change.
struct LiveStyle {
  bool to_stdout = false;   // the answer of `flow watch`; else talk, on stderr
  bool json = false;        // lines are JSON; nothing is redrawn
  bool with_agent = false;  // of the session, should it have to be opened again
};

struct Followed {
  FlowView view;   // the last one
  int signal = 0;  // a stop signal that came before the flow's end
};
// To the flow's end, or a stop signal: the flow goes on either way. Says why it waits, if it does. Outlives a store
// that is away for a while.
Result<Followed> follow_flow(const Invocation&, OpenedFlows&, Id flow, const LiveStyle&);

// Its result and how it ended, on stderr; or with --json the one document of its end, on stdout.
void print_flow_end(const Invocation&, const FlowView&);
// 0 finished; 1 failed; 124 timeout; 130 cancelled, as of a job.
int exit_code(const FlowView&);

}  // namespace mycojobs
