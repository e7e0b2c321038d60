#include "jobs/prerequisite_checks.h"

#include <poll.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/parse.h"
#include "model/codec.h"
#include "net/curl.h"
#include "security/rights.h"
#include "store/acl_context.h"
#include "store/keys.h"

namespace mycojobs {

// Conditions about the network are probed with libcurl: requests for http, and bare connections for tcp. A connection
// to host:port uses CONNECT_ONLY, which resolves names without blocking and tries all addresses of a name.

namespace {

constexpr std::size_t kMaxProbesBatch = 64;

std::size_t refuse_body(char*, std::size_t, std::size_t, void*) { return 0; }

}  // namespace

struct NetworkProbes::Probe {
  Probe(const Curl& loaded, Condition c) : curl(loaded), condition(std::move(c)), easy(curl.easy_init()) {}
  ~Probe() { curl.easy_cleanup(easy); }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  const Curl& curl;
  Condition condition;
  CURL* easy;
};

NetworkProbes::NetworkProbes(const Clock& clock, const Curl& curl, void* multi)
    : curl_(curl), multi_(multi), results_(clock) {}

Result<std::unique_ptr<NetworkProbes>> NetworkProbes::open(const Clock& clock) {
  MJ_TRY(curl, load_curl());
  CURLM* const multi = curl->multi_init();
  if (multi == nullptr) return fail(Code::io, "libcurl does not start: out of memory or descriptors");
  return std::unique_ptr<NetworkProbes>(new NetworkProbes(clock, *curl, multi));
}

NetworkProbes::~NetworkProbes() {
  for (auto& [text, probe] : pending_) curl_.multi_remove_handle(multi_, probe->easy);
  pending_.clear();
  curl_.multi_cleanup(multi_);
}

std::optional<bool> NetworkProbes::query(const Condition& condition) {
  if (const auto cached = results_.find(condition.text)) return cached;
  if (pending_.contains(condition.text) || pending_.size() >= kMaxProbesBatch) return std::nullopt;
  auto probe = std::make_unique<Probe>(curl_, condition);
  CURL* easy = probe->easy;
  if (easy == nullptr) return std::nullopt;
  const bool is_http = condition.kind == Condition::Kind::http;
  const std::string url = is_http ? condition.target : "http://" + condition.target;
  bool is_set = curl_.easy_setopt(easy, CURLOPT_URL, url.c_str()) == CURLE_OK;
  is_set = is_set && curl_.easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
  is_set = is_set && curl_.easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK;
  is_set = is_set && curl_.easy_setopt(easy, CURLOPT_CONNECT_ONLY, is_http ? 0L : 1L) == CURLE_OK;
  is_set = is_set && curl_.easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L) == CURLE_OK;
  is_set = is_set && curl_.easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L) == CURLE_OK;
  is_set = is_set && curl_.easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, 0L) == CURLE_OK;
  is_set = is_set && curl_.easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK;
  is_set = is_set && curl_.easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L) == CURLE_OK;  // no wait for a resolver that hangs
  is_set = is_set && curl_.easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(kCheckTimeoutMs)) == CURLE_OK;
  is_set = is_set && curl_.easy_setopt(easy, CURLOPT_WRITEFUNCTION, refuse_body) == CURLE_OK;
  is_set = is_set && curl_.easy_setopt(easy, CURLOPT_USERAGENT, "mycojobs") == CURLE_OK;
  if (!is_set || curl_.multi_add_handle(multi_, easy) != CURLM_OK) {
    results_.put(condition.text, false);  // a URL that libcurl does not accept
    return false;
  }
  pending_.emplace(condition.text, std::move(probe));
  return std::nullopt;
}

bool NetworkProbes::wait(std::span<const int> wake_fds, std::uint32_t timeout_ms) {
  int running = 0;
  curl_.multi_perform(multi_, &running);
  if (process_completed()) return true;
  std::vector<curl_waitfd> wake;
  for (const int fd : wake_fds) wake.push_back({fd, CURL_WAIT_POLLIN, 0});
  curl_.multi_poll(multi_, wake.data(), static_cast<unsigned>(wake.size()), static_cast<int>(timeout_ms), nullptr);
  curl_.multi_perform(multi_, &running);
  return process_completed();
}

