#include "messaging/router.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "base/sha256.h"
#include "base/thread.h"
#include "jobs/lease_observer.h"
#include "jobs/retry.h"
#include "messaging/message_codec.h"
#include "messaging/message_receiver.h"
#include "messaging/router_scheduler.h"
#include "model/codec.h"
#include "model/flow_data.h"
#include "model/job_end.h"
#include "model/records.h"
#include "model/result_values.h"
#include "model/trace_context.h"
#include "net/host.h"
#include "net/http_client.h"
#include "net/json_rpc_client.h"
#include "security/signatures.h"
#include "store/job_fields.h"
#include "store/store_health.h"
#include "store/waiter_loop.h"
#include "text/json.h"

namespace mycojobs {
namespace {

// Runs one job at a remote supervisor: starts the job once and polls it until its end. This class does not use the
// store: the router (router.h) holds the claim and reports the result.
//
//   starting --job.start, idempotent by context, job and attempt--> following --job.status: ended--> fetching --> over
//
// A supervisor that does not answer is called again after growing pauses, until the time-out of the job. run() blocks
// and needs a thread of its own; all other functions are thread-safe.

struct RemoteRequest {
  Id context = 0;
  std::string job_key;
  std::uint32_t attempt = 1;
  std::string url, secret;
  Networks networks;  // networks that may be called
  Job job;
  std::uint64_t timeout_ms = 600'000;  // time limit of the whole request
  bool may_run_there = false;          // a previous router may have started the job
};

class RemoteJob {
 public:
  RemoteJob(RemoteRequest wanted, const Clock& clock) : wanted_(std::move(wanted)), clock_(clock) {}

  void run();      // Blocks until the job is over or abandoned.
  void cancel();   // Cancels the remote job.
  void abandon();  // Stops polling and lets the job run; another router continues to poll it.
  bool over() const { return over_; }
  // Returns the end of the job once over() is true, or no value if the job was abandoned.
  std::optional<JobEnd> take_end();
  std::vector<Log> take_log();

 private:
  enum class RetryPause { quick, patient };
  // Waits; the pause grows after each failure. Returns false if the job was abandoned.
  bool rest(RetryPause);
  bool late() const { return clock_.boot_ms() >= until_ms_; }
  std::optional<std::string> start();  // Returns the remote key of the job; no value if it is over (end_) or abandoned.
  bool follow(const std::string& key);
  std::vector<Log> fetch_log(const std::string& id);
  void fetch(const std::string& key);
  void take_result(const nlohmann::json& result, std::vector<Log> lines);
  bool is_abandoned() {
    const std::lock_guard lock(mutex_);
    return abandoned_;
  }
  void end(std::string detail, std::string error);

  RemoteRequest wanted_;
  const Clock& clock_;
  HttpClient http_;
  std::uint64_t until_ms_ = 0;
  std::uint32_t pause_ms_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool cancelled_ = false, abandoned_ = false;
  std::optional<JobEnd> end_;
  std::vector<Log> log_;
  std::atomic<bool> over_{false};
};

using nlohmann::json;

constexpr std::uint32_t kCallMs = 15000, kFirstPauseMs = 50, kMaxFollowMs = 1000, kMaxAwayMs = 10000;
constexpr std::uint64_t kAfterCancelMs = 30000;  // time for the supervisor to end a cancelled job
constexpr std::size_t kLogPage = 500, kMaxLogLines = 5000, kMaxKeyBytes = 48;
// Limits for a supervisor that is slow or returns too much: the rest of the log is skipped, and a larger end is
// refused.
constexpr std::uint64_t kMaxLogMs = 15000;
constexpr std::size_t kMaxLogBytes = 8U << 20, kMaxEndBytes = 16U << 20;

std::string text_of(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return {};
  return found->is_string() ? found->get<std::string>() : dump_json(*found);
}

// Returns context and key of the remote job as in its receipt, for example "9 job:5:1". Empty if the supervisor does
// not return them.
std::string ran_as_of(const json& result) {
  const json context = result.value("context_id", json()), key = result.value("key", json());
  if (!context.is_number_unsigned() || !key.is_string() || key.get_ref<const std::string&>().size() > kMaxKeyBytes)
    return {};
  return context.dump() + ' ' + key.get<std::string>();
}

// Returns the job as it is sent: without the fields that are meaningful only in this context.
Job carried_of(const Job& ours) {
  Job job;
  job.script = ours.script;
  job.script_type = ours.script_type;
  job.env_vars = flow_environment(flow_data_of(ours));
  job.env_vars.insert(ours.env_vars.begin(), ours.env_vars.end());
  job.name = ours.name;
  job.policy = ours.policy;
  return job;
}

json params_of(const RemoteRequest& wanted) {
  const Job job = carried_of(wanted.job);
  json params{{"script", job.script}, {"script_type", job.script_type}, {"name", job.name}, {"env_vars", job.env_vars}};
  if (!job.policy.empty()) {
    const auto policy = parse_json(job.policy);
    if (policy && policy->is_object()) params["policy"] = *policy;
  }
  params["timeout"] = std::max<std::uint64_t>(1, wanted.timeout_ms / 1000);
  params["idempotency_key"] =
      "route:" + std::to_string(wanted.context) + ':' + wanted.job_key + ':' + std::to_string(wanted.attempt);
  return params;
}

void RemoteJob::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  wake_.notify_all();
}

void RemoteJob::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  wake_.notify_all();
}

