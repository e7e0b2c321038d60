// What of a schedule fires now. Pure.
#include <algorithm>
#include <deque>

#include "coordinator/schedules.h"
#include "domain/cron.h"
#include "domain/nearest.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kHourMs = 3600ULL * 1000;

struct Due {
  std::deque<std::uint64_t> moments;  // the newest kMaxMoments, rising
  bool more = false;                  // there were older ones
};

// Moments from `from` to `to`; false: there are too few for the window to be large enough, and it did not begin at the
// first of all.
Result<void> collect(const Cron& cron, const std::string& zone, std::uint64_t from, std::uint64_t to, Due& due) {
  due = {};
  for (std::uint64_t at = from;;) {
    MJ_TRY(next, next_moment(cron, zone, at));
    if (next == 0 || next > to) return {};
    due.moments.push_back(next);
    if (due.moments.size() > kMaxMoments) {
      due.moments.pop_front();
      due.more = true;
    }
    at = next;
  }
}

// From its next moment until now. After a long absence only the end is looked at: windows that grow backwards.
Result<Due> due_moments(const Cron& cron, const Schedule& schedule, std::uint64_t now_ms) {
  const std::uint64_t first = schedule.next_ms - 1;
  Due due;
  for (std::uint64_t window = 2 * kHourMs;; window *= 4) {
    const bool whole = now_ms - first <= window;
    MJ_CHECK(collect(cron, schedule.zone, whole ? first : now_ms - window, now_ms, due));
    if (whole) return due;
    if (due.moments.size() >= kMaxMoments) {
      due.more = true;
      return due;
    }
  }
}

std::string several(std::size_t count, bool more) {
  return (more ? "over " : "") + std::to_string(count) + (count == 1 && !more ? " moment" : " moments");
}

}  // namespace

Result<void> check_schedule(const Schedule& schedule) {
  auto cron = parse_cron(schedule.cron);
  if (!cron) return fail(cron.error(), "cron");
  if (auto zone = check_zone(schedule.zone); !zone) return fail(zone.error(), "zone");
  static constexpr std::string_view kOverlap[] = {"allow", "skip", "queue"};
  static constexpr std::string_view kMissed[] = {"skip", "once", "all"};
  const auto check = [](const char* field, const std::string& word, std::span<const std::string_view> words) {
    Result<void> fine;
    if (std::find(words.begin(), words.end(), word) != words.end()) return fine;
    std::string all;
    for (auto each : words) all += (all.empty() ? "" : ", ") + std::string(each);
    fine =
        fail(Code::invalid, std::string(field) + ": " + shown(word) + " is none of " + all + did_you_mean(word, words));
    return fine;
  };
  MJ_CHECK(check("overlap", schedule.overlap, kOverlap));
  return check("missed", schedule.missed, kMissed);
}

Result<ScheduleTurn> turn_of(const Schedule& schedule, const RunBefore& before, std::uint64_t now_ms) {
  ScheduleTurn turn{{}, schedule.next_ms, schedule.note, false};
  if (schedule.paused || schedule.next_ms == 0 || schedule.next_ms > now_ms) return turn;
  MJ_CHECK(check_schedule(schedule));
  MJ_TRY(cron, parse_cron(schedule.cron));
  MJ_TRY(due, due_moments(cron, schedule, now_ms));
  MJ_TRY(next, next_moment(cron, schedule.zone, now_ms));
  turn.next_ms = next;
  turn.note.clear();
  if (due.moments.empty()) return turn;  // its times were changed by hand

  const std::string run = "flow " + std::to_string(schedule.last_flow);
  const bool queue = schedule.overlap == "queue";
  if (queue && before.running) {
    turn.next_ms = due.moments.front();
    turn.waits = true;
    turn.note = several(due.moments.size(), due.more) + (due.moments.size() == 1 ? " waits" : " wait") +
                " for the end of " + run;
    return turn;
  }
  // Moments that came while the run before went on have waited; the others were missed, or come just now.
  std::vector<std::uint64_t> chosen;
  std::vector<std::uint64_t> others;
  for (std::uint64_t moment : due.moments) {
    const bool waited = queue && moment < before.ended_ms;
    const bool now = now_ms - moment < kOnTimeMs;
    (waited || now || schedule.missed == "all" ? chosen : others).push_back(moment);
  }
  if (schedule.missed == "once" && !others.empty()) {
    if (chosen.empty()) chosen.push_back(others.back());
    others.clear();
  }
  if (!others.empty()) {
    turn.note = several(others.size(), due.more) + " passed over: nobody was there to start " +
                (others.size() == 1 ? "it" : "them");
  } else if (due.more && schedule.missed != "once") {
    turn.note = "older moments passed over: at most " + std::to_string(kMaxMoments) + " are made up for";
  }
  if (chosen.empty()) return turn;
  if (schedule.overlap == "skip") {
    if (before.running) {
      turn.note = several(chosen.size(), false) + " passed over: " + run + " had not ended";
      return turn;
    }
    // They would run at one time: the newest stands for all.
    chosen.erase(chosen.begin(), chosen.end() - 1);
  }
  const std::size_t most = queue ? 1 : kMaxStartsAtOnce;
  if (chosen.size() > most) {
    turn.next_ms = chosen[most];
    turn.waits = queue;
    chosen.resize(most);
  }
  turn.starts = std::move(chosen);
  return turn;
}

}  // namespace mycojobs
