#include "chaos/steps.h"

#include <chrono>
#include <thread>

namespace mycojobs::test {
namespace {

constexpr Id kContext = 1, kCaller = 12, kRunner = 7;
constexpr const char* kInstance = "0123456789abcdef0123456789abcdef";
constexpr const char* kQueue = "queue:python";
constexpr const char* kWorld = "acme/order@1";

std::string key(Id id) { return "job:" + std::to_string(kCaller) + ":" + std::to_string(id); }

Job job(Id id) {
  Job job;
  job.id = id;
  job.caller_id = kCaller;
  job.context_id = kContext;
  job.script = "result['answer'] = 42";
  job.script_type = "python";
  return job;
}
Job dependent(Id id, std::vector<Id> on) {
  Job new_job = job(id);
  new_job.dependends = std::move(on);
  return new_job;
}
Job keyed(Id id) {
  Job new_job = job(id);
  new_job.concurrency_key = "one at a time";
  return new_job;
}

JobEnd make_failed_end(const std::string& detail) {
  JobEnd end;
  end.status = detail == "ok" ? JobStatus::finished : JobStatus::error;
  end.detail = detail;
  if (detail == "ok") end.result = {{"answer", "42"}};
  if (detail != "ok") end.error = "it went wrong";
  end.usage = R"({"wall_us":1200})";
  end.receipt = R"({"status":")" + detail + "\"}";
  return end;
}

tl::unexpected<Error> odd(const std::string& what) { return fail(Code::internal, what); }

}  // namespace

Steps::Steps(Store& store, WorkflowStore& deployments) : store_(store), deployments_(deployments) {
  one_job();
  failures();
  dependents();
  limits();
  this->worlds();  // while no other job is in the queue
  operators();
  messages();
  retirement();
}

void Steps::add(std::string name, std::function<Result<void>()> take) {
  steps_.push_back({std::move(name), std::move(take)});
}

void Steps::submit(Job job) {
  add("submit " + std::to_string(job.id), [this, job] {
    auto done = store_.submit(job);
    return done ? Result<void>() : tl::unexpected<Error>(done.error());
  });
}

void Steps::claim(Id expected, std::uint32_t lease_ms) {
  add("claim " + std::to_string(expected), [this, expected, lease_ms]() -> Result<void> {
    ClaimRequest request;
    request.context = kContext;
    request.runner = kRunner;
    request.instance = kInstance;
    request.queues = {kQueue};
    request.lease_ms = lease_ms;
    request.max_deliveries = 2;
    MJ_TRY(reply, store_.claim(request));
    if (expected == 0) return reply.jobs.empty() ? Result<void>() : odd("claimed " + reply.jobs[0].ref.job_key);
    if (reply.jobs.size() != 1 || reply.jobs[0].ref.job_key != key(expected)) return odd("did not claim it");
    claims_[expected] = reply.jobs[0].ref;
    return {};
  });
}

void Steps::report(const std::string& name, Id id, std::function<Report(const ClaimRef&)> make) {
  add(name + " " + std::to_string(id), [this, id, make]() -> Result<void> {
    const std::vector<Report> reports{make(claims_[id])};
    MJ_TRY(answers, store_.report(kContext, reports));
    return answers.at(0);
  });
}

void Steps::end(Id id, const std::string& detail, std::optional<std::uint64_t> retry_after_ms) {
  report("end " + detail, id, [detail, retry_after_ms](const ClaimRef& claim) {
    return EndReport{claim, make_failed_end(detail), retry_after_ms};
  });
}

