// mycojobs flow cancel | pause | resume | approve | reject | retry | signal | replay | delete
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/flow_opened.h"
#include "cli/terminal.h"
#include "coordinator/create.h"
#include "coordinator/standing.h"
#include "domain/codec.h"
#include "domain/utf8.h"
#include "inspect/flow_words.h"
#include "store/place.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxComment = 4096;
constexpr std::size_t kMaxPayload = 64U << 10;
constexpr std::string_view kIdentity[] = {"id", "caller_id", "name", "status"};

struct Wish {
  Id flow = 0, actor = 0, maker = 0;
  FlowStanding standing = {false, true};  // the operator, who is nobody that a step could name
};

// The flow, and who asks: the operator, or as whom it does (--actor), who then is asked for its rights before all else.
Result<Wish> who_and_what(const Invocation& call, OpenedFlows& open, bool answers = false) {
  const Id context = context_of(call);
  MJ_TRY(flow, flow_argument(call));
  MJ_TRY(actor, id_flag(call, "actor", kDefaultCaller));
  Flow named;
  named.id = flow;
  auto record = open.store().load_fields(context, redis_key(named), kIdentity);
  if (!record && record.error().code != Code::not_found) return tl::unexpected(record.error());
  Wish wish{flow, actor, record ? decode<Flow>(*record).record.caller_id : 0};
  if (call.has("actor")) {
    MJ_TRY(place, read_place(open.store(), context, WayIn::command));
    MJ_TRY(standing, flow_standing(*open.flows, open.cache, place, actor, flow, wish.maker, answers));
    wish.standing = standing;
  }
  if (record) return wish;
  return fail(Code::not_found, fmt::format("flow {}: there is none in context {}; `mycojobs flow list{}` shows them",
                                           flow, context, context_words(call)));
}

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
  FlowControl wish;
  wish.verb = verb;
  if (call.arguments.size() > 1) wish.target = call.arguments.at(1);
  wish.comment = call.get("comment");
  wish.key = call.get("key");
  wish.payload = call.get("payload");
  if (wish.comment.size() > kMaxComment)
    return fail(Code::too_large, fmt::format("--comment: {} bytes are more than {}", wish.comment.size(), kMaxComment));
  if (wish.payload.size() > kMaxPayload)
    return fail(Code::too_large, fmt::format("--payload: {} bytes are more than {}", wish.payload.size(), kMaxPayload));
  if (!wish.payload.empty()) {
    if (auto parsed = parse_json(wish.payload); !parsed) return fail(parsed.error(), "--payload");
  }
  if (call.has("key") && wish.key.empty()) return fail(Code::invalid, "--key: is empty");
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(who, who_and_what(call, open, verb == FlowControl::Verb::approve || verb == FlowControl::Verb::reject));
  wish.actor = who.actor;
  wish.admin = who.standing.admin;
  wish.steers = who.standing.steers;
  ProgressRequest request;
  request.context = context_of(call);
  request.flow = who.flow;
  request.control = wish;
  auto done = progress(*open.flows, open.cache, request);
  // Nothing that time would mend.
  if (!done && done.error().code == Code::conflict) return fail(Code::invalid, done.error().message);
  MJ_CHECK(done);
  answer(call, *done, who.flow, what);
  if (done->status == FlowStatus::started) warn_if_nobody_leads(call, open);
  return 0;
}

Result<int> replay(const Invocation& call) {
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(who, who_and_what(call, open));
  MJ_CHECK(may_as_named(call, open, Action::create, {.name = "flows"}));
  auto flow =
      replay_flow(*open.flows, open.cache, context_of(call), who.flow, who.actor, call.has("allow-irreversible"));
  if (!flow && flow.error().code == Code::conflict) return fail(Code::invalid, flow.error().message);
  MJ_CHECK(flow);
  ProgressRequest request;
  request.context = context_of(call);
  request.flow = flow->id;
  request.start = StartRun{fmt::format("replay:{}", who.flow), who.actor};
  MJ_TRY(began, progress(*open.flows, open.cache, request));
  if (call.json) {
    print(dump_json({{"flow", flow->id}, {"replay_of", who.flow}, {"status", word(began.status)}}) + "\n");
  } else {
    print(fmt::format("flow:{}\n", flow->id));
  }
  warn_if_nobody_leads(call, open);
  return 0;
}

Result<int> remove(const Invocation& call) {
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(flow, flow_argument(call));
  MJ_CHECK(may_as_named(call, open, Action::administer, {.name = fmt::format("flow {}", flow)}));
  MJ_TRY(who, who_and_what(call, open));
  auto removed = open.flows->remove(context_of(call), who.flow);
  if (!removed && removed.error().code == Code::conflict) return fail(Code::invalid, removed.error().message);
  MJ_CHECK(removed);
  if (call.json) {
    print(dump_json({{"flow", who.flow}, {"answer", "is deleted"}}) + "\n");
  } else {
    print(fmt::format("flow {} is deleted\n", who.flow));
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
