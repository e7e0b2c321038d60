#include "coordinator/notifier.h"

#include <algorithm>
#include <atomic>
#include <list>
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
#include "store/store_health.h"
#include "store/waiter_loop.h"

namespace mycojobs {
namespace {

constexpr const char* kChannel = "mj:notices";
constexpr std::uint32_t kTaken = 32;        // notifications of one round
constexpr std::size_t kMaxCalls = 16;       // maximum number of notifications with webhook calls in progress
constexpr std::size_t kMaxCallerShare = 4;  // same, for one caller
constexpr std::uint64_t kFullMs = 500;      // pause before a notification that exceeds these limits is tried again
// The claim of a notification lasts longer than its webhook calls: no call starts more than kAllCallsMs after the
// first.
constexpr std::uint32_t kHoldMs = 120000;
constexpr std::uint64_t kAllCallsMs = 90000;
constexpr std::uint32_t kNotifierIdleMs = 1000, kNotifierUnavailableMs = 500;
constexpr std::uint32_t kMaxTries = 14;  // about an hour and a half, with doubling pauses
constexpr std::uint64_t kFirstRetryMs = 1000, kMaxRetryMs = 1800'000;

std::uint64_t pause_after(std::uint32_t tries) {
  return tries > 20 ? kMaxRetryMs : std::min(kMaxRetryMs, kFirstRetryMs << tries);
}

// Removes the path of a webhook address from a text for the log, since the path can contain a secret.
std::string without_path(std::string text, const std::string& url) {
  if (url.empty()) return text;  // Not a webhook. An empty text would match everywhere, in an endless loop.
  const std::size_t path = url.find('/', url.find("://") + 3);
  const std::string shown = url.substr(0, path) + (path == std::string::npos ? "" : "/...");
  for (std::size_t at = text.find(url); at != std::string::npos; at = text.find(url, at + shown.size()))
    text.replace(at, url.size(), shown);
  return text;
}

struct RequestedNotice {
  NotifyTarget target;
  Id actor = 0;  // caller of the job or message
  bool checked =
      true;  // whether the permissions of the actor are checked; targets of the context are set by its admins
};

// The delivery of one notification: the remaining targets and the results so far.
struct NoticeDelivery {
  Notice notice;
  Id caller = 0;
  std::string id, body;
  std::vector<NotifyTarget> webhooks;
  std::vector<std::string> reached, secrets;
  std::string failure;   // last temporary error
  std::string hopeless;  // a permanent error
  bool counts = true;    // whether this attempt counts towards kMaxTries
  std::atomic<bool> over{false};
  std::thread thread;

  // A refusal by a setting of this coordinator (webhooks, ceiling, limits) is retried like any other failure: after a
  // restart, or with another leader, the setting may be another one.
  void add(const NotifyTarget& target, Result<void> done) {
    if (done) return reached.push_back(target.digest);
    const bool is_invalid = done.error().code == Code::invalid;
    std::string why = without_path(std::move(done).error().message, target.where);
    if (is_invalid) return give_up(target, std::move(why));
    failure = std::move(why);
  }
  // Reports a permanent error of a target.
  void give_up(const NotifyTarget& target, std::string why) {
    hopeless = std::move(why);
    reached.push_back(target.digest);
  }
};

class NotifierImpl final : public Notifier, public ContextLoopBase {
 public:
  NotifierImpl(std::unique_ptr<Store> store, std::unique_ptr<Waiter> waiter, const Clock& clock,
               NotifierSettings settings)
      : ContextLoopBase(std::move(waiter), clock, hints_of(settings.context)),
        store_(std::move(store)),
        settings_(std::move(settings)),
        log_once_("notifier", settings_.context) {}
  ~NotifierImpl() override { thread_.stop(); }
  const Result<void>& started() const { return thread_.started(); }
  void ask_to_stop() override { stop(); }

  std::uint64_t run_once() {
    const auto next_ms = round();
    log_once_(next_ms ? nullptr : &next_ms.error());
    return next_ms ? std::min<std::uint64_t>(kNotifierIdleMs, *next_ms) : kNotifierUnavailableMs;
  }
  void ended() {
    for (NoticeDelivery& each : under_way_) {
      each.thread.join();
      (void)settle(each);  // After an error the notification is due again when its claim expires.
    }
  }

 private:
  // Returns the time in ms until more work is due.
  Result<std::uint64_t> round() {
    for (auto each = under_way_.begin(); each != under_way_.end();) {
      if (!each->over) {
        ++each;
        continue;
      }
      MJ_CHECK(settle(*each));  // Repeated in the next round if the store did not answer.
      each->thread.join();
      each = under_way_.erase(each);
    }
    MJ_TRY(due, store_->due_notices(settings_.context, kTaken, kHoldMs));
    Result<void> done;
    for (const Notice& notice : due.notices) {
      if (auto one = begin(notice); !one) done = std::move(one);
    }
    MJ_CHECK(done);
    return due.notices.size() == kTaken ? 0 : due.next_ms == 0 ? kNotifierIdleMs : due.next_ms;
  }

