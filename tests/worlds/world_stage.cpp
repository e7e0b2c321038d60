#include "worlds/world_stage.h"

#include <algorithm>
#include <set>

#include "flows/flow_creation.h"
#include "flows/flow_progress.h"
#include "inspect/verify/deployment_verify.h"
#include "inspect/verify/flow_verify.h"
#include "inspect/verify/job_verify.h"
#include "model/codec.h"
#include "security/signatures.h"
#include "text/cbor.h"
#include "workflows/tools/readable_values.h"

namespace mycojobs {
namespace {

using nlohmann::json;

// All stages share one server in turn, so that the scripts are compiled only once.
struct WorldHall {
  test::ManualClock clock;
  MemoryServer server{clock};
};
WorldHall& world_hall() {
  static WorldHall the;
  return the;
}
MemoryServer& cleared(MemoryServer& server) {
  server.set_faults(nullptr);
  server.restore({});
  return server;
}

std::string cbor_of(const json& value) { return encode_cbor(value).value(); }
json of_cbor(std::string_view bytes) { return decode_cbor(bytes).value(); }

constexpr const char* kPack = R"({"name": "pack", "inputs": {"n": {"type": "string", "default": "1"}},
  "jobs": {"one": {"type": "python", "script": "ok flow"}}})";
constexpr const char* kGate = R"({"name": "gate",
  "jobs": {"one": {"type": "python", "script": "ok gate", "prerequisites": "signal:go"}}})";

Id create(FlowStore& flows, const char* definition) {
  const ParsedPlan plan = read_plan(json::parse(definition));
  EXPECT_TRUE(plan.plan) << join(plan.problems);
  NewFlow wanted;
  wanted.context = WorldStage::kContext;
  wanted.caller = 1;
  return create_flow(flows, *plan.plan, wanted).value().id;
}

json make_effect(const std::string& how, const json& order) {
  const json id = order.at("id");
  if (how == "job") return {{"kind", "acme/pay@1"}, {"params", {{"id", id}}}};
  if (how == "here") return {{"kind", "acme/here@1"}, {"params", {{"id", id}}}};
  if (how == "again") return {{"kind", "acme/again@1"}, {"params", {{"id", id}}}};
  if (how == "slow") return {{"kind", "acme/slow@1"}, {"params", {{"id", id}}}};
  if (how == "timer") return {{"kind", "sys/timer@1"}, {"params", {{"after_ms", 5000}}}};
  if (how == "approval")
    return {{"kind", "sys/approval@1"}, {"params", {{"title", "?"}, {"approvers", {1}}, {"timeout_ms", 60000}}}};
  if (how == "flow") return {{"kind", "sys/flow@1"}, {"params", {{"flow", "pack"}, {"inputs", {{"n", "7"}}}}}};
  const std::uint64_t flow = how == "far" ? 4294967297 : 1;  // "far": the id equals 1 in its lower 32 bits
  return {{"kind", "sys/signal@1"}, {"params", {{"flow_id", flow}, {"name", "go"}}}};
}

bool is_withdrawn(const std::string& how) { return how == "withdraw" || how == "stop"; }

// Returns the next effect of an order after this number of receipts, or "" if no effect follows.
std::string get_next_effect(const std::string& how, std::size_t receipts) {
  static const std::vector<std::string> kAll{"job", "slow", "timer", "flow"};
  if (how == "all") return receipts < kAll.size() ? kAll[receipts] : "";
  return receipts == 0 && how != "keep" && how != "big" && how != "chat" && how != "hold" && !is_withdrawn(how) ? how
                                                                                                                : "";
}

void add_effect(StepOutput& out, const json& effect, const char* ref = "ref") {
  out.effects.push_back({effect.at("kind"), cbor_of(effect.at("params")), out.effects.size(), ref});
}

// A paid order cancels its deadline, its approval and its job.
void begin_withdrawal(StepOutput& out, const json& id, bool with_job) {
  add_effect(out, {{"kind", "sys/timer@1"}, {"params", {{"after_ms", 3600000}}}}, "deadline");
  add_effect(out, {{"kind", "sys/approval@1"}, {"params", {{"title", "?"}, {"approvers", {1}}}}}, "deadline");
  if (with_job) add_effect(out, {{"kind", "acme/never@1"}, {"params", {{"id", id}}}}, "deadline");
  add_effect(out, {{"kind", "acme/pay@1"}, {"params", {{"id", id}}}});
}

