#include "worker/intake/intake.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "base/log.h"
#include "model/codec.h"
#include "model/trace_context.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kWaitMs = 500;       // maximum wait, and interval of topic checks without hints
constexpr std::uint32_t kTopicPauseMs = 20;  // interval of topic checks while there are hints
constexpr std::size_t kMaxHintsBatch = 32, kMaxHints = 1000;
constexpr std::uint32_t kMaxBatch = 16;  // small, so that several agents share a queue evenly

JobEnd never_runs(const Error& error) {
  JobEnd end;
  // Neither a denied policy nor a helper that does not work is an error in the record: the same job may run where the
  // operator allows more, or when the helper works again.
  end.detail = error.code == Code::denied        ? "policy_refused"
               : error.code == Code::unsupported ? "setup_error"
                                                 : "dead_letter";
  end.error = error.message;
  return end;
}

}  // namespace

std::vector<std::string> queues_of(const WorkerSettings& settings, const std::vector<const Executor*>& executors,
                                   bool takes_queues) {
  std::vector<std::string> queues{runner_queue(settings.runner.id)};
  if (!takes_queues) return queues;
  for (const Executor* executor : executors) {
    for (const std::string& type : executor->script_types()) {
      if (serves(settings, type)) queues.push_back(queue_key(type));
    }
  }
  return queues;
}

Intake::Intake(Dependencies parts, const Clock& clock, StoreHealth& health, const WorkerSettings& settings,
               const std::string& instance, Callbacks callbacks)
    : parts_(std::move(parts)),
      clock_(clock),
      health_(health),
      settings_(settings),
      instance_(instance),
      callbacks_(std::move(callbacks)),
      preparation_(settings_, parts_.executors, parts_.secrets, clock),
      topic_(settings.runner.id, [this](Id context) { return registered(context).topic; }),
      pauses_(clock),
      next_run_(parts_.first_run),
      chance_(parts_.seed) {
  queues_ = queues_of(settings_, parts_.executors, true);
}

RegisteredRunner Intake::registered(Id context) const {
  if (parts_.registered != nullptr) {
    const auto found = parts_.registered->find(context);
    if (found != parts_.registered->end()) return found->second;
  }
  return {settings_.runner.topic, settings_.runner.local};
}

void Intake::stop() {
  stop_ = true;
  parts_.waiter->wake();
}

// If the intake waits for work, the next entry of a queue wakes it anyway. Order matters: the counters change before
// `waits_for_work_` is read. A turn that did not see the free slot has reset `waits_for_work_` before, so it is woken.
void Intake::on_jobs_settled(std::uint32_t jobs) {
  jobs_ -= jobs;
  taken_ -= jobs;
  on_slot_free();
}

void Intake::on_slot_free() {
  if (!waits_for_work_ && jobs_to_claim() > 0) parts_.waiter->wake();
}

// Jobs are claimed ahead in large batches. While all slots are busy, waiting for more capacity delays no job.
std::uint32_t Intake::jobs_to_claim() const {
  const std::uint32_t ahead = callbacks_.ahead(), max = settings_.slots + ahead, taken = taken_ + callbacks_.others();
  if (taken >= max || (taken >= settings_.slots && max - taken < (ahead + 1) / 2)) return 0;
  return max - taken;
}

void Intake::drain() {
  draining_ = true;
  parts_.waiter->wake();
}

Intake::WaitRequest Intake::run_once() {
  waits_for_work_ = false;
  const WaitRequest rest = poll_once();
  waits_for_work_ = rest.for_work;
  return rest;
}

Intake::WaitRequest Intake::poll_once() {
  liveness_.mark_progress();
  for (const StartRejected& job : refused_.take_all()) reject_start(job);
  const bool claiming = !draining_ && jobs_to_claim() > 0 && callbacks_.may_start();
  const ClaimResult round = claiming ? claim_batch() : ClaimResult{};
  if (work_ && claiming && round.taken == 0) callbacks_.no_work();
  if (round.more) return {0, false};
  const bool for_work = claiming && jobs_to_claim() > 0;
  if (failures_ > 0) return {static_cast<std::uint64_t>(retry_pause_ms(failures_)), for_work};
  const std::uint64_t max = hints_.empty() ? kWaitMs : kTopicPauseMs;
  // Pauses count only while the intake claims. Otherwise a pause that is over would cause waits of 0 ms in a loop.
  return {for_work ? pauses_.least_left_ms(max) : max, for_work};
}

