// The random operations of a life: requests of clients, and events of the system such as kills and clock jumps.
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

#include "flows/flow_creation.h"
#include "flows/flow_progress.h"
#include "life.h"
#include "model/codec.h"
#include "support/queue_pause.h"

namespace mycojobs::sim {
namespace {

constexpr Id kFlowCaller = 13;  // a caller whose jobs all belong to flows
constexpr std::array kQueueNames{"queue:sim", "queue:other"};

}  // namespace

const std::vector<Life::RandomOperation>& Life::random_operations() {
  static const std::vector<RandomOperation> all{
      {30, &Life::submit},
      {8, &Life::submit_group},
      {8, &Life::push_without_submit},
      {3, &Life::push_duplicate_entry},
      {3, &Life::overwrite_status},
      {3, &Life::push_before_record},
      {8, &Life::cancel},
      {4, &Life::requeue},
      {3, &Life::settle_dead_letter},
      {1, &Life::purge_queue},
      {4, &Life::send_message},
      {3, &Life::pause_queue},
      {8, &Life::start_flow},
      {2, &Life::cancel_flow},
      {4, &Life::kill_coordinator},
      {6, &Life::kill_agent},
      {6, &Life::stop_agent},
      {2, &Life::drain_agent},
      {2, &Life::restart_server},
      {3, &Life::move_host_clock},
      {2, &Life::move_server_clock},
      {2, &Life::fail_launches},
  };
  return all;
}

void Life::enqueue_request(const std::string& description, std::function<Result<void>(Store&)> call) {
  pick_client().enqueue({description, std::move(call)});
}

Job Life::make_random_job(Id id) {
  static constexpr std::array kKinds{"ok", "ok", "ok", "lines", "fail", "flaky", "lost", "stubborn", "poison"};
  const char* kind = kKinds[world().random_below(kKinds.size())];
  const Ms duration_ms = random_one_in(6) ? world().random_below(3ULL * lease_ms_) : world().random_below(400);
  Job job = Stage::job(id, std::string(kind) + ' ' + std::to_string(duration_ms));
  if (random_one_in(4)) job.script_type = "other";
  if (random_one_in(3)) job.retries = static_cast<std::uint8_t>(world().random_below(4));
  if (random_one_in(4)) job.priority = static_cast<std::int32_t>(world().random_below(11)) - 5;
  if (random_one_in(5)) job.run_at_ms = world().server_clock().unix_ms() + world().random_below(5000);
  if (random_one_in(4)) job.concurrency_key = random_one_in(2) ? "db" : "disk";
  if (!job.concurrency_key.empty() && random_one_in(2)) job.concurrency_limit = 2;
  if (random_one_in(8)) job.queue_timeout_ms = 1 + world().random_below(5000);
  if (random_one_in(8)) job.prerequisites = {random_one_in(4) ? "nonsense" : "wait:2s"};
  if (id > 3 && random_one_in(3)) job.dependends = {static_cast<Id>(1 + world().random_below(id - 1))};
  if (random_one_in(30)) job.dependends.push_back(900000 + id);  // never created
  if (random_one_in(40)) job.dependends.push_back(id + 1);       // may form a cycle
  if (random_one_in(4)) job.idempotency_key = "key " + std::to_string(id);
  return job;
}

void Life::submit() {
  const Job job = make_random_job(++last_id_);
  enqueue_request("submits " + std::to_string(job.id) + " (" + job.script + ")", [job](Store& store) -> Result<void> {
    MJ_CHECK(store.submit(job));
    return {};
  });
}

// Submits jobs that depend on each other, the last job first.
void Life::submit_group() {
  const Id size = static_cast<Id>(2 + world().random_below(3));
  last_id_ += size;
  for (Id i = 0; i < size; ++i) {
    Job job = Stage::job(last_id_ - i, random_one_in(6) ? "fail 30" : "ok 30");
    for (Id dep = last_id_ - size + 1; dep < job.id; ++dep) job.dependends.push_back(dep);
    enqueue_request("submits " + std::to_string(job.id) + " of a group", [job](Store& store) -> Result<void> {
      MJ_CHECK(store.submit(job));
      return {};
    });
  }
}

void Life::push_without_submit() {
  Job job = make_random_job(++last_id_);
  job.idempotency_key.clear();
  stage_.push(job);
}

void Life::push_before_record() {
  Job job = make_random_job(++last_id_);
  job.idempotency_key.clear();
  const std::string key = redis_key(job);
  world().server().push(kContext, queue_key(job.script_type), key);
  world().note("  a plain client pushes " + key + ", its record will follow");
  if (random_one_in(4)) return;
  world().schedule(world().now() + world().random_below(4000), [this, job, key] {
    std::vector<std::string> words{"HSET", key};
    for (const auto& [name, value] : encode(job)) words.insert(words.end(), {name, value});
    world().server().run_command(kContext, words);
    // The first entry was consumed before the record existed, so the job is pushed again.
    world().server().push(kContext, queue_key(job.script_type), key);
  });
}

std::string Life::pick_job_key() {
  return make_job_key(static_cast<Id>(1 + world().random_below(std::max<Id>(last_id_, 1))));
}

void Life::push_duplicate_entry() {
  const std::string key = pick_job_key();
  world().note("  a plain client pushes " + key + " again");
  world().server().push(kContext, kQueueNames[world().random_below(2)], key);
}

void Life::overwrite_status() {
  static constexpr std::array kStatuses{"finished", "error", "dispatched", "nonsense"};
  const std::string key = pick_job_key();
  // The record of an unclaimed job is authoritative, so it is not overwritten.
  if (stage_.get_job_state(key).claim.state.empty()) return;
  const char* status = kStatuses[world().random_below(kStatuses.size())];
  world().note("  a plain client sets the status of " + key + " to " + status);
  world().server().run_command(kContext, {"HSET", key, "status", status});
}

void Life::cancel() {
  const std::string key = pick_job_key();
  enqueue_request("cancels " + key, [key](Store& store) { return store.cancel(kContext, key); });
}

void Life::requeue() {
  const std::string key = pick_job_key();
  enqueue_request("requeues " + key, [key](Store& store) { return store.requeue(kContext, key); });
}

void Life::settle_dead_letter() {
  const bool run_again = random_one_in(2);
  enqueue_request(run_again ? "runs a dead letter again" : "drops a dead letter",
                  [run_again](Store& store) -> Result<void> {
                    MJ_TRY(letters, store.dead_letters(kContext, 1));
                    if (letters.empty()) return {};
                    return store.resolve_dead_letter(kContext, letters.front().id, run_again);
                  });
}

void Life::purge_queue() {
  const auto max = static_cast<std::uint32_t>(1 + world().random_below(5));
  enqueue_request("purges", [max](Store& store) -> Result<void> {
    MJ_CHECK(store.purge_queue(kContext, "queue:sim", max));
    return {};
  });
}

void Life::send_message() {
  Message message;
  message.id = ++last_id_;  // also the id of a job that will not exist
  message.caller_id = 12;
  message.context_id = kContext;
  const std::uint64_t size = 1 + world().random_below(3);
  for (std::uint64_t i = 0; i < size; ++i) {
    Job job = Stage::job(++last_id_, random_one_in(4) ? "fail 20" : "ok 20");
    if (random_one_in(4)) stage_.push(job);  // the job exists already, or will exist
    message.job.push_back(job);
  }
  const std::string topic = pick_service().settings().runner.topic;
  enqueue_request("sends a message to " + topic, [message, topic](Store& store) {
    return store.send_to_topic(kContext, topic, redis_key(message), encode(message));
  });
}

// Returns a flow with a few nodes, each after some of the earlier nodes; some continue after a failure.
FlowPlan Life::make_random_plan(const std::string& name) {
  static constexpr std::array kKinds{"ok", "ok", "ok", "fail", "flaky", "lines", "lost"};
  nlohmann::json nodes;
  const std::uint64_t size = 1 + world().random_below(4);
  for (std::uint64_t i = 0; i < size; ++i) {
    nlohmann::json node{{"type", random_one_in(4) ? "other" : "sim"},
                        {"script", std::string(kKinds[world().random_below(kKinds.size())]) + " 30"}};
    for (std::uint64_t before = 0; before < i; ++before)
      if (random_one_in(2)) node["needs"].push_back("n" + std::to_string(before));
    if (random_one_in(3)) node["retries"] = world().random_below(3);
    if (random_one_in(3)) node["on_error"] = "continue";
    nodes["n" + std::to_string(i)] = std::move(node);
  }
  return read_plan({{"name", name}, {"jobs", std::move(nodes)}}).plan.value();
}

void Life::start_flow() {
  if (coordinators_.empty()) return;
  const std::string name = "flow" + std::to_string(++requested_flows_);
  Client& client = pick_client();
  client.enqueue({"starts " + name, [this, &client, name, plan = make_random_plan(name)](Store&) -> Result<void> {
                    NewFlow new_flow;
                    new_flow.context = kContext;
                    new_flow.caller = kFlowCaller;
                    new_flow.idempotency_key = name;
                    MJ_TRY(created, create_flow(client.flows(), plan, new_flow));
                    RunCache cache;
                    ProgressRequest request;
                    request.context = kContext;
                    request.flow = created.id;
                    request.start = StartRun{"manual", kFlowCaller};
                    MJ_CHECK(advance_run(client.flows(), cache, request));
                    flows_[name] = created.id;
                    return {};
                  }});
}

void Life::cancel_flow() {
  if (flows_.empty()) return;
  const auto flow_entry = std::next(flows_.begin(), static_cast<std::ptrdiff_t>(world().random_below(flows_.size())));
  Client& client = pick_client();
  client.enqueue({"cancels " + flow_entry->first, [&client, flow = flow_entry->second](Store&) -> Result<void> {
                    RunCache cache;
                    FlowControl cancel;
                    cancel.verb = FlowControl::Verb::cancel;
                    cancel.actor = kFlowCaller;
                    cancel.key = "cancel " + std::to_string(flow);
                    ProgressRequest request;
                    request.context = kContext;
                    request.flow = flow;
                    request.control = cancel;
                    MJ_CHECK(advance_run(client.flows(), cache, request));
                    return {};
                  }});
}

void Life::kill_coordinator() {
  if (coordinators_.empty()) return;
  ++report_.kills;
  world().kill(*coordinators_[world().random_below(coordinators_.size())]);
}

void Life::pause_queue() {
  const bool pause = random_one_in(2);
  const std::string queue = kQueueNames[world().random_below(2)];
  clients_[0]->enqueue({(pause ? "pauses " : "resumes ") + queue, [queue, pause](Store& store) {
                          return test::set_queue_paused(store, kContext, queue, pause);
                        }});
}

void Life::kill_agent() {
  SimAgent* agent = pick_service().agent();
  if (agent == nullptr) return;
  ++report_.kills;
  world().kill(*agent);
}

void Life::stop_agent() {
  SimAgent* agent = pick_service().agent();
  if (agent == nullptr) return;
  ++report_.stops;
  world().stop(*agent, world().random_below(4ULL * lease_ms_));
}

void Life::drain_agent() {
  if (SimAgent* agent = pick_service().agent()) agent->drain();
}

void Life::restart_server() {
  ++report_.restarts;
  world().restart_server(world().random_below(2ULL * lease_ms_));
}

void Life::move_host_clock() {
  ++report_.jumps;
  pick_service().host().clock.shift_ms = static_cast<std::int64_t>(world().random_below(1200000)) - 600000;
}

void Life::move_server_clock() {
  ++report_.jumps;
  std::int64_t& shift = world().server_clock().shift_ms;
  shift += static_cast<std::int64_t>(world().random_below(240000)) - 120000;
  max_shift_ms_ = std::max(max_shift_ms_, shift);
  world().note("the server's clock is " + std::to_string(shift) + " ms off");
}

void Life::fail_launches() {
  Host& host = pick_service().host();
  (random_one_in(2) ? host.failing_launches : host.hanging_launches) =
      static_cast<std::uint32_t>(1 + world().random_below(3));
}

}  // namespace mycojobs::sim
