// The events of a random life.
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
      {30, &Life::submit},        {8, &Life::submit_group},    {8, &Life::push_plainly},
      {3, &Life::push_twice},     {3, &Life::overwrite},       {3, &Life::push_before_the_record},
      {8, &Life::cancel},         {4, &Life::requeue},         {3, &Life::settle_dead_letter},
      {1, &Life::purge},          {4, &Life::send_message},    {3, &Life::pause_queue},
      {8, &Life::start_flow},     {2, &Life::cancel_flow},     {4, &Life::kill_coordinator},
      {6, &Life::kill_agent},     {6, &Life::stop_agent},      {2, &Life::drain_agent},
      {2, &Life::restart_server}, {3, &Life::move_host_clock}, {2, &Life::move_server_clock},
      {2, &Life::fail_launches},
  };
  return all;
}

void Life::ask(const std::string& what, std::function<Result<void>(Store&)> call) {
  any_client().ask({what, std::move(call)});
}

Job Life::any_job(Id id) {
  static constexpr std::array kKinds{"ok", "ok", "ok", "lines", "fail", "flaky", "lost", "stubborn", "poison"};
  const char* kind = kKinds[world().below(kKinds.size())];
  const Ms takes = maybe(6) ? world().below(3ULL * lease_ms_) : world().below(400);
  Job job = Stage::job(id, std::string(kind) + ' ' + std::to_string(takes));
  if (maybe(4)) job.script_type = "other";
  if (maybe(3)) job.retries = static_cast<std::uint8_t>(world().below(4));
  if (maybe(4)) job.priority = static_cast<std::int32_t>(world().below(11)) - 5;
  if (maybe(5)) job.run_at_ms = world().server_clock().unix_ms() + world().below(5000);
  if (maybe(4)) job.concurrency_key = maybe(2) ? "db" : "disk";
  if (!job.concurrency_key.empty() && maybe(2)) job.concurrency_limit = 2;
  if (maybe(8)) job.queue_timeout_ms = 1 + world().below(5000);
  if (maybe(8)) job.prerequisites = {maybe(4) ? "nonsense" : "wait:2s"};
  if (id > 3 && maybe(3)) job.dependends = {static_cast<Id>(1 + world().below(id - 1))};
  if (maybe(30)) job.dependends.push_back(900000 + id);  // never created
  if (maybe(40)) job.dependends.push_back(id + 1);       // may form a cycle
  if (maybe(4)) job.idempotency_key = "key " + std::to_string(id);
  return job;
}

void Life::submit() {
  const Job job = any_job(++last_id_);
  ask("submits " + std::to_string(job.id) + " (" + job.script + ")", [job](Store& store) -> Result<void> {
    MJ_CHECK(store.submit(job));
    return {};
  });
}

// Submits jobs that depend on each other, the last job first.
void Life::submit_group() {
  const Id size = static_cast<Id>(2 + world().below(3));
  last_id_ += size;
  for (Id i = 0; i < size; ++i) {
    Job job = Stage::job(last_id_ - i, maybe(6) ? "fail 30" : "ok 30");
    for (Id dep = last_id_ - size + 1; dep < job.id; ++dep) job.dependends.push_back(dep);
    ask("submits " + std::to_string(job.id) + " of a group", [job](Store& store) -> Result<void> {
      MJ_CHECK(store.submit(job));
      return {};
    });
  }
}

void Life::push_plainly() {
  Job job = any_job(++last_id_);
  job.idempotency_key.clear();
  stage_.push(job);
}

void Life::push_before_the_record() {
  Job job = any_job(++last_id_);
  job.idempotency_key.clear();
  const std::string key = redis_key(job);
  world().server().push(kContext, queue_key(job.script_type), key);
  world().note("  a plain client pushes " + key + ", its record will follow");
  if (maybe(4)) return;
  world().at(world().now() + world().below(4000), [this, job, key] {
    std::vector<std::string> words{"HSET", key};
    for (const auto& [name, value] : encode(job)) words.insert(words.end(), {name, value});
    world().server().run_command(kContext, words);
    // The first entry was consumed before the record existed, so the job is pushed again.
    world().server().push(kContext, queue_key(job.script_type), key);
  });
}

std::string Life::any_key() { return make_job_key(static_cast<Id>(1 + world().below(std::max<Id>(last_id_, 1)))); }

void Life::push_twice() {
  const std::string key = any_key();
  world().note("  a plain client pushes " + key + " again");
  world().server().push(kContext, kQueueNames[world().below(2)], key);
}

void Life::overwrite() {
  static constexpr std::array kWords{"finished", "error", "dispatched", "nonsense"};
  const std::string key = any_key();
  // The record of an unclaimed job is authoritative, so it is not overwritten.
  if (stage_.place(key).claim.state.empty()) return;
  const char* status = kWords[world().below(kWords.size())];
  world().note("  a plain client sets the status of " + key + " to " + status);
  world().server().run_command(kContext, {"HSET", key, "status", status});
}

void Life::cancel() {
  const std::string key = any_key();
  ask("cancels " + key, [key](Store& store) { return store.cancel(kContext, key); });
}

void Life::requeue() {
  const std::string key = any_key();
  ask("requeues " + key, [key](Store& store) { return store.requeue(kContext, key); });
}

