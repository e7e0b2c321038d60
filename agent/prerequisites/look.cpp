#include "prerequisites/look.h"

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

PrerequisiteLook::PrerequisiteLook(PrerequisiteStores store, const Clock& clock, LookSettings settings)
    : store_(store), clock_(clock), settings_(std::move(settings)) {}

void PrerequisiteLook::wait(int wake_fd, std::uint32_t timeout_ms,
                            const std::function<void(Id, const Error&)>& failed) {
  if (!probes_) {
    pollfd waiting{wake_fd, POLLIN, 0};
    ::poll(&waiting, 1, static_cast<int>(timeout_ms));
  } else if (probes_->wait(wake_fd, timeout_ms)) {
    for (auto& [key, job] : std::exchange(open_, {})) {
      if (auto done = judge(key.first, std::move(job)); !done) failed(key.first, done.error());
    }
  }
}

Result<std::uint32_t> PrerequisiteLook::look(Id context) {
  std::uint32_t& again_ms = again_ms_[context];
  again_ms = std::clamp(again_ms, kAgainLeastMs, kAgainMostMs);
  MJ_TRY(jobs, store_.as<PrerequisiteStore>().prerequisites_due(context, kAtOnce, again_ms, settings_.looker));
  const bool full = jobs.size() >= kAtOnce;
  again_ms = full ? again_ms * 2 : again_ms / 2;
  Result<void> done;
  for (AwaitedPrerequisites& job : jobs) {
    auto one = judge(context, std::move(job));
    if (!one && one.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(one).error());
    if (!one) done = std::move(one);  // of this job: it is given out again
  }
  MJ_CHECK(done);
  return full ? 0 : kEveryMs;
}

Result<std::vector<Condition>> PrerequisiteLook::read_conditions(const std::vector<std::string>& texts) const {
  if (texts.size() > kMostConditions) {
    return fail(Code::invalid, "prerequisites: " + std::to_string(texts.size()) + " are more than the " +
                                   std::to_string(kMostConditions) + " that are looked at");
  }
  std::vector<Condition> conditions;
  for (const std::string& text : texts) {
    MJ_TRY(condition, parse_condition(text, settings_.allowed));
    conditions.push_back(std::move(condition));
  }
  return conditions;
}

Result<void> PrerequisiteLook::judge(Id context, AwaitedPrerequisites job) {
  auto conditions = read_conditions(job.conditions);
  if (!conditions && conditions.error().code == Code::denied && job.left) return {};  // a coordinator may be allowed it
  if (!conditions) {
    log(LogLevel::warn, "prerequisites", "{}: {}", job.job_key, conditions.error().message);
    return store_.as<PrerequisiteStore>().prerequisites_settled(context, job.job_key, conditions.error().message);
  }
  bool later = false;
  const Condition* unmet = nullptr;  // the first that is not met and may never be
  bool all = true;
  for (const Condition& condition : *conditions) {
    std::string never;
    MJ_TRY(seen, see(context, job, condition, never));
    if (!never.empty())
      return store_.as<PrerequisiteStore>().prerequisites_settled(context, job.job_key,
                                                                  "prerequisite \"" + condition.text + "\": " + never);
    later = later || seen == Seen::later;
    all = all && seen == Seen::yes;
    // The time of wait: and at: comes for certain.
    const bool certain = condition.kind == Condition::Kind::wait || condition.kind == Condition::Kind::at;
    if (seen == Seen::no && !certain && unmet == nullptr) unmet = &condition;
  }
  if (all) return store_.as<PrerequisiteStore>().prerequisites_settled(context, job.job_key, "");
  const std::uint64_t limit = settings_.timeout_ms;
  if (unmet != nullptr && limit > 0 && job.waited_ms > limit) {
    return store_.as<PrerequisiteStore>().prerequisites_settled(
        context, job.job_key,
        "prerequisite \"" + unmet->text + "\" was not met within " + std::to_string(limit / 1000) +
            " s (prerequisites.timeout)");
  }
  if (later) {
    const std::pair key(context, job.job_key);
    open_[key] = std::move(job);
  }
  return {};
}

Result<PrerequisiteLook::Seen> PrerequisiteLook::see(Id context, const AwaitedPrerequisites& job,
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

Result<PrerequisiteLook::Seen> PrerequisiteLook::see_key(Id context, const std::string& key) {
  static constexpr std::string_view kAny[] = {"id"};  // whatever the hash holds, this reads little of it
  auto loaded = store_.as<RecordStore>().load_fields(context, key, kAny);
  if (loaded || loaded.error().code == Code::invalid) return Seen::yes;  // invalid: there, and no hash
  if (loaded.error().code == Code::not_found) return Seen::no;
  return tl::unexpected<Error>(std::move(loaded).error());
}

Result<PrerequisiteLook::Seen> PrerequisiteLook::see_flow(Id context, const Condition& condition, std::string& never) {
  static constexpr std::string_view kAsked[] = {"status", "detail", "error"};
  auto loaded = store_.as<RecordStore>().load_fields(context, "flow:" + condition.target, kAsked);
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
Result<std::uint64_t> PrerequisiteLook::now_ms(Id context, const std::string& job_key) {
  MJ_TRY(places, store_.as<JournalStore>().places(context, {&job_key, 1}, false));
  if (places.empty()) return fail(Code::internal, job_key + ": the store does not say where it is");
  return places.front().now_ms;
}

PrerequisiteLook::Seen PrerequisiteLook::see_network(const Condition& condition) {
  if (!probes_) {
    auto probes = Probes::open(clock_);
    if (!probes) {
      log(LogLevel::error, "prerequisites", "{}", probes.error().message);
      return Seen::no;
    }
    probes_ = std::move(*probes);
  }
  const auto answer = probes_->ask(condition);
  return !answer ? Seen::later : *answer ? Seen::yes : Seen::no;
}

}  // namespace mycojobs