// Starts a job, a flow and a timer that run until they are cancelled.
void begin_to_hold(StepOutput& out, const json& id) {
  add_effect(out, {{"kind", "acme/never@1"}, {"params", {{"id", id}}}});
  add_effect(out, {{"kind", "sys/flow@1"}, {"params", {{"flow", "gate"}, {"inputs", json::object()}}}});
  add_effect(out, {{"kind", "sys/timer@1"}, {"params", {{"after_ms", 3600000}}}});
}

}  // namespace

json shop_manifest() {
  return json::parse(R"json({
    "name": "acme/shop@1",
    "schemas": {
      "acme/Placed@1": {"type": "object", "required": ["id", "how"], "properties": {
        "id": {"type": "integer", "minimum": 1}, "how": {"type": "string"}}},
      "acme/Closed@1": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
      "acme/Said@1": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
      "acme/Event@1": {"oneOf": [{"title": "Placed", "$ref": "acme/Placed@1"},
        {"title": "Closed", "$ref": "acme/Closed@1"},
        {"title": "Receipt", "$ref": "sys/EffectReceiptEnvelope@1"}]}},
    "effects": [
      {"name": "acme/pay@1", "script_type": "python", "script": "ok pay", "params": {"type": "object",
       "required": ["id"], "properties": {"id": {"type": "integer"}}},
       "receipt": {"type": "object", "required": ["paid"], "properties": {"paid": {"type": "boolean"}}}},
      {"name": "acme/slow@1", "script_type": "python", "script": "fail slow", "params": {"type": "object",
       "required": ["id"], "properties": {"id": {"type": "integer"}}}, "receipt": {}},
      {"name": "acme/never@1", "script_type": "nobody", "script": "ok", "params": {}, "receipt": {}},
      {"name": "acme/here@1", "script_type": "python", "runner": "runner:7", "script": "ok here", "params": {},
       "receipt": {}},
      {"name": "acme/again@1", "script_type": "python", "retries": 2, "policy": {"memory": "64 MiB"}, "script": "fail twice", "params": {},
       "receipt": {}}],
    "workflows": [
      {"name": "acme/order@1", "state": {"type": "object", "additionalProperties": {}}, "event": "acme/Event@1",
       "context": "sys/WorkflowContext@1", "key_schema": {"type": "integer"},
       "effects_emitted": ["acme/pay@1", "acme/slow@1", "acme/here@1", "acme/again@1", "acme/never@1", "sys/cancel@1",
                           "sys/timer@1", "sys/approval@1", "sys/flow@1", "sys/signal@1"],
       "impl": {"module": "shop.lua", "entrypoint": "order"}},
      {"name": "acme/ledger@1", "state": {"type": "integer"}, "event": "acme/Said@1", "effects_emitted": [],
       "impl": {"module": "shop.lua", "entrypoint": "ledger"}}],
    "routing": {"subscriptions": [
      {"event": "acme/Placed@1", "workflow": "acme/order@1", "key_field": "$value.id"},
      {"event": "acme/Closed@1", "workflow": "acme/order@1", "key_field": "$value.id"},
      {"event": "acme/Said@1", "workflow": "acme/ledger@1"}]}
  })json");
}

StepOutput shop_step(const WorkflowSpec& spec, const StepRequest& request) {
  StepOutput out;
  json state = request.state ? of_cbor(*request.state) : json();
  const json event = of_cbor(request.event.value);
  if (spec.name == "acme/ledger@1") {
    out.state = cbor_of((state.is_null() ? 0 : state.get<int>()) + 1);
    return out;
  }
  const std::string tag = event.at("$tag");
  const json& value = event.at("$value");
  if (tag == "Closed") return out;
  if (tag == "Placed" && state.is_null()) {
    state = {{"id", value.at("id")}, {"how", value.at("how")}, {"receipts", json::array()}};
    if (value.at("how") == "big") state["bulk"] = std::string(80U << 10, 'x');
    if (value.at("how") == "hold") begin_to_hold(out, value.at("id"));
    if (is_withdrawn(value.at("how"))) begin_withdrawal(out, value.at("id"), value.at("how") == "stop");
    if (value.at("how") == "chat")
      out.domain_events.push_back({"acme/Said@1", cbor_of({{"id", value.at("id")}}), std::nullopt});
  } else if (tag == "Placed") {
    state["again"] = state.value("again", 0) + 1;
    if (state.contains("bulk")) state["bulk"] = std::string(80U << 10, state["again"] == 1 ? 'y' : 'x');
  } else {
    json answer{{"effect", value.at("effect")}, {"status", value.at("status")}};
    if (value.at("payload").contains("paid")) answer["paid"] = value["payload"]["paid"];
    if (value.at("payload").contains("approved")) answer["approved"] = value["payload"]["approved"];
    if (value.at("payload").contains("cancelled")) answer["cancelled"] = value["payload"]["cancelled"];
    if (is_withdrawn(state.at("how")) && answer.contains("paid"))
      add_effect(out, {{"kind", "sys/cancel@1"}, {"params", {{"ref", "deadline"}}}});
    state["receipts"].push_back(std::move(answer));
    // The order of the receipts depends on timing.
    if (state.at("how") == "stop") std::sort(state["receipts"].begin(), state["receipts"].end());
  }
  const std::string next =
      tag == "Placed" && state.contains("again") ? "" : get_next_effect(state.at("how"), state.at("receipts").size());
  if (!next.empty()) add_effect(out, make_effect(next, state));
  out.state = cbor_of(state);
  return out;
}

