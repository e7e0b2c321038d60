// flow. methods that move a flow on: all of them by progress(), as the coordinator's loop does.
#include <nlohmann/json.hpp>

#include "api/flow_parts.h"
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

Result<json> start(Call& call) {
  MJ_TRY(flow, load_flow(call, Deed::control));
  MJ_TRY(flows, call.flows());
  ProgressRequest request;
  request.context = call.context();
  request.flow = flow.id;
  request.start = StartRun{"rpc", call.actor()};
  MJ_TRY(done, progress(*flows, call.runs(), request));
  return shown(flow.id, done);
}

Result<void> check_length(const std::string& name, const std::string& text, std::size_t most) {
  if (text.size() <= most) return {};
  return fail(Code::too_large, name + ": is over " + std::to_string(most) + " bytes: shorten it");
}

// Who may approve what was fixed when the step was reached: decide() judges that.
Deed deed_of(Verb verb) { return verb == Verb::approve || verb == Verb::reject ? Deed::create : Deed::control; }

Result<json> control(Call& call, Verb verb) {
  MJ_TRY(flow, load_flow(call, deed_of(verb)));
  FlowControl wish;
  wish.verb = verb;
  wish.target = call.has("name") ? call.text("name") : call.text("node");
  wish.actor = call.actor();
  MJ_TRY(admin, call.admin());
  wish.admin = admin;
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
  MJ_TRY(done, progress(*flows, call.runs(), request));
  return shown(flow.id, done);
}

template <Verb verb>
Result<json> run(Call& call) {
  return control(call, verb);
}

}  // namespace

void add_flow_controls(Services& s, std::vector<Method>& all) {
  const Param comment{"comment", "text", "why; kept with who and when"};
  const Param key{"key", "text", "idempotency key: the same control with it again changes nothing"};
  const Param node{"node", "text", "a node's name; absent: the whole flow"};
  const Param step{"name", "text", "the approval's or node's name", true};
  const std::string_view where = "object: id, status, detail, revision";
  all.push_back(method(s, "flow.start", "begin a flow", flow_params(), where, start));
  all.push_back(method(s, "flow.cancel", "end a flow: its jobs, its children, then compensations",
                       flow_params({comment, key}), where, run<Verb::cancel>));
  all.push_back(method(s, "flow.pause", "let nothing new begin; what runs goes on", flow_params({comment, key}), where,
                       run<Verb::pause>));
  all.push_back(method(s, "flow.resume", "go on with a flow, or past a pause of it", flow_params({node, comment, key}),
                       where, run<Verb::resume>));
  all.push_back(method(s, "flow.approve", "approve a step that waits for it", flow_params({step, comment, key}), where,
                       run<Verb::approve>));
  all.push_back(method(s, "flow.reject", "reject a step that waits for approval: it fails",
                       flow_params({step, comment, key}), where, run<Verb::reject>));
  all.push_back(method(
      s, "flow.signal", "open what waits for signal:NAME",
      flow_params(
          {{"name", "text", "the signal's name", true}, {"payload", "any", "JSON, at most 64 KiB"}, comment, key}),
      where, run<Verb::signal>));
  all.push_back(
      method(s, "flow.retry", "run what has failed again", flow_params({node, comment, key}), where, run<Verb::retry>));
}

}  // namespace mycojobs::api