std::optional<JobEnd> RemoteJob::take_end() {
  const std::lock_guard lock(mutex_);
  return std::exchange(end_, std::nullopt);
}

std::vector<Log> RemoteJob::take_log() {
  const std::lock_guard lock(mutex_);
  return std::exchange(log_, {});
}

void RemoteJob::run() {
  until_ms_ = clock_.boot_ms() + wanted_.timeout_ms;
  if (const auto key = start(); key && follow(*key)) fetch(*key);
  over_ = true;
}

bool RemoteJob::rest(RetryPause pace) {
  const std::uint32_t max = pace == RetryPause::quick ? kMaxFollowMs : kMaxAwayMs;
  pause_ms_ = std::min(std::max(pause_ms_ * 2, kFirstPauseMs), max);
  std::unique_lock lock(mutex_);
  const bool was_cancelled = cancelled_;
  wake_.wait_for(lock, std::chrono::milliseconds(pause_ms_), [&] { return abandoned_ || cancelled_ != was_cancelled; });
  return !abandoned_;
}

void RemoteJob::end(std::string detail, std::string error) {
  const std::lock_guard lock(mutex_);
  JobEnd made;
  made.detail = std::move(detail);
  made.error = std::move(error);
  end_ = std::move(made);
}

// Returns whether further requests about a started job are useless: the supervisor does not have the job, or the
// response is too large. Any other refusal can come from a wrong setting on either side (networks, a token) that can be
// corrected.
bool is_final_refusal(const Error& error) {
  return error.code == Code::not_found || error.code == Code::invalid || error.code == Code::too_large;
}

std::optional<std::string> RemoteJob::start() {
  const json params = params_of(wanted_);
  while (true) {
    if (is_abandoned()) return std::nullopt;
    auto started = call_rpc(http_, {wanted_.url, wanted_.secret, "job.start", kCallMs, &wanted_.networks}, params);
    if (started && started->is_object() && started->contains("key")) {
      pause_ms_ = 0;
      return text_of(*started, "key");
    }
    const Error error = started ? Error{Code::internal, "the answer of the supervisor names no job"} : started.error();
    bool cancelled = false;
    {
      const std::lock_guard lock(mutex_);
      cancelled = cancelled_;
    }
    const bool may_pass = wanted_.may_run_there && error.code == Code::denied;
    if (error.code != Code::unavailable && !may_pass) {
      end("setup_error", "supervisor " + wanted_.url + ": " + error.message);
      return std::nullopt;
    }
    // If the answer of a call was lost, the job may run there. Its own time limit then ends it.
    if (cancelled) return end("cancelled", "cancelled before the supervisor answered"), std::nullopt;
    if (late()) return end("timeout", "supervisor " + wanted_.url + " was unavailable: " + error.message), std::nullopt;
    if (!rest(RetryPause::patient)) return std::nullopt;
  }
}