WorldStage::WorldStage(DeploymentLimits limits, int coordinators)
    : clock(world_hall().clock = {}),
      server(cleared(world_hall().server)),
      store(server.open().value()),
      flows(server.open_flows().value()),
      deployments(server.open_workflows().value()),
      limits_(limits) {
  if (limits_.step_wait_ms == DeploymentLimits().step_wait_ms) {
    // Steps run one at a time, and each commit waits for its steps.
    limits_.shares.max_threads = limits_.shares.max_per_deployment = 1;
    limits_.step_wait_ms = 60'000;
  }
  coordinators_.resize(static_cast<std::size_t>(coordinators));
  for (StagedCoordinator& each : coordinators_) begin(each);
  ContextSettings settings;
  settings.context = kContext;
  settings.instance = "coordinator";
  flow_rounds_ = std::make_unique<ContextLoop>(server.open_flows().value(), server.open().value(), clock, settings);
  EXPECT_TRUE(store->save(kContext, "context:1", {{"id", "1"}, {"admins", "[1]"}, {"submitters", "[12]"}}));
  // A flow that waits for a signal, and a definition that effects start.
  ProgressRequest start;
  start.context = kContext;
  start.flow = create(*flows, kGate);
  start.start = StartRun{"manual", 1};
  RunCache cache;
  EXPECT_EQ(start.flow, 1U);
  EXPECT_TRUE(advance_run(*flows, cache, start));
  create(*flows, kPack);
  server.set_faults([this](const ServerCall& call) { return choose_fault(call); });
}

WorldStage::~WorldStage() { server.set_faults(nullptr); }

void WorldStage::begin(StagedCoordinator& each) {
  each.rounds.reset();
  each.store = server.open().value();
  each.flows = server.open_flows().value();
  each.deployments = server.open_workflows().value();
  each.cells = server.open_workflows().value();
  const StepRunner take = [this](const WorkflowSpec& spec, const WorkflowManifest&,
                                 const StepRequest& request) -> Result<StepAnswer> {
    MJ_TRY(output, code(spec, request));
    return StepAnswer(std::move(output));
  };
  each.rounds = std::make_unique<DeploymentLoop>(
      DeploymentLoop::Dependencies{.store = *each.store,
                                   .flows = *each.flows,
                                   .deployments = *each.deployments,
                                   .run_step = take,
                                   .clock = clock,
                                   .limits = job_limits,
                                   .cell_stores = reads_cells_in_background
                                                      ? std::vector<WorkflowStore*>{each.cells.get()}
                                                      : std::vector<WorkflowStore*>()},
      kContext, limits_);
  each.recovers = true;
  each.is_dead = false;
}

Fault WorldStage::choose_fault(const ServerCall& call) {
  if (active_coordinator_ == nullptr) return Fault::none;
  if (active_coordinator_->is_dead) return Fault::before;
  // Scripts that could write but do not in these tests; a kill at such a call equals a kill between its neighbours.
  static const std::set<std::string_view> kChecks{"world_due",   "world_glance", "world_mail", "world_read",
                                                  "world_facts", "flow_read",    "flow_jobs",  "load",
                                                  "load_some",   "flow_list",    "ended_job"};
  if (call.write == 0 || kChecks.contains(call.name)) return Fault::none;
  ++calls_;
  ++calls_by_name[std::string(call.name)];
  for (const WorldDisturbance& each : disturbed_) {
    if (each.call != calls_) continue;
    active_coordinator_->is_dead = each.fate == WorldFate::killed_before || each.fate == WorldFate::killed_after;
    return each.fate == WorldFate::killed_before || each.fate == WorldFate::request_lost ? Fault::before : Fault::after;
  }
  return Fault::none;
}

