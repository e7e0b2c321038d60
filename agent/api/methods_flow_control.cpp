// flow. methods that move a flow on: all of them by progress(), as the coordinator's loop does.
#include <nlohmann/json.hpp>

#include "api/flow_parts.h"
#include "coordinator/create.h"
#include "coordinator/progress.h"
#include "coordinator/standing.h"
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

struct Steered {
  Flow flow;
  Id actor = 0;
  FlowStanding standing;
};

// The flow, and who moves it: the caller, or whom an operator names. Rights come before all that the flow could tell.
Result<Steered> steered(Call& call, bool answers = false) {
  const bool itself = !call.has("actor_id") || call.id("actor_id") == call.actor();
  Steered out;
  out.actor = itself ? call.actor() : call.id("actor_id");
  if (!itself && !call.all_powerful()) {
    return tl::unexpected<Error>(
        call.refused({Code::denied, "actor_id: this token is of actor " + std::to_string(call.actor()) +
                                        " and cannot act as " + std::to_string(out.actor) + ": leave actor_id out"}));
  }
  auto flow = load_flow(call);
  if (!flow && flow.error().code != Code::not_found && flow.error().code != Code::invalid)
    return tl::unexpected<Error>(std::move(flow).error());
  if (itself && call.all_powerful()) {
    out.standing = {true, true};
  } else {
    MJ_TRY(flows, call.flows());
    MJ_TRY(place, call.place());
    auto standing =
        flow_standing(*flows, call.runs(), place, out.actor, call.id("id"), flow ? flow->caller_id : 0, answers);
    if (!standing && standing.error().code == Code::denied)
      return tl::unexpected<Error>(call.refused(standing.error()));
    MJ_CHECK(standing);
    out.standing = *standing;
  }
  MJ_CHECK(flow);
  out.flow = std::move(*flow);
  return out;
}

Result<json> start(Call& call) {
  MJ_TRY(by, steered(call));
  MJ_TRY(flows, call.flows());
  MJ_CHECK(adopt_flow(*flows, call.store(), call.context(), by.flow.id));
  ProgressRequest request;
  request.context = call.context();
  request.flow = by.flow.id;
  request.start = StartRun{"rpc", by.actor};
  MJ_TRY(done, progress(*flows, call.runs(), request));
  return shown(by.flow.id, done);
}

Result<void> check_length(const std::string& name, const std::string& text, std::size_t most) {
  if (text.size() <= most) return {};
  return fail(Code::too_large, name + ": is over " + std::to_string(most) + " bytes: shorten it");
}

Result<json> control(Call& call, Verb verb) {
  MJ_TRY(by, steered(call, verb == Verb::approve || verb == Verb::reject));
  FlowControl wish;
  wish.verb = verb;
  wish.target = call.has("name") ? call.text("name") : call.text("node");
  wish.actor = by.actor;
  wish.admin = by.standing.admin;
  wish.steers = by.standing.steers;
  wish.comment = call.text("comment");
  wish.key = call.text("key");
  if (call.has("payload")) wish.payload = dump_json(call.params().at("payload"));
  MJ_CHECK(check_length("comment", wish.comment, kMaxComment));
  MJ_CHECK(check_length("payload", wish.payload, kMaxPayload));
  MJ_CHECK(check_length("key", wish.key, kMaxKey));
  MJ_TRY(flows, call.flows());
  ProgressRequest request;
  request.context = call.context();
  request.flow = by.flow.id;
  request.control = std::move(wish);
  auto done = progress(*flows, call.runs(), request);
  if (!done && done.error().code == Code::denied) return tl::unexpected<Error>(call.refused(done.error()));
  MJ_CHECK(done);
  return shown(by.flow.id, *done);
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
  const std::string_view where = "FlowState: id, status, detail, revision";
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
