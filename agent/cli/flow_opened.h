// A flow command and the stores that it works on.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cli/opened.h"
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
// " --context 3" where it is not the default: for commands that are told.
std::string context_words(const Invocation&);

// On stderr, if the flow needs a coordinator and none leads its context.
void warn_if_nobody_leads(const Invocation&, OpenedFlows&);

}  // namespace mycojobs