void Intake::wait_until_due(WaitRequest rest) {
  on_wait_result(parts_.waiter->wait(static_cast<std::uint32_t>(rest.ms), rest.for_work));
}

void Intake::on_wait_result(Result<WaitResult> woken) {
  work_ = woken && woken->work;
  if (!woken) {
    // The waiter paces its own reconnecting.
    ++failures_;
    health_.failed(parts_.server_of, "waiting for jobs", woken.error());
    topic_checked_boot_ms_ = 0;
    return;
  }
  failures_ = 0;
  if (!woken->away) health_.on_success(parts_.server_of);
  if (woken->reconnected) topic_checked_boot_ms_ = 0;
  if (std::erase_if(woken->hints, [](const std::string& hint) { return hint.starts_with("cancel:"); }) > 0)
    callbacks_.heartbeat();
  process_topic(std::move(woken->hints));
}

// Any client can publish hints and push to the list of the topic, so the hints are bounded and checks have a minimum
// interval.
void Intake::process_topic(std::vector<std::string> hints) {
  const std::size_t room = kMaxHints - std::min(kMaxHints, hints_.size());
  if (hints.size() > room) {
    log(LogLevel::warn, "worker",
        "hints arrive faster than they are processed: skipped, their messages are found in the list of the topic");
    hints.resize(room);
  }
  hints_.insert(hints_.end(), std::make_move_iterator(hints.begin()), std::make_move_iterator(hints.end()));
  const std::uint64_t pause = hints_.empty() ? kWaitMs : kTopicPauseMs;
  if (draining_ || clock_.boot_ms() < topic_checked_boot_ms_ + pause) return;
  const std::vector<std::string> some(
      hints_.begin(), hints_.begin() + static_cast<std::ptrdiff_t>(std::min(hints_.size(), kMaxHintsBatch)));
  const bool done = topic_.take(parts_.store, settings_.contexts, some);
  if (done) hints_.erase(hints_.begin(), hints_.begin() + static_cast<std::ptrdiff_t>(some.size()));
  topic_checked_boot_ms_ = clock_.boot_ms();
}

Intake::ClaimResult Intake::claim_batch() {
  ++turn_;
  ClaimResult round;
  for (std::size_t i = 0; i < settings_.contexts.size(); ++i) {
    liveness_.mark_progress();  // each context may wait for a server of its own
    const std::uint32_t free = jobs_to_claim();
    if (free == 0 || draining_) return {false, round.taken};
    const Id context = settings_.contexts[(turn_ + i) % settings_.contexts.size()];
    if (!pauses_.may_try(context)) continue;
    // The disk of the secrets hangs; other agents may be able to run the jobs.
    if (preparation_.lacks_secrets(context)) {
      pause(context);
      continue;
    }
    const std::uint32_t max_jobs = std::min(free, kMaxBatch);
    const std::uint64_t sent = clock_.boot_ms();
    taken_ += max_jobs;  // before the request is sent, so that a drain waits for jobs that are being claimed
    auto reply = claim(context, max_jobs);
    const auto came = static_cast<std::uint32_t>(reply ? reply->jobs.size() : 0);
    jobs_ += came;
    taken_ -= max_jobs - came;
    if (!reply) {
      pause(context);
      health_.failed(context, "claiming", reply.error());
      continue;
    }
    pauses_.on_success(context);
    health_.on_success(context);
    std::vector<std::string> paused = std::move(reply->paused);
    for (std::string& queue : paused_queues(context)) paused.push_back(std::move(queue));
    parts_.waiter->set_paused(context, paused);
    if (reply->set_aside > 0) {
      log(LogLevel::warn, "worker",
          "context {}: {} queue entries cannot run; the streams mj:dead and mj:anomalies say why", context,
          reply->set_aside);
    }
    for (ClaimedJob& claimed : reply->jobs) accept(claimed, fence_deadline(sent, settings_.lease_ms));
    round.taken += reply->jobs.size();
    round.more = round.more || reply->more;
    if (reply->jobs.size() == max_jobs) return {jobs_to_claim() > 0, round.taken};
  }
  return round;
}

