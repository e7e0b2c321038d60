// mycojobs flow cancel | pause | resume | approve | reject | retry | signal | replay | delete
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/flow_opened.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "inspect/flow_words.h"

namespace mycojobs {
namespace {

void answer(const Invocation& call, const FlowProgress& now, Id flow, std::string_view what) {
  const std::string_view told = now.facts > 0 ? what : "is as it was: this had been asked for before";
  if (call.json) {
    print(dump_json({{"flow", flow},
                     {"status", word(now.status)},
                     {"detail", now.detail},
                     {"revision", now.revision},
                     {"changed", now.facts > 0},
                     {"answer", told}}) +
          "\n");
  } else {
    print(fmt::format("flow {} {} ({})\n", flow, told, flow_word(now.status, now.detail)));
  }
}

Result<int> control(const Invocation& call, FlowControl::Verb verb, std::string_view what) {
  MJ_TRY(flow, flow_argument(call));
  MJ_TRY(by, who_asks(call));
  service::ControlFlow wish{.flow = flow, .verb = verb, .comment = call.get("comment"), .payload = call.get("payload")};
  if (call.arguments.size() > 1) wish.target = call.arguments.at(1);
  if (call.has("key")) wish.key = call.get("key");
  MJ_CHECK(as_typed(call, service::check(wish)));
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(done, as_typed(call, service::control_flow(by, open.stores(), wish)));
  answer(call, done, flow, what);
  if (done.status == FlowStatus::started) warn_if_nobody_leads(call, open);
  return 0;
}

Result<int> replay(const Invocation& call) {
  MJ_TRY(of, flow_argument(call));
  MJ_TRY(by, who_asks(call));
  MJ_TRY(open, open_flows_to_answer(call));
  const service::ReplayFlow wish{.flow = of, .allow_irreversible = call.has("allow-irreversible")};
  MJ_TRY(flow, as_typed(call, service::replay_flow(by, open.stores(), wish)));
  MJ_TRY(began, service::start_flow(by, open.stores(), {flow.id, fmt::format("replay:{}", of)}));
  if (call.json) {
    print(dump_json({{"flow", flow.id}, {"replay_of", of}, {"status", word(began.status)}}) + "\n");
  } else {
    print(fmt::format("flow:{}\n", flow.id));
  }
  warn_if_nobody_leads(call, open);
  return 0;
}

Result<int> remove(const Invocation& call) {
  MJ_TRY(flow, flow_argument(call));
  MJ_TRY(by, who_asks(call));
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_CHECK(as_typed(call, service::delete_flow(by, open.stores(), flow)));
  if (call.json) {
    print(dump_json({{"flow", flow}, {"answer", "is deleted"}}) + "\n");
  } else {
    print(fmt::format("flow {} is deleted\n", flow));
  }
  return 0;
}

}  // namespace

using Verb = FlowControl::Verb;

int flow_cancel_command(Invocation& call) { return finish(control(call, Verb::cancel, "is being cancelled")); }
int flow_pause_command(Invocation& call) { return finish(control(call, Verb::pause, "is paused; what runs goes on")); }
int flow_resume_command(Invocation& call) { return finish(control(call, Verb::resume, "goes on")); }
int flow_approve_command(Invocation& call) { return finish(control(call, Verb::approve, "has the approval")); }
int flow_reject_command(Invocation& call) { return finish(control(call, Verb::reject, "has the rejection")); }
int flow_retry_command(Invocation& call) { return finish(control(call, Verb::retry, "tries again")); }
int flow_signal_command(Invocation& call) { return finish(control(call, Verb::signal, "has the signal")); }
int flow_replay_command(Invocation& call) { return finish(replay(call)); }
int flow_delete_command(Invocation& call) { return finish(remove(call)); }

}  // namespace mycojobs
