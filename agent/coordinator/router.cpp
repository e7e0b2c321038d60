#include "coordinator/router.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <map>
#include <random>
#include <thread>

#include "base/ids.h"
#include "base/log.h"
#include "coordinator/remote_job.h"
#include "coordinator/said_once.h"
#include "domain/codec.h"
#include "domain/retry.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kRouterIdleMs = 1000, kJobsAwayMs = 100, kRouterAwayMs = 500;
constexpr std::uint32_t kClaimAtOnce = 8;

class Routing final : public Router {
 public:
  Routing(std::unique_ptr<Store> store, std::unique_ptr<Waiter> waiter, const Clock& clock, RouterSettings settings)
      : store_(std::move(store)),
        waiter_(std::move(waiter)),
        clock_(clock),
        settings_(settings),
        instance_(random_hex(16)),
        said_("router", settings_.context),
        thread_([this] { loop(); }) {}
  ~Routing() override {
    stop_ = true;
    waiter_->wake();
    thread_.join();
  }

 private:
  struct Away {
    Claimed claim;
    std::unique_ptr<RemoteJob> job;
    std::thread thread;
    std::optional<JobEnd> end;  // taken, and not stored yet
  };

  void loop() {
    while (!stop_) {
      const auto done = round();
      said_(done ? nullptr : &done.error());
      const std::uint32_t pause = !done ? kRouterAwayMs : away_.empty() ? kRouterIdleMs : kJobsAwayMs;
      const bool full = away_.size() >= settings_.concurrency;
      auto woken = waiter_->wait(pause, done.has_value() && !full && !stop_);
      (void)woken;  // an error of the waiter is one of the store, which the next round meets
    }
    for (Away& each : away_) each.job->abandon();
    for (Away& each : away_) each.thread.join();
    for (Away& each : away_) {
      (void)report(each.claim, Release{each.claim.ref, "the router stops", false});  // else its lease runs out
    }
  }

  Result<void> round() {
    MJ_CHECK(settle());
    MJ_CHECK(renew());
    MJ_CHECK(expire());
    return take();
  }

  Result<void> report(const Claimed&, Report what) {
    const Report all[] = {std::move(what)};
    MJ_TRY(answers, store_->report(settings_.context, all));
    return answers.empty() ? Result<void>() : answers.front();
  }

  // Ends that have come are stored, in order with their log.
  Result<void> settle() {
    for (auto each = away_.begin(); each != away_.end();) {
      if (!each->job->over()) {
        ++each;
        continue;
      }
      if (!each->end) each->end = each->job->take_end();
      if (each->end) {
        if (auto lines = each->job->take_log(); !lines.empty()) {
          auto logged = report(each->claim, LogAppend{each->claim.ref, std::move(lines)});
          if (!logged && logged.error().code == Code::unavailable)
            log(LogLevel::warn, "router", "{}: its log is lost", each->claim.ref.job_key);
        }
        const Job job = decode<Job>(each->claim.record).record;
        const double chance = std::uniform_real_distribution<double>()(random_);
        const auto again = retry_after({}, *each->end, each->claim.attempt, job.retries, chance);
        auto stored = report(each->claim, EndReport{each->claim.ref, *each->end, again});
        if (!stored && stored.error().code == Code::unavailable) return stored;
        if (!stored) log(LogLevel::info, "router", "{}: {}", each->claim.ref.job_key, stored.error().message);
      }
      each->thread.join();
      each = away_.erase(each);
    }
    return {};
  }

  Result<void> renew() {
    if (away_.empty() || clock_.boot_ms() < next_renewal_) return {};
    std::vector<ClaimRef> claims;
    for (const Away& each : away_) claims.push_back(each.claim.ref);
    MJ_TRY(answers, store_->renew(settings_.context, claims, settings_.lease_ms));
    next_renewal_ = clock_.boot_ms() + std::min(settings_.lease_ms / 3, 1000U);
    auto each = away_.begin();
    for (const Renewal answer : answers) {
      if (answer == Renewal::cancel) each->job->cancel();
      if (answer == Renewal::stale) each->job->abandon();
      ++each;
    }
    return {};
  }