bool NetworkProbes::process_completed() {
  results_.drop_expired();
  bool has_completed = false;
  int messages_left = 0;
  while (const CURLMsg* message = curl_.multi_info_read(multi_, &messages_left)) {
    if (message->msg != CURLMSG_DONE) continue;
    for (auto entry = pending_.begin(); entry != pending_.end(); ++entry) {
      if (entry->second->easy != message->easy_handle) continue;
      long status = 0;
      curl_.easy_getinfo(message->easy_handle, CURLINFO_RESPONSE_CODE, &status);
      const bool is_http = entry->second->condition.kind == Condition::Kind::http;
      // refuse_body() aborts the transfer of a body, but the status has been received.
      const bool has_answered =
          message->data.result == CURLE_OK || (is_http && message->data.result == CURLE_WRITE_ERROR);
      const bool is_met = has_answered && (!is_http || (status >= 100 && status < 400));
      results_.put(entry->first, is_met);
      curl_.multi_remove_handle(multi_, entry->second->easy);
      pending_.erase(entry);
      has_completed = true;
      break;
    }
  }
  return has_completed;
}

namespace {

constexpr std::uint32_t kDuePollIntervalMs = 250;  // interval between queries for due jobs
constexpr std::uint32_t kMaxDueBatch = 64;         // jobs per query
constexpr std::size_t kMaxConditions = 100;        // per job, since other jobs wait during the check
// Interval between two checks of a job. It is doubled while more jobs are due than one query returns.
constexpr std::uint32_t kMinRecheckIntervalMs = 1000, kMaxRecheckIntervalMs = 30000;

}  // namespace

PrerequisiteEvaluator::PrerequisiteEvaluator(Store& store, const Clock& clock, PrerequisiteCheckSettings settings)
    : store_(store), clock_(clock), settings_(std::move(settings)), files_(clock) {}

void PrerequisiteEvaluator::wait(int wake_fd, std::uint32_t timeout_ms,
                                 const std::function<void(Id, const Error&)>& failed) {
  if (!wait_for_checks(wake_fd, timeout_ms)) return;
  for (auto& [key, job] : std::exchange(pending_jobs_, {})) {
    if (auto result = evaluate(key.first, std::move(job)); !result) failed(key.first, result.error());
  }
}

bool PrerequisiteEvaluator::wait_for_checks(int wake_fd, std::uint32_t timeout_ms) {
  const int events[] = {wake_fd, files_.event_fd()};
  bool has_result = false;
  if (probes_) {
    has_result = probes_->wait(events, timeout_ms);
  } else {
    pollfd poll_entries[] = {{events[0], POLLIN, 0}, {events[1], POLLIN, 0}};
    ::poll(poll_entries, 2, static_cast<int>(timeout_ms));
  }
  return files_.collect_results() || has_result;
}

Result<std::uint32_t> PrerequisiteEvaluator::check_due_jobs(Id context) {
  std::uint32_t& interval_ms = recheck_interval_ms_[context];
  interval_ms = std::clamp(interval_ms, kMinRecheckIntervalMs, kMaxRecheckIntervalMs);
  MJ_TRY(jobs, store_.due_prerequisites(context, kMaxDueBatch, interval_ms, settings_.role));
  const bool is_full = jobs.size() >= kMaxDueBatch;
  interval_ms = is_full ? interval_ms * 2 : interval_ms / 2;
  Result<void> last_result;
  for (AwaitedPrerequisites& job : jobs) {
    auto evaluated = evaluate(context, std::move(job));
    if (!evaluated && evaluated.error().code == Code::unavailable)
      return tl::unexpected<Error>(std::move(evaluated).error());
    // The store returns the job with the error again later.
    if (!evaluated) last_result = std::move(evaluated);
  }
  MJ_CHECK(last_result);
  return is_full ? 0 : kDuePollIntervalMs;
}

Result<std::vector<Condition>> PrerequisiteEvaluator::parse_conditions(const std::vector<std::string>& texts) const {
  if (texts.size() > kMaxConditions) {
    return fail(Code::invalid, "prerequisites: " + std::to_string(texts.size()) + " are more than the " +
                                   std::to_string(kMaxConditions) + " that are read");
  }
  std::vector<Condition> conditions;
  for (const std::string& text : texts) {
    MJ_TRY(condition, parse_condition(text, settings_.allowed));
    conditions.push_back(std::move(condition));
  }
  return conditions;
}

