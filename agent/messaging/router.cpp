#include "messaging/router.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/log.h"
#include "base/random.h"
#include "base/sha256.h"
#include "base/thread.h"
#include "jobs/retry.h"
#include "messaging/message_checks.h"
#include "messaging/message_codec.h"
#include "messaging/message_receiver.h"
#include "messaging/remote_job.h"
#include "model/codec.h"
#include "model/flow_data.h"
#include "model/submitted_files.h"
#include "model/trace_context.h"
#include "net/host.h"
#include "security/signatures.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "text/json.h"

namespace mycojobs {
namespace {

using nlohmann::json;

// Returns the artifacts of a dependency that the job lists in `inputs`, by the name or id of the dependency.
std::string select_input_artifacts(const Job& job, const RemoteInput& input, const std::string& artifacts) {
  const auto parsed = parse_json(artifacts.empty() ? "{}" : artifacts);
  if (!parsed || !parsed->is_object()) return {};
  json selected = json::object();
  for (const auto& [path, artifact] : parsed->items()) {
    for (const std::string& dependency : {input.name, std::to_string(input.id)}) {
      const auto is_match = [&, &path = path](const std::string& entry) {
        return entry == dependency || entry == dependency + '/' + path;
      };
      if (!dependency.empty() && std::any_of(job.inputs.begin(), job.inputs.end(), is_match)) selected[path] = artifact;
    }
  }
  return selected.empty() ? std::string() : dump_json(selected);
}

// Returns whether the record of a runner describes a remote supervisor: it has an address and a credential, and no
// agent has ever used it.
bool is_remote_supervisor(const RunnerInfo& info) {
  const Runner& runner = info.runner;
  return !runner.address.empty() && (!runner.secret.empty() || !runner.pubkey.empty()) && runner.seen_ms == 0;
}

constexpr std::uint64_t kQueueScanIntervalMs = 2000, kMinQueueScanIntervalMs = 250;
constexpr std::uint32_t kClaimPollMs = 1000, kRemoteJobsPollMs = 100, kRouterRetryDelayMs = 500;
// Interval of reads of the leases, which ends the leases of dead processes: while a job has a lease, and otherwise.
constexpr std::uint64_t kLeaseCheckMs = 1000, kIdleLeaseCheckMs = 5000;
constexpr int kMaxClaimsPerRound = 16;  // Leases are renewed between two rounds.

}  // namespace

struct Router::RoutedJob {
  ClaimedJob claim;
  std::string host;                       // host that the slot belongs to
  std::unique_ptr<RemoteJob> remote_job;  // null if the job is sent by message
  std::thread thread;
  std::optional<JobEnd> end = std::nullopt;  // end that is not stored yet
  std::string message = {};                  // key of the message
  std::uint64_t deadline_ms = 0;             // deadline of the job, local clock
  bool is_cancelled = false, is_abandoned = false;