bool RemoteJob::follow(const std::string& key) {
  const json id{{"id", key.substr(key.starts_with("job:") ? 4 : 0)}};
  bool cancel_sent = false;
  std::uint64_t until = until_ms_ + kAfterCancelMs;
  while (true) {
    bool cancel = late();
    {
      const std::lock_guard lock(mutex_);
      if (abandoned_) return false;
      cancel = cancel || cancelled_;
    }
    if (cancel && !cancel_sent) {
      cancel_sent =
          call_rpc(http_, {wanted_.url, wanted_.secret, "job.cancel", kCallMs, &wanted_.networks}, id).has_value();
      until = std::min(until, clock_.boot_ms() + kAfterCancelMs);
    }
    auto status = call_rpc(http_, {wanted_.url, wanted_.secret, "job.status", kCallMs, &wanted_.networks}, id);
    if (status && status->is_object() && status->value("ended", json(false)) == true) return true;
    if (!status && is_final_refusal(status.error())) {
      end("lost", "supervisor " + wanted_.url + ": " + status.error().message);
      return false;
    }
    if (clock_.boot_ms() >= until) {
      end(late() ? "timeout" : "cancelled", "supervisor " + wanted_.url + " did not report how the job ended" +
                                                (status ? "" : ": " + status.error().message));
      return false;
    }
    if (status && pause_ms_ > kMaxFollowMs) pause_ms_ = 0;
    if (!rest(status ? RetryPause::quick : RetryPause::patient)) return false;
  }
}

std::vector<Log> RemoteJob::fetch_log(const std::string& id) {
  std::vector<Log> lines;
  std::uint64_t after = 0;
  std::size_t bytes = 0;
  const std::uint64_t until = clock_.boot_ms() + kMaxLogMs;
  for (bool more = true; more && !is_abandoned() && clock_.boot_ms() < until;) {
    auto page = call_rpc(http_, {wanted_.url, wanted_.secret, "job.logs", kCallMs, &wanted_.networks},
                         {{"id", id}, {"after_seq", after}, {"limit", kLogPage}});
    more = page && page->is_object() && page->contains("lines") && (*page)["lines"].is_array() &&
           !(*page)["lines"].empty();
    for (std::size_t i = 0; more && i < (*page)["lines"].size(); ++i) {
      Log line = decode_json<Log>((*page)["lines"][i]).record;
      bytes += line.text.size();
      more = line.seq > after && bytes <= kMaxLogBytes && lines.size() < kMaxLogLines;
      after = line.seq;
      if (more) lines.push_back(std::move(line));
    }
  }
  return lines;
}

void RemoteJob::fetch(const std::string& key) {
  const std::string id = key.substr(key.starts_with("job:") ? 4 : 0);
  std::vector<Log> lines = fetch_log(id);
  while (!is_abandoned()) {
    auto result =
        call_rpc(http_, {wanted_.url, wanted_.secret, "job.result", kCallMs, &wanted_.networks}, {{"id", id}});
    if (result && result->is_object()) return take_result(*result, std::move(lines));
    const bool is_final = result || is_final_refusal(result.error());
    if (is_final || clock_.boot_ms() >= until_ms_ + kAfterCancelMs)
      return end("lost", "supervisor " + wanted_.url + " does not report the result" +
                             (result ? "" : ": " + result.error().message));
    if (!rest(RetryPause::patient)) return;
  }
}