Result<void> PrerequisiteEvaluator::evaluate(Id context, AwaitedPrerequisites job) {
  pending_jobs_.erase({context, job.job_key});
  auto conditions = parse_conditions(job.conditions);
  if (!conditions && conditions.error().code == Code::denied && job.coordinator_checks)
    return {};  // a coordinator may check it
  if (!conditions) {
    log(LogLevel::warn, "prerequisites", "{}: {}", job.job_key, conditions.error().message);
    return store_.complete_prerequisites(context, job.job_key, conditions.error().message);
  }
  bool has_pending = false;
  const Condition* unmet_condition = nullptr;  // first unmet condition that may never be met; subject to the time-out
  bool all_met = true;
  for (const Condition& condition : *conditions) {
    std::string failure_reason;
    MJ_TRY(state, check_condition(context, job, condition, failure_reason));
    if (!failure_reason.empty())
      return store_.complete_prerequisites(context, job.job_key,
                                           "prerequisite \"" + condition.text + "\": " + failure_reason);
    has_pending = has_pending || state == CheckState::pending;
    all_met = all_met && state == CheckState::met;
    // The time of wait: and at: is certain to pass.
    const bool is_certain = condition.kind == Condition::Kind::wait || condition.kind == Condition::Kind::at;
    if (state == CheckState::unmet && !is_certain && unmet_condition == nullptr) unmet_condition = &condition;
  }
  if (all_met) return store_.complete_prerequisites(context, job.job_key, "");
  const std::uint64_t limit = settings_.timeout_ms;
  if (unmet_condition != nullptr && limit > 0 && job.waited_ms > limit) {
    return store_.complete_prerequisites(context, job.job_key,
                                         "prerequisite \"" + unmet_condition->text + "\" was not met within " +
                                             std::to_string(limit / 1000) + " s (prerequisites.timeout)");
  }
  if (has_pending) {
    const std::pair key(context, job.job_key);
    pending_jobs_[key] = std::move(job);
  }
  return {};
}

PrerequisiteEvaluator::CheckState PrerequisiteEvaluator::to_check_state(std::optional<bool> is_met) {
  return !is_met ? CheckState::pending : *is_met ? CheckState::met : CheckState::unmet;
}

Result<PrerequisiteEvaluator::CheckState> PrerequisiteEvaluator::check_condition(Id context,
                                                                                 const AwaitedPrerequisites& job,
                                                                                 const Condition& condition,
                                                                                 std::string& failure_reason) {
  switch (condition.kind) {
    case Condition::Kind::wait:
      return to_check_state(job.waited_ms >= condition.time_ms);
    case Condition::Kind::at: {
      MJ_TRY(now, now_ms(context, job.job_key));
      return to_check_state(now >= condition.time_ms);
    }
    case Condition::Kind::redis:
      return check_key(context, parse_job_caller(job.job_key), condition.target);
    case Condition::Kind::file:
      return to_check_state(files_.file_exists(condition.target));
    case Condition::Kind::tcp:
    case Condition::Kind::http:
      return check_network(condition);
    case Condition::Kind::approval:
      return CheckState::unmet;  // the store removes a granted approval from the conditions
    case Condition::Kind::flow:
      return check_flow(context, parse_job_caller(job.job_key), condition, failure_reason);
  }
  return CheckState::unmet;
}

namespace {

// Returns the caller at the start of the text: 66 for "66:1" of job:66:1. Returns 0 if the text names no caller.
Id parse_caller_id(std::string_view id_text) {
  std::uint64_t caller = 0;
  const bool is_number = parse_u64(id_text.substr(0, id_text.find(':')), caller) && caller <= UINT32_MAX;
  return is_number ? static_cast<Id>(caller) : 0;
}

// Where the owner of a record is found: in its key, or in its field caller_id. Records of the context have no owner.
enum class OwnerSource { key, field, context };
struct KeyKind {
  std::string_view prefix;
  OwnerSource owner_source;
};
constexpr KeyKind kRecordKeys[] = {
    {"job:", OwnerSource::key},         {"message:", OwnerSource::key},    {"flow:", OwnerSource::field},
    {"context:", OwnerSource::context}, {"runner:", OwnerSource::context}, {"actor:", OwnerSource::context},
    {"queue:", OwnerSource::context},   {"msg_in", OwnerSource::context},  {"msg_out", OwnerSource::context}};
const KeyKind* find_key_kind(std::string_view key) {
  const auto* match = std::find_if(std::begin(kRecordKeys), std::end(kRecordKeys),
                                   [key](const KeyKind& kind) { return key.starts_with(kind.prefix); });
  return match == std::end(kRecordKeys) ? nullptr : match;
}

bool can_read_record(const AclContext& acl, Id caller, Id owner) {
  return owner == caller || !find_refusal(caller, Action::read, acl, {.creator = owner});
}

}  // namespace