Result<ClaimReply> Intake::claim(Id context, std::uint32_t max_jobs) {
  ClaimRequest request;
  request.context = context;
  request.runner = settings_.runner.id;
  if (settings_.claims_as_actor) request.actor = settings_.runner.actor_id;
  request.instance = instance_;
  request.queues = queues_;
  const auto resting = this->paused_queues(context);
  std::erase_if(request.queues, [&](const std::string& queue) {
    return std::find(resting.begin(), resting.end(), queue) != resting.end();
  });
  if (request.queues.empty()) return ClaimReply{};
  // Rotate the queues each time that every context has been the first one.
  const std::size_t first = turn_ / settings_.contexts.size() % request.queues.size();
  std::rotate(request.queues.begin(), request.queues.begin() + static_cast<std::ptrdiff_t>(first),
              request.queues.end());
  request.max_jobs = max_jobs;
  request.max_script_bytes = settings_.max_script_bytes;
  request.max_deliveries = settings_.max_deliveries;
  request.lease_ms = settings_.lease_ms;
  return parts_.store.as<ClaimStore>().claim(request);
}

// A waiting entry would end each wait at once. Therefore the queues of the context are not waited for until it is tried
// again.
void Intake::pause(Id context) {
  pauses_.failed(context);
  parts_.waiter->set_paused(context, queues_);
}

// Without a pause the next job of the queue would be claimed and released in a loop. Other queues of the context are
// not affected.
void Intake::pause_queue_claims(Id context, const std::string& queue) {
  constexpr std::uint64_t kShortestMs = 50;
  constexpr std::uint64_t kMaxDurationMs = 3200;
  QueueBackoff& taken = breaks_[{context, queue}];
  // A job that begins on a lane does not erase the break, so a break that ended long ago counts as erased.
  if (taken.until_boot_ms + kMaxDurationMs < clock_.boot_ms()) taken.failures = 0;
  const std::uint64_t pause = std::min(kShortestMs << std::min(taken.failures++, 6U), kMaxDurationMs);
  taken.until_boot_ms = clock_.boot_ms() + pause;
  parts_.waiter->set_paused(context, this->paused_queues(context));
}

// Returns the queues of a context from which nothing is claimed now: the queues of script types if the runner's record
// excludes them, and queues with a break.
std::vector<std::string> Intake::paused_queues(Id context) const {
  std::vector<std::string> queues;
  if (!registered(context).takes_queues) queues.assign(queues_.begin() + 1, queues_.end());
  const std::uint64_t now = clock_.boot_ms();
  for (auto each = breaks_.lower_bound({context, ""}); each != breaks_.end() && each->first.first == context; ++each) {
    if (each->second.until_boot_ms > now) queues.push_back(each->first.second);
  }
  return queues;
}

void Intake::accept(ClaimedJob& claimed, std::uint64_t fence_boot_ms) {
  const RunNumber run = std::exchange(next_run_, next_run_ + parts_.run_step);
  callbacks_.claimed(run, claimed.ref);
  const Id context = claimed.ref.context;
  const std::string queue = claimed.queue;
  auto start = preparation_.prepare(parts_.store, claimed, fence_boot_ms, run);
  if (start) {
    if (!breaks_.empty() && !start->begin) breaks_.erase({context, queue});
    return callbacks_.start(std::move(*start));
  }
  const std::uint32_t retries = decode<Job>(claimed.record).record.retries;
  reject_start({run, claimed.ref, queue, claimed.attempt, retries, std::move(start).error()});
}

void Intake::cannot_begin(StartRejected job) {
  refused_.post(std::move(job));
  parts_.waiter->wake();
}

void Intake::reject_start(const StartRejected& job) {
  log(LogLevel::warn, "worker", "{}: {}{}", in_trace(job.claim.job_key, job.claim.traceparent),
      job.error.code == Code::unavailable ? "back to its queue: " : "", job.error.message);
  if (job.error.code == Code::unavailable) {
    // A dependency of the job is unavailable, which is not a fault of the job. Without a break of the queue, the job
    // would be claimed again at once. If the caller is the reason, the queue continues for other callers, and the store
    // delays the job.
    if (!job.is_of_caller) pause_queue_claims(job.claim.context, job.queue);
    return callbacks_.report(RunReport{job.run, Release{job.claim, job.error.message, false}, true});
  }
  JobEnd end = never_runs(job.error);
  std::optional<std::uint64_t> again;
  if (job.error.code == Code::unsupported) {
    const double chance = std::uniform_real_distribution<double>(0, 1)(chance_);
    again = retry_after(settings_.retry, end, job.attempt, job.retries, chance);
  }
  callbacks_.report(RunReport{job.run, EndReport{job.claim, std::move(end), again}, true});
}

}  // namespace mycojobs
