#include "coordinator/notifier.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <thread>

#include "base/log.h"
#include "domain/codec.h"
#include "domain/notify.h"
#include "domain/rights.h"
#include "store/keys.h"
#include "store/place.h"
#include "transport/webhook.h"

namespace mycojobs {
namespace {

constexpr const char* kChannel = "mj:notices";
constexpr std::uint32_t kAtOnce = 8;       // notices whose webhooks are called at one time
constexpr std::uint32_t kHoldMs = 120000;  // longer than a notice's webhooks may take
constexpr std::uint32_t kIdleMs = 1000, kBusyMs = 50, kAwayMs = 500;
constexpr std::uint32_t kMostTries = 14;  // within about an hour and a half
constexpr std::uint64_t kFirstPauseMs = 1000, kMostPauseMs = 1800'000;
constexpr std::uint64_t kMostAtTopic = 10000;

std::uint64_t pause_after(std::uint32_t tries) {
  return tries > 20 ? kMostPauseMs : std::min(kMostPauseMs, kFirstPauseMs << tries);
}

// A notice, those who have not heard of it, and what has come of it so far.
struct Telling {
  Notice notice;
  std::string id, body;
  std::vector<NotifyTarget> webhooks;
  std::vector<std::string> told, secrets;
  std::string failure;  // the last
  std::uint64_t unix_s = 0;
  std::atomic<bool> over{false};
  std::thread thread;

  void add(const NotifyTarget& target, Result<void> done) {
    if (done) {
      told.push_back(target.digest);
    } else {
      failure = std::move(done).error().message;
    }
  }
};

class Notifying final : public Notifier {
 public:
  Notifying(std::unique_ptr<Store> store, std::unique_ptr<Waiter> waiter, const Clock& clock, NotifierSettings settings)
      : store_(std::move(store)),
        waiter_(std::move(waiter)),
        clock_(clock),
        settings_(std::move(settings)),
        thread_([this] { loop(); }) {}
  ~Notifying() override {
    stop_ = true;
    waiter_->wake();
    thread_.join();
  }

 private:
  void loop() {
    while (!stop_) {
      const auto next_ms = round();
      said(next_ms ? nullptr : &next_ms.error());
      const std::uint64_t pause = !next_ms             ? kAwayMs
                                  : under_way_.empty() ? std::min<std::uint64_t>(kIdleMs, *next_ms)
                                                       : kBusyMs;
      auto woken = waiter_->wait(static_cast<std::uint32_t>(pause), false);
      (void)woken;  // an error of the waiter is one of the store, which the next round meets
    }
    for (Telling& each : under_way_) each.thread.join();
  }

  // How long until there is more to do, ms.
  Result<std::uint64_t> round() {
    for (auto each = under_way_.begin(); each != under_way_.end();) {
      if (!each->over) {
        ++each;
        continue;
      }
      MJ_CHECK(settle(*each));  // again in the next round if the store is away
      each->thread.join();
      each = under_way_.erase(each);
    }
    const auto room = kAtOnce - static_cast<std::uint32_t>(under_way_.size());
    if (room == 0) return std::uint64_t{kBusyMs};
    MJ_TRY(due, store_->notices_due(settings_.context, room, kHoldMs));
    for (const Notice& notice : due.notices) MJ_CHECK(begin(notice));
    return due.notices.size() == room ? 0 : due.next_ms == 0 ? kIdleMs : due.next_ms;
  }

  Result<void> give_up(const Notice& notice, const std::string& why) {
    const std::string line = "nobody more hears of the end of " + notice.of + ": " + why;
    log(LogLevel::warn, "notifier", "context {}: {}", settings_.context, line);
    return store_->settle_notice(settings_.context, notice, {std::nullopt, line});
  }

  Result<void> begin(const Notice& notice) {
    auto record = store_->load(settings_.context, notice.of);
    if (!record && record.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(record).error());
    if (!record) return give_up(notice, record.error().message);
    MJ_TRY(targets, targets_of(notice, *record));
    if (!targets.problems.empty()) return give_up(notice, join(targets.problems));
    Telling& telling = under_way_.emplace_back();
    telling.notice = notice;
    telling.id = notice_id(settings_.context, notice);
    telling.body = notice_body(settings_.context, notice, *record);
    telling.told = notice.told;
    MJ_TRY(now_ms, store_->now_ms());
    telling.unix_s = now_ms / 1000;
    for (NotifyTarget& target : targets.targets) tell(telling, std::move(target), *record);
    const bool calls = !telling.webhooks.empty() && read_secrets(telling);
    if (!calls) {
      auto settled = settle(telling);
      under_way_.pop_back();
      return settled;
    }
    telling.thread = std::thread([this, &telling] { call(telling); });
    return {};
  }

