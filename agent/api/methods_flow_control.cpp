// flow. methods that move a flow on: all of them by progress(), as the coordinator's loop does.
#include <nlohmann/json.hpp>

#include "api/flow_parts.h"
#include "coordinator/create.h"
#include "coordinator/progress.h"
#include "domain/codec.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;
using Verb = FlowControl::Verb;

constexpr std::size_t kMaxComment = 4096, kMaxPayload = 64U << 10, kMaxKey = 255;

json shown(Id flow, const FlowProgress& progress) {
  return {
      {"id", flow}, {"status", word(progress.status)}, {"detail", progress.detail}, {"revision", progress.revision}};
}

// Who acts: the caller, or whom an operator names. Whether that is an admin of the context.
struct Actor {
  Id id = 0;
  bool admin = false, steers = true;
};
// answers: one who may not steer may still be named as approver, which the flow itself knows.
Result<Actor> may_steer(Call& call, const Flow& flow, bool answers = false) {
  Actor actor{call.actor(), call.is_operator()};
  if (call.has("actor_id") && call.id("actor_id") != actor.id) {
    if (!call.all_powerful())
      return fail(Code::denied,
                  "actor_id: this token is of actor " + std::to_string(actor.id) + ": leave actor_id out");
    actor = {call.id("actor_id"), false, true};
  }
  if (actor.admin) return actor;
  MJ_TRY(record, call.context_record());
  auto admin = check_flow_right(record, call.context(), flow.caller_id, actor.id);
  if (!admin && !answers) return tl::unexpected<Error>(call.refused(admin.error()));
  actor.admin = admin.value_or(false);
  actor.steers = admin.has_value();
  return actor;
}

Result<json> start(Call& call) {
  MJ_TRY(flow, load_flow(call));
  MJ_TRY(actor, may_steer(call, flow));
  MJ_TRY(flows, call.flows());
  MJ_CHECK(adopt_flow(*flows, call.store(), call.context(), flow.id));
  ProgressRequest request;
  request.context = call.context();
  request.flow = flow.id;
  request.start = StartRun{"rpc", actor.id};
  MJ_TRY(done, progress(*flows, call.runs(), request));
  return shown(flow.id, done);
}

Result<void> check_length(const std::string& name, const std::string& text, std::size_t most) {
  if (text.size() <= most) return {};
  return fail(Code::too_large, name + ": is over " + std::to_string(most) + " bytes: shorten it");
}

Result<json> control(Call& call, Verb verb) {
  MJ_TRY(flow, load_flow(call));
  MJ_TRY(actor, may_steer(call, flow, verb == Verb::approve || verb == Verb::reject));
  FlowControl wish;
  wish.verb = verb;
  wish.target = call.has("name") ? call.text("name") : call.text("node");
  wish.actor = actor.id;
  wish.admin = actor.admin;
  wish.steers = actor.steers;
  wish.comment = call.text("comment");
  wish.key = call.text("key");
  if (call.has("payload")) wish.payload = dump_json(call.params().at("payload"));
  MJ_CHECK(check_length("comment", wish.comment, kMaxComment));
  MJ_CHECK(check_length("payload", wish.payload, kMaxPayload));
  MJ_CHECK(check_length("key", wish.key, kMaxKey));
  MJ_TRY(flows, call.flows());
  ProgressRequest request;
  request.context = call.context();
  request.flow = flow.id;
  request.control = std::move(wish);
  auto done = progress(*flows, call.runs(), request);
  if (!done && done.error().code == Code::denied) return tl::unexpected<Error>(call.refused(done.error()));
  MJ_CHECK(done);
  return shown(flow.id, *done);
}

template <Verb verb>
Result<json> run(Call& call) {
  return control(call, verb);
}

}  // namespace

void add_flow_controls(Services& s, std::vector<Method>& all) {
  const Param actor{"actor_id", "id", "who does it, if an operator calls; absent: the caller"};
  const Param comment{"comment", "text", "why; kept with who and when"};
  const Param key{"key", "text", "idempotency key: the same control with it again changes nothing"};
  const Param node{"node", "text", "a node's name; absent: the whole flow"};
  const Param step{"name", "text", "the approval's or node's name", true};
  const std::string_view where = "object: id, status, detail, revision";
  all.push_back(method(s, "flow.start", "begin a flow", flow_params({actor}), where, start));
  all.push_back(method(s, "flow.cancel", "end a flow: its jobs, its children, then compensations",
                       flow_params({actor, comment, key}), where, run<Verb::cancel>));
  all.push_back(method(s, "flow.pause", "let nothing new begin; what runs goes on", flow_params({actor, comment, key}),
                       where, run<Verb::pause>));
  all.push_back(method(s, "flow.resume", "go on with a flow, or past a pause of it",
                       flow_params({node, actor, comment, key}), where, run<Verb::resume>));
  all.push_back(method(s, "flow.approve", "approve a step that waits for it", flow_params({step, actor, comment, key}),
                       where, run<Verb::approve>));
  all.push_back(method(s, "flow.reject", "reject a step that waits for approval: it fails",
                       flow_params({step, actor, comment, key}), where, run<Verb::reject>));
  all.push_back(method(s, "flow.signal", "open what waits for signal:NAME",
                       flow_params({{"name", "text", "the signal's name", true},
                                    {"payload", "any", "JSON, at most 64 KiB"},
                                    actor,
                                    comment,
                                    key}),
                       where, run<Verb::signal>));
  all.push_back(method(s, "flow.retry", "run what has failed again", flow_params({node, actor, comment, key}), where,
                       run<Verb::retry>));
}

}  // namespace mycojobs::api