namespace {
std::vector<Log> make_log_lines(const std::vector<std::string>& texts, std::uint64_t now_ms) {
  std::vector<Log> lines;
  for (const std::string& text : texts) lines.push_back({now_ms, lines.size() + 1, LogStream::out, text});
  return lines;
}
}  // namespace

Result<service::AppliedWorkflow> WorldStage::apply(const json& manifest, const std::string& text) {
  return service::apply_workflow(by, stores(), manifest, {{{"shop.lua", text}}, std::nullopt});
}
Result<service::SentEvent> WorldStage::send(const std::string& event, const json& value) {
  return service::send_event(by, stores(), {event, value.dump(), ""});
}
json WorldStage::show(int id) {
  auto found = service::show_instance(by, stores(), {"acme/order@1", std::to_string(id)});
  return found ? std::move(*found) : json();
}
std::string WorldStage::status(int id) {
  const json found = show(id);
  return found.is_null() ? "none" : found.at("status").get<std::string>();
}
LoadedDeployment WorldStage::load_deployment(bool from_beginning) {
  LoadOptions options;
  options.from_beginning = from_beginning;
  options.cache.max_cells = 1'000'000;
  LoadedDeployment deployment = LoadedDeployment::load(*deployments, kContext, kShop, options).value();
  EXPECT_TRUE(deployment.load_all_cells());
  return deployment;
}
std::vector<WorkflowFact> WorldStage::journal() {
  std::vector<WorkflowFact> all;
  for (std::uint64_t after = 0;;) {
    const DeploymentReadResult read = deployments->read(kContext, kShop, after, 1000).value();
    for (const std::string& bytes : read.facts) all.push_back(decode_workflow_fact(bytes).value());
    after += read.facts.size();
    if (after >= read.height) return all;
  }
}

void WorldStage::coordinate(std::size_t which) {
  StagedCoordinator& each = coordinators_.at(which);
  active_coordinator_ = &each;
  for (int i = 0; i < 20; ++i) {
    auto recovered = each.recovers ? each.rounds->recover() : Result<void>();
    each.recovers = !recovered;
    auto next = recovered ? each.rounds->run_round() : tl::unexpected<Error>(recovered.error());
    if (!next && next.error().code != Code::unavailable) ADD_FAILURE() << "a round: " << next.error().message;
    if (!next) each.recovers = true;
    if (!next || *next > 0) break;
  }
  active_coordinator_ = nullptr;
  if (each.is_dead) begin(each);
}

void WorldStage::replace(std::size_t which) { begin(coordinators_.at(which)); }

void WorldStage::run_jobs() {
  ClaimRequest request;
  request.context = kContext;
  request.runner = runner;
  request.instance = "runner";
  request.queues = {"queue:python", "mj:queue:runner7"};
  request.max_jobs = 64;
  request.lease_ms = 1U << 30;
  const ClaimReply claimed = store->claim(request).value();
  for (const ClaimedJob& each : claimed.jobs) {
    Job job = decode<Job>(each.record).record;
    const auto params = job.env_vars.find("MYCOJOBS_PARAMS");
    ++run_counts[job.name + ' ' + (params == job.env_vars.end() ? "" : params->second)];
    if (job.attempt <= 1) ++job_counts[job.idempotency_key.empty() ? each.ref.job_key : job.idempotency_key];
    JobEnd end;
    const bool ok = job.script.starts_with("ok") || (job.script == "fail twice" && job.attempt == 3);
    end.status = ok ? JobStatus::finished : JobStatus::error;
    end.detail = ok ? "ok" : "exit";
    if (!ok) end.error = "it went wrong";
    if (ok) end.result = {{"paid", "true"}}, end.result_json = {"paid"};
    if (runner_key) {
      json receipt{{"job", each.ref.job_key},
                   {"claim", each.ref.claim_id},
                   {"runner", 7},
                   {"intent", job.env_vars["MYCOJOBS_INTENT"]},
                   {"status", to_string(end.status)},
                   {"result_sha256", compute_result_hash(end.result, end.result_json)}};
      EXPECT_TRUE(sign(receipt, "receipt", *runner_key));
      end.receipt = receipt.dump();
    }
    if (tamper) tamper(job, end);
    // The retry rule of an agent (jobs/retry.h).
    const auto again = !ok && job.attempt <= job.retries ? std::optional<std::uint64_t>(1) : std::nullopt;
    std::vector<Report> reports;
    if (writes) reports.push_back(LogAppend{each.ref, make_log_lines(writes(job), clock.unix_ms())});
    reports.push_back(EndReport{each.ref, std::move(end), again});
    const auto done = store->report(kContext, reports).value();
    for (const auto& each_done : done)
      if (!each_done) ADD_FAILURE() << each.ref.job_key << ": " << each_done.error().message;
  }
}

