// Shared functions of the flow commands: sessions, arguments, and the live display of a flow.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cli/store_session.h"
#include "flows/flow_progress.h"
#include "inspect/flow_view.h"
#include "service/flow_service.h"
#include "store/flow_store.h"

namespace mycojobs {

// The open stores of a flow command.
struct FlowSession : StoreSession {
  std::unique_ptr<FlowStore> flows;
  RunCache cache;
  service::FlowStores stores() { return {*store, *flows, cache}; }
};
Result<FlowSession> open_flow_session(const Invocation&, bool with_agent);
Result<FlowSession> open_flow_session_for_query(const Invocation&);          // see open_store_for_query()
void reopen_flow_session(const Invocation&, FlowSession&, bool with_agent);  // see reopen_store()

// Parses "12" or "flow:12". Returns nullopt for other texts.
std::optional<Id> parse_flow_id(std::string_view text);
Result<Id> parse_flow_argument(const Invocation&);  // parses the first argument
// Returns " --context 3" if the context is not the default; used in suggested commands.
std::string format_context_flag(const Invocation&);

// Prints a warning on stderr if the flow needs a coordinator and the context has no leader.
void warn_if_no_leader(const Invocation&, FlowSession&);

// Style of the display of a running flow. On a terminal it is redrawn in place, otherwise each change is a line.
struct FlowDisplayStyle {
  bool to_stdout = false;   // false: messages on stderr
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
Result<FollowResult> follow_flow(const Invocation&, FlowSession&, Id flow, const FlowDisplayStyle&);

// Prints the result and the end of a flow on stderr, or with --json one document with both on stdout.
void print_flow_end(const Invocation&, const FlowView&);
// Exit code of a command that reflects a flow, as for a job: 0 finished; 1 failed; 124 timeout; 130 cancelled.
int exit_code(const FlowView&);

}  // namespace mycojobs
