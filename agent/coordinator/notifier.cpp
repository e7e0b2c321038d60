#include "coordinator/notifier.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/log.h"
#include "base/sha256.h"
#include "base/thread.h"
#include "coordinator/notice_body.h"
#include "model/codec.h"
#include "model/notify_targets.h"
#include "net/webhook.h"
#include "security/rights.h"
#include "store/acl_context.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kMaxRoundNotices = 32;
// Maximum number of notifications with webhook calls in progress, in total and of one caller, and the delay before a
// notification that exceeds these limits is tried again.
constexpr std::size_t kMaxConcurrentDeliveries = 16, kMaxCallerDeliveries = 4;
constexpr std::uint64_t kLimitRetryDelayMs = 500;
// The claim of a notification lasts longer than its webhook calls: no call starts more than kCallsTimeoutMs after the
// first.
constexpr std::uint32_t kClaimTimeoutMs = 120000;
constexpr std::uint64_t kCallsTimeoutMs = 90000;
constexpr std::uint32_t kNoticeStoreRetryDelayMs = 500;
constexpr std::uint32_t kMaxAttempts = 14;  // about an hour and a half in total, since the delays double
constexpr std::uint64_t kMinRetryDelayMs = 1000, kMaxRetryDelayMs = 1800'000;

std::uint64_t retry_delay_ms(std::uint32_t tries) {
  return tries > 20 ? kMaxRetryDelayMs : std::min(kMaxRetryDelayMs, kMinRetryDelayMs << tries);
}

// Removes the path of a webhook address from a text for the log, since the path can contain a secret.
std::string remove_url_path(std::string text, const std::string& url) {
  if (url.empty()) return text;  // Not a webhook. An empty text would match everywhere, in an endless loop.
  const std::size_t path = url.find('/', url.find("://") + 3);
  const std::string origin = url.substr(0, path) + (path == std::string::npos ? "" : "/...");
  for (std::size_t position = text.find(url); position != std::string::npos;
       position = text.find(url, position + origin.size()))
    text.replace(position, url.size(), origin);
  return text;
}

}  // namespace

struct Notifier::TargetRequest {
  NotifyTarget target;
  Id actor = 0;  // caller of the job or message
  // Whether the permissions of the actor are checked. Targets of the context need no check, since admins set them.
  bool requires_permission = true;
};

// The delivery of one notification: the remaining targets and the results so far.
struct Notifier::NoticeDelivery {
  Notice notice;
  Id caller = 0;
  std::string id, body;
  std::vector<NotifyTarget> webhooks;
  std::vector<std::string> reached, secrets;
  std::string temporary_error;    // the latest temporary error; empty if there was none
  std::string permanent_error;    // the latest permanent error; empty if there was none
  bool counts_as_attempt = true;  // whether this attempt counts towards kMaxAttempts
  std::atomic<bool> has_ended{false};
  std::thread thread;

  // Records the result of a target. A refusal by a setting of this coordinator (webhooks, ceiling, limits) is retried
  // like any other failure: after a restart, or with another leader, the setting may be another one.
  void add_result(const NotifyTarget& target, Result<void> result) {
    if (result) return reached.push_back(target.digest);
    const bool is_permanent = result.error().code == Code::invalid;
    std::string reason = remove_url_path(std::move(result).error().message, target.url_or_topic);
    if (is_permanent) return fail_target(target, std::move(reason));
    temporary_error = std::move(reason);
  }
  // Records a permanent error of a target, so that the target is not tried again.
  void fail_target(const NotifyTarget& target, std::string reason) {
    permanent_error = std::move(reason);
    reached.push_back(target.digest);
  }
};

Result<std::unique_ptr<Notifier>> Notifier::start(StoreFactory& stores, const Clock& clock, LoopPool& pool,
                                                  NotifierSettings settings) {
  MJ_TRY(store, stores.open());
  const Id context = settings.context;
  std::unique_ptr<Notifier> notifier(new Notifier(std::move(store), clock, std::move(settings)));
  MJ_CHECK(notifier->begin(stores, context, {{kNoticeChannel}, {}}, pool));
  return notifier;
}

Notifier::Notifier(std::unique_ptr<Store> store, const Clock& clock, NotifierSettings settings)
    : HintedLoop(hint_prefix(settings.context)),
      store_(std::move(store)),
      clock_(clock),
      settings_(std::move(settings)),
      log_once_("notifier", settings_.context) {}

Notifier::~Notifier() { end(); }

std::uint64_t Notifier::run_iteration() {
  const auto next_ms = run_round();
  log_once_(next_ms ? nullptr : &next_ms.error());
  return next_ms ? std::min(max_idle_ms(), *next_ms) : kNoticeStoreRetryDelayMs;
}

void Notifier::ended() {
  for (NoticeDelivery& entry : deliveries_) {
    entry.thread.join();
    (void)complete_delivery(entry);  // After an error the notification is due again when its claim expires.
  }
}

