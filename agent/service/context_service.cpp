#include "service/context_service.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "flows/flow_run.h"
#include "inspect/job_view.h"
#include "inspect/verify/actor_verify.h"
#include "model/codec.h"
#include "service/workflow_service.h"
#include "store/keys.h"
#include "text/json.h"

namespace mycojobs::service {
namespace {

constexpr std::uint32_t kMaxFlowsBatch = 200;
constexpr std::size_t kJobsOutside = 200;
constexpr std::size_t kInstances = 200;
constexpr std::string_view kApproval = "approval:";

// The caller and its rights to resources of other actors.
struct OverviewScope {
  const RequestContext& by;
  AclContext place;

  bool reads(Id maker) const {
    return by.is_operator || !find_refusal(by.actor, Action::read, place, {.maker = maker});
  }
  bool answers(Id maker, const std::vector<Id>& approvers) const {
    if (by.is_operator) return true;
    const bool named = std::find(approvers.begin(), approvers.end(), by.actor) != approvers.end();
    return !find_refusal(by.actor, Action::answer, place,
                         {.maker = maker, .names_others = !approvers.empty(), .names_it = named});
  }
};

void add(const OverviewScope& asker, Id maker, OpenQuestion question, Questions& out) {
  question.answers = asker.answers(maker, question.approvers);
  if (question.answers || asker.reads(maker)) out.all.push_back(std::move(question));
}

void take_node(const OverviewScope& asker, const LoadedRun& run, std::uint32_t index, Questions& out) {
  const NodeState& state = run.state.nodes[index];
  const PlanNode& node = run.plan->nodes[index];
  if (state.status >= NodeStatus::completed) return;
  OpenQuestion question;
  question.flow = run.record.id;
  question.flow_name = run.record.name;
  question.node = node.name;
  question.job_key = node_job_key(run, index);
  question.asks = node.text;
  question.approvers = state.approvers;
  question.since_ms = state.since_ms;
  question.until_ms = state.until_ms;
  if (state.detail == "approval" || state.detail == "pause") {
    question.name = node.name;
    question.pause = state.detail == "pause";
    add(asker, run.record.caller_id, std::move(question), out);
    return;
  }
  if (state.detail != "gate") return;
  for (const std::string& gate : state.gates) {
    if (!gate.starts_with(kApproval)) continue;
    question.name = gate.substr(kApproval.size());
    add(asker, run.record.caller_id, question, out);
  }
}

Result<void> check_flows(const OverviewScope& asker, const FlowStores& in, Id after, Questions& out) {
  MJ_TRY(active, in.flows.active(asker.by.context, after, kMaxFlowsBatch));
  for (const Id flow : active) {
    auto run = load_run(in.flows, asker.by.context, flow, in.runs);
    if (!run && run.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(run).error());
    if (!run) continue;  // the definition cannot be read; the view of the flow reports it
    for (std::uint32_t i = 0; i < run->state.nodes.size() && i < run->plan->nodes.size(); ++i)
      take_node(asker, *run, i, out);
    in.runs.cache_run(asker.by.context, flow, std::move(*run));
  }
  if (active.size() == kMaxFlowsBatch) out.after = active.back();
  return {};
}

// Adds the approvals that a job waits for.
void take_job(const OverviewScope& asker, const JobStoreState& places, Questions& out) {
  if (places.claim.state != "prerequisites" || !places.claim.flow.empty()) return;
  const auto list = parse_json(field_of(places.record, "prerequisites"));
  if (!list || !list->is_array()) return;
  for (const auto& each : *list) {
    if (!each.is_string() || !each.get_ref<const std::string&>().starts_with(kApproval)) continue;
    const std::string gate = each.get<std::string>();
    const bool given = std::any_of(places.claim_fields.begin(), places.claim_fields.end(), [&](const auto& field) {
      return field.first == "approved:" + gate.substr(kApproval.size());
    });
    if (given) continue;
    OpenQuestion question;
    question.job_key = places.job_key;
    question.node = field_of(places.record, "name");
    question.name = gate.substr(kApproval.size());
    question.since_ms = places.claim.waiting_since_ms;
    add(asker, caller_of_job(places.job_key), std::move(question), out);
  }
}

Result<void> check_jobs(const OverviewScope& asker, Store& store, Questions& out) {
  JobFilter wanted;
  wanted.status = JobStatus::waiting_for_prerequisites;
  wanted.state = "prerequisite";
  MJ_TRY(slice, page_jobs(store, asker.by.context, wanted, kJobsOutside));
  out.truncated = !slice.after.empty();
  std::vector<std::string> keys;
  for (const JobView& job : slice.jobs) keys.push_back(job.key);
  if (keys.empty()) return {};
  MJ_TRY(places, store.job_states(asker.by.context, keys, false));
  for (const JobStoreState& each : places) take_job(asker, each, out);
  return {};
}

void take_approval(const OverviewScope& asker, const WaitingApproval& waiting, Questions& out) {
  OpenQuestion question;
  question.workflow = waiting.workflow;
  question.key = waiting.key;
  question.name = waiting.intent;
  question.asks = waiting.title;
  question.approvers = waiting.approvers;
  question.since_ms = waiting.since_ms;
  question.until_ms = waiting.until_ms;
  add(asker, waiting.owner, std::move(question), out);
}

Result<void> check_workflows(const OverviewScope& asker, WorkflowStore& deployments, ApprovalCache* cache,
                             Questions& out) {
  MJ_TRY(waiting, waiting_approvals(deployments, asker.by.context, kInstances + 1, cache));
  if (waiting.size() > kInstances) {
    out.truncated = true;
    waiting.pop_back();
  }
  for (const WaitingApproval& each : waiting) take_approval(asker, each, out);
  return {};
}

}  // namespace

Result<Rights> rights(const RequestContext& by, Store& store) {
  if (by.is_operator) return Rights{true, true, true, true, true, true};
  MJ_TRY(place, acl_context_of(by, store));
  const auto may = [&](Action action, Id maker) { return !find_refusal(by.actor, action, place, {.maker = maker}); };
  return Rights{may(Action::create, 0), may(Action::read, 0),         may(Action::read, by.actor),
                may(Action::steer, 0),  may(Action::steer, by.actor), may(Action::administer, 0)};
}

Result<Overview> overview(const RequestContext& by, Store& store) {
  MJ_CHECK(check_permission(by, store, Action::read));
  return mycojobs::overview(store, by.context);
}

Result<VerifyReport> verify(const RequestContext& by, const VerifiedStores& in) {
  MJ_CHECK(check_permission(by, in.records, Action::administer));
  MJ_TRY(report, verify_context(in, by.context, [](std::string_view, std::uint64_t, std::uint64_t) {}));
  MJ_TRY(of_actors, verify_actors(in.records));
  for (Finding& finding : of_actors) report.findings.push_back(std::move(finding));
  return report;
}

Result<std::vector<Check>> doctor(const RequestContext& by, Store& store, FlowStore& flows, bool own_server,
                                  std::uint32_t wait_replicas) {
  MJ_CHECK(check_permission(by, store, Action::administer));
  MJ_TRY(facts, store.facts(own_server ? by.context : 0));
  if (!by.is_operator) facts.used.clear();
  std::vector<Check> checks = examine_server(facts, own_server ? 0 : by.context, wait_replicas);
  for (Check& check : examine_format(store, by.context)) checks.push_back(std::move(check));
  for (Check& check : examine_quota(store, by.context)) checks.push_back(std::move(check));
  MJ_TRY(of_context, examine_context(store, flows, by.context));
  std::move(of_context.begin(), of_context.end(), std::back_inserter(checks));
  return checks;
}

Result<Questions> list_questions(const RequestContext& by, const FlowStores& in, WorkflowStore& deployments, Id after,
                                 ApprovalCache* cache) {
  MJ_TRY(place, acl_context_of(by, in.records));
  const OverviewScope asker{by, std::move(place)};
  Questions out;
  MJ_CHECK(check_flows(asker, in, after, out));
  if (after != 0) return out;
  MJ_CHECK(check_jobs(asker, in.records, out));
  MJ_CHECK(check_workflows(asker, deployments, cache, out));
  return out;
}

}  // namespace mycojobs::service