void Steps::tick(const std::string& name, TickRequest request, std::uint32_t TickReply::*expected) {
  add(name, [this, request, expected]() -> Result<void> {
    for (int tries = 0; tries < 5000; ++tries) {
      MJ_TRY(reply, store_.tick(kContext, request));
      if (reply.*expected > 0) return {};
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return odd("its time never came");
  });
}

void Steps::one_job() {
  submit(job(1));
  claim(1);
  report("mark running", 1, [](const ClaimRef& claim) { return DetailUpdate{claim, "running"}; });
  report("log", 1, [](const ClaimRef& claim) {
    return LogAppend{claim, {{1000, 1, LogStream::out, "one\n"}, {1001, 2, LogStream::err, "two\n"}}};
  });
  add("renew 1", [this]() -> Result<void> {
    const std::vector<ClaimRef> claims{claims_[1]};
    MJ_TRY(answers, store_.renew(kContext, claims, 60000));
    return answers.at(0) == Renewal::renewed ? Result<void>() : odd("was not renewed");
  });
  end(1, "ok");
}

void Steps::failures() {
  Job retried = job(2);
  retried.retries = 1;
  submit(retried);
  claim(2);
  end(2, "exception", 1);
  tick("retry is due", {}, &TickReply::queued);
  claim(2);
  add("cancel a live one", [this] { return store_.cancel(kContext, key(2)); });
  end(2, "cancelled");
  submit(job(3));
  claim(3);
  report("release", 3, [](const ClaimRef& claim) { return Release{claim, "the launcher is gone", true}; });
  claim(3, 1);
  add("expire 3", [this]() -> Result<void> {
    for (int tries = 0; tries < 5000; ++tries) {
      MJ_TRY(leases, store_.leases(kContext));
      for (const Lease& lease : leases) {
        if (lease.job_key != key(3)) continue;
        MJ_TRY(expired, store_.expire(kContext, lease));
        if (expired) return {};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return odd("its lease never ran out");
  });
  claim(0);  // the third delivery exceeds the maximum, so the job becomes a dead letter
}

void Steps::dependents() {
  submit(dependent(11, {10}));
  submit(dependent(12, {10, 11}));
  claim(0);  // parks both jobs
  submit(job(10));
  claim(10);
  end(10, "ok");
  claim(11);
  end(11, "exception");  // 12 fails, too
}

void Steps::limits() {
  submit(keyed(20));
  submit(keyed(21));
  claim(20);
  claim(0);
  end(20, "ok");
  claim(21);
  end(21, "ok");
  Job urgent = job(22);
  urgent.priority = 10;
  submit(urgent);
  claim(22);
  end(22, "ok");
  Job awaited = job(23);
  awaited.prerequisites = {"approval:boss"};
  submit(awaited);
  claim(0);
  add("prerequisites are met", [this] { return store_.complete_prerequisites(kContext, key(23), ""); });
  Job hasty = job(24);
  hasty.queue_timeout_ms = 1;
  submit(hasty);
  tick("waited too long", {}, &TickReply::timed_out);
  claim(23);
  end(23, "ok");
}

void Steps::operators() {
  add("requeue 11", [this] { return store_.requeue(kContext, key(11)); });
  add("cancel a queued one", [this] { return store_.cancel(kContext, key(11)); });
  submit(job(30));
  add("pause", [this] { return store_.pause_queue(kContext, kQueue, true); });
  add("resume", [this] { return store_.pause_queue(kContext, kQueue, false); });
  add("purge", [this]() -> Result<void> {
    MJ_TRY(purged, store_.purge_queue(kContext, kQueue, 10));
    return purged > 0 ? Result<void>() : odd("purged nothing");
  });
  add("settle a dead letter", [this]() -> Result<void> {
    MJ_TRY(letters, store_.dead_letters(kContext, 10));
    if (letters.empty()) return odd("there is no dead letter");
    return store_.resolve_dead_letter(kContext, letters.front().id, true);
  });
  add("hold a runner", [this] {
    Runner runner;
    runner.id = kRunner;
    RunnerHolder held_by;
    return store_.hold_runner(kContext, runner, {kInstance, "here", "boot", 1}, 60000, "", held_by);
  });
}

void Steps::messages() {
  add("send a message", [this] {
    return store_.topic_send(kContext, "runner7", "message:12:1",
                             {{"id", "1"}, {"caller_id", "12"}, {"message_type", "job"}, {"status", "dispatched"}});
  });
  add("take a message", [this]() -> Result<void> {
    auto taken = store_.accept_message(kContext, {"mj:topic:runner7", "message:12:1", {{job(40), kQueue}}});
    return taken ? Result<void>() : tl::unexpected<Error>(taken.error());
  });
}

void Steps::post(const std::string& name, PostRules rules) {
  add(name, [this, rules]() -> Result<void> {
    MJ_TRY(posted, deployments_.post(kContext, kWorld, "event", {{"schema", "acme/Placed@1"}, {"value", "{}"}}, rules));
    return posted.id.empty() ? Result<void>(odd("it has no id")) : Result<void>();
  });
}

// Commits at the current height of the deployment with the waiting inbox entries, as a coordinator does. Can be
// repeated.
void Steps::commit(const std::string& name, std::function<void(DeploymentCommit&)> change) {
  add(name, [this, change]() -> Result<void> {
    MJ_TRY(read, deployments_.read(kContext, kWorld, 0, 0));
    MJ_TRY(waiting, deployments_.read_inbox(kContext, kWorld, 10));
    DeploymentCommit wanted;
    wanted.context = kContext;
    wanted.deployment = kWorld;
    wanted.base_height = read.height;
    wanted.facts = {"a fact", "another"};
    for (const InboxEntry& mail : waiting) wanted.processed_entries.push_back(mail.id);
    change(wanted);
    return deployments_.commit(wanted);
  });
}

void Steps::worlds() {
  add("store a manifest", [this] { return deployments_.put_manifest(kContext, kWorld, "h1", "text"); });
  commit("apply", [](DeploymentCommit& wanted) { wanted.manifest = "h1"; });
  post("send", {"h1"});
  post("send with a key", {"h1", {{"acme/order@1 07", "acme/order@1[7]"}}, "12 tuesday", "c0ffee"});
  commit("a step with a long state, and a snapshot", [](DeploymentCommit& wanted) {
    wanted.blobs = {{"state", std::string(100000, 'x')}, {"snapshot", "bytes"}};
    wanted.snapshot = "snapshot";
    wanted.full_instances = std::vector<std::string>{"acme/order@1 07"};
    wanted.due_ms = 1;
  });
  add("collect", [this]() -> Result<void> {
    const PostRules again{"h1", {}, "12 tuesday", "c0ffee"};
    MJ_TRY(posted, deployments_.post(kContext, kWorld, "event", {{"schema", "acme/Placed@1"}, {"value", "{}"}}, again));
    if (!posted.repeated) return odd("it was sent twice");
    MJ_TRY(read, deployments_.read(kContext, kWorld, 0, 0));
    return deployments_.drop_blobs(kContext, kWorld, read.height, {"state"});
  });
  Job effect = job(50);
  effect.unknown.emplace_back("effect_of", "1 " + std::string(kWorld));
  submit(effect);
  claim(50);
  end(50, "ok");
  commit("the receipt", [](DeploymentCommit& wanted) {
    // the deployment must be notified exactly once; otherwise the commit is refused
    if (wanted.processed_entries.size() != 1) wanted.base_height = 0;
  });
  add("repair", [this]() -> Result<void> {
    MJ_TRY(read, deployments_.read(kContext, kWorld, 0, 0));
    MJ_TRY(done, deployments_.repair(kContext, kWorld, read.height,
                                     {{DeploymentFix::Kind::add_to_list},
                                      {DeploymentFix::Kind::make_due},
                                      {DeploymentFix::Kind::clear_full, "acme/order@1 07", ""},
                                      {DeploymentFix::Kind::add_end_notice, "job", "job:12:50"}}));
    return done ? Result<void>() : odd("it has moved");
  });
}

void Steps::retirement() {
  TickRequest keep_one;
  keep_one.retention_count = 1;
  tick("retire", keep_one, &TickReply::retired);
}

}  // namespace mycojobs::test