Result<std::uint64_t> Notifier::run_round() {
  for (auto entry = deliveries_.begin(); entry != deliveries_.end();) {
    if (!entry->has_ended) {
      ++entry;
      continue;
    }
    MJ_CHECK(complete_delivery(*entry));  // Repeated in the next round if the store did not answer.
    entry->thread.join();
    entry = deliveries_.erase(entry);
  }
  MJ_TRY(due, store_->due_notices(settings_.context, kMaxRoundNotices, kClaimTimeoutMs));
  Result<void> result;
  for (const Notice& notice : due.notices) {
    if (auto started = start_delivery(notice); !started) result = std::move(started);
  }
  MJ_CHECK(result);
  return due.notices.size() == kMaxRoundNotices ? 0 : due.next_ms == 0 ? max_idle_ms() : due.next_ms;
}

Result<void> Notifier::report_failure(const Notice& notice, const std::string& reason) {
  const std::string note = "the end of " + notice.record_key + " is not reported: " + reason;
  MJ_CHECK(store_->complete_notice(settings_.context, notice, {std::nullopt, note}));
  log(LogLevel::warn, "notifier", "context {}: {}", settings_.context, note);
  return {};
}

Result<void> Notifier::start_delivery(const Notice& notice) {
  auto record = store_->load(settings_.context, notice.record_key);
  if (!record && record.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(record).error());
  if (!record) return report_failure(notice, record.error().message);
  deliveries_.emplace_back();
  NoticeDelivery& delivery = deliveries_.back();
  delivery.notice = notice;
  delivery.caller =
      is_job_key(notice.record_key) ? parse_job_caller(notice.record_key) : decode<Flow>(*record).record.caller_id;
  delivery.id = make_notice_id(settings_.context, notice);
  delivery.body = make_notice_body(settings_.context, notice, *record);
  delivery.reached = notice.reached_targets;
  auto started = start_delivery(delivery, *record);
  if (!started || !delivery.thread.joinable()) deliveries_.pop_back();
  return started;
}

Result<void> Notifier::start_delivery(NoticeDelivery& delivery, const Fields& record) {
  MJ_TRY(requests, find_targets(delivery, record));
  for (TargetRequest& request : requests) deliver(delivery, std::move(request));
  if (delivery.webhooks.empty() || !read_secrets(delivery)) return complete_delivery(delivery);
  const auto caller_deliveries = std::count_if(
      deliveries_.begin(), deliveries_.end(),
      [&](const NoticeDelivery& entry) { return entry.thread.joinable() && entry.caller == delivery.caller; });
  if (deliveries_.size() > kMaxConcurrentDeliveries ||
      caller_deliveries >= static_cast<std::ptrdiff_t>(kMaxCallerDeliveries)) {
    delivery.counts_as_attempt = false;
    return retry_delivery(delivery, kLimitRetryDelayMs);
  }
  auto thread = start_thread([this, &delivery] { call_webhooks(delivery); });
  if (!thread) {  // The host is out of threads; this is not a failure of the target.
    delivery.counts_as_attempt = false;
    return retry_delivery(delivery, kLimitRetryDelayMs);
  }
  delivery.thread = std::move(*thread);
  return {};
}

Result<std::vector<Notifier::TargetRequest>> Notifier::find_targets(NoticeDelivery& delivery, const Fields& record) {
  std::string record_notify, flow, notice_of;
  for (const auto& [name, value] : record) {
    if (name == "notify") record_notify = value;
    if (name == "flow_id") flow = value;
    if (name == "notice_of") notice_of = value;
  }
  std::vector<TargetRequest> requests;
  const auto add = [&](ParsedNotify parsed, Id actor, bool requires_permission) {
    if (!parsed.problems.empty()) delivery.permanent_error = join(parsed.problems);
    for (NotifyTarget& target : parsed.targets) {
      const auto& reached = delivery.notice.reached_targets;
      if (target.is_valid && target.matches_end(delivery.notice.finished) &&
          std::find(reached.begin(), reached.end(), target.digest) == reached.end())
        requests.push_back({std::move(target), actor, requires_permission});
    }
  };
  add(parse_notify(record_notify, delivery.notice.record_key + ": notify"), delivery.caller, true);
  if ((!flow.empty() && flow != "0") || !notice_of.empty()) return requests;
  static constexpr std::string_view kContextFields[] = {"notify", "admins"};
  Context context;
  context.id = settings_.context;
  auto fields = store_->load_fields(settings_.context, redis_key(context), kContextFields);
  if (!fields && fields.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(fields).error());
  if (fields) context = decode<Context>(*fields).record;
  const Id actor = context.admins.empty() ? delivery.caller : context.admins.front();
  add(parse_notify(context.notify, "context:" + std::to_string(settings_.context) + ": notify"), actor, false);
  return requests;
}