void Life::settle_dead_letter() {
  const bool again = maybe(2);
  ask(again ? "runs a dead letter again" : "drops a dead letter", [again](Store& store) -> Result<void> {
    MJ_TRY(letters, store.dead_letters(kContext, 1));
    if (letters.empty()) return {};
    return store.resolve_dead_letter(kContext, letters.front().id, again);
  });
}

void Life::purge() {
  const auto max = static_cast<std::uint32_t>(1 + world().below(5));
  ask("purges", [max](Store& store) -> Result<void> {
    MJ_CHECK(store.purge_queue(kContext, "queue:sim", max));
    return {};
  });
}

void Life::send_message() {
  Message message;
  message.id = ++last_id_;  // also the id of a job that will not exist
  message.caller_id = 12;
  message.context_id = kContext;
  const std::uint64_t size = 1 + world().below(3);
  for (std::uint64_t i = 0; i < size; ++i) {
    Job job = Stage::job(++last_id_, maybe(4) ? "fail 20" : "ok 20");
    if (maybe(4)) stage_.push(job);  // the job exists already, or will exist
    message.job.push_back(job);
  }
  const std::string topic = any_service().settings().runner.topic;
  ask("sends a message to " + topic, [message, topic](Store& store) {
    return store.send_to_topic(kContext, topic, redis_key(message), encode(message));
  });
}

// Returns a flow with a few nodes, each after some of the earlier nodes; some continue after a failure.
FlowPlan Life::any_plan(const std::string& name) {
  static constexpr std::array kKinds{"ok", "ok", "ok", "fail", "flaky", "lines", "lost"};
  nlohmann::json nodes;
  const std::uint64_t size = 1 + world().below(4);
  for (std::uint64_t i = 0; i < size; ++i) {
    nlohmann::json node{{"type", maybe(4) ? "other" : "sim"},
                        {"script", std::string(kKinds[world().below(kKinds.size())]) + " 30"}};
    for (std::uint64_t before = 0; before < i; ++before)
      if (maybe(2)) node["needs"].push_back("n" + std::to_string(before));
    if (maybe(3)) node["retries"] = world().below(3);
    if (maybe(3)) node["on_error"] = "continue";
    nodes["n" + std::to_string(i)] = std::move(node);
  }
  return read_plan({{"name", name}, {"jobs", std::move(nodes)}}).plan.value();
}

void Life::start_flow() {
  if (coordinators_.empty()) return;
  const std::string name = "flow" + std::to_string(++requested_flows_);
  Client& client = any_client();
  client.ask({"starts " + name, [this, &client, name, plan = any_plan(name)](Store&) -> Result<void> {
                NewFlow asked;
                asked.context = kContext;
                asked.caller = kFlowCaller;
                asked.idempotency_key = name;
                MJ_TRY(made, create_flow(client.flows(), plan, asked));
                RunCache cache;
                ProgressRequest request;
                request.context = kContext;
                request.flow = made.id;
                request.start = StartRun{"manual", kFlowCaller};
                MJ_CHECK(advance_run(client.flows(), cache, request));
                flows_[name] = made.id;
                return {};
              }});
}

void Life::cancel_flow() {
  if (flows_.empty()) return;
  const auto any = std::next(flows_.begin(), static_cast<std::ptrdiff_t>(world().below(flows_.size())));
  Client& client = any_client();
  client.ask({"cancels " + any->first, [&client, flow = any->second](Store&) -> Result<void> {
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
  world().kill(*coordinators_[world().below(coordinators_.size())]);
}

void Life::pause_queue() {
  const bool paused = maybe(2);
  const std::string queue = kQueueNames[world().below(2)];
  clients_[0]->ask({(paused ? "pauses " : "resumes ") + queue,
                    [queue, paused](Store& store) { return test::set_queue_paused(store, kContext, queue, paused); }});
}

void Life::kill_agent() {
  SimAgent* agent = any_service().agent();
  if (agent == nullptr) return;
  ++report_.kills;
  world().kill(*agent);
}

void Life::stop_agent() {
  SimAgent* agent = any_service().agent();
  if (agent == nullptr) return;
  ++report_.stops;
  world().stop(*agent, world().below(4ULL * lease_ms_));
}

void Life::drain_agent() {
  if (SimAgent* agent = any_service().agent()) agent->drain();
}

void Life::restart_server() {
  ++report_.restarts;
  world().restart_server(world().below(2ULL * lease_ms_));
}

void Life::move_host_clock() {
  ++report_.jumps;
  any_service().host().clock.shift_ms = static_cast<std::int64_t>(world().below(1200000)) - 600000;
}

void Life::move_server_clock() {
  ++report_.jumps;
  std::int64_t& shift = world().server_clock().shift_ms;
  shift += static_cast<std::int64_t>(world().below(240000)) - 120000;
  latest_shift_ms_ = std::max(latest_shift_ms_, shift);
  world().note("the server's clock is " + std::to_string(shift) + " ms off");
}

void Life::fail_launches() {
  Host& host = any_service().host();
  (maybe(2) ? host.failing_launches : host.hanging_launches) = static_cast<std::uint32_t>(1 + world().below(3));
}

}  // namespace mycojobs::sim
