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
constexpr std::size_t kMaxStandaloneJobs = 200;
constexpr std::size_t kMaxApprovals = 200;
constexpr std::string_view kApprovalPrefix = "approval:";

// The caller and its rights to resources of other actors.
struct CallerRights {
  const RequestContext& caller;
  AclContext acl;

  bool can_read(Id owner) const {
    return caller.is_operator || !find_refusal(caller.actor, Action::read, acl, {.creator = owner});
  }
  bool can_answer(Id owner, const std::vector<Id>& approvers) const {
    if (caller.is_operator) return true;
    const bool is_approver = std::find(approvers.begin(), approvers.end(), caller.actor) != approvers.end();
    return !find_refusal(caller.actor, Action::answer, acl,
                         {.creator = owner, .names_actors = !approvers.empty(), .names_caller = is_approver});
  }
};

void add_question(const CallerRights& viewer, Id owner, OpenQuestion question, Questions& out) {
  question.can_answer = viewer.can_answer(owner, question.approvers);
  if (question.can_answer || viewer.can_read(owner)) out.questions.push_back(std::move(question));
}

void add_node_questions(const CallerRights& viewer, const LoadedRun& run, std::uint32_t index, Questions& out) {
  const NodeState& state = run.state.nodes[index];
  const PlanNode& node = run.plan->nodes[index];
  if (state.status >= NodeStatus::completed) return;
  OpenQuestion question;
  question.flow = run.record.id;
  question.flow_name = run.record.name;
  question.node = node.name;
  question.job_key = node_job_key(run, index);
  question.text = node.text;
  question.approvers = state.approvers;
  question.since_ms = state.since_ms;
  question.until_ms = state.until_ms;
  if (state.detail == "approval" || state.detail == "pause") {
    question.name = node.name;
    question.is_pause = state.detail == "pause";
    add_question(viewer, run.record.caller_id, std::move(question), out);
    return;
  }
  if (state.detail != "gate") return;
  for (const std::string& gate : state.gates) {
    if (!gate.starts_with(kApprovalPrefix)) continue;
    question.name = gate.substr(kApprovalPrefix.size());
    add_question(viewer, run.record.caller_id, question, out);
  }
}

Result<void> add_flow_questions(const CallerRights& viewer, const FlowStores& stores, Id after, Questions& out) {
  MJ_TRY(active, stores.flows.active_flows(viewer.caller.context, after, kMaxFlowsBatch));
  for (const Id flow : active) {
    auto run = load_run(stores.flows, viewer.caller.context, flow, stores.runs);
    if (!run && run.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(run).error());
    if (!run) continue;  // the definition cannot be read; the view of the flow reports it
    for (std::uint32_t i = 0; i < run->state.nodes.size() && i < run->plan->nodes.size(); ++i)
      add_node_questions(viewer, *run, i, out);
    stores.runs.cache_run(viewer.caller.context, flow, std::move(*run));
  }
  if (active.size() == kMaxFlowsBatch) out.after = active.back();
  return {};
}

// Adds the approvals that a job waits for.
void add_job_approvals(const CallerRights& viewer, const JobStoreState& job, Questions& out) {
  if (job.claim.state != kJobStatePrerequisites || !job.claim.flow.empty()) return;
  const auto list = parse_json(field_of(job.record, "prerequisites"));
  if (!list || !list->is_array()) return;
  for (const auto& entry : *list) {
    if (!entry.is_string() || !entry.get_ref<const std::string&>().starts_with(kApprovalPrefix)) continue;
    const std::string gate = entry.get<std::string>();
    const bool is_answered = std::any_of(job.claim_fields.begin(), job.claim_fields.end(), [&](const auto& field) {
      return field.first == "approved:" + gate.substr(kApprovalPrefix.size());
    });
    if (is_answered) continue;
    OpenQuestion question;
    question.job_key = job.job_key;
    question.node = field_of(job.record, "name");
    question.name = gate.substr(kApprovalPrefix.size());
    question.since_ms = job.claim.waiting_since_ms;
    add_question(viewer, parse_job_caller(job.job_key), std::move(question), out);
  }
}

