#include "worker/prerequisite_checker.h"

#include <poll.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/log.h"
#include "domain/codec.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kEveryMs = 250;       // asks the store for jobs to look at
constexpr std::uint32_t kAtOnce = 64;         // jobs
constexpr std::size_t kMostConditions = 100;  // of a job: others wait while they are looked at
// Between two looks at one job; longer while more jobs wait than can be looked at.
constexpr std::uint32_t kAgainLeastMs = 1000, kAgainMostMs = 30000;

}  // namespace

PrerequisiteChecker::PrerequisiteChecker(std::unique_ptr<Store> store, const Clock& clock, StoreHealth& health,
                                         StoreServers& servers, WorkerSettings settings)
    : store_(std::move(store)),
      clock_(clock),
      health_(health),
      settings_(std::move(settings)),
      pauses_(clock, servers),
      thread_([this] { loop(); }) {}

void PrerequisiteChecker::stop() {
  stop_ = true;
  wake_.wake();
  if (thread_.joinable()) thread_.join();
}

void PrerequisiteChecker::loop() {
  while (!stop_) {
    look_around();
    const auto next = std::min_element(turns_.begin(), turns_.end(), [](const auto& a, const auto& b) {
      return a.second.next_boot_ms < b.second.next_boot_ms;
    });
    const std::uint64_t now = clock_.boot_ms();
    const std::uint64_t at = next == turns_.end() ? now + kEveryMs : next->second.next_boot_ms;
    const auto pause = static_cast<std::uint32_t>(at > now ? at - now : 0);
    if (!probes_) {
      pollfd waiting{wake_.fd(), POLLIN, 0};
      ::poll(&waiting, 1, static_cast<int>(pause));
    } else if (probes_->wait(wake_.fd(), pause)) {
      for (auto& [key, job] : std::exchange(open_, {})) {
        if (auto done = judge(key.first, std::move(job)); !done)
          health_.failed(key.first, "looking at prerequisites", done.error());
      }
    }
    wake_.take();
  }
}

void PrerequisiteChecker::look_around() {
  for (Id context : settings_.contexts) {
    Turn& turn = turns_[context];
    if (stop_ || clock_.boot_ms() < turn.next_boot_ms) continue;
    const std::uint64_t began = clock_.boot_ms();
    if (auto done = look(context, turn); done) {
      pauses_.worked(context);
    } else {
      health_.failed(context, "looking at prerequisites", done.error());
      pauses_.failed(context, began);
      turn.next_boot_ms = clock_.boot_ms() + pauses_.left_ms(context);
    }
  }
}

Result<void> PrerequisiteChecker::look(Id context, Turn& turn) {
  turn.again_ms = std::clamp(turn.again_ms, kAgainLeastMs, kAgainMostMs);
  MJ_TRY(jobs, store_->prerequisites_due(context, kAtOnce, turn.again_ms));
  const bool full = jobs.size() >= kAtOnce;
  turn.again_ms = full ? turn.again_ms * 2 : turn.again_ms / 2;
  turn.next_boot_ms = full ? 0 : clock_.boot_ms() + kEveryMs;
  Result<void> done;
  for (AwaitedPrerequisites& job : jobs) {
    auto one = judge(context, std::move(job));
    if (!one && one.error().code == Code::unavailable) return one;
    if (!one) done = std::move(one);  // of this job: it is given out again
  }
  return done;
}

Result<std::vector<Condition>> PrerequisiteChecker::read_conditions(const std::vector<std::string>& texts) const {
  if (texts.size() > kMostConditions) {
    return fail(Code::invalid, "prerequisites: " + std::to_string(texts.size()) + " are more than the " +
                                   std::to_string(kMostConditions) + " that are looked at");
  }
  std::vector<Condition> conditions;
  for (const std::string& text : texts) {
    MJ_TRY(condition, parse_condition(text, settings_.allowed_prerequisites));
    conditions.push_back(std::move(condition));
  }
  return conditions;
}

