// Shared parts of the flow commands: opening the stores, arguments, and the live display of a flow.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cli/store_session.h"
#include "flows/flow_progress.h"
#include "inspect/flow_view.h"
#include "service/flow_service.h"
#include "store/flow_store.h"

namespace mycojobs {

// The open stores of a flow command.
struct OpenedFlows {
  OpenedStore opened;
  std::unique_ptr<FlowStore> flows;  // destroyed before its session
  RunCache cache;
  Store& store() { return *opened.store; }
  service::FlowStores stores() { return {*opened.store, *flows, cache}; }
};
Result<OpenedFlows> open_flows(const Invocation&, bool with_agent);
Result<OpenedFlows> open_flows_to_answer(const Invocation&);  // like open_to_answer()
void reopen_flows(const Invocation&, OpenedFlows&, bool with_agent);

// Parses "12" or "flow:12".
std::optional<Id> flow_id(std::string_view text);
Result<Id> flow_argument(const Invocation&);  // the first argument
// Returns " --context 3" if the context is not the default; used in suggested commands.
std::string context_words(const Invocation&);

// Prints a warning on stderr if the flow needs a coordinator and the context has no leader.
void warn_if_no_leader(const Invocation&, OpenedFlows&);

// Display of a running flow: redrawn in place on a terminal, otherwise one line for each change.
struct LiveStyle {
  bool to_stdout = false;   // true: output of `flow watch`; false: messages on stderr
  bool json = false;        // prints JSON lines, without redrawing
  bool with_agent = false;  // used if the session has to be opened again
};

// Result of follow_flow().
struct FollowResult {
  FlowView view;   // latest state
  int signal = 0;  // stop signal that was received before the end of the flow
};
// Displays a flow until its end or a stop signal, which does not affect the flow. Prints the reason if the flow waits.
// Retries while the store is unavailable for a short time.
Result<FollowResult> follow_flow(const Invocation&, OpenedFlows&, Id flow, const LiveStyle&);

// Prints the result and the kind of the end on stderr, or with --json one document with both on stdout.
void print_flow_end(const Invocation&, const FlowView&);
// 0 finished; 1 failed; 124 timeout; 130 cancelled, as for a job.
int exit_code(const FlowView&);

}  // namespace mycojobs
