#include "worker/intake/intake.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "base/log.h"
#include "model/codec.h"
#include "model/trace_context.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kMaxWaitMs = 500;          // maximum wait, and interval of topic checks without hints
constexpr std::uint64_t kMinTopicSafetyMs = 5000;  // least interval of topic checks if hints are received
constexpr std::uint64_t kMinClaimSafetyMs = 5000;  // least time between two claims from a context without new entries
constexpr std::uint32_t kMaxLookIntervalMs = 20;   // between two questions to the waiter while all slots are busy
// Between two claims for safety (find_overdue_context()), since each delays other work: while contexts with jobs are
// known, and otherwise.
constexpr std::uint32_t kOverdueCheckIntervalMs = 50, kOverdueClaimPauseMs = 20;
constexpr std::uint32_t kBackoffClaimIntervalMs = 50;  // between two claims from a context with a backoff
constexpr std::uint64_t kMaxBackoffMs = 3200;          // maximum backoff of a queue
constexpr std::uint32_t kMinTopicIntervalMs = 20;      // interval of topic checks while there are hints
constexpr std::size_t kMaxHintsBatch = 32, kMaxHints = 1000;
constexpr std::uint32_t kMaxClaimBatch = 16;  // small, so that several agents share a queue evenly

JobEnd build_rejection_end(const Error& error) {
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

std::vector<std::string> list_runner_queues(const WorkerSettings& settings,
                                            const std::vector<const Executor*>& executors, bool serves_queues) {
  std::vector<std::string> queues{runner_queue(settings.runner.id)};
  if (!serves_queues) return queues;
  for (const Executor* executor : executors) {
    for (const std::string& type : executor->script_types()) {
      if (serves_script_type(settings, type)) queues.push_back(queue_key(type));
    }
  }
  return queues;
}

Intake::Intake(Dependencies dependencies, const Clock& clock, StoreHealth& health, const WorkerSettings& settings,
               const std::string& instance, Callbacks callbacks)
    : dependencies_(std::move(dependencies)),
      clock_(clock),
      health_(health),
      settings_(settings),
      instance_(instance),
      callbacks_(std::move(callbacks)),
      preparation_(settings_, dependencies_.executors, dependencies_.secrets, clock),
      topic_(settings.runner.id, [this](Id context) { return get_registered_runner(context).topic; }),
      context_pauses_(clock),
      next_run_(dependencies_.first_run_number),
      random_(dependencies_.seed) {
  queues_ = list_runner_queues(settings_, dependencies_.executors, true);
  for (const Id context : settings_.contexts) context_states_[context] = {};
}

RegisteredRunner Intake::get_registered_runner(Id context) const {
  if (dependencies_.registered_runners != nullptr) {
    const auto runner = dependencies_.registered_runners->find(context);
    if (runner != dependencies_.registered_runners->end()) return runner->second;
  }
  return {settings_.runner.topic, settings_.runner.local};
}

void Intake::stop() {
  stop_ = true;
  dependencies_.waiter->wake();
}

// An intake that waits for work needs no wake-up, since the next entry of a queue ends its wait. No wake-up is missed:
// the counters change here before on_slot_free() reads `waits_for_work_`, and run_once() clears `waits_for_work_`
// before it reads the counters, so at least one of the two threads sees the change of the other.
void Intake::on_jobs_settled(std::uint32_t jobs) {
  held_jobs_ -= jobs;
  held_or_requested_jobs_ -= jobs;
  on_slot_free();
}

void Intake::add_held_jobs(std::uint32_t jobs) {
  held_jobs_ += jobs;
  held_or_requested_jobs_ += jobs;
}

void Intake::on_slot_free() {
  if (!waits_for_work_ && count_jobs_to_claim() > 0) dependencies_.waiter->wake();
}

// Jobs are claimed ahead in large batches. While all slots are busy, waiting for more capacity delays no job.
std::uint32_t Intake::count_jobs_to_claim() const {
  const std::uint32_t ahead = callbacks_.claim_ahead_count(), max = settings_.slots + ahead,
                      held = held_or_requested_jobs_ + callbacks_.count_other_jobs(),
                      occupied = held - std::min(held, callbacks_.count_uploading_jobs());
  if (occupied >= max || (occupied >= settings_.slots && max - occupied < (ahead + 1) / 2)) return 0;
  return max - occupied;
}

void Intake::drain() {
  draining_ = true;
  dependencies_.waiter->wake();
}

Intake::WaitRequest Intake::run_once() {
  waits_for_work_ = false;
  const WaitRequest request = poll_once();
  if (request.wakes_on_work) looked_boot_ms_ = clock_.boot_ms();
  waits_for_work_ = request.wakes_on_work;
  return request;
}

Intake::WaitRequest Intake::poll_once() {
  liveness_.mark_progress();
  for (const StartRejected& job : rejected_starts_.consume_all()) reject_start(job);
  const bool can_claim = !draining_ && count_jobs_to_claim() > 0 && callbacks_.can_start_runs();
  if (can_claim) claim_batch();
  const bool has_capacity = can_claim && count_jobs_to_claim() > 0;
  if (has_capacity && find_next_context()) return {0, is_look_due()};
  if (const auto overdue = has_capacity ? find_overdue_context() : std::nullopt) {
    const bool was_claimed = context_states_.at(*overdue).claimed_boot_ms > 0;
    return {was_claimed ? kOverdueClaimPauseMs : 0, true};
  }
  if (failures_ > 0) return {static_cast<std::uint64_t>(retry_pause_ms(failures_)), has_capacity};
  // The queue of the latest job probably has another one. It is claimed from at once when a slot becomes free.
  if (!has_capacity && latest_source_) due_contexts_.insert(*latest_source_);
  if (!has_capacity && is_look_due()) return {0, true};
  const std::uint64_t max = hints_.empty() ? kMaxWaitMs : kMinTopicIntervalMs;
  // The wait ends with the first pause of a context only while the intake claims. Otherwise a pause that has ended
  // would cause waits of 0 ms in a loop.
  return {has_capacity ? context_pauses_.min_remaining_ms(max) : max, has_capacity};
}

// Returns whether the waiter has to look for work although the intake has no free slot or knows contexts with jobs.
// Otherwise these contexts would delay the jobs of all others.
bool Intake::is_look_due() const {
  return settings_.contexts.size() > 1 && !draining_ && clock_.boot_ms() >= looked_boot_ms_ + kMaxLookIntervalMs;
}

void Intake::wait_until_due(WaitRequest request) {
  on_wait_result(dependencies_.waiter->wait(static_cast<std::uint32_t>(request.ms), request.wakes_on_work));
}

void Intake::on_wait_result(Result<WaitResult> result) {
  if (result && result->has_work) {
    const bool has_names = !result->contexts.empty();
    const std::vector<Id>& contexts = has_names ? result->contexts : settings_.contexts;
    const std::vector<Id>& announced = has_names ? result->announced_contexts : settings_.contexts;
    due_contexts_.insert(contexts.begin(), contexts.end());
    announced_contexts_.insert(announced.begin(), announced.end());
  }
  if (!result || result->reconnected) {  // entries and hints may not have been reported
    for (auto& [context, state] : context_states_) state.claimed_boot_ms = state.topic_checked_boot_ms = 0;
  }
  if (!result) {
    // The waiter paces its own reconnecting.
    ++failures_;
    health_.on_failure(dependencies_.server_context, "waiting for jobs", result.error());
    return;
  }
  failures_ = 0;
  if (!result->has_unreachable_server) health_.on_success(dependencies_.server_context);
  if (std::erase_if(result->hints, [](const std::string& hint) { return hint.starts_with("cancel:"); }) > 0)
    callbacks_.request_heartbeat();
  process_topic(std::move(result->hints));
}

// Any client can publish hints and push to the list of the topic, so the hints are bounded and checks have a minimum
// interval.
void Intake::process_topic(std::vector<std::string> hints) {
  const std::size_t capacity = kMaxHints - std::min(kMaxHints, hints_.size());
  if (hints.size() > capacity) {
    log(LogLevel::warn, "worker",
        "hints arrive faster than they are processed: skipped, their messages are found in the list of the topic");
    hints.resize(capacity);
  }
  hints_.insert(hints_.end(), std::make_move_iterator(hints.begin()), std::make_move_iterator(hints.end()));
  const std::vector<Id> contexts = draining_ ? std::vector<Id>() : list_due_topic_checks();
  if (contexts.empty()) return;
  const std::vector<std::string> batch(
      hints_.begin(), hints_.begin() + static_cast<std::ptrdiff_t>(std::min(hints_.size(), kMaxHintsBatch)));
  const bool is_processed = topic_.process(dependencies_.store, contexts, batch);
  if (is_processed) hints_.erase(hints_.begin(), hints_.begin() + static_cast<std::ptrdiff_t>(batch.size()));
  last_topic_check_boot_ms_ = clock_.boot_ms();
  if (!is_processed) return;  // tried again after the next wait
  for (const Id context : contexts) context_states_[context].topic_checked_boot_ms = last_topic_check_boot_ms_;
}

// Returns the contexts for which the topic has to be checked now. A hint names no context, so it requires a check of
// all. Checks for safety, of topics whose hints are received, concern at most an eighth of many contexts at a time, so
// that they do not delay a claim.
std::vector<Id> Intake::list_due_topic_checks() const {
  const std::uint64_t now_boot_ms = clock_.boot_ms();
  if (now_boot_ms < last_topic_check_boot_ms_ + kMinTopicIntervalMs) return {};
  if (!hints_.empty()) return settings_.contexts;
  std::vector<Id> due;
  std::size_t remaining_safety_checks = std::max<std::size_t>(16, settings_.contexts.size() / 8 + 1);
  for (const auto& [context, state] : context_states_) {
    const bool receives_hints = get_registered_runner(context).topic == dependencies_.topic;
    const std::uint64_t interval_ms =
        receives_hints ? get_safety_interval_ms(context_states_.size(), kMinTopicSafetyMs) : kMaxWaitMs;
    if (state.topic_checked_boot_ms != 0 && now_boot_ms < state.topic_checked_boot_ms + interval_ms) continue;
    if (receives_hints && remaining_safety_checks == 0) continue;
    if (receives_hints) --remaining_safety_checks;
    due.push_back(context);
  }
  return due;
}

// Returns the context whose last claim is the oldest, if it is overdue without a report of the waiter: after an
// interval, in case that an entry was not reported, and while a queue has a backoff, so that it is claimed from
// afterwards.
std::optional<Id> Intake::find_overdue_context() const {
  const std::uint64_t now_boot_ms = clock_.boot_ms();
  std::optional<Id> oldest;
  std::uint64_t oldest_claim_boot_ms = 0;
  for (const auto& [context, state] : context_states_) {
    const std::uint64_t interval_ms = has_queue_backoff(context)
                                          ? kBackoffClaimIntervalMs
                                          : get_safety_interval_ms(context_states_.size(), kMinClaimSafetyMs);
    const bool is_overdue = state.claimed_boot_ms == 0 || now_boot_ms >= state.claimed_boot_ms + interval_ms;
    if (!is_overdue || (oldest && state.claimed_boot_ms >= oldest_claim_boot_ms) || !context_pauses_.can_try(context))
      continue;
    oldest = context;
    oldest_claim_boot_ms = state.claimed_boot_ms;
  }
  return oldest;
}

// Returns whether a queue of the context has a backoff, or had one that has ended recently.
bool Intake::has_queue_backoff(Id context) const {
  for (auto backoff = queue_backoffs_.lower_bound({context, ""});
       backoff != queue_backoffs_.end() && backoff->first.first == context; ++backoff) {
    if (clock_.boot_ms() <= backoff->second.until_boot_ms + kMaxBackoffMs) return true;
  }
  return false;
}

// Makes one overdue context due. Claims from all of them in a row would delay the contexts that the waiter names.
void Intake::add_overdue_context() {
  const std::uint64_t now_boot_ms = clock_.boot_ms();
  if (find_next_context() && now_boot_ms < overdue_check_boot_ms_ + kOverdueCheckIntervalMs) return;
  overdue_check_boot_ms_ = now_boot_ms;
  if (const auto context = find_overdue_context()) due_contexts_.insert(*context);
}

// Returns the first context after last_context_, in a cycle, that is due, not paused and not visited.
std::optional<Id> Intake::find_next_context(const std::set<Id>& visited) const {
  const auto can_claim = [&](Id context) { return !visited.contains(context) && context_pauses_.can_try(context); };
  const auto middle = due_contexts_.upper_bound(last_context_);
  auto next = std::find_if(middle, due_contexts_.end(), can_claim);
  if (next != due_contexts_.end()) return *next;
  next = std::find_if(due_contexts_.begin(), middle, can_claim);
  return next == middle ? std::nullopt : std::optional<Id>(*next);
}

// Claims once from each due context while slots are free. A context that may have more jobs remains due.
void Intake::claim_batch() {
  add_overdue_context();
  std::set<Id> visited;
  while (const auto next = find_next_context(visited)) {
    liveness_.mark_progress();  // each context may wait for a server of its own
    const std::uint32_t jobs_to_claim = count_jobs_to_claim();
    if (jobs_to_claim == 0 || draining_) return;
    const Id context = last_context_ = *next;
    visited.insert(context);
    // The secrets cannot be read now, for example because their disk hangs. Other agents may be able to run the jobs.
    if (preparation_.lacks_secrets(context)) {
      pause_context(context);
      continue;
    }
    const std::uint32_t max_jobs = std::min(jobs_to_claim, kMaxClaimBatch);
    const std::uint64_t sent_boot_ms = clock_.boot_ms();
    // Counted before the request is sent, so that a drain waits for jobs that are being claimed.
    held_or_requested_jobs_ += max_jobs;
    auto reply = claim(context, max_jobs);
    const auto received_jobs = static_cast<std::uint32_t>(reply ? reply->jobs.size() : 0);
    held_jobs_ += received_jobs;
    held_or_requested_jobs_ -= max_jobs - received_jobs;
    if (!reply) {
      pause_context(context);
      health_.on_failure(context, "claiming", reply.error());
      continue;
    }
    if (received_jobs < max_jobs && !reply->has_more) due_contexts_.erase(context);
    dependencies_.waiter->on_claimed(context, reply->has_found_entries);
    start_claimed_jobs(context, *reply, sent_boot_ms);
    const bool was_announced = announced_contexts_.erase(context) > 0;
    if (received_jobs == 0 && (was_announced || reply->has_found_entries)) callbacks_.on_wakeup_without_jobs(context);
  }
}

void Intake::start_claimed_jobs(Id context, ClaimReply& reply, std::uint64_t sent_boot_ms) {
  context_pauses_.on_success(context);
  health_.on_success(context);
  context_states_[context].claimed_boot_ms = sent_boot_ms;
  if (!reply.jobs.empty()) latest_source_ = context;
  std::vector<std::string> unclaimable_queues = std::move(reply.paused);
  for (std::string& queue : list_unclaimable_queues(context)) unclaimable_queues.push_back(std::move(queue));
  pause_queues(context, unclaimable_queues);
  if (reply.skipped_entries > 0) {
    log(LogLevel::warn, "worker", "context {}: {} queue entries cannot run; the streams {} and {} say why", context,
        reply.skipped_entries, kDeadLettersKey, kAnomaliesKey);
  }
  for (ClaimedJob& claimed : reply.jobs)
    start_claimed_job(claimed, compute_fence_boot_ms(sent_boot_ms, settings_.lease_ms));
}

void Intake::pause_queues(Id context, const std::vector<std::string>& queues) {
  const bool had_paused_queues = std::exchange(context_states_[context].has_paused_queues, !queues.empty());
  if (had_paused_queues || !queues.empty()) dependencies_.waiter->set_paused(context, queues);
}

Result<ClaimReply> Intake::claim(Id context, std::uint32_t max_jobs) {
  ClaimRequest request;
  request.context = context;
  request.runner = settings_.runner.id;
  if (settings_.claims_as_actor) request.actor = settings_.runner.actor_id;
  request.instance = instance_;
  request.queues = queues_;
  const auto unclaimable_queues = list_unclaimable_queues(context);
  std::erase_if(request.queues, [&](const std::string& queue) {
    return std::find(unclaimable_queues.begin(), unclaimable_queues.end(), queue) != unclaimable_queues.end();
  });
  if (request.queues.empty()) return ClaimReply{};
  const std::size_t first = context_states_[context].claims++ % request.queues.size();
  std::rotate(request.queues.begin(), request.queues.begin() + static_cast<std::ptrdiff_t>(first),
              request.queues.end());
  request.max_jobs = max_jobs;
  request.max_script_bytes = settings_.max_script_bytes;
  request.max_deliveries = settings_.max_deliveries;
  request.lease_ms = settings_.lease_ms;
  return dependencies_.store.claim(request);
}

// Stops claiming from the context until its pause ends. Its queues do not end waits until then, because an entry that
// is in a queue already would end each wait at once.
void Intake::pause_context(Id context) {
  context_states_[context].claimed_boot_ms = 0;
  due_contexts_.erase(context);
  context_pauses_.on_failure(context);
  pause_queues(context, queues_);
}

// Stops claiming from one queue of the context for a time that grows with each failure. Otherwise the next job of the
// queue would be claimed and released in a loop.
void Intake::start_queue_backoff(Id context, const std::string& queue) {
  constexpr std::uint64_t kMinBackoffMs = 50;
  QueueBackoff& backoff = queue_backoffs_[{context, queue}];
  // A job that starts on a strand does not erase the backoff, so a backoff that ended long ago counts as erased.
  if (backoff.until_boot_ms + kMaxBackoffMs < clock_.boot_ms()) backoff.failures = 0;
  const std::uint64_t backoff_ms = std::min(kMinBackoffMs << std::min(backoff.failures++, 6U), kMaxBackoffMs);
  backoff.until_boot_ms = clock_.boot_ms() + backoff_ms;
  pause_queues(context, list_unclaimable_queues(context));
}

// Returns the queues of a context from which nothing is claimed now: all queues if the context is paused, the queues of
// script types if the runner's record excludes them, and queues with a backoff.
std::vector<std::string> Intake::list_unclaimable_queues(Id context) const {
  if (!context_pauses_.can_try(context)) return queues_;
  std::vector<std::string> queues;
  if (!get_registered_runner(context).serves_queues) queues.assign(queues_.begin() + 1, queues_.end());
  const std::uint64_t now_boot_ms = clock_.boot_ms();
  for (auto entry = queue_backoffs_.lower_bound({context, ""});
       entry != queue_backoffs_.end() && entry->first.first == context; ++entry) {
    if (entry->second.until_boot_ms > now_boot_ms) queues.push_back(entry->first.second);
  }
  return queues;
}

void Intake::start_claimed_job(ClaimedJob& claimed, std::uint64_t fence_boot_ms) {
  const RunNumber run = std::exchange(next_run_, next_run_ + dependencies_.run_number_stride);
  callbacks_.on_claimed(run, claimed.ref);
  const Id context = claimed.ref.context;
  const std::string queue = claimed.queue;
  auto start = preparation_.prepare(dependencies_.store, claimed, fence_boot_ms, run);
  if (start) {
    const bool starts_on_strand = start->create_conversation != nullptr;
    if (!queue_backoffs_.empty() && !starts_on_strand) queue_backoffs_.erase({context, queue});
    return callbacks_.start_job(std::move(*start));
  }
  const std::uint32_t retries = decode<Job>(claimed.record).record.retries;
  reject_start({run, claimed.ref, queue, claimed.attempt, retries, std::move(start).error()});
}

void Intake::on_start_rejected(StartRejected job) {
  rejected_starts_.post(std::move(job));
  dependencies_.waiter->wake();
}

void Intake::reject_start(const StartRejected& job) {
  log(LogLevel::warn, "worker", "{}: {}{}", append_trace_id(job.claim.job_key, job.claim.traceparent),
      job.error.code == Code::unavailable ? "back to its queue: " : "", job.error.message);
  if (job.error.code == Code::unavailable) {
    // A dependency of the job is unavailable, which is not a fault of the job. Without a backoff of the queue, the job
    // would be claimed again at once. If the caller is the reason, the queue continues for other callers, and the store
    // delays the job.
    if (!job.is_caller_paused) start_queue_backoff(job.claim.context, job.queue);
    return callbacks_.report(RunReport{job.run, Release{job.claim, job.error.message, false}, true});
  }
  JobEnd end = build_rejection_end(job.error);
  std::optional<std::uint64_t> retry_ms;
  if (job.error.code == Code::unsupported) {
    const double random = std::uniform_real_distribution<double>(0, 1)(random_);
    retry_ms = compute_retry_delay_ms(settings_.retry, end, job.attempt, job.retries, random);
  }
  callbacks_.report(RunReport{job.run, EndReport{job.claim, std::move(end), retry_ms}, true});
}

}  // namespace mycojobs