void WorldStage::step(std::uint64_t ms) {
  for (std::size_t i = 0; i < coordinators_.size(); ++i) coordinate(i);
  const auto moved = flow_rounds_->run_round();
  if (!moved) ADD_FAILURE() << moved.error().message;
  run_jobs();
  clock.advance(ms);
}

bool WorldStage::is_quiet() {
  if (server.run_command(kContext, {"XLEN", "mj:deployment-inbox:" + std::string(kShop)}).number() > 0) return false;
  if (server.run_command(kContext, {"LLEN", "queue:python"}).number() > 0) return false;
  const LoadedDeployment now = load_deployment();
  if (!now.state().ready_instances.empty() || !now.index().unpublished_intents().empty()) return false;
  return std::all_of(now.state().intents.begin(), now.state().intents.end(), [&](const auto& row) {
    return find_pending(now.state(), row.first)->effect_ref == kApprovalEffectRef;
  });
}

bool WorldStage::play(int rounds) {
  for (int i = 0; i < rounds; ++i) {
    step(i < 100 ? 100 : 1000);
    if (!is_quiet()) continue;
    for (int more = 0; more < 3; ++more) step();  // lets flows process a signal
    return is_quiet();
  }
  return false;
}

std::string WorldStage::outcome() {
  std::string out;
  const LoadedDeployment now = load_deployment();
  for (const auto& [id, cell] : now.state().instances) {
    out += display_name(id) + ' ' + std::string(to_string(cell.status())) + " steps " + std::to_string(cell.steps) +
           ' ' + cell.failure + ' ' + cell.message;
    if (cell.state) {
      const std::string bytes =
          cell.state->is_spilled() ? deployments->blob(kContext, kShop, cell.state->hash).value() : cell.state->bytes;
      out += ' ' + (bytes.size() > 1000 ? std::to_string(bytes.size()) + " bytes " + cell.state->hash
                                        : cbor_to_readable_json(bytes).dump());
    }
    for (const auto& [intent, pending] : cell.pending_intents) out += " waits for " + pending.intent.effect;
    out += '\n';
  }
  for (const auto& [name, times] : run_counts) out += "ran " + name + ": " + std::to_string(times) + '\n';
  const auto all = flows->list(kContext, "", 0, 100).value();
  std::multiset<std::string> lines;
  for (const FlowSummary& each : all)
    lines.insert("flow " + each.name + ' ' + std::string(field_of(each.record, "status")) + ' ' +
                 std::string(field_of(each.record, "detail")));
  JobFilter wanted;
  wanted.script_type = "nobody";
  const JobsPage jobs = store->jobs(kContext, wanted).value();
  for (const ListedJob& each : jobs.jobs)
    lines.insert("job of nobody " + std::string(field_of(each.record, "status")) + ' ' +
                 std::string(field_of(each.record, "detail")));
  for (const std::string& line : lines) out += line + '\n';
  return out;
}

std::vector<std::string> WorldStage::find_violations() {
  std::vector<std::string> all;
  const auto anomalies = store->anomalies(kContext, 100).value();
  for (const std::string& each : anomalies) all.push_back("anomaly: " + each);
  for (const auto& [name, times] : job_counts)
    if (times != 1) all.push_back(name + " ran " + std::to_string(times) + " times");
  const auto found = verify(*store, kContext, {}).value();
  for (const Finding& each : found.findings) all.push_back(each.rule + ": " + each.text);
  const auto of_flows = verify_flows(*flows, *store, kContext).value();
  for (const Finding& each : of_flows) all.push_back(each.rule + ": " + each.text);
  const auto of_deployments = verify_deployments(*deployments, *store, kContext).value();
  for (const Finding& each : of_deployments) all.push_back(each.rule + ": " + each.text);
  // The snapshot and the full journal must yield the same state, and every repeated step the same output.
  if (!(load_deployment().state() == load_deployment(true).state()))
    all.emplace_back("the snapshot differs from the state of the journal");
  const StepRunner take = [this](const WorkflowSpec& spec, const WorkflowManifest&,
                                 const StepRequest& request) -> Result<StepAnswer> {
    MJ_TRY(output, code(spec, request));
    return StepAnswer(std::move(output));
  };
  const auto replayed = service::verify_workflow(by, stores(), kShop, take);
  if (!replayed)
    all.push_back("replay: " + replayed.error().message);
  else if (replayed->mismatch)
    all.push_back("replay differs at " + std::to_string(replayed->mismatch->height));
  return all;
}

}  // namespace mycojobs