void RemoteJob::take_result(const json& result, std::vector<Log> lines) {
  const bool finished = text_of(result, "status") == "finished";
  if (const std::size_t size = dump_json(result).size(); size > kMaxEndBytes) {
    return end("too_large", "supervisor " + wanted_.url + ": the job ended as " + (finished ? "finished" : "error") +
                                ", and its result and error have " + std::to_string(size) + " bytes; " +
                                std::to_string(kMaxEndBytes) + " is the maximum");
  }
  JobEnd made;
  made.status = finished ? JobStatus::finished : JobStatus::error;
  made.detail = detail_of_peer(made.status, text_of(result, "detail"));
  made.error = text_of(result, "error");
  made.error_info = text_of(result, "error_info");
  made.usage = text_of(result, "usage");
  made.layers = text_of(result, "layers");
  if (result.value("receipt", json()).is_object()) made.receipt = text_of(result, "receipt");
  made.ran_as = ran_as_of(result);
  if (const auto values = result.find("result"); values != result.end()) {
    ResultValues back = parse_result_values(*values);
    made.result = std::move(back.texts);
    made.result_json = std::move(back.json);
  }
  const std::lock_guard lock(mutex_);
  log_ = std::move(lines);
  end_ = std::move(made);
}

}  // namespace
namespace {

// Returns the artifacts of a dependency that the job lists in `inputs`, by the name or id of the dependency.
std::string asked_of(const Job& job, const RemoteInput& of, const std::string& artifacts) {
  const auto all = parse_json(artifacts.empty() ? "{}" : artifacts);
  if (!all || !all->is_object()) return {};
  json out = json::object();
  for (const auto& [name, about] : all->items()) {
    for (const std::string& called : {of.name, std::to_string(of.id)}) {
      const auto asked = [&](const std::string& each) { return each == called || each == called + '/' + name; };
      if (!called.empty() && std::any_of(job.inputs.begin(), job.inputs.end(), asked)) out[name] = about;
    }
  }
  return out.empty() ? std::string() : dump_json(out);
}

// Returns whether the record of a runner describes a remote supervisor: it has an address and a credential, and no
// agent has ever used it.
bool is_elsewhere(const RunnerInfo& info) {
  const Runner& runner = info.runner;
  return !runner.address.empty() && (!runner.secret.empty() || !runner.pubkey.empty()) && runner.seen_ms == 0;
}

constexpr std::uint64_t kRunnersMs = 2000, kCheckAgainMs = 250;
constexpr std::uint32_t kRouterIdleMs = 1000, kJobsUnavailableMs = 100, kRouterUnavailableMs = 500;
constexpr int kClaimsATurn = 16;  // limit for each iteration, so that leases are renewed in time

class RouterImpl final : public Router, public ContextLoopBase {
 public:
  RouterImpl(std::unique_ptr<Store> store, std::unique_ptr<Waiter> waiter, const Clock& clock, RouterSettings settings)
      : ContextLoopBase(std::move(waiter), clock, ""),
        store_(std::move(store)),
        settings_(settings),
        slots_(settings_.concurrency),
        instance_(random_hex(16)),
        log_once_("router", settings_.context),
        log_threads_("router", settings_.context) {}
  ~RouterImpl() override { thread_.stop(); }
  const Result<void>& started() const { return thread_.started(); }

  void ended() {
    for (RoutedJob& each : routed_jobs_) each.abandon();
    for (RoutedJob& each : routed_jobs_) each.join();
    for (RoutedJob& each : routed_jobs_) {
      (void)report(each.claim,
                   Release{each.claim.ref, "the router is stopping", false});  // After an error the lease expires.
    }
  }

  std::uint64_t run_once() {
    const auto done = round();
    log_once_(done ? nullptr : &done.error());
    set_work_queues(done.has_value() && queues_.waits(slots_));
    return !done ? kRouterUnavailableMs : routed_jobs_.empty() ? kRouterIdleMs : kJobsUnavailableMs;
  }

 private:
  // A hint names a queue. An unknown queue causes an early search for queues.
  void on_hint(std::string_view queue) override {
    if (!queues_.knows(std::string(queue))) next_check_ = std::min(next_check_, last_check_ + kCheckAgainMs);
  }
  void reconnected() override { next_check_ = 0; }

  struct RoutedJob {
    ClaimedJob claim;
    std::string host;                // host that the slot belongs to
    std::unique_ptr<RemoteJob> job;  // null if a message carries the job
    std::thread thread;
    std::optional<JobEnd> end = std::nullopt;  // end that is not stored yet
    std::string message = {};                  // key of the message
    std::uint64_t until_ms = 0;                // deadline of the job, local clock
    bool is_cancelled = false, is_abandoned = false;

    bool over() const { return job ? job->over() : end.has_value() || is_abandoned; }
    void abandon() {
      is_abandoned = true;
      if (job) job->abandon();
    }
    void take_end() {
      if (job && !end) end = job->take_end();
    }
    void join() {
      if (thread.joinable()) thread.join();
    }
  };

  Result<void> round() {
    for (RoutedJob& each : routed_jobs_) {
      if (!each.job) MJ_CHECK(check_message(each));
    }
    MJ_CHECK(settle());
    MJ_CHECK(renew());
    const auto expired = expire();
    if (!expired && expired.error().code == Code::unavailable) return expired;
    MJ_CHECK(take());
    return expired;
  }

  Result<void> report(const ClaimedJob&, Report what) {
    const Report all[] = {std::move(what)};
    MJ_TRY(answers, store_->report(settings_.context, all));
    return answers.empty() ? Result<void>() : answers.front();
  }

