#include "inspect/verify_groups.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <set>

#include "base/counted.h"
#include "base/ids.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::size_t kGroupBatch = 64;

std::string concurrency_key_of(const JobPlaces& job) {
  const bool live = job.claim.state == word(JobState::live);
  if (live && !job.claim.concurrency_key.empty()) return job.claim.concurrency_key;
  return std::string(field_of(job.record, "concurrency_key"));
}

std::uint32_t limit_of(const JobPlaces& job) {
  std::uint64_t limit = 0;
  if (!parse_u64(field_of(job.record, "concurrency_limit"), limit)) limit = 0;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(limit, 1, UINT32_MAX));
}

}  // namespace

void JobGroups::note(const JobPlaces& job) {
  const bool ended = has_ended(job);
  census_.jobs[job.job_key].ended = ended;
  if (ended) return;
  if (!job.waits_for.empty()) waits_[job.job_key] = job.waits_for;
  if (!job.claim.message.empty()) messages_[job.claim.message].push_back(job.job_key);
  note_slots(job, slots_);
}

void JobGroups::note_slots(const JobPlaces& job, SlotsByKey& slots) {
  const std::string key = concurrency_key_of(job);
  if (key.empty()) return;
  Slots& group = slots[key];
  group.members.push_back(job.job_key);
  if (job.takes_slot) ++group.taken;
  const auto state = parse_job_state(job.claim.state);
  if (state == JobState::held) {
    group.held[job.job_key] = job.claim.revisions;
    group.limit = group.limit == 0 ? limit_of(job) : std::min(group.limit, limit_of(job));
  } else if (!has_ended(job) && (state == JobState::queued || state == JobState::none)) {
    ++group.comers;
  }
}

const std::vector<std::string>& JobGroups::waits_of(const std::string& job) const {
  static const std::vector<std::string> none;
  const auto found = waits_.find(job);
  return found == waits_.end() ? none : found->second;
}

std::vector<std::string> JobGroups::wait_for_ended() const {
  std::vector<std::string> jobs;
  for (const auto& [job, deps] : waits_) {
    const bool wrong = std::any_of(deps.begin(), deps.end(), [&](const std::string& dep) {
      const auto found = census_.jobs.find(dep);
      return found != census_.jobs.end() && found->second.ended;
    });
    if (wrong) jobs.push_back(job);
  }
  return jobs;
}

Result<std::vector<Finding>> JobGroups::judge(const std::function<void()>& pause) {
  MJ_TRY(all, judge_slots(pause));
  MJ_TRY(messages, judge_messages(pause));
  MJ_TRY(waits, judge_circles());
  for (auto* more : {&messages, &waits}) std::move(more->begin(), more->end(), std::back_inserter(all));
  return std::move(all);
}

Result<std::vector<JobPlaces>> JobGroups::places_of(const std::vector<std::string>& jobs) {
  return store_.places(context_, jobs, false);
}

Result<std::vector<std::string>> JobGroups::newcomers() {
  MJ_TRY(keys, store_.keys(context_, "job:", std::numeric_limits<std::size_t>::max()));
  std::erase_if(keys, [&](const std::string& key) { return !is_job_key(key) || census_.jobs.contains(key); });
  return std::move(keys);
}

// The slots of these keys, counted anew.
Result<JobGroups::SlotsByKey> JobGroups::count_slots(const SlotsByKey& of) {
  MJ_TRY(jobs, newcomers());
  for (const auto& [key, group] : of) jobs.insert(jobs.end(), group.members.begin(), group.members.end());
  SlotsByKey counted;
  for (std::size_t from = 0; from < jobs.size(); from += kGroupBatch) {
    const std::vector<std::string> some(
        jobs.begin() + static_cast<std::ptrdiff_t>(from),
        jobs.begin() + static_cast<std::ptrdiff_t>(std::min(from + kGroupBatch, jobs.size())));
    MJ_TRY(places, places_of(some));
    for (const JobPlaces& job : places) note_slots(job, counted);
  }
  std::erase_if(counted, [&](const auto& each) { return !of.contains(each.first) || !each.second.wrong(); });
  return counted;
}

Result<std::vector<Finding>> JobGroups::judge_slots(const std::function<void()>& pause) {
  std::vector<Finding> findings;
  SlotsByKey wrong = slots_;
  std::erase_if(wrong, [](const auto& each) { return !each.second.wrong(); });
  if (wrong.empty()) return findings;
  MJ_TRY(first, count_slots(wrong));
  if (first.empty()) return findings;
  pause();
  MJ_TRY(second, count_slots(first));
  for (const auto& [key, group] : second) {
    const auto& before = first.at(key).held;
    const bool unchanged = std::any_of(group.held.begin(), group.held.end(), [&](const auto& job) {
      const auto found = before.find(job.first);
      return found != before.end() && found->second == job.second;
    });
    if (!unchanged) continue;
    findings.push_back(finding("held-free", key,
                               counted(group.held.size(), "job is", "jobs are") + " held by the concurrency key " +
                                   key + ", " + group.held.begin()->first + " for one; of its slots " +
                                   std::to_string(group.taken) + " of " + std::to_string(group.limit) +
                                   " are taken: nothing will wake them"));
  }
  return findings;
}

