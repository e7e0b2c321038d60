#include "cli/follow.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/artifact_files.h"
#include "cli/serve.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "inspect/explain.h"
#include "inspect/jobs.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kFollowMs = 200;     // how soon a Ctrl-C is noticed
constexpr std::uint64_t kJobAwayMs = 30000;  // how long a store may be away
constexpr int kLookAgainMs = 100;
constexpr std::size_t kShownValueBytes = 1000;  // of one value of the result, for people
constexpr std::size_t kShownArtifacts = 20;     // for people
constexpr std::uint64_t kJobPatienceMs = 3000;  // before we say why nobody takes the job

class JobFollower {
 public:
  JobFollower(const Invocation& call, Id context, std::string key)
      : call_(call), context_(context), key_(std::move(key)), quiet_since_ms_(call.parts.clock.boot_ms()) {}

  Result<void> follow(Store& store) {
    bool ended = false;
    while (!ended) {
      MJ_CHECK(obey_signals(store));
      MJ_TRY(page, store.logs(context_, key_, last_seq_, 256, kFollowMs));
      for (const Log& line : page.lines) show(line);
      ended = page.ended;
      if (!ended && page.lines.empty()) MJ_CHECK(say_why_it_waits(store));
    }
    return {};
  }
  const nlohmann::json& lines() const { return lines_; }
  bool left() const { return stops_ > 1; }
  std::uint64_t lines_seen() const { return last_seq_; }

 private:
  // The first is a wish to cancel, kept until the store has taken it. A third, while we leave, ends us at once.
  Result<void> obey_signals(Store& store) {
    if (next_stop_signal(0) != 0 && ++stops_ > 1) {
      leave_at_stop_signals();
      return fail(Code::conflict, "left " + key_ + " behind" + (wished_ ? ", with the wish to cancel it" : ""));
    }
    if (stops_ == 0 || wished_) return {};
    if (!told_of_cancel_) say("cancelling " + key_ + "; Ctrl-C once more leaves it behind");
    told_of_cancel_ = true;
    MJ_CHECK(store.cancel(context_, key_));
    wished_ = true;
    return {};
  }
  void show(const Log& line) {
    last_seq_ = line.seq;
    quiet_since_ms_ = call_.parts.clock.boot_ms();
    if (call_.json) {
      lines_.push_back(to_json(line));
      return;
    }
    print_log(line);
  }
  // Once for each cause, and not of a job that runs.
  Result<void> say_why_it_waits(Store& store) {
    const std::uint64_t now = call_.parts.clock.boot_ms();
    if (now - quiet_since_ms_ < kJobPatienceMs) return {};
    quiet_since_ms_ = now;
    auto why = explain(store, context_, key_);
    if (!why && why.error().code == Code::unavailable) return tl::unexpected(why.error());
    const std::string cause = why ? why->cause : "cannot be told";
    if (cause == told_ || cause == "running" || cause == "next" || (why && why->state == "ended")) return {};
    told_ = cause;
    say(why ? fmt::format("{} waits: {}; {}", key_, one_line(why->reason), one_line(why->next))
            : fmt::format("{} waits; why cannot be told: {}", key_, one_line(why.error().message)));
    return {};
  }

  const Invocation& call_;
  Id context_;
  std::string key_;
  std::uint64_t quiet_since_ms_;
  std::uint64_t last_seq_ = 0;
  int stops_ = 0;
  bool told_of_cancel_ = false, wished_ = false;
  std::string told_;
  nlohmann::json lines_ = nlohmann::json::array();
};

// Broken between its parts where it is longer than a line of 80 columns; say() indents what follows.
std::string receipt_of(const JobView& view) {
  constexpr std::size_t kColumns = 78;
  constexpr std::string_view kBetween = " · ";
  const std::string text = view.key + " " + printable(receipt_line(view.job));
  std::string out;
  std::size_t used = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(kBetween, at), text.size());
    const std::string part = text.substr(at, end - at);
    const bool fits = used == 0 || used + columns(kBetween) + columns(part) <= kColumns;
    if (used > 0) out += fits ? kBetween : "\n";
    used = columns(part) + (fits && used > 0 ? used + columns(kBetween) : 0);
    out += part;
    at = end + kBetween.size();
  }
  return out;
}

void print_end(const JobView& view, bool json, const nlohmann::json& lines) {
  if (json) {
    nlohmann::json object = to_json(view);
    object["logs"] = lines;
    print(dump_json(object, 2) + "\n");
    return;
  }
  const Job& job = view.job;
  for (const auto& [key, value] : job.result) {
    const std::string more =
        value.size() > kShownValueBytes ? fmt::format("... ({} bytes; --json has all)", value.size()) : "";
    say(paint(Tone::strong, one_line(key), true) + " = " + printable(value.substr(0, kShownValueBytes)) + more);
  }
  for (const auto& line : artifact_lines(job.artifacts, kShownArtifacts))
    say(paint(Tone::strong, "artifact ", true) + line);
  if (!job.error.empty()) say(paint(Tone::bad, "error: ", true) + printable(job.error));
  const bool good = job.status == JobStatus::finished;
  const std::string receipt = receipt_of(view);
  say(paint(good ? Tone::good : Tone::bad, view.key, true) +
      paint(Tone::faint, std::string_view(receipt).substr(view.key.size()), true));
}

// Past a store that goes away for a while.
Result<JobView> end_of(const Invocation& call, Opened& opened, JobFollower& follower, const std::string& key,
                       bool with_agent) {
  const Id context = context_of(call);
  std::uint64_t away_since_ms = 0;
  for (;;) {
    const std::uint64_t seen = follower.lines_seen();
    auto followed = follower.follow(*opened.store);
    if (followed) return load_job(*opened.store, context, key);
    if (followed.error().code != Code::unavailable || follower.left()) return tl::unexpected(followed.error());
    const std::uint64_t now = call.parts.clock.boot_ms();
    if (away_since_ms == 0 || follower.lines_seen() > seen) away_since_ms = now;
    if (now - away_since_ms > kJobAwayMs) {
      return fail(Code::unavailable, followed.error().message + "; " + key +
                                         " goes on without us: `mycojobs job show " + key.substr(4) +
                                         "` tells how it ends");
    }
    ::poll(nullptr, 0, kLookAgainMs);
    reopen(call, opened, with_agent);
  }
}

}  // namespace

Result<Job> follow_to_the_end(const Invocation& call, Opened& opened, const std::string& job_key, bool with_agent) {
  JobFollower follower(call, context_of(call), job_key);
  MJ_TRY(view, end_of(call, opened, follower, job_key, with_agent));
  print_end(view, call.json, follower.lines());
  return view.job;
}

}  // namespace mycojobs