  // Stores the ends of completed jobs, after their log lines.
  Result<void> settle() {
    for (auto each = routed_jobs_.begin(); each != routed_jobs_.end();) {
      if (!each->over()) {
        ++each;
        continue;
      }
      each->take_end();
      if (each->end) {
        if (auto lines = each->job ? each->job->take_log() : std::vector<Log>(); !lines.empty()) {
          auto logged = report(each->claim, LogAppend{each->claim.ref, std::move(lines)});
          if (!logged && logged.error().code == Code::unavailable)
            log(LogLevel::warn, "router", "{}: its log is lost",
                in_trace(each->claim.ref.job_key, each->claim.ref.traceparent));
        }
        const Job job = decode<Job>(each->claim.record).record;
        const double chance = std::uniform_real_distribution<double>()(random_);
        const auto again = retry_after({}, *each->end, each->claim.attempt, job.retries, chance);
        auto stored = report(each->claim, EndReport{each->claim.ref, *each->end, again});
        if (!stored && stored.error().code == Code::unavailable) return stored;
        if (!stored)
          log(LogLevel::info, "router", "{}: {}", in_trace(each->claim.ref.job_key, each->claim.ref.traceparent),
              stored.error().message);
      }
      each->join();
      slots_.release_slot(each->host);
      each = routed_jobs_.erase(each);
    }
    return {};
  }

  Result<void> renew() {
    if (routed_jobs_.empty() || clock_.boot_ms() < next_renewal_) return {};
    std::vector<ClaimRef> claims;
    for (const RoutedJob& each : routed_jobs_) claims.push_back(each.claim.ref);
    MJ_TRY(answers, store_->renew(settings_.context, claims, settings_.lease_ms));
    next_renewal_ = clock_.boot_ms() + std::min(settings_.lease_ms / 3, 1000U);
    auto each = routed_jobs_.begin();
    for (const Renewal answer : answers) {
      if (answer == Renewal::cancel) MJ_CHECK(cancel(*each));
      if (answer == Renewal::stale) each->abandon();
      ++each;
    }
    return {};
  }

  // Expires the leases of dead routers: leases that were not renewed for their whole duration.
  Result<void> expire() {
    if (clock_.boot_ms() < next_expiry_) return {};
    next_expiry_ = clock_.boot_ms() + 1000;
    const std::uint64_t asked = clock_.boot_ms();
    MJ_TRY(leases, store_->leases(settings_.context));
    Result<void> done;
    for (const Lease& lease : leases_.unrenewed(leases, asked, clock_.boot_ms(), 0)) {
      const auto expired = store_->expire(settings_.context, lease);
      if (expired) continue;
      done = tl::unexpected<Error>(expired.error());  // The error is kept, and the other leases are processed.
      if (expired.error().code == Code::unavailable) return done;
    }
    return done;
  }

  Result<void> take() {
    MJ_CHECK(find_queues());
    for (int i = 0; i < kClaimsATurn && !stopped(); ++i) {
      const RouterQueues::ClaimPlan ask = queues_.next(slots_);
      if (ask.queues.empty()) return {};
      ClaimRequest request;
      request.context = settings_.context;
      request.instance = instance_;
      request.queues = ask.queues;
      request.max_jobs = ask.max_jobs;
      request.lease_ms = settings_.lease_ms;
      MJ_TRY(reply, store_->claim(request));
      waiter().set_paused(settings_.context, reply.paused);  // The state is read in every round.
      std::vector<std::string> came;
      std::vector<Report> back;
      Result<void> sent;
      for (ClaimedJob& claim : reply.jobs) {
        came.push_back(claim.queue);
        if (sent) {
          sent = send(std::move(claim), back);
        } else {
          back.emplace_back(Release{claim.ref, "a job before it could not be sent", false});
        }
      }
      queues_.record_claims(ask, came);
      const bool over = !sent || !back.empty() || came.empty();
      if (!back.empty()) MJ_CHECK(give_back(std::move(back)));
      if (over) return sent;
    }
    return {};
  }

  // Releases jobs in reverse order, so that the queue has its previous order.
  Result<void> give_back(std::vector<Report> jobs) {
    std::reverse(jobs.begin(), jobs.end());
    MJ_CHECK(store_->report(settings_.context, jobs));
    next_check_ = 0;  // The record of a supervisor may have a new address.
    return {};
  }

  // Finds the queues of remote supervisors. No agent claims from them.
  Result<void> find_queues() {
    if (clock_.boot_ms() < next_check_) return {};
    MJ_TRY(runners, store_->runners(settings_.context));
    MJ_TRY(known, store_->known_queues(settings_.context));
    last_check_ = clock_.boot_ms();
    next_check_ = last_check_ + kRunnersMs;
    std::map<std::string, std::string> of_hosts;
    for (const RunnerInfo& info : runners) {
      const std::string host = host_of_address(info.runner.address), queue = router_queue(info.runner.address);
      if (queue != kRouterQueue) of_hosts[queue] = host;
      if (is_elsewhere(info)) of_hosts[runner_queue(info.runner.id)] = host;
    }
    queues_.update_queues(std::move(of_hosts), known.journals);
    return {};
  }