Result<std::string> JobGroups::message_trouble(const std::string& message, const std::vector<std::string>& jobs) {
  MJ_TRY(places, places_of(jobs));
  const auto open = std::count_if(places.begin(), places.end(), [&](const JobPlaces& job) {
    return job.claim.message == message && !has_ended(job);
  });
  auto mark = store_.load(context_, own_prefix("<message key>") + message);
  if (!mark && mark.error().code == Code::unavailable) return tl::unexpected(mark.error());
  if (!mark) return std::string(open > 0 ? "has jobs that have not ended and no mark that counts them" : "");
  const std::string left(field_of(*mark, "left"));
  if (left == std::to_string(open)) return std::string();
  return "has a mark that counts as not ended: " + (left.empty() ? "no" : left) + " of its jobs; there are " +
         std::to_string(open);
}

Result<std::vector<Finding>> JobGroups::judge_messages(const std::function<void()>& pause) {
  // Marks that count jobs though none is left, or none that knows its message. What was taken meanwhile was not
  // counted.
  const std::string prefix = own_prefix("<message key>");
  MJ_TRY(marks, store_.keys(context_, prefix, std::numeric_limits<std::size_t>::max()));
  for (const std::string& mark : marks) {
    const std::string message = mark.substr(prefix.size());
    if (messages_.contains(message)) continue;
    static constexpr std::array<std::string_view, 2> kAsked{"left", "taken_ms"};
    auto fields = store_.load_fields(context_, mark, kAsked);
    if (!fields && fields.error().code == Code::unavailable) return tl::unexpected(fields.error());
    if (!fields) continue;  // another client's, or gone
    std::uint64_t left = 0;
    std::uint64_t taken_ms = 0;
    parse_u64(field_of(*fields, "left"), left);
    parse_u64(field_of(*fields, "taken_ms"), taken_ms);
    if (left > 0 && taken_ms < census_.began_ms) messages_[message];
  }
  std::map<std::string, std::string> wrong;
  for (const auto& [message, jobs] : messages_) {
    MJ_TRY(trouble, message_trouble(message, jobs));
    if (!trouble.empty()) wrong[message] = trouble;
  }
  std::vector<Finding> findings;
  if (!wrong.empty()) pause();
  for (const auto& [message, before] : wrong) {
    MJ_TRY(trouble, message_trouble(message, messages_[message]));
    if (trouble == before) findings.push_back(finding("message-count", message, message + ' ' + trouble));
  }
  return findings;
}

// Each circle once, from its first job by name.
std::vector<std::vector<std::string>> JobGroups::circles() const {
  enum class Visit { open, done };
  std::unordered_map<std::string, Visit> marks;
  std::set<std::vector<std::string>> found;
  struct Step {
    std::string job;
    std::size_t next = 0;
  };
  for (const auto& [start, deps] : waits_) {
    if (marks.contains(start)) continue;
    std::vector<Step> path{{start, 0}};
    marks[start] = Visit::open;
    while (!path.empty()) {
      const auto& next = waits_of(path.back().job);
      if (path.back().next == next.size()) {
        marks[path.back().job] = Visit::done;
        path.pop_back();
        continue;
      }
      const std::string& dep = next[path.back().next++];
      const auto mark = marks.find(dep);
      if (mark == marks.end()) {
        marks[dep] = Visit::open;
        path.push_back({dep, 0});
      } else if (mark->second == Visit::open) {
        std::vector<std::string> circle;
        const auto from = std::find_if(path.begin(), path.end(), [&](const Step& step) { return step.job == dep; });
        std::transform(from, path.end(), std::back_inserter(circle), [](const Step& step) { return step.job; });
        std::rotate(circle.begin(), std::min_element(circle.begin(), circle.end()), circle.end());
        found.insert(std::move(circle));
      }
    }
  }
  return {found.begin(), found.end()};
}

Result<std::vector<Finding>> JobGroups::judge_circles() {
  std::vector<Finding> findings;
  for (const auto& circle : circles()) {
    MJ_TRY(places, places_of(circle));
    std::string text;
    bool closed = true;
    for (std::size_t i = 0; i < circle.size(); ++i) {
      const auto& waits = places[i].waits_for;
      closed = closed && std::find(waits.begin(), waits.end(), circle[(i + 1) % circle.size()]) != waits.end();
      text += circle[i] + " waits for ";
    }
    if (!closed) continue;
    findings.push_back(
        finding("waits-circle", circle.front(), text + circle.front() + ": none will ever run; cancel one"));
  }
  return findings;
}

}  // namespace mycojobs