  // Those of the record, and of the context where they count, who want to hear of this end and have not.
  Result<NotifyRead> targets_of(const Notice& notice, const Fields& record) {
    std::string own, flow, notice_of;
    for (const auto& [name, value] : record) {
      if (name == "notify") own = value;
      if (name == "flow_id") flow = value;
      if (name == "notice_of") notice_of = value;
    }
    NotifyRead all = read_notify(own, notice.of + ": notify");
    if ((flow.empty() || flow == "0") && notice_of.empty()) {
      MJ_TRY(shared, of_context());
      for (auto& target : shared.targets) all.targets.push_back(std::move(target));
      for (auto& problem : shared.problems) all.problems.push_back(std::move(problem));
    }
    std::erase_if(all.targets, [&](const NotifyTarget& target) {
      return !target.wants(notice.finished) ||
             std::find(notice.told.begin(), notice.told.end(), target.digest) != notice.told.end();
    });
    return all;
  }
  Result<NotifyRead> of_context() {
    static constexpr std::string_view kAsked[] = {"notify"};
    Context context;
    context.id = settings_.context;
    auto fields = store_->load_fields(settings_.context, redis_key(context), kAsked);
    if (!fields && fields.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(fields).error());
    if (!fields || fields->empty()) return NotifyRead();
    return read_notify(fields->front().second, redis_key(context) + ": notify");
  }

  void tell(Telling& telling, NotifyTarget target, const Fields& record) {
    switch (target.kind) {
      case NotifyTarget::Kind::webhook:
        if (auto allowed = settings_.webhooks.check(target.where); !allowed) return telling.add(target, allowed);
        telling.webhooks.push_back(std::move(target));
        return;
      case NotifyTarget::Kind::job:
        return telling.add(target, submit(telling, target, decode<Job>(record).record.caller_id));
      case NotifyTarget::Kind::topic:
        return telling.add(target, send(telling, target, decode<Job>(record).record.caller_id));
    }
  }

  // Who was taken out of the lists since starts nothing more.
  Result<void> may_create(Id caller, std::string_view what) {
    MJ_TRY(place, read_place(*store_, settings_.context, WayIn::command));
    return may(caller, Action::create, place, {.name = std::string(what)});
  }

  Result<void> submit(const Telling& telling, const NotifyTarget& target, Id caller) {
    MJ_CHECK(may_create(caller, "jobs"));
    Job job = target.job;
    job.caller_id = caller;
    job.context_id = settings_.context;
    if (job.name.empty()) job.name = "notice of " + telling.notice.of;
    job.env_vars["MYCOJOBS_NOTICE"] = telling.body;
    job.idempotency_key = "notice " + telling.id + " " + target.digest;
    job.unknown.emplace_back("notice_of", telling.notice.of);
    MJ_CHECK(store_->submit(job));
    return {};
  }

  Result<void> send(const Telling& telling, const NotifyTarget& target, Id caller) {
    MJ_CHECK(may_create(caller, "messages"));
    MJ_TRY(waiting, store_->queue_length(settings_.context, topic_key(target.where)));
    if (waiting >= kMostAtTopic)
      return fail(Code::too_large, "topic " + target.where + ": " + std::to_string(waiting) + " messages wait there");
    Message message;
    message.caller_id = caller;
    message.context_id = settings_.context;
    message.message = telling.body;
    message.message_type = MessageType::chat;
    message.topic = target.where;
    message.unknown.emplace_back("notice", telling.id);
    const std::string counter = "message:" + std::to_string(caller);
    MJ_TRY(made, store_->create_record(settings_.context, {counter + ":", counter, 0, encode(message)}));
    return store_->topic_send(settings_.context, target.where, made.key, {});
  }

  bool read_secrets(Telling& telling) {
    if (settings_.secrets.empty()) return true;
    auto secrets = read_webhook_secrets(settings_.secrets);
    if (!secrets) {
      telling.failure = secrets.error().message;
      return false;
    }
    telling.secrets = std::move(*secrets);
    return true;
  }

  void call(Telling& telling) {
    HttpClient http;
    for (const NotifyTarget& target : telling.webhooks) {
      if (stop_) break;
      telling.add(target, call_webhook(
                              http, {target.where, telling.id, telling.body, telling.secrets, telling.unix_s, &stop_}));
    }
    telling.over = true;
    waiter_->wake();
  }

  Result<void> settle(const Telling& telling) {
    const Notice& notice = telling.notice;
    if (telling.failure.empty()) return store_->settle_notice(settings_.context, notice, {});
    if (notice.tries + 1 >= kMostTries)
      return give_up(notice, telling.failure + " (tried " + std::to_string(kMostTries) + " times)");
    if (notice.tries == 0)
      log(LogLevel::warn, "notifier", "context {}: the end of {}: {} (it is tried again)", settings_.context, notice.of,
          telling.failure);
    return store_->settle_notice(settings_.context, notice,
                                 {NoticeAfter::Again{telling.told, pause_after(notice.tries)}, ""});
  }

  void said(const Error* error) {
    if ((error != nullptr) == told_) return;
    told_ = error != nullptr;
    if (error != nullptr) log(LogLevel::warn, "notifier", "context {}: {}", settings_.context, error->message);
  }

  std::unique_ptr<Store> store_;
  std::unique_ptr<Waiter> waiter_;
  const Clock& clock_;
  NotifierSettings settings_;
  std::list<Telling> under_way_;
  bool told_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

Result<std::unique_ptr<Notifier>> Notifier::start(StoreFactory& stores, const Clock& clock, NotifierSettings settings) {
  MJ_TRY(store, stores.open());
  MJ_TRY(waiter, stores.open_waiter({{settings.context, ""}}, kChannel));
  return std::make_unique<Notifying>(std::move(store), std::move(waiter), clock, std::move(settings));
}

}  // namespace mycojobs