  // A flow cannot make the coordinator call an arbitrary address: only addresses of registered runners are called.
  Result<std::optional<Runner>> supervisor_of(const std::string& url) {
    MJ_TRY(runners, store_->runners(settings_.context));
    const auto to = std::find_if(runners.begin(), runners.end(), [&](const RunnerInfo& info) {
      return url.starts_with("runner:") ? redis_key(info.runner) == url && is_elsewhere(info)
                                        : info.runner.address == url;
    });
    return to == runners.end() ? std::nullopt : std::optional(std::move(to->runner));
  }

  RemoteRequest wanted_of(const ClaimedJob& claim) const {
    RemoteRequest wanted;
    wanted.context = settings_.context;
    wanted.job_key = claim.ref.job_key;
    wanted.attempt = claim.attempt;
    wanted.job = decode<Job>(claim.record).record;
    wanted.url = field_of(claim.record, "supervisor_url");
    wanted.timeout_ms = wanted.job.timeout ? *wanted.job.timeout * std::uint64_t{1000} : settings_.default_timeout_ms;
    wanted.networks = settings_.networks;
    wanted.may_run_there = claim.epoch > 1;
    return wanted;
  }

  // back: receives the release of the job if its supervisor has no free slot. The queue was polled for another host.
  Result<void> send(ClaimedJob claim, std::vector<Report>& back) {
    RemoteRequest wanted = wanted_of(claim);
    const auto refuse = [&](const std::string& why) { return end_refused(claim, '"' + wanted.url + "\" " + why); };
    MJ_TRY(to, supervisor_of(wanted.url));
    if (!to)
      return refuse(
          "is not the address of a runner of this context: an admin must register it with its secret or public key "
          "(runner.create)");
    // A released job would be claimed again at once, in an endless loop.
    if (claim.queue != kRouterQueue && claim.queue != queue_of_supervisor(wanted.url))
      return refuse("is not the supervisor for which the job was queued: another client has changed the record since");
    wanted.url = to->address;
    std::string host = host_of_address(to->address);
    if (slots_.available_slots(host) == 0) {
      back.emplace_back(Release{claim.ref, "its supervisor already has the maximum number of jobs", false});
      if (claim.queue == kRouterQueue) queues_.skip_host(std::move(host));
      return {};
    }
    if (to->secret.empty() && !to->pubkey.empty())
      return send_message(std::move(claim), std::move(host), *to, std::move(wanted));
    if (!wanted.job.inputs.empty())
      return refuse("is called with a secret, so artifacts cannot be sent to it: give its runner a public key instead");
    if (!wanted.url.starts_with("http://") && !wanted.url.starts_with("https://"))
      return refuse("is not a valid address of a supervisor: give http://HOST:PORT");
    wanted.secret = to->secret;
    auto job = std::make_unique<RemoteJob>(std::move(wanted), clock_);
    auto thread = start_thread([remote = job.get()] { remote->run(); });
    log_threads_(thread ? nullptr : &thread.error());
    if (!thread) {  // This host is out of threads: the job is sent later, or by another coordinator.
      back.emplace_back(Release{claim.ref, std::move(thread).error().message, false});
      if (claim.queue == kRouterQueue) queues_.skip_host(std::move(host));
      return {};
    }
    RoutedJob& away = begin(std::move(claim), std::move(host));
    away.job = std::move(job);
    away.thread = std::move(*thread);
    return {};
  }

  Result<void> end_refused(const ClaimedJob& claim, const std::string& why) {
    JobEnd end;
    end.detail = "setup_error";
    end.error = "supervisor_url: " + why;
    return report(claim, EndReport{claim.ref, end});
  }

  RoutedJob& begin(ClaimedJob claim, std::string host) {
    slots_.acquire_slot(host);
    RoutedJob& away = routed_jobs_.emplace_back();
    away.claim = std::move(claim);
    away.host = std::move(host);
    return away;
  }

