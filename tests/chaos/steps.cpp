#include "chaos/steps.h"

#include <chrono>
#include <thread>

#include "support/queue_pause.h"

namespace mycojobs::test {
namespace {

constexpr Id kContext = 1, kCaller = 12, kRunner = 7;
constexpr const char* kInstance = "0123456789abcdef0123456789abcdef";
constexpr const char* kQueueKey = "queue:python";
constexpr const char* kDeployment = "acme/order@1";

std::string make_job_key(Id id) { return "job:" + std::to_string(kCaller) + ":" + std::to_string(id); }

Job make_job(Id id) {
  Job job;
  job.id = id;
  job.caller_id = kCaller;
  job.context_id = kContext;
  job.script = "result['answer'] = 42";
  job.script_type = "python";
  return job;
}
Job make_dependent_job(Id id, std::vector<Id> on) {
  Job new_job = make_job(id);
  new_job.dependends = std::move(on);
  return new_job;
}
Job make_job_with_concurrency_key(Id id) {
  Job new_job = make_job(id);
  new_job.concurrency_key = "one at a time";
  return new_job;
}

JobEnd make_end(const std::string& detail) {
  JobEnd end;
  end.status = detail == "ok" ? JobStatus::finished : JobStatus::error;
  end.detail = detail;
  if (detail == "ok") end.result = {{"answer", "42"}};
  if (detail != "ok") end.error = "it went wrong";
  end.usage = R"({"wall_us":1200})";
  end.receipt = R"({"status":")" + detail + "\"}";
  return end;
}

tl::unexpected<Error> unexpected_reply(const std::string& what) { return fail(Code::internal, what); }

}  // namespace

ProtocolSteps::ProtocolSteps(Store& store, WorkflowStore& deployments) : store_(store), deployments_(deployments) {
  add_job_steps();
  add_failure_steps();
  add_dependency_steps();
  add_limit_steps();
  this->add_deployment_steps();  // while no other job is in the queue
  add_operator_steps();
  add_message_steps();
  add_retirement_steps();
}

void ProtocolSteps::add(std::string name, std::function<Result<void>()> execute) {
  steps_.push_back({std::move(name), std::move(execute)});
}

void ProtocolSteps::submit(Job job) {
  add("submit " + std::to_string(job.id), [this, job] {
    auto stored = store_.submit(job);
    return stored ? Result<void>() : tl::unexpected<Error>(stored.error());
  });
}

void ProtocolSteps::claim(Id expected, std::uint32_t lease_ms) {
  add("claim " + std::to_string(expected), [this, expected, lease_ms]() -> Result<void> {
    ClaimRequest request;
    request.context = kContext;
    request.runner = kRunner;
    request.instance = kInstance;
    request.queues = {kQueueKey};
    request.lease_ms = lease_ms;
    request.max_deliveries = 2;
    MJ_TRY(reply, store_.claim(request));
    if (expected == 0)
      return reply.jobs.empty() ? Result<void>() : unexpected_reply("claimed " + reply.jobs[0].ref.job_key);
    if (reply.jobs.size() != 1 || reply.jobs[0].ref.job_key != make_job_key(expected))
      return unexpected_reply("did not claim it");
    claims_[expected] = reply.jobs[0].ref;
    return {};
  });
}

void ProtocolSteps::report(const std::string& name, Id id, std::function<Report(const ClaimRef&)> make) {
  add(name + " " + std::to_string(id), [this, id, make]() -> Result<void> {
    const std::vector<Report> reports{make(claims_[id])};
    MJ_TRY(answers, store_.report(kContext, reports));
    return answers.at(0);
  });
}

void ProtocolSteps::end(Id id, const std::string& detail, std::optional<std::uint64_t> retry_after_ms) {
  report("end " + detail, id, [detail, retry_after_ms](const ClaimRef& claim) {
    return EndReport{claim, make_end(detail), retry_after_ms};
  });
}