  Result<void> give_up(const Notice& notice, const std::string& why) {
    const std::string line = "the end of " + notice.of + " is not reported: " + why;
    MJ_CHECK(store_->complete_notice(settings_.context, notice, {std::nullopt, line}));
    log(LogLevel::warn, "notifier", "context {}: {}", settings_.context, line);
    return {};
  }

  Result<void> begin(const Notice& notice) {
    auto record = store_->load(settings_.context, notice.of);
    if (!record && record.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(record).error());
    if (!record) return give_up(notice, record.error().message);
    under_way_.emplace_back();
    NoticeDelivery& telling = under_way_.back();
    telling.notice = notice;
    telling.caller = is_job_key(notice.of) ? caller_of_job(notice.of) : decode<Flow>(*record).record.caller_id;
    telling.id = notice_id(settings_.context, notice);
    telling.body = notice_body(settings_.context, notice, *record);
    telling.reached = notice.reached;
    auto begun = begin(telling, *record);
    if (!begun || !telling.thread.joinable()) under_way_.pop_back();
    return begun;
  }
  // Submits jobs and writes messages at once. Webhooks are called in a thread if the limits allow another one.
  Result<void> begin(NoticeDelivery& telling, const Fields& record) {
    MJ_TRY(wanted, targets_of(telling, record));
    for (RequestedNotice& each : wanted) tell(telling, std::move(each));
    if (telling.webhooks.empty() || !read_secrets(telling)) return settle(telling);
    const auto of_caller = std::count_if(under_way_.begin(), under_way_.end(), [&](const NoticeDelivery& each) {
      return each.thread.joinable() && each.caller == telling.caller;
    });
    if (under_way_.size() > kMaxCalls || of_caller >= static_cast<std::ptrdiff_t>(kMaxCallerShare)) {
      telling.counts = false;
      return settle_again(telling, kFullMs);
    }
    auto thread = start_thread([this, &telling] { call(telling); });
    if (!thread) {  // The host is out of threads; this is not a failure of the target.
      telling.counts = false;
      return settle_again(telling, kFullMs);
    }
    telling.thread = std::move(*thread);
    return {};
  }

  // Returns the targets of the record and of the context that match this end and were not reached yet.
  Result<std::vector<RequestedNotice>> targets_of(NoticeDelivery& telling, const Fields& record) {
    std::string own, flow, notice_of;
    for (const auto& [name, value] : record) {
      if (name == "notify") own = value;
      if (name == "flow_id") flow = value;
      if (name == "notice_of") notice_of = value;
    }
    std::vector<RequestedNotice> all;
    const auto add = [&](ParsedNotify read, Id actor, bool checked) {
      if (!read.problems.empty()) telling.hopeless = join(read.problems);
      for (NotifyTarget& target : read.targets) {
        const auto& reached = telling.notice.reached;
        if (target.sound && target.matches_end(telling.notice.finished) &&
            std::find(reached.begin(), reached.end(), target.digest) == reached.end())
          all.push_back({std::move(target), actor, checked});
      }
    };
    add(read_notify(own, telling.notice.of + ": notify"), telling.caller, true);
    if ((!flow.empty() && flow != "0") || !notice_of.empty()) return all;
    static constexpr std::string_view kAsked[] = {"notify", "admins"};
    Context context;
    context.id = settings_.context;
    auto fields = store_->load_fields(settings_.context, redis_key(context), kAsked);
    if (!fields && fields.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(fields).error());
    if (fields) context = decode<Context>(*fields).record;
    const Id actor = context.admins.empty() ? telling.caller : context.admins.front();
    add(read_notify(context.notify, "context:" + std::to_string(settings_.context) + ": notify"), actor, false);
    return all;
  }

  void tell(NoticeDelivery& telling, RequestedNotice wanted) {
    const NotifyTarget& target = wanted.target;
    if (target.kind == NotifyTarget::Kind::webhook) {
      if (auto allowed = settings_.webhooks.check(target.where); !allowed) return telling.add(target, allowed);
      telling.webhooks.push_back(target);
      return;
    }
    const bool is_job = target.kind == NotifyTarget::Kind::job;
    auto allowed = may_create(wanted, is_job ? "jobs" : "messages");
    if (!allowed && allowed.error().code == Code::denied)
      return telling.give_up(target, std::move(allowed).error().message);
    if (!allowed) return telling.add(target, std::move(allowed));
    telling.add(target, is_job ? submit(telling, wanted) : send(telling, wanted));
  }