  // The job stays claimed; the message has a copy of it, once for each attempt.
  Result<void> send_message(ClaimedJob claim, std::string host, const Runner& to, RemoteRequest wanted) {
    auto message = settings_.key
                       ? sent_message(to, wanted)
                       : Result<Message>(fail(
                             Code::invalid,
                             "coordinator.key: is not set on this coordinator, so other hosts reject its messages"));
    if (!message && message.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(message).error());
    if (!message) return end_refused(claim, message.error().message);
    RoutedJob& away = begin(std::move(claim), std::move(host));
    away.message = redis_key(*message);
    away.until_ms = clock_.boot_ms() + wanted.timeout_ms;
    return {};
  }

  // Stores the message under the first id that no other client uses. The attempt of the job determines the candidates.
  Result<Message> sent_message(const Runner& to, const RemoteRequest& wanted) {
    constexpr int kMaxIds = 16;
    MJ_TRY(message, message_of(to, wanted));
    for (int i = 0; i < kMaxIds; ++i) {
      const std::string name = std::to_string(wanted.context) + ' ' + wanted.job_key + ' ' +
                               std::to_string(wanted.attempt) + (i == 0 ? "" : ' ' + std::to_string(i));
      message.id = std::max<Id>(1, static_cast<Id>(std::stoul(sha256_hex(name).substr(0, 8), nullptr, 16)));
      MJ_TRY(written, write(message));
      if (!written) continue;
      MJ_TRY(is_routed, route(*written));
      if (is_routed) return std::move(*written);
    }
    return fail(Code::conflict, "other clients have used all ids for messages of " + wanted.job_key);
  }

  // Signs and stores the message, or returns the message that a previous router signed. Returns no value if the id
  // belongs to a record of another client.
  Result<std::optional<Message>> write(const Message& wanted) {
    Message message = wanted;
    auto there = store_->load(settings_.context, redis_key(message));
    if (!there && there.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(there).error());
    if (!there && there.error().code != Code::not_found) return std::optional<Message>();
    if (there) {
      Message found = decode<Message>(*there).record;
      message.created_at = found.created_at;
      message.algorithm = found.algorithm;
      message.signer = found.signer;
      // The artifacts of the dependencies may have been deleted since, so the stored list is used.
      if (found.job.size() == message.job.size() && !found.job.empty())
        message.job.front().given = found.job.front().given;
      MJ_TRY(content, content_hash(message));
      const auto of_found = content_hash(found);
      const bool is_own_key = of_found && *of_found == content &&
                              check_signature(found, {settings_.key->public_key(), found.created_at}).has_value();
      return is_own_key ? std::optional(std::move(found)) : std::nullopt;
    }
    MJ_CHECK(check_files(*store_, settings_.files, settings_.context, message));
    MJ_TRY(now_ms, store_->now_ms());
    message.created_at = static_cast<std::uint32_t>(now_ms / 1000);
    MJ_CHECK(sign(message, *settings_.key));
    const std::string counter = "message:" + std::to_string(message.caller_id);
    MJ_TRY(made, store_->create_record(settings_.context, {counter + ':', counter, message.id, encode(message)}));
    if (made.existed) return write(wanted);  // Another router wrote the record in between.
    return std::optional(std::move(message));
  }

  // Returns the message without its id and signature.
  Result<Message> message_of(const Runner& to, const RemoteRequest& wanted) {
    Message message;
    message.caller_id = wanted.job.caller_id;
    message.context_id = settings_.context;
    message.flow_id = wanted.job.flow_id;
    message.target_address = wanted.url;
    message.target_key = to.pubkey;
    message.target_context = to.target_context != 0 ? to.target_context : settings_.context;
    message.topic = to.topic;
    message.timeout = static_cast<std::uint32_t>(std::min<std::uint64_t>(kMaxDeliverS, wanted.timeout_ms / 1000));
    Job job = carried_of(wanted.job);
    job.id = wanted.job.id;
    job.caller_id = wanted.job.caller_id;
    job.context_id = settings_.context;
    job.timeout = wanted.job.timeout;
    job.inputs = wanted.job.inputs;
    MJ_TRY(given, given_of(wanted.job));
    job.given = std::move(given);
    message.job.push_back(std::move(job));
    return message;
  }