Result<void> add_standalone_job_questions(const CallerRights& viewer, Store& store, Questions& out) {
  JobFilter filter;
  filter.status = JobStatus::waiting_for_prerequisites;
  filter.state = kParkReasonPrerequisite;
  MJ_TRY(page, page_jobs(store, viewer.caller.context, filter, kMaxStandaloneJobs));
  out.truncated = !page.after.empty();
  std::vector<std::string> keys;
  for (const JobView& view : page.jobs) keys.push_back(view.key);
  if (keys.empty()) return {};
  MJ_TRY(states, store.job_states(viewer.caller.context, keys, false));
  for (const JobStoreState& state : states) add_job_approvals(viewer, state, out);
  return {};
}

void add_instance_approval(const CallerRights& viewer, const WaitingApproval& approval, Questions& out) {
  OpenQuestion question;
  question.workflow = approval.workflow;
  question.key = approval.key;
  question.name = approval.intent;
  question.text = approval.title;
  question.approvers = approval.approvers;
  question.since_ms = approval.since_ms;
  question.until_ms = approval.until_ms;
  add_question(viewer, approval.owner, std::move(question), out);
}

Result<void> add_workflow_questions(const CallerRights& viewer, WorkflowStore& deployments, ApprovalCache* cache,
                                    Questions& out) {
  MJ_TRY(approvals, list_waiting_approvals(deployments, viewer.caller.context, kMaxApprovals + 1, cache));
  if (approvals.size() > kMaxApprovals) {
    out.truncated = true;
    approvals.pop_back();
  }
  for (const WaitingApproval& approval : approvals) add_instance_approval(viewer, approval, out);
  return {};
}

}  // namespace

Result<Rights> get_rights(const RequestContext& caller, Store& store) {
  if (caller.is_operator) return Rights{true, true, true, true, true, true};
  MJ_TRY(acl, load_acl_context(caller, store));
  const auto is_permitted = [&](Action action, Id owner) {
    return !find_refusal(caller.actor, action, acl, {.creator = owner});
  };
  return Rights{is_permitted(Action::create, 0),           is_permitted(Action::read, 0),
                is_permitted(Action::read, caller.actor),  is_permitted(Action::steer, 0),
                is_permitted(Action::steer, caller.actor), is_permitted(Action::administer, 0)};
}

Result<Overview> read_overview(const RequestContext& caller, Store& store) {
  MJ_CHECK(check_permission(caller, store, Action::read));
  return mycojobs::read_overview(store, caller.context);
}

Result<VerifyReport> verify(const RequestContext& caller, const VerifiedStores& stores) {
  MJ_CHECK(check_permission(caller, stores.records, Action::administer));
  MJ_TRY(report, verify_context(stores, caller.context, [](std::string_view, std::uint64_t, std::uint64_t) {}));
  MJ_TRY(actor_findings, verify_actors(stores.records));
  for (Finding& finding : actor_findings) report.findings.push_back(std::move(finding));
  return report;
}

Result<std::vector<Check>> run_doctor(const RequestContext& caller, Store& store, FlowStore& flows, bool own_server,
                                      std::uint32_t wait_replicas) {
  MJ_CHECK(check_permission(caller, store, Action::administer));
  MJ_TRY(server_info, store.server_info(own_server ? caller.context : 0));
  if (!caller.is_operator) server_info.used_databases.clear();
  std::vector<Check> checks = diagnose_server(server_info, own_server ? 0 : caller.context, wait_replicas);
  for (Check& check : diagnose_format(store, caller.context)) checks.push_back(std::move(check));
  for (Check& check : diagnose_quota(store, caller.context)) checks.push_back(std::move(check));
  MJ_TRY(context_checks, diagnose_context(store, flows, caller.context));
  std::move(context_checks.begin(), context_checks.end(), std::back_inserter(checks));
  return checks;
}

Result<Questions> list_questions(const RequestContext& caller, const FlowStores& stores, WorkflowStore& deployments,
                                 Id after, ApprovalCache* cache) {
  MJ_TRY(acl, load_acl_context(caller, stores.records));
  const CallerRights viewer{caller, std::move(acl)};
  Questions out;
  MJ_CHECK(add_flow_questions(viewer, stores, after, out));
  if (after != 0) return out;
  MJ_CHECK(add_standalone_job_questions(viewer, stores.records, out));
  MJ_CHECK(add_workflow_questions(viewer, deployments, cache, out));
  return out;
}

}  // namespace mycojobs::service
