#include "progress_stage.h"

#include <algorithm>
#include <set>

#include "flows/flow_run.h"
#include "jobs/state_machines.h"
#include "model/codec.h"

namespace mycojobs {
namespace {

constexpr Id kContext = 1, kCaller = 12;
constexpr std::uint32_t kLeaseMs = 1000;

// All stages share one server in turn, so that the scripts are compiled only once.
struct Hall {
  StageClock clock;
  MemoryServer server{clock};
};
Hall& hall() {
  static Hall the;
  return the;
}

std::string get_text(const Fields& fields, std::string_view name) {
  for (const auto& [field, value] : fields) {
    if (field == name) return value;
  }
  return "";
}

JobEnd make_end(const ClaimedJob& claimed) {
  const std::string script = get_text(claimed.record, "script");
  JobEnd end;
  const bool fails = script == "fail" || (script == "flaky" && claimed.attempt == 1);
  end.status = fails ? JobStatus::error : JobStatus::finished;
  end.detail = fails ? "exit" : "ok";
  if (fails) end.error = "exit code 1";
  const auto equals = script.find('=');
  if (script.starts_with("ok ") && equals != std::string::npos) {
    end.result[script.substr(3, equals - 3)] = script.substr(equals + 1);
  }
  return end;
}

}  // namespace

StageClock& FlowStage::clock() { return hall().clock; }
MemoryServer& FlowStage::server() { return hall().server; }

FlowStage::FlowStage() {
  server().set_faults(nullptr);
  server().restore({});
  clock().now = 1'700'000'000'000;
  flows_ = server().open_flows().value();
  store_ = server().open().value();
  server().set_faults([this](const ServerCall& call) { return choose_fault(call); });
  begin_coordinator();
}

FlowStage::~FlowStage() { server().set_faults(nullptr); }

Fault FlowStage::choose_fault(const ServerCall& call) {
  if (who_ == Who::nobody) return Fault::none;
  if (dead_) return Fault::before;
  // Scripts that could write but do not in these tests; a kill at such a call equals a kill between its neighbours.
  static const std::set<std::string_view> kChecks{"tick", "flow_due", "flow_read", "flow_jobs"};
  if (call.write == 0 || kChecks.contains(call.name)) return Fault::none;
  ++writes_;
  for (const Disturbance& each : disturbances_) {
    if (each.write != writes_) continue;
    dead_ = each.fate == Fate::killed_before || each.fate == Fate::killed_after;
    return each.fate == Fate::killed_before || each.fate == Fate::request_lost ? Fault::before
           : each.fate == Fate::fine                                           ? Fault::none
                                                                               : Fault::after;
  }
  return Fault::none;
}

void FlowStage::begin_coordinator() {
  ContextSettings settings;
  settings.context = kContext;
  settings.instance = "coordinator" + std::to_string(++coordinators_);
  settings.lease_ms = kLeaseMs;
  coordinator_ = std::make_unique<ContextLoop>(server().open_flows().value(), server().open().value(), clock(),
                                               std::move(settings));
}

void FlowStage::request_run(const std::string& name, const std::string& yaml) {
  auto plan = std::make_shared<FlowPlan>(plan_of_yaml(yaml));
  ask({[this, name, plan](FlowStore& flows) -> Result<void> {
    NewFlow asked;
    asked.context = kContext;
    asked.caller = kCaller;
    asked.idempotency_key = name;
    MJ_TRY(made, create_flow(flows, *plan, asked));
    flows_by_name_[name] = made.id;
    RunCache own;
    ProgressRequest request;
    request.context = kContext;
    request.flow = made.id;
    request.start = StartRun{"manual", kCaller};
    MJ_CHECK(advance_run(flows, own, request));
    return {};
  }});
}

void FlowStage::request_control(const std::string& name, FlowControl control, std::function<bool()> when) {
  control.actor = kCaller;
  if (control.key.empty()) control.key = "key" + std::to_string(requests_.size());
  ask({[this, name, control](FlowStore& flows) -> Result<void> {
         RunCache own;
         ProgressRequest request;
         request.context = kContext;
         request.flow = flow(name);
         request.control = control;
         MJ_CHECK(advance_run(flows, own, request));
         return {};
       },
       std::move(when)});
}

void FlowStage::client_step() {
  if (requests_.empty() || (requests_.front().when && !requests_.front().when())) return;
  // Cleared before the call: the call may change the condition although its reply is lost.
  requests_.front().when = nullptr;
  if (!client_flows_) client_flows_ = server().open_flows().value();
  who_ = Who::client;
  const auto done = requests_.front().call(*client_flows_);
  who_ = Who::nobody;
  if (done) {
    requests_.pop_front();
  } else if (done.error().code != Code::unavailable) {
    ADD_FAILURE() << "a client: " << done.error().message;
    requests_.pop_front();
  }
  if (std::exchange(dead_, false)) client_flows_.reset();
}

void FlowStage::coordinator_step() {
  who_ = Who::coordinator;
  for (int i = 0; i < 10; ++i) {
    const auto next = coordinator_->run_round();
    if (!next || *next > 0) break;
  }
  who_ = Who::nobody;
  if (std::exchange(dead_, false)) begin_coordinator();
}

void FlowStage::coordinate(int rounds) {
  for (int i = 0; i < rounds; ++i) {
    const auto next = coordinator_->run_round();
    ASSERT_TRUE(next) << next.error().message;
  }
}

void FlowStage::run_jobs() {
  std::vector<ClaimedJob> still;
  for (ClaimedJob& claimed : running_) {
    const std::vector<ClaimRef> refs{claimed.ref};
    const auto renewed = store_->renew(kContext, refs, 1U << 30).value().at(0);
    JobEnd end = make_end(claimed);
    if (renewed == Renewal::cancel) {
      end = {};
      end.status = JobStatus::error;
      end.detail = "cancelled";
      end.error = "somebody wanted it cancelled";
    } else if (get_text(claimed.record, "script") == "hold") {
      still.push_back(std::move(claimed));
      continue;
    }
    const std::vector<Report> reports{EndReport{claimed.ref, std::move(end)}};
    const auto done = store_->report(kContext, reports).value().at(0);
    if (!done) ADD_FAILURE() << claimed.ref.job_key << ": " << done.error().message;
  }
  running_ = std::move(still);
  ClaimRequest request;
  request.context = kContext;
  request.runner = 1;
  request.instance = "runner";
  request.queues = {"queue:python"};
  request.max_jobs = 64;
  request.lease_ms = 1U << 30;
  ClaimReply claimed = store_->claim(request).value();
  for (const ClaimedJob& each : claimed.jobs) ++claims_[each.ref.job_key];
  std::move(claimed.jobs.begin(), claimed.jobs.end(), std::back_inserter(running_));
}

bool FlowStage::play(int rounds) {
  for (int i = 0; i < rounds; ++i) {
    client_step();
    coordinator_step();
    run_jobs();
    clock().now += 20;
    if (!requests_.empty() || !running_.empty()) continue;
    // Ends when no flow is active and no job is queued.
    if (flows_->active_flows(kContext, 0, 10).value().empty() &&
        store_->queue_length(kContext, "queue:python").value() == 0)
      return true;
  }
  return false;
}

Fields FlowStage::record(const std::string& name) {
  return store_->load(kContext, "flow:" + std::to_string(flow(name))).value_or(Fields());
}
std::string FlowStage::field(const std::string& name, const std::string& field) {
  return get_text(record(name), field);
}
LoadedRun FlowStage::run(const std::string& name) {
  RunCache own;
  auto loaded = load_run(*flows_, kContext, flow(name), own);
  if (!loaded) throw std::runtime_error(loaded.error().message);
  return std::move(*loaded);
}
std::string FlowStage::describe_node(const std::string& name, const std::string& node) {
  const LoadedRun loaded = run(name);
  const NodeState& at = loaded.state.nodes.at(loaded.plan->find(node).value());
  return std::string(to_string(at.status)) + " " + at.detail;
}
std::string FlowStage::find_job_key(const std::string& name, const std::string& node) {
  const LoadedRun loaded = run(name);
  return node_job_key(loaded, loaded.plan->find(node).value());
}
bool FlowStage::running(const std::string& name, const std::string& node) {
  if (!known(name)) return false;
  const std::string key = find_job_key(name, node);
  return std::any_of(running_.begin(), running_.end(), [&](const ClaimedJob& each) { return each.ref.job_key == key; });
}
std::string FlowStage::run_command(const std::vector<std::string>& words) {
  return std::string(server().run_command(kContext, words).text());
}

Result<FlowProgress> FlowStage::progress_flow(const std::string& name, ProgressRequest request) {
  request.context = kContext;
  request.flow = flow(name);
  return advance_run(*flows_, cache, request);
}

std::string FlowStage::outcome() {
  std::string out;
  const auto list1 = store_->keys(kContext, "flow:", 1000).value();
  for (const std::string& key : list1) {
    const Fields fields = store_->load(kContext, key).value();
    if (get_text(fields, "detail") == "creating") continue;  // left by a killed creator, which created another flow
    out += key + " of " + get_text(fields, "parent") + ": " + get_text(fields, "status") + " " +
           get_text(fields, "detail") + " " + get_text(fields, "result") + "\n";
  }
  // The jobs are listed by name, since a call without a reply may have consumed ids.
  std::set<std::string> jobs;
  const auto keys = store_->keys(kContext, "job:", 1000).value();
  for (const std::string& key : keys) {
    const Fields fields = store_->load(kContext, key).value();
    jobs.insert("flow " + get_text(fields, "flow_id") + " " + get_text(fields, "name") + ": " +
                get_text(fields, "status") + " " + get_text(fields, "detail") + " claimed " +
                std::to_string(claims_[key]) + " attempt " + get_text(fields, "attempt") + " " +
                get_text(fields, "result") + "\n");
  }
  for (const std::string& each : jobs) out += each;
  return out;
}

std::vector<std::string> FlowStage::find_violations() {
  std::vector<std::string> all;
  const auto list3 = store_->anomalies(kContext, 100).value();
  for (const std::string& line : list3) all.push_back("anomaly: " + line);
  const auto list4 = store_->keys(kContext, "flow:", 1000).value();
  for (const std::string& key : list4) {
    RunCache own;
    const Id id = static_cast<Id>(std::stoul(key.substr(5)));
    const auto loaded = load_run(*flows_, kContext, id, own);
    if (!loaded) {
      all.push_back(key + ": " + loaded.error().message);
      continue;
    }
    for (const std::string& line : loaded->anomalies) all.push_back(key + ": " + line);
    for (const std::string& line : loaded->state.anomalies) all.push_back(key + ": " + line);
    const Fields fields = store_->load(kContext, key).value();
    if (get_text(fields, "status") != to_string(loaded->state.status) ||
        get_text(fields, "detail") != loaded->state.detail)
      all.push_back(key + ": its record says " + get_text(fields, "status") + " " + get_text(fields, "detail") +
                    ", its journal " + std::string(to_string(loaded->state.status)) + " " + loaded->state.detail);
    if (get_text(fields, "nodes") != flow_nodes_json(*loaded)) all.push_back(key + ": its nodes stand otherwise");
    // The journal alone must yield the same state as journal and checkpoint together.
    RunState folded = initial_state(*loaded->plan);
    std::uint64_t at = 0;
    std::map<std::string, int> settled;
    for (bool more = true; more;) {
      const FlowReadResult read = flows_->read(kContext, id, at).value();
      for (const RunFact& fact : read.facts) fold(*loaded->plan, folded, fact), at = fact.revision;
      more = read.has_more;
    }
    if (describe(*loaded->plan, folded) != describe(*loaded->plan, loaded->state))
      all.push_back(key + ": the journal alone tells another story than its checkpoint");
  }
  return all;
}

}  // namespace mycojobs