Result<void> PrerequisiteChecker::judge(Id context, AwaitedPrerequisites job) {
  auto conditions = read_conditions(job.conditions);
  if (!conditions) {
    log(LogLevel::warn, "worker", "{}: {}", job.job_key, conditions.error().message);
    return store_->prerequisites_settled(context, job.job_key, conditions.error().message);
  }
  bool later = false;
  const Condition* unmet = nullptr;  // the first that is not met and may never be
  bool all = true;
  for (const Condition& condition : *conditions) {
    std::string never;
    MJ_TRY(seen, see(context, job, condition, never));
    if (!never.empty())
      return store_->prerequisites_settled(context, job.job_key, "prerequisite \"" + condition.text + "\": " + never);
    later = later || seen == Seen::later;
    all = all && seen == Seen::yes;
    // The time of wait: and at: comes for certain.
    const bool certain = condition.kind == Condition::Kind::wait || condition.kind == Condition::Kind::at;
    if (seen == Seen::no && !certain && unmet == nullptr) unmet = &condition;
  }
  if (all) return store_->prerequisites_settled(context, job.job_key, "");
  const std::uint64_t limit = settings_.prerequisites_timeout_ms;
  if (unmet != nullptr && limit > 0 && job.waited_ms > limit) {
    return store_->prerequisites_settled(context, job.job_key,
                                         "prerequisite \"" + unmet->text + "\" was not met within " +
                                             std::to_string(limit / 1000) + " s (prerequisites.timeout)");
  }
  if (later) {
    const std::pair key(context, job.job_key);
    open_[key] = std::move(job);
  }
  return {};
}

Result<PrerequisiteChecker::Seen> PrerequisiteChecker::see(Id context, const AwaitedPrerequisites& job,
                                                           const Condition& condition, std::string& never) {
  const auto seen = [](bool yes) { return yes ? Seen::yes : Seen::no; };
  switch (condition.kind) {
    case Condition::Kind::wait:
      return seen(job.waited_ms >= condition.time_ms);
    case Condition::Kind::at: {
      MJ_TRY(now, now_ms(context, job.job_key));
      return seen(now >= condition.time_ms);
    }
    case Condition::Kind::redis:
      return see_key(context, condition.target);
    case Condition::Kind::file: {
      std::error_code unreadable;
      return seen(std::filesystem::exists(condition.target, unreadable));
    }
    case Condition::Kind::tcp:
    case Condition::Kind::http:
      return see_network(condition);
    case Condition::Kind::approval:
      return Seen::no;  // one that was given is asked for no longer
    case Condition::Kind::flow:
      return see_flow(context, condition, never);
  }
  return Seen::no;
}

Result<PrerequisiteChecker::Seen> PrerequisiteChecker::see_key(Id context, const std::string& key) {
  static constexpr std::string_view kAny[] = {"id"};  // whatever the hash holds, this reads little of it
  auto loaded = store_->load_fields(context, key, kAny);
  if (loaded || loaded.error().code == Code::invalid) return Seen::yes;  // invalid: there, and no hash
  if (loaded.error().code == Code::not_found) return Seen::no;
  return tl::unexpected<Error>(std::move(loaded).error());
}

Result<PrerequisiteChecker::Seen> PrerequisiteChecker::see_flow(Id context, const Condition& condition,
                                                                std::string& never) {
  static constexpr std::string_view kAsked[] = {"status", "detail", "error"};
  auto loaded = store_->load_fields(context, "flow:" + condition.target, kAsked);
  const std::string name = "flow " + condition.target;
  if (!loaded && loaded.error().code == Code::not_found) {
    never = name + " does not exist";
    return Seen::no;
  }
  if (!loaded && loaded.error().code == Code::invalid) {
    never = "flow:" + condition.target + " is no flow";
    return Seen::no;
  }
  MJ_CHECK(loaded);
  const Flow flow = decode<Flow>(*loaded).record;
  if (flow.status == FlowStatus::error) {
    never = name + " has ended as error (" + flow.detail + ")" + (flow.error.empty() ? "" : ": " + flow.error);
  }
  return flow.status == FlowStatus::finished ? Seen::yes : Seen::no;
}

// By the clock of that context's own store.
Result<std::uint64_t> PrerequisiteChecker::now_ms(Id context, const std::string& job_key) {
  MJ_TRY(places, store_->places(context, {&job_key, 1}, false));
  if (places.empty()) return fail(Code::internal, job_key + ": the store does not say where it is");
  return places.front().now_ms;
}

PrerequisiteChecker::Seen PrerequisiteChecker::see_network(const Condition& condition) {
  if (!probes_) {
    auto probes = Probes::open(clock_);
    if (!probes) {
      log(LogLevel::error, "worker", "prerequisites: {}", probes.error().message);
      return Seen::no;
    }
    probes_ = std::move(*probes);
  }
  const auto answer = probes_->ask(condition);
  return !answer ? Seen::later : *answer ? Seen::yes : Seen::no;
}

}  // namespace mycojobs