void ProtocolSteps::tick(const std::string& name, TickRequest request, std::uint32_t TickReply::*expected) {
  add(name, [this, request, expected]() -> Result<void> {
    for (int attempt = 0; attempt < 5000; ++attempt) {
      MJ_TRY(reply, store_.tick(kContext, request));
      if (reply.*expected > 0) return {};
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return unexpected_reply("its time never came");
  });
}

void ProtocolSteps::add_job_steps() {
  submit(make_job(1));
  claim(1);
  report("mark running", 1, [](const ClaimRef& claim) { return DetailUpdate{claim, "running"}; });
  report("log", 1, [](const ClaimRef& claim) {
    return LogAppend{claim, {{1000, 1, LogStream::out, "one\n"}, {1001, 2, LogStream::err, "two\n"}}};
  });
  add("renew 1", [this]() -> Result<void> {
    const std::vector<ClaimRef> claims{claims_[1]};
    MJ_TRY(answers, store_.renew(kContext, claims, 60000));
    return answers.at(0) == Renewal::renewed ? Result<void>() : unexpected_reply("was not renewed");
  });
  end(1, "ok");
}

void ProtocolSteps::add_failure_steps() {
  Job retried_job = make_job(2);
  retried_job.retries = 1;
  submit(retried_job);
  claim(2);
  end(2, "exception", 1);
  tick("retry is due", {}, &TickReply::queued);
  claim(2);
  add("cancel a live one", [this] { return store_.cancel(kContext, make_job_key(2)); });
  end(2, "cancelled");
  submit(make_job(3));
  claim(3);
  report("release", 3, [](const ClaimRef& claim) { return Release{claim, "the launcher is gone", true}; });
  claim(3, 1);
  add("expire 3", [this]() -> Result<void> {
    for (int attempt = 0; attempt < 5000; ++attempt) {
      MJ_TRY(leases, store_.leases(kContext));
      for (const Lease& lease : leases) {
        if (lease.job_key != make_job_key(3)) continue;
        MJ_TRY(expired, store_.expire(kContext, lease));
        if (expired) return {};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return unexpected_reply("its lease never ran out");
  });
  claim(0);  // the third delivery exceeds the maximum, so the job becomes a dead letter
}

void ProtocolSteps::add_dependency_steps() {
  submit(make_dependent_job(11, {10}));
  submit(make_dependent_job(12, {10, 11}));
  claim(0);  // parks both jobs
  submit(make_job(10));
  claim(10);
  end(10, "ok");
  claim(11);
  end(11, "exception");  // 12 fails, too
}

void ProtocolSteps::add_limit_steps() {
  submit(make_job_with_concurrency_key(20));
  submit(make_job_with_concurrency_key(21));
  claim(20);
  claim(0);
  end(20, "ok");
  claim(21);
  end(21, "ok");
  Job priority_job = make_job(22);
  priority_job.priority = 10;
  submit(priority_job);
  claim(22);
  end(22, "ok");
  Job job_with_prerequisite = make_job(23);
  job_with_prerequisite.prerequisites = {"approval:boss"};
  submit(job_with_prerequisite);
  claim(0);
  add("prerequisites are met", [this] { return store_.complete_prerequisites(kContext, make_job_key(23), ""); });
  Job job_with_queue_timeout = make_job(24);
  job_with_queue_timeout.queue_timeout_ms = 1;
  submit(job_with_queue_timeout);
  tick("waited too long", {}, &TickReply::timed_out);
  claim(23);
  end(23, "ok");
}

void ProtocolSteps::add_operator_steps() {
  add("requeue 11", [this] { return store_.requeue(kContext, make_job_key(11)); });
  add("cancel a queued one", [this] { return store_.cancel(kContext, make_job_key(11)); });
  submit(make_job(30));
  for (const bool paused : {true, false}) {
    add(paused ? "pause" : "resume", [this, paused] { return set_queue_paused(store_, kContext, kQueueKey, paused); });
  }
  add("purge", [this]() -> Result<void> {
    MJ_TRY(purged, store_.purge_queue(kContext, kQueueKey, 10));
    return purged > 0 ? Result<void>() : unexpected_reply("purged nothing");
  });
  add("settle a dead letter", [this]() -> Result<void> {
    MJ_TRY(letters, store_.dead_letters(kContext, 10));
    if (letters.empty()) return unexpected_reply("there is no dead letter");
    return store_.resolve_dead_letter(kContext, letters.front().id, true);
  });
  add("hold a runner", [this] {
    Runner runner;
    runner.id = kRunner;
    RunnerHolder held_by;
    return store_.hold_runner(kContext, runner, {kInstance, "here", "boot", 1}, 60000, "", held_by);
  });
}

void ProtocolSteps::add_message_steps() {
  add("send a message", [this] {
    return store_.send_to_topic(kContext, "runner7", "message:12:1",
                                {{"id", "1"}, {"caller_id", "12"}, {"message_type", "job"}, {"status", "dispatched"}});
  });
  add("take a message", [this]() -> Result<void> {
    auto accepted = store_.accept_message(kContext, {"mj:topic:runner7", "message:12:1", {{make_job(40), kQueueKey}}});
    return accepted ? Result<void>() : tl::unexpected<Error>(accepted.error());
  });
}

void ProtocolSteps::post(const std::string& name, PostRules rules) {
  add(name, [this, rules]() -> Result<void> {
    MJ_TRY(posted,
           deployments_.post(kContext, kDeployment, "event", {{"schema", "acme/Placed@1"}, {"value", "{}"}}, rules));
    return posted.id.empty() ? Result<void>(unexpected_reply("it has no id")) : Result<void>();
  });
}

// Commits at the current height of the deployment with the waiting inbox entries, as a coordinator does. Can be
// repeated.
void ProtocolSteps::commit(const std::string& name, std::function<void(DeploymentCommit&)> change) {
  add(name, [this, change]() -> Result<void> {
    MJ_TRY(read, deployments_.read(kContext, kDeployment, 0, 0));
    MJ_TRY(inbox_entries, deployments_.read_inbox(kContext, kDeployment, 10));
    DeploymentCommit deployment_commit;
    deployment_commit.context = kContext;
    deployment_commit.deployment = kDeployment;
    deployment_commit.base_height = read.height;
    deployment_commit.facts = {"a fact", "another"};
    for (const InboxEntry& mail : inbox_entries) deployment_commit.processed_entries.push_back(mail.id);
    change(deployment_commit);
    return deployments_.commit(deployment_commit);
  });
}

void ProtocolSteps::add_deployment_steps() {
  add("store a manifest", [this] { return deployments_.put_manifest(kContext, kDeployment, "h1", "text"); });
  commit("apply", [](DeploymentCommit& deployment_commit) { deployment_commit.manifest = "h1"; });
  post("send", {"h1"});
  post("send with a key", {"h1", {{"acme/order@1 07", "acme/order@1[7]"}}, "12 tuesday", "c0ffee"});
  commit("a step with a long state, and a snapshot", [](DeploymentCommit& deployment_commit) {
    deployment_commit.blobs = {{"state", std::string(100000, 'x')}, {"snapshot", "bytes"}};
    deployment_commit.snapshot = "snapshot";
    deployment_commit.full_instances = std::vector<std::string>{"acme/order@1 07"};
    deployment_commit.due_ms = 1;
  });
  add("collect", [this]() -> Result<void> {
    const PostRules repeated_post{"h1", {}, "12 tuesday", "c0ffee"};
    MJ_TRY(posted, deployments_.post(kContext, kDeployment, "event", {{"schema", "acme/Placed@1"}, {"value", "{}"}},
                                     repeated_post));
    if (!posted.repeated) return unexpected_reply("it was sent twice");
    MJ_TRY(read, deployments_.read(kContext, kDeployment, 0, 0));
    return deployments_.drop_blobs(kContext, kDeployment, read.height, {"state"});
  });
  Job effect = make_job(50);
  effect.unknown.emplace_back("effect_of", "1 " + std::string(kDeployment));
  submit(effect);
  claim(50);
  end(50, "ok");
  commit("the receipt", [](DeploymentCommit& deployment_commit) {
    // the deployment must be notified exactly once; otherwise the commit is refused
    if (deployment_commit.processed_entries.size() != 1) deployment_commit.base_height = 0;
    deployment_commit.changes = {{"acme/order@1 07", std::to_string(deployment_commit.base_height + 1)}};
  });
  add("repair", [this]() -> Result<void> {
    MJ_TRY(read, deployments_.read(kContext, kDeployment, 0, 0));
    MJ_TRY(stored, deployments_.repair(kContext, kDeployment, read.height,
                                       {{DeploymentFix::Kind::add_to_list},
                                        {DeploymentFix::Kind::make_due},
                                        {DeploymentFix::Kind::clear_full, "acme/order@1 07", ""},
                                        {DeploymentFix::Kind::add_end_notice, "job", "job:12:50"}}));
    return stored ? Result<void>() : unexpected_reply("it has moved");
  });
}

void ProtocolSteps::add_retirement_steps() {
  TickRequest keep_one;
  keep_one.retention_count = 1;
  tick("retire", keep_one, &TickReply::retired);
}

}  // namespace mycojobs::test