  // Returns the results of all dependencies and the artifacts that the job lists in `inputs`.
  Result<std::string> given_of(const Job& job) {
    std::vector<RemoteInput> all;
    constexpr std::string_view kAsked[] = {"name", "result", "result_json", "artifacts"};
    for (const Id id : std::set<Id>(job.dependends.begin(), job.dependends.end())) {
      auto fields = store_->load_fields(settings_.context, job_key(job.caller_id, id), kAsked);
      if (!fields && fields.error().code == Code::not_found) continue;  // deleted by retention
      if (!fields) return tl::unexpected<Error>(std::move(fields).error());
      Job left = decode<Job>(*fields).record;
      RemoteInput one{id, left.name, std::move(left.result), std::move(left.result_json), ""};
      one.artifacts = asked_of(job, one, left.artifacts);
      all.push_back(std::move(one));
    }
    return remote_inputs_to_json(all);
  }

  // Returns false if another message with the same key was sent before.
  Result<bool> route(const Message& message) {
    MJ_TRY(content, content_hash(message));
    const std::string key = redis_key(message);
    RouteMessage wanted{key, {content, {}}, std::uint64_t{message.timeout} * 1000, 0, {}};
    wanted.mark.more = {{"address", message.target_address},
                        {"context", std::to_string(message.target_context)},
                        {"signer", message.signer},
                        {"carried", "1"},
                        {"jobs", redis_key(message.job.front())}};
    MJ_TRY(done, store_->route_message(settings_.context, wanted));
    if (!done.repeated) return true;
    constexpr std::string_view kAsked[] = {"content"};
    MJ_TRY(mark, store_->load_fields(settings_.context, "mj:message:" + key, kAsked));
    return field_of(mark, "content") == content;
  }

  Result<void> cancel(RoutedJob& away) {
    if (away.job) {
      away.job->cancel();
      return {};
    }
    if (away.is_cancelled) return {};
    MJ_CHECK(store_->cancel_message(settings_.context, away.message));
    away.is_cancelled = true;
    away.until_ms = std::min(away.until_ms, clock_.boot_ms() + kAfterCancelMs);
    return {};
  }

  // Reads the state of a job that a message carries from the mark of the message. The record itself is not trusted,
  // since every actor with permission to send messages can write it.
  Result<void> check_message(RoutedJob& away) {
    if (away.over()) return {};
    constexpr std::string_view kAsked[] = {"state", "why", kCarriedAnswer};
    auto fields = store_->load_fields(settings_.context, "mj:message:" + away.message, kAsked);
    if (!fields && fields.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(fields).error());
    const std::string_view state = fields ? field_of(*fields, "state") : "";
    JobEnd end;
    end.detail = away.is_cancelled ? "cancelled" : "lost";
    if (state.empty() || state == "over") {
      const auto answers = parse_json(fields ? field_of(*fields, kCarriedAnswer) : "");
      auto answer =
          answers && answers->is_array() && !answers->empty()
              ? read_answered_job(answers->front(), 0)
              : Result<RemoteJobEnd>(fail(Code::not_found, !state.empty() ? std::string(field_of(*fields, "why"))
                                                                          : "its message no longer exists"));
      if (answer) {
        end = std::move(answer->end);
      } else {
        end.error = "supervisor: " + answer.error().message;
      }
      away.end = std::move(end);
    } else if (clock_.boot_ms() >= away.until_ms) {
      if (!away.is_cancelled) MJ_CHECK(store_->cancel_message(settings_.context, away.message));
      if (!away.is_cancelled) end.detail = "timeout";
      end.error = away.message + ": no answer was received in time";
      away.end = std::move(end);
    }
    return {};
  }

  std::unique_ptr<Store> store_;
  RouterSettings settings_;
  RouterSlots slots_;
  RouterQueues queues_;
  std::string instance_;
  std::list<RoutedJob> routed_jobs_;
  LeaseObserver leases_;
  std::uint64_t next_renewal_ = 0, next_expiry_ = 0, next_check_ = 0, last_check_ = 0;
  std::mt19937_64 random_{std::random_device{}()};
  LogOnce log_once_, log_threads_;
  LoopThread<RouterImpl> thread_{*this};  // Last member: the thread uses all members above.
};

}  // namespace

Result<std::unique_ptr<Router>> Router::start(StoreFactory& stores, const Clock& clock, RouterSettings settings) {
  MJ_TRY(store, stores.open());
  MJ_TRY(waiter, stores.open_waiter({{settings.context, kRouterQueue}}, "mj:router"));
  auto made = std::make_unique<RouterImpl>(std::move(store), std::move(waiter), clock, settings);
  MJ_CHECK(made->started());
  return made;
}

}  // namespace mycojobs