  // Checks the current permissions of the actor, which may have been revoked since the record was written.
  Result<void> may_create(const RequestedNotice& wanted, std::string_view what) {
    if (!wanted.checked) return {};
    MJ_TRY(place, read_acl_context(*store_, settings_.context, EntryPoint::command));
    return check_permission(wanted.actor, Action::create, place, {.name = std::string(what)});
  }

  Result<void> submit(const NoticeDelivery& telling, const RequestedNotice& wanted) {
    Job job = wanted.target.job;
    job.caller_id = wanted.actor;
    job.context_id = settings_.context;
    if (job.name.empty()) job.name = "notice of " + telling.notice.of;
    job.env_vars["MYCOJOBS_NOTICE"] = telling.body;
    job.idempotency_key = "notice " + telling.id + " " + wanted.target.digest;
    job.unknown.emplace_back("notice_of", telling.notice.of);
    MJ_CHECK(check_script(job.script, settings_.limits.max_script_bytes));
    MJ_CHECK(check_policy(job, settings_.limits));
    auto submitted = store_->submit(job);
    // A conflict means that the job was submitted before, with the record of that time.
    if (!submitted && submitted.error().code != Code::conflict)
      return tl::unexpected<Error>(std::move(submitted).error());
    return {};
  }

  // The id of the message is derived from the id of the notification, so that the message is written once.
  Result<void> send(const NoticeDelivery& telling, const RequestedNotice& wanted) {
    Message message;
    message.caller_id = wanted.actor;
    message.context_id = settings_.context;
    message.message = telling.body;
    message.message_type = MessageType::chat;
    message.topic = wanted.target.where;
    message.unknown.emplace_back("notice", telling.id);
    const std::string digest = sha256_hex(telling.id + " " + wanted.target.digest).substr(0, 8);
    const Id id = std::max<Id>(1, static_cast<Id>(std::stoul(digest, nullptr, 16)));
    const std::string counter = "message:" + std::to_string(wanted.actor);
    MJ_CHECK(store_->create_record(settings_.context, {counter + ":", counter, id, encode(message)}));
    return {};
  }

  bool read_secrets(NoticeDelivery& telling) {
    if (settings_.secrets.empty()) return true;
    auto secrets = read_webhook_secrets(settings_.secrets);
    if (!secrets) {
      telling.failure = secrets.error().message;
      return false;
    }
    telling.secrets = std::move(*secrets);
    return true;
  }

  void call(NoticeDelivery& telling) {
    HttpClient http;
    const std::uint64_t until = clock_.boot_ms() + kAllCallsMs;
    for (const NotifyTarget& target : telling.webhooks) {
      if (stopped() || clock_.boot_ms() >= until) {
        telling.failure = "the preceding notifications took too long";
        break;
      }
      telling.add(target, call_webhook(http, {target.where, telling.id, telling.body, telling.secrets,
                                              clock_.unix_ms() / 1000, &stopping()}));
    }
    telling.counts = !stopped();
    telling.over = true;
    wake();
  }

  Result<void> settle_again(const NoticeDelivery& telling, std::uint64_t after_ms) {
    return store_->complete_notice(settings_.context, telling.notice,
                                   {NoticeResult::Retry{telling.reached, after_ms, telling.counts}, ""});
  }
  Result<void> settle(const NoticeDelivery& telling) {
    const Notice& notice = telling.notice;
    if (telling.failure.empty() && telling.hopeless.empty())
      return store_->complete_notice(settings_.context, notice, {});
    if (telling.failure.empty()) return give_up(notice, telling.hopeless);
    if (!telling.counts) return settle_again(telling, 0);
    if (notice.tries + 1 >= kMaxTries)
      return give_up(notice, telling.failure + " (tried " + std::to_string(kMaxTries) + " times)");
    MJ_CHECK(settle_again(telling, pause_after(notice.tries)));
    if (notice.tries == 0)
      log(LogLevel::warn, "notifier", "context {}: the end of {}: {} (retrying)", settings_.context, notice.of,
          telling.failure);
    return {};
  }

  std::unique_ptr<Store> store_;
  NotifierSettings settings_;
  std::list<NoticeDelivery> under_way_;
  LogOnce log_once_;
  LoopThread<NotifierImpl> thread_{*this};  // Last member: the thread uses all members above.
};

}  // namespace

Result<std::unique_ptr<Notifier>> Notifier::start(StoreFactory& stores, const Clock& clock, NotifierSettings settings) {
  MJ_TRY(store, stores.open());
  MJ_TRY(waiter, stores.open_waiter({{settings.context, ""}}, kChannel));
  auto made = std::make_unique<NotifierImpl>(std::move(store), std::move(waiter), clock, std::move(settings));
  MJ_CHECK(made->started());
  return made;
}

}  // namespace mycojobs