  // Leases of routers that have died: seen without renewal for as long as they are.
  Result<void> expire() {
    if (clock_.boot_ms() < next_expiry_) return {};
    next_expiry_ = clock_.boot_ms() + 1000;
    MJ_TRY(leases, store_->leases(settings_.context));
    std::map<std::string, Seen> seen;
    for (const Lease& lease : leases) {
      const auto before = seen_.find(lease.job_key);
      const bool same = before != seen_.end() && before->second.until_ms == lease.until_ms;
      Seen now{lease.until_ms, same ? before->second.since_boot_ms : clock_.boot_ms()};
      if (same && clock_.boot_ms() - now.since_boot_ms > lease.lease_ms + 1000) {
        MJ_CHECK(store_->expire(settings_.context, lease));
        continue;
      }
      seen.emplace(lease.job_key, now);
    }
    seen_ = std::move(seen);
    return {};
  }

  Result<void> take() {
    if (stop_ || away_.size() >= settings_.concurrency) return {};
    ClaimRequest request;
    request.context = settings_.context;
    request.instance = instance_;
    request.queues = {kRouterQueue};
    request.max_jobs =
        std::min<std::uint32_t>(kClaimAtOnce, settings_.concurrency - static_cast<std::uint32_t>(away_.size()));
    request.lease_ms = settings_.lease_ms;
    MJ_TRY(reply, store_->claim(request));
    waiter_->set_paused(settings_.context, reply.paused);  // asked again with every round
    for (Claimed& claim : reply.jobs) MJ_CHECK(send(std::move(claim)));
    return {};
  }

  Result<void> send(Claimed claim) {
    RemoteRequest wanted;
    wanted.context = settings_.context;
    wanted.job_key = claim.ref.job_key;
    wanted.attempt = claim.attempt;
    wanted.job = decode<Job>(claim.record).record;
    for (const auto& [name, value] : claim.record) {
      if (name == "supervisor_url") wanted.url = value;
    }
    wanted.timeout_ms = wanted.job.timeout ? *wanted.job.timeout * std::uint64_t{1000} : settings_.default_timeout_ms;
    const auto refuse = [&](const std::string& why) {
      JobEnd end;
      end.detail = "setup_error";
      end.error = "supervisor_url: \"" + wanted.url + "\" " + why;
      return report(claim, EndReport{claim.ref, end});
    };
    if (!wanted.url.starts_with("http://") && !wanted.url.starts_with("https://"))
      return refuse("is no address that a job is sent to: give http://HOST:PORT");
    // Whoever writes flows must not make us call whatever we can reach: only who may register runners names addresses.
    MJ_TRY(runners, store_->runners(settings_.context));
    const auto to = std::find_if(runners.begin(), runners.end(),
                                 [&](const RunnerInfo& info) { return info.runner.address == wanted.url; });
    if (to == runners.end())
      return refuse(
          "is the address of no runner of this context: an admin registers it with its secret (runner.create)");
    wanted.secret = to->runner.secret;
    wanted.networks = settings_.networks;
    Away& away = away_.emplace_back();
    away.claim = std::move(claim);
    away.job = std::make_unique<RemoteJob>(std::move(wanted), clock_);
    away.thread = std::thread([job = away.job.get()] { job->run(); });
    return {};
  }

  struct Seen {
    std::uint64_t until_ms = 0, since_boot_ms = 0;
  };
  std::unique_ptr<Store> store_;
  std::unique_ptr<Waiter> waiter_;
  const Clock& clock_;
  RouterSettings settings_;
  std::string instance_;
  std::list<Away> away_;
  std::map<std::string, Seen> seen_;
  std::uint64_t next_renewal_ = 0, next_expiry_ = 0;
  std::mt19937_64 random_{std::random_device{}()};
  SaidOnce said_;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

Result<std::unique_ptr<Router>> Router::start(StoreFactory& stores, const Clock& clock, RouterSettings settings) {
  MJ_TRY(store, stores.open());
  MJ_TRY(waiter, stores.open_waiter({{settings.context, kRouterQueue}}, "mj:router"));
  return std::make_unique<Routing>(std::move(store), std::move(waiter), clock, settings);
}

}  // namespace mycojobs