Result<AclContext> PrerequisiteEvaluator::read_acl(Id context) {
  return read_acl_context(store_, context, EntryPoint::message);
}

// A record that the caller of the job has no right to read counts as missing. The lists of the context are read before
// the record, so that both cases make the same calls and fail in the same way.
Result<PrerequisiteEvaluator::CheckState> PrerequisiteEvaluator::check_key(Id context, Id caller,
                                                                           const std::string& key) {
  static constexpr std::string_view kFields[] = {"caller_id"};  // limits the size of the read
  const KeyKind* kind = find_key_kind(key);
  std::optional<AclContext> acl;
  if (kind != nullptr) {
    MJ_TRY(read, read_acl(context));
    acl = std::move(read);
  }
  auto loaded = store_.load_fields(context, key, kFields);
  if (!loaded && loaded.error().code == Code::not_found) return CheckState::unmet;
  const bool exists = loaded || loaded.error().code == Code::invalid;  // the key exists, but is not a hash
  if (!exists) return tl::unexpected<Error>(std::move(loaded).error());
  if (kind == nullptr) return CheckState::met;
  Id owner = 0;
  if (kind->owner_source == OwnerSource::key)
    owner = parse_caller_id(std::string_view(key).substr(kind->prefix.size()));
  if (kind->owner_source == OwnerSource::field && loaded) owner = parse_caller_id(field_of(*loaded, "caller_id"));
  return can_read_record(*acl, caller, owner) ? CheckState::met : CheckState::unmet;
}

// The access rules are those of check_key(). A key that is not a hash belongs to no caller.
Result<PrerequisiteEvaluator::CheckState> PrerequisiteEvaluator::check_flow(Id context, Id caller,
                                                                            const Condition& condition,
                                                                            std::string& failure_reason) {
  static constexpr std::string_view kFields[] = {"status", "detail", "error", "caller_id"};
  MJ_TRY(acl, read_acl(context));
  auto loaded = store_.load_fields(context, "flow:" + condition.target, kFields);
  const std::string name = "flow " + condition.target;
  const bool is_hash = loaded.has_value();
  if (is_hash || loaded.error().code == Code::invalid) {
    const Id owner = is_hash ? parse_caller_id(field_of(*loaded, "caller_id")) : 0;
    if (!can_read_record(acl, caller, owner)) loaded = fail(Code::not_found, "");
  }
  if (!loaded && loaded.error().code == Code::not_found) {
    failure_reason = name + " does not exist";
    return CheckState::unmet;
  }
  if (!loaded && loaded.error().code == Code::invalid) {
    failure_reason = "flow:" + condition.target + " is not a flow";
    return CheckState::unmet;
  }
  MJ_CHECK(loaded);
  const Flow flow = decode<Flow>(*loaded).record;
  if (flow.status == FlowStatus::error) {
    failure_reason = name + " has ended as error (" + flow.detail + ")" + (flow.error.empty() ? "" : ": " + flow.error);
  }
  return flow.status == FlowStatus::finished ? CheckState::met : CheckState::unmet;
}

// Returns the time of the store of the context.
Result<std::uint64_t> PrerequisiteEvaluator::now_ms(Id context, const std::string& job_key) {
  MJ_TRY(states, store_.job_states(context, {&job_key, 1}, false));
  if (states.empty()) return fail(Code::internal, job_key + ": the store does not say where it is");
  return states.front().now_ms;
}

PrerequisiteEvaluator::CheckState PrerequisiteEvaluator::check_network(const Condition& condition) {
  if (!probes_) {
    auto probes = NetworkProbes::open(clock_);
    if (!probes) {
      log(LogLevel::error, "prerequisites", "{}", probes.error().message);
      return CheckState::unmet;
    }
    probes_ = std::move(*probes);
  }
  return to_check_state(probes_->query(condition));
}

}  // namespace mycojobs