void Notifier::deliver(NoticeDelivery& delivery, TargetRequest request) {
  const NotifyTarget& target = request.target;
  if (target.kind == NotifyTarget::Kind::webhook) {
    if (auto allowed = settings_.webhooks.check_allowed(target.url_or_topic); !allowed)
      return delivery.add_result(target, allowed);
    delivery.webhooks.push_back(target);
    return;
  }
  const bool is_job = target.kind == NotifyTarget::Kind::job;
  auto allowed = check_create_permission(request, is_job ? "jobs" : "messages");
  if (!allowed && allowed.error().code == Code::denied)
    return delivery.fail_target(target, std::move(allowed).error().message);
  if (!allowed) return delivery.add_result(target, std::move(allowed));
  delivery.add_result(target, is_job ? submit_job(delivery, request) : send_message(delivery, request));
}

Result<void> Notifier::check_create_permission(const TargetRequest& request, std::string_view resource) {
  if (!request.requires_permission) return {};
  MJ_TRY(acl_context, read_acl_context(*store_, settings_.context, EntryPoint::command));
  return check_permission(request.actor, Action::create, acl_context, {.name = std::string(resource)});
}

Result<void> Notifier::submit_job(const NoticeDelivery& delivery, const TargetRequest& request) {
  Job job = request.target.job;
  job.caller_id = request.actor;
  job.context_id = settings_.context;
  if (job.name.empty()) job.name = "notice of " + delivery.notice.record_key;
  job.env_vars["MYCOJOBS_NOTICE"] = delivery.body;
  job.idempotency_key = "notice " + delivery.id + " " + request.target.digest;
  job.unknown.emplace_back("notice_of", delivery.notice.record_key);
  MJ_CHECK(check_script(job.script, settings_.limits.max_script_bytes));
  MJ_CHECK(check_policy(job, settings_.limits));
  auto submitted = store_->submit(job);
  // A conflict means that the job was submitted before, with the record of that time.
  if (!submitted && submitted.error().code != Code::conflict)
    return tl::unexpected<Error>(std::move(submitted).error());
  return {};
}

Result<void> Notifier::send_message(const NoticeDelivery& delivery, const TargetRequest& request) {
  Message message;
  message.caller_id = request.actor;
  message.context_id = settings_.context;
  message.message = delivery.body;
  message.message_type = MessageType::chat;
  message.topic = request.target.url_or_topic;
  message.unknown.emplace_back("notice", delivery.id);
  const std::string digest = sha256_hex(delivery.id + " " + request.target.digest).substr(0, 8);
  const Id id = std::max<Id>(1, static_cast<Id>(std::stoul(digest, nullptr, 16)));
  const std::string counter = "message:" + std::to_string(request.actor);
  MJ_CHECK(store_->create_record(settings_.context, {counter + ":", counter, id, encode(message)}));
  return {};
}

bool Notifier::read_secrets(NoticeDelivery& delivery) {
  if (settings_.secrets.empty()) return true;
  auto secrets = read_webhook_secrets(settings_.secrets);
  if (!secrets) {
    delivery.temporary_error = secrets.error().message;
    return false;
  }
  delivery.secrets = std::move(*secrets);
  return true;
}

void Notifier::call_webhooks(NoticeDelivery& delivery) {
  HttpClient http;
  const std::uint64_t deadline_ms = clock_.boot_ms() + kCallsTimeoutMs;
  for (const NotifyTarget& target : delivery.webhooks) {
    if (stopped() || clock_.boot_ms() >= deadline_ms) {
      delivery.temporary_error = "the preceding notifications took too long";
      break;
    }
    delivery.add_result(target, call_webhook(http, {target.url_or_topic, delivery.id, delivery.body, delivery.secrets,
                                                    clock_.unix_ms() / 1000, &stopping(), settings_.https_ca}));
  }
  delivery.counts_as_attempt = !stopped();
  delivery.has_ended = true;
  wake();
}

Result<void> Notifier::retry_delivery(const NoticeDelivery& delivery, std::uint64_t after_ms) {
  return store_->complete_notice(settings_.context, delivery.notice,
                                 {NoticeResult::Retry{delivery.reached, after_ms, delivery.counts_as_attempt}, ""});
}

Result<void> Notifier::complete_delivery(const NoticeDelivery& delivery) {
  const Notice& notice = delivery.notice;
  if (delivery.temporary_error.empty() && delivery.permanent_error.empty())
    return store_->complete_notice(settings_.context, notice, {});
  if (delivery.temporary_error.empty()) return report_failure(notice, delivery.permanent_error);
  if (!delivery.counts_as_attempt) return retry_delivery(delivery, 0);
  if (notice.attempts + 1 >= kMaxAttempts)
    return report_failure(notice, delivery.temporary_error + " (tried " + std::to_string(kMaxAttempts) + " times)");
  MJ_CHECK(retry_delivery(delivery, retry_delay_ms(notice.attempts)));
  if (notice.attempts == 0)
    log(LogLevel::warn, "notifier", "context {}: the end of {}: {} (retrying)", settings_.context, notice.record_key,
        delivery.temporary_error);
  return {};
}

}  // namespace mycojobs