  bool has_ended() const { return remote_job ? remote_job->is_done() : end.has_value() || is_abandoned; }
  void abandon() {
    is_abandoned = true;
    if (remote_job) remote_job->abandon();
  }
  void pop_end() {
    if (remote_job && !end) end = remote_job->pop_end();
  }
  void join() {
    if (thread.joinable()) thread.join();
  }
};

Result<std::unique_ptr<Router>> Router::start(StoreFactory& stores, const Clock& clock, LoopPool& pool,
                                              RouterSettings settings) {
  MJ_TRY(store, stores.open());
  const Id context = settings.context;
  std::unique_ptr<Router> router(new Router(std::move(store), clock, std::move(settings)));
  MJ_CHECK(router->begin(stores, context, {{kRouterChannel, kWakeChannel}, {kRouterQueueKey}}, pool));
  return router;
}

Router::Router(std::unique_ptr<Store> store, const Clock& clock, RouterSettings settings)
    : HintedLoop(kRouterQueueKey),
      store_(std::move(store)),
      clock_(clock),
      settings_(std::move(settings)),
      slots_(settings_.concurrency),
      instance_(random_hex(16)),
      log_once_("router", settings_.context),
      log_threads_("router", settings_.context) {}

Router::~Router() { end(); }

void Router::ended() {
  for (RoutedJob& entry : routed_jobs_) entry.abandon();
  for (RoutedJob& entry : routed_jobs_) entry.join();
  for (RoutedJob& entry : routed_jobs_) {
    const auto released = report(Release{entry.claim.ref, "the router is stopping", false});
    if (!released && released.error().code == Code::unavailable) break;  // the leases expire
  }
}

std::uint64_t Router::run_iteration() {
  const auto result = run_round();
  log_once_(result ? nullptr : &result.error());
  if (!result) return kRouterRetryDelayMs;
  if (has_more_claims_) return 0;
  if (!routed_jobs_.empty()) return kRemoteJobsPollMs;
  if (has_scan_hint()) return kMinQueueScanIntervalMs;
  if (next_claim_ms_ == 0) return kClaimPollMs;
  const std::uint64_t now = clock_.boot_ms();
  return std::max(std::min(next_expiry_ms_, next_claim_ms_), now + 1) - now;
}

bool Router::has_scan_hint() const { return next_queue_scan_ms_ < last_queue_scan_ms_ + kQueueScanIntervalMs; }

// The hint is the rest of the name of a queue of a router. It is empty for the shared queue, for example after the
// queue was resumed.
void Router::on_hint(std::string_view queue) {
  next_claim_ms_ = 0;
  if (!queue.empty() && !queues_.is_known_host_queue(kRouterQueueKey + std::string(queue)))
    next_queue_scan_ms_ = std::min(next_queue_scan_ms_, last_queue_scan_ms_ + kMinQueueScanIntervalMs);
}

Result<void> Router::run_round() {
  for (RoutedJob& entry : routed_jobs_) {
    if (!entry.remote_job) MJ_CHECK(poll_message(entry));
  }
  MJ_CHECK(store_ends());
  MJ_CHECK(renew_leases());
  const auto expired = expire_leases();
  if (!expired && expired.error().code == Code::unavailable) return expired;
  has_more_claims_ = false;
  next_claim_ms_ = std::min(next_claim_ms_, clock_.boot_ms() + max_idle_ms());  // hints may have been lost since
  if (clock_.boot_ms() >= next_claim_ms_) {
    next_claim_ms_ = 0;
    MJ_TRY(has_more, claim_jobs());
    has_more_claims_ = has_more;
    // No hint reports entries of the queue of a runner with a supervisor, or a free slot.
    const bool must_poll = has_more || has_scan_hint() || !routed_jobs_.empty() || queues_.has_host_queues();
    if (!must_poll) next_claim_ms_ = clock_.boot_ms() + max_idle_ms();
  }
  return expired;
}

Result<void> Router::report(Report entry) {
  const Report reports[] = {std::move(entry)};
  MJ_TRY(answers, store_->report(settings_.context, reports));
  return answers.empty() ? Result<void>() : answers.front();
}

Result<void> Router::store_ends() {
  for (auto entry = routed_jobs_.begin(); entry != routed_jobs_.end();) {
    if (!entry->has_ended()) {
      ++entry;
      continue;
    }
    entry->pop_end();
    if (entry->end) {
      if (auto lines = entry->remote_job ? entry->remote_job->pop_log() : std::vector<Log>(); !lines.empty()) {
        auto logged = report(LogAppend{entry->claim.ref, std::move(lines)});
        if (!logged && logged.error().code == Code::unavailable)
          log(LogLevel::warn, "router", "{}: its log is lost",
              append_trace_id(entry->claim.ref.job_key, entry->claim.ref.traceparent));
      }
      const Job job = decode<Job>(entry->claim.record).record;
      const double random = std::uniform_real_distribution<double>()(random_);
      const auto retry_delay = compute_retry_delay_ms({}, *entry->end, entry->claim.attempt, job.retries, random);
      auto stored = report(EndReport{entry->claim.ref, *entry->end, retry_delay});
      if (!stored && stored.error().code == Code::unavailable) return stored;
      if (!stored)
        log(LogLevel::info, "router", "{}: {}", append_trace_id(entry->claim.ref.job_key, entry->claim.ref.traceparent),
            stored.error().message);
    }
    entry->join();
    slots_.release_slot(entry->host);
    entry = routed_jobs_.erase(entry);
  }
  return {};
}

Result<void> Router::renew_leases() {
  if (routed_jobs_.empty() || clock_.boot_ms() < next_renewal_ms_) return {};
  std::vector<ClaimRef> claims;
  for (const RoutedJob& entry : routed_jobs_) claims.push_back(entry.claim.ref);
  MJ_TRY(answers, store_->renew(settings_.context, claims, settings_.lease_ms));
  next_renewal_ms_ = clock_.boot_ms() + std::min(settings_.lease_ms / 3, 1000U);
  auto entry = routed_jobs_.begin();
  for (const Renewal answer : answers) {
    if (answer == Renewal::cancel) MJ_CHECK(cancel(*entry));
    if (answer == Renewal::stale) entry->abandon();
    ++entry;
  }
  return {};
}

Result<void> Router::expire_leases() {
  if (clock_.boot_ms() < next_expiry_ms_) return {};
  next_expiry_ms_ = clock_.boot_ms() + kLeaseCheckMs;
  const std::uint64_t request_ms = clock_.boot_ms();
  MJ_TRY(leases, store_->leases(settings_.context));
  if (leases.empty()) next_expiry_ms_ = request_ms + kIdleLeaseCheckMs;
  Result<void> result;
  for (const Lease& lease : leases_.find_unrenewed(leases, request_ms, clock_.boot_ms(), 0)) {
    const auto expired = store_->expire(settings_.context, lease);
    if (expired) continue;
    result = tl::unexpected<Error>(expired.error());  // The other leases are processed before the error is returned.
    if (expired.error().code == Code::unavailable) return result;
  }
  return result;
}

Result<bool> Router::claim_jobs() {
  MJ_CHECK(find_queues());
  for (int i = 0; i < kMaxClaimsPerRound && !stopped(); ++i) {
    const RouterQueues::ClaimPlan plan = queues_.next_claims(slots_);
    if (plan.queues.empty()) return false;
    ClaimRequest request;
    request.context = settings_.context;
    request.instance = instance_;
    request.queues = plan.queues;
    request.max_jobs = plan.max_jobs;
    request.lease_ms = settings_.lease_ms;
    MJ_TRY(reply, store_->claim(request));
    std::vector<std::string> claimed_queues;
    std::vector<Report> releases;
    Result<void> sent;
    for (ClaimedJob& claim : reply.jobs) {
      claimed_queues.push_back(claim.queue);
      if (sent) {
        sent = route_job(std::move(claim), releases);
      } else {
        releases.emplace_back(Release{claim.ref, "a job before it could not be sent", false});
      }
    }
    queues_.record_claims(plan, claimed_queues);
    const bool is_done = !sent || !releases.empty() || claimed_queues.empty();
    if (!releases.empty()) MJ_CHECK(requeue_unrouted(std::move(releases)));
    MJ_CHECK(sent);
    if (is_done) return false;
  }
  return true;
}

Result<void> Router::requeue_unrouted(std::vector<Report> jobs) {
  std::reverse(jobs.begin(), jobs.end());
  MJ_CHECK(store_->report(settings_.context, jobs));
  next_queue_scan_ms_ = 0;  // The record of a supervisor may have a new address.
  return {};
}

Result<void> Router::find_queues() {
  if (clock_.boot_ms() < next_queue_scan_ms_) return {};
  MJ_TRY(runners, store_->runners(settings_.context));
  MJ_TRY(known_queues, store_->known_queues(settings_.context));
  last_queue_scan_ms_ = clock_.boot_ms();
  next_queue_scan_ms_ = last_queue_scan_ms_ + kQueueScanIntervalMs;
  std::map<std::string, std::string> hosts_by_queue;
  for (const RunnerInfo& info : runners) {
    const std::string host = extract_host(info.runner.address), queue = router_queue(info.runner.address);
    if (queue != kRouterQueueKey) hosts_by_queue[queue] = host;
    if (is_remote_supervisor(info)) hosts_by_queue[runner_queue(info.runner.id)] = host;
  }
  queues_.update_queues(std::move(hosts_by_queue), known_queues.journals);
  return {};
}

Result<std::optional<Runner>> Router::find_supervisor(const std::string& url) {
  MJ_TRY(runners, store_->runners(settings_.context));
  const auto supervisor = std::find_if(runners.begin(), runners.end(), [&](const RunnerInfo& info) {
    return url.starts_with("runner:") ? redis_key(info.runner) == url && is_remote_supervisor(info)
                                      : info.runner.address == url;
  });
  return supervisor == runners.end() ? std::nullopt : std::optional(std::move(supervisor->runner));
}

RemoteRequest Router::make_remote_request(const ClaimedJob& claim) const {
  RemoteRequest request;
  request.context = settings_.context;
  request.job_key = claim.ref.job_key;
  request.attempt = claim.attempt;
  request.job = decode<Job>(claim.record).record;
  request.url = field_of(claim.record, "supervisor_url");
  request.timeout_ms = request.job.timeout ? *request.job.timeout * std::uint64_t{1000} : settings_.default_timeout_ms;
  request.allowed_networks = settings_.networks;
  request.ca = settings_.https_ca;
  request.possibly_started = claim.epoch > 1;
  return request;
}

Result<void> Router::route_job(ClaimedJob claim, std::vector<Report>& releases) {
  RemoteRequest request = make_remote_request(claim);
  const auto refuse = [&](const std::string& reason) {
    return end_as_refused(claim, '"' + request.url + "\" " + reason);
  };
  MJ_TRY(supervisor, find_supervisor(request.url));
  if (!supervisor)
    return refuse(
        "is not the address of a runner of this context: an admin must register it with its secret or public key "
        "(runner.create)");
  // A released job would be claimed again at once, in an endless loop.
  if (claim.queue != kRouterQueueKey && claim.queue != supervisor_queue(request.url))
    return refuse("is not the supervisor for which the job was queued: another client has changed the record since");
  if (has_submitted_files(request.job))
    return refuse("runs jobs of another context, to which stdin and files cannot be sent: run the job in this context");
  if (parse_flow_data(request.job).has_references())
    return refuse(
        "runs jobs of another context, where ${NODE.KEY} in env and args has no value: run the job in this "
        "context");
  request.url = supervisor->address;
  std::string host = extract_host(supervisor->address);
  if (slots_.available_slots(host) == 0) {
    releases.emplace_back(Release{claim.ref, "its supervisor already has the maximum number of jobs", false});
    if (claim.queue == kRouterQueueKey) queues_.skip_shared_queue(std::move(host));
    return {};
  }
  if (supervisor->secret.empty() && !supervisor->pubkey.empty())
    return send_by_message(std::move(claim), std::move(host), *supervisor, std::move(request));
  if (!request.job.inputs.empty())
    return refuse("is called with a secret, so artifacts cannot be sent to it: give its runner a public key instead");
  if (!request.url.starts_with("http://") && !request.url.starts_with("https://"))
    return refuse("is not a valid address of a supervisor: give http://HOST:PORT");
  request.secret = supervisor->secret;
  auto remote_job = std::make_unique<RemoteJob>(std::move(request), clock_);
  auto thread = start_thread([job = remote_job.get()] { job->run(); });
  log_threads_(thread ? nullptr : &thread.error());
  if (!thread) {  // This host is out of threads: the job is sent later, or by another coordinator.
    releases.emplace_back(Release{claim.ref, std::move(thread).error().message, false});
    if (claim.queue == kRouterQueueKey) queues_.skip_shared_queue(std::move(host));
    return {};
  }
  RoutedJob& routed_job = add_routed_job(std::move(claim), std::move(host));
  routed_job.remote_job = std::move(remote_job);
  routed_job.thread = std::move(*thread);
  return {};
}

Result<void> Router::end_as_refused(const ClaimedJob& claim, const std::string& reason) {
  JobEnd end;
  end.detail = "setup_error";
  end.error = "supervisor_url: " + reason;
  return report(EndReport{claim.ref, end});
}

Router::RoutedJob& Router::add_routed_job(ClaimedJob claim, std::string host) {
  slots_.acquire_slot(host);
  RoutedJob& job = routed_jobs_.emplace_back();
  job.claim = std::move(claim);
  job.host = std::move(host);
  return job;
}

Result<void> Router::send_by_message(ClaimedJob claim, std::string host, const Runner& supervisor,
                                     RemoteRequest request) {
  auto message =
      settings_.key
          ? store_message(supervisor, request)
          : Result<Message>(fail(
                Code::invalid, "coordinator.key: is not set on this coordinator, so other hosts reject its messages"));
  if (!message && message.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(message).error());
  if (!message) return end_as_refused(claim, message.error().message);
  RoutedJob& job = add_routed_job(std::move(claim), std::move(host));
  job.message = redis_key(*message);
  job.deadline_ms = clock_.boot_ms() + request.timeout_ms;
  return {};
}

Result<Message> Router::store_message(const Runner& supervisor, const RemoteRequest& request) {
  constexpr int kMaxMessageIds = 16;
  MJ_TRY(message, make_message(supervisor, request));
  for (int i = 0; i < kMaxMessageIds; ++i) {
    const std::string seed = std::to_string(request.context) + ' ' + request.job_key + ' ' +
                             std::to_string(request.attempt) + (i == 0 ? "" : ' ' + std::to_string(i));
    message.id = std::max<Id>(1, static_cast<Id>(std::stoul(sha256_hex(seed).substr(0, 8), nullptr, 16)));
    MJ_TRY(written, write_message(message));
    if (!written) continue;
    MJ_TRY(is_routed, route_message(*written));
    if (is_routed) return std::move(*written);
  }
  return fail(Code::conflict, "other clients have used all ids for messages of " + request.job_key);
}

Result<std::optional<Message>> Router::write_message(const Message& unsigned_message) {
  Message message = unsigned_message;
  auto stored = store_->load(settings_.context, redis_key(message));
  if (!stored && stored.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(stored).error());
  if (!stored && stored.error().code != Code::not_found) return std::optional<Message>();
  if (stored) {
    Message stored_message = decode<Message>(*stored).record;
    message.created_at = stored_message.created_at;
    message.algorithm = stored_message.algorithm;
    message.signer = stored_message.signer;
    // The artifacts of the dependencies may have been deleted since, so the stored list is used.
    if (stored_message.job.size() == message.job.size() && !stored_message.job.empty())
      message.job.front().remote_inputs = stored_message.job.front().remote_inputs;
    MJ_TRY(content, content_hash(message));
    const auto stored_hash = content_hash(stored_message);
    const bool is_same_message =
        stored_hash && *stored_hash == content &&
        check_signature(stored_message, {settings_.key->public_key(), stored_message.created_at}).has_value();
    return is_same_message ? std::optional(std::move(stored_message)) : std::nullopt;
  }
  MJ_CHECK(check_message_files(*store_, settings_.files, settings_.context, message));
  MJ_TRY(now_ms, store_->now_ms());
  message.created_at = static_cast<std::uint32_t>(now_ms / 1000);
  MJ_CHECK(sign(message, *settings_.key));
  const std::string counter = "message:" + std::to_string(message.caller_id);
  MJ_TRY(created, store_->create_record(settings_.context, {counter + ':', counter, message.id, encode(message)}));
  if (created.existed) return write_message(unsigned_message);  // Another router wrote the record in between.
  return std::optional(std::move(message));
}

Result<Message> Router::make_message(const Runner& supervisor, const RemoteRequest& request) {
  Message message;
  message.caller_id = request.job.caller_id;
  message.context_id = settings_.context;
  message.flow_id = request.job.flow_id;
  message.target_address = request.url;
  message.target_key = supervisor.pubkey;
  message.target_context = supervisor.target_context != 0 ? supervisor.target_context : settings_.context;
  message.topic = supervisor.topic;
  message.timeout = static_cast<std::uint32_t>(std::min<std::uint64_t>(kMaxMessageTimeoutS, request.timeout_ms / 1000));
  Job job = make_sent_job(request.job);
  job.id = request.job.id;
  job.caller_id = request.job.caller_id;
  job.context_id = settings_.context;
  job.timeout = request.job.timeout;
  job.inputs = request.job.inputs;
  MJ_TRY(given, collect_inputs(request.job));
  job.remote_inputs = std::move(given);
  message.job.push_back(std::move(job));
  return message;
}

Result<std::string> Router::collect_inputs(const Job& job) {
  std::vector<RemoteInput> inputs;
  constexpr std::string_view kFields[] = {"name", "result", "result_json", "artifacts"};
  for (const Id id : std::set<Id>(job.dependends.begin(), job.dependends.end())) {
    auto fields = store_->load_fields(settings_.context, job_key(job.caller_id, id), kFields);
    if (!fields && fields.error().code == Code::not_found) continue;  // deleted by retention
    if (!fields) return tl::unexpected<Error>(std::move(fields).error());
    Job dependency = decode<Job>(*fields).record;
    RemoteInput input{id, dependency.name, std::move(dependency.result), std::move(dependency.result_json), ""};
    input.artifacts = select_input_artifacts(job, input, dependency.artifacts);
    inputs.push_back(std::move(input));
  }
  return remote_inputs_to_json(inputs);
}

Result<bool> Router::route_message(const Message& message) {
  MJ_TRY(content, content_hash(message));
  const std::string key = redis_key(message);
  RouteMessage request{key, {content, {}}, std::uint64_t{message.timeout} * 1000, 0, {}};
  request.mark.extra_fields = {{"address", message.target_address},
                               {"context", std::to_string(message.target_context)},
                               {"signer", message.signer},
                               {"carried", "1"},
                               {"jobs", redis_key(message.job.front())}};
  MJ_TRY(result, store_->route_message(settings_.context, request));
  if (!result.repeated) return true;
  constexpr std::string_view kFields[] = {"content"};
  MJ_TRY(state, store_->load_fields(settings_.context, message_state_key(key), kFields));
  return field_of(state, "content") == content;
}

Result<void> Router::cancel(RoutedJob& job) {
  if (job.remote_job) {
    job.remote_job->cancel();
    return {};
  }
  if (job.is_cancelled) return {};
  MJ_CHECK(store_->cancel_message(settings_.context, job.message));
  job.is_cancelled = true;
  job.deadline_ms = std::min(job.deadline_ms, clock_.boot_ms() + kCancelTimeoutMs);
  return {};
}

Result<void> Router::poll_message(RoutedJob& job) {
  if (job.has_ended()) return {};
  constexpr std::string_view kFields[] = {"state", "why", kRoutedAnswerField};
  auto fields = store_->load_fields(settings_.context, message_state_key(job.message), kFields);
  if (!fields && fields.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(fields).error());
  const std::string_view state = fields ? field_of(*fields, "state") : "";
  JobEnd end;
  end.detail = job.is_cancelled ? "cancelled" : "lost";
  if (state.empty() || state == kMessageStateOver) {
    const auto answers = parse_json(fields ? field_of(*fields, kRoutedAnswerField) : "");
    auto answer =
        answers && answers->is_array() && !answers->empty()
            ? parse_answer_job(answers->front(), 0)
            : Result<RemoteJobEnd>(fail(Code::not_found, !state.empty() ? std::string(field_of(*fields, "why"))
                                                                        : "its message no longer exists"));
    if (answer) {
      end = std::move(answer->end);
    } else {
      end.error = "supervisor: " + answer.error().message;
    }
    job.end = std::move(end);
  } else if (clock_.boot_ms() >= job.deadline_ms) {
    if (!job.is_cancelled) MJ_CHECK(store_->cancel_message(settings_.context, job.message));
    if (!job.is_cancelled) end.detail = "timeout";
    end.error = job.message + ": no answer was received in time";
    job.end = std::move(end);
  }
  return {};
}

}  // namespace mycojobs
