// mycojobs run FILE
#include <fmt/format.h>
#include <poll.h>
#include <sysexits.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/ids.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/config/units.h"
#include "cli/serve.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "inspect/jobs.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kFollowMs = 200;  // how soon a Ctrl-C is noticed
constexpr std::uint64_t kAwayMs = 30000;  // how long a store may be away
constexpr int kTryAgainMs = 100;
constexpr std::size_t kShownBytes = 1000;    // of one value of the result, for people
constexpr std::uint64_t kPatienceMs = 3000;  // before we say that nobody takes the job
constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
    {".py", "python"}, {".v", "v"}, {".lua", "sal"}, {".sal", "sal"}, {".osis", "osis"}};

Result<std::string> read_script(const std::string& file) {
  std::ostringstream bytes;
  if (file == "-") {
    std::string chunk(65536, '\0');
    while (const std::size_t count = std::fread(chunk.data(), 1, chunk.size(), stdin))
      bytes.write(chunk.data(), static_cast<std::streamsize>(count));
    return bytes.str();
  }
  if (std::filesystem::is_directory(file)) return fail(Code::invalid, file + ": is a folder; give one script");
  if (!std::filesystem::exists(file)) return fail(Code::not_found, file + ": no such file");
  std::ifstream in(file, std::ios::binary);
  bytes << in.rdbuf();
  if (!in) return fail(Code::io, file + ": cannot be read");
  return bytes.str();
}

Result<Job> job_from(const Invocation& call) {
  Job job;
  const std::string& file = call.arguments.at(0);
  MJ_TRY(script, read_script(file));
  if (script.size() > call.settings.job_max_script_bytes) {
    return fail(Code::too_large, fmt::format("{}: {} bytes are more than the {} that job.max_script_bytes allows", file,
                                             script.size(), call.settings.job_max_script_bytes));
  }
  job.script = std::move(script);
  job.context_id = call.settings.contexts.at(0);
  job.name = call.get("name", std::filesystem::path(file).filename().string());
  std::uint64_t caller = 0;
  if (!parse_u64(call.get("caller", "1"), caller) || caller == 0 || caller > UINT32_MAX) {
    return fail(Code::invalid, "--caller: \"" + call.get("caller") + "\" is no actor id");
  }
  job.caller_id = static_cast<Id>(caller);
  job.script_type = call.get("type");
  for (const auto& [ending, type] : kTypes) {
    if (job.script_type.empty() && file.ends_with(ending)) job.script_type = type;
  }
  if (job.script_type.empty()) {
    return fail(Code::invalid, file + ": its name does not tell the script type: give --type, as in --type python");
  }
  if (call.has("timeout")) {
    auto parsed = parse_duration_ms(call.get("timeout"));
    if (!parsed) return fail(parsed.error(), "--timeout");
    const std::uint64_t ms = *parsed;
    if (ms == 0 || ms / 1000 >= UINT32_MAX) return fail(Code::invalid, "--timeout: give 1s to 49710d");
    job.timeout = static_cast<std::uint32_t>((ms + 999) / 1000);
  }
  if (const auto env = call.flags.find("env"); env != call.flags.end()) {
    for (const std::string& pair : env->second) {
      const std::size_t equals = pair.find('=');
      if (equals == std::string::npos || equals == 0)
        return fail(Code::invalid, "--env: \"" + pair + "\" is not NAME=VALUE");
      job.env_vars[pair.substr(0, equals)] = pair.substr(equals + 1);
    }
  }
  job.id = 1;  // the store gives the real one; checked here so that mistakes are told before anything is stored
  const auto problems = validate(job);
  job.id = 0;
  if (!problems.empty()) return fail(Code::invalid, join(problems));
  return job;
}

// Follows one job to its end.
class Follower {
 public:
  Follower(const Invocation& call, Id context, std::string key)
      : call_(call), context_(context), key_(std::move(key)), since_ms_(call.parts.clock.boot_ms()) {}

  Result<void> follow(Store& store) {
    bool ended = false;
    while (!ended) {
      MJ_CHECK(obey_signals(store));
      MJ_TRY(page, store.logs(context_, key_, last_seq_, 256, kFollowMs));
      for (const Log& line : page.lines) show(line);
      ended = page.ended;
      if (!ended && page.lines.empty()) MJ_CHECK(say_if_nobody_takes_it(store));
    }
    return {};
  }
  const nlohmann::json& lines() const { return lines_; }
  bool left() const { return stops_ > 1; }
  std::uint64_t lines_seen() const { return last_seq_; }

 private:
  Result<void> obey_signals(Store& store) {
    if (next_stop_signal(0) == 0) return {};
    if (++stops_ > 1) return fail(Code::conflict, "left " + key_ + " behind, with the wish to cancel it");
    say("cancelling " + key_ + "; once more leaves it behind");
    return store.cancel(context_, key_);
  }
  void show(const Log& line) {
    last_seq_ = line.seq;
    seen_ = true;
    if (call_.json) {
      lines_.push_back(to_json(line));
      return;
    }
    print_log(line);
  }
  Result<void> say_if_nobody_takes_it(Store& store) {
    if (seen_ || told_ || call_.parts.clock.boot_ms() - since_ms_ < kPatienceMs) return {};
    told_ = true;
    MJ_TRY(view, load_job(store, context_, key_));
    if (view.job.status != JobStatus::dispatched) return {};
    MJ_TRY(length, store.queue_length(context_, queue_key(view.job.script_type)));
    say(fmt::format("{} waits: {} entries in {} of context {}; no runner has taken it yet", key_, length,
                    queue_key(view.job.script_type), context_));
    return {};
  }

  const Invocation& call_;
  Id context_;
  std::string key_;
  std::uint64_t since_ms_;
  std::uint64_t last_seq_ = 0;
  int stops_ = 0;
  bool seen_ = false, told_ = false;
  nlohmann::json lines_ = nlohmann::json::array();
};

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
        value.size() > kShownBytes ? fmt::format("... ({} bytes; --json has all)", value.size()) : "";
    say(paint(Tone::strong, printable(key), true) + " = " + printable(value.substr(0, kShownBytes)) + more);
  }
  if (!job.error.empty()) say(paint(Tone::bad, "error: ", true) + printable(job.error));
  const bool good = job.status == JobStatus::finished;
  say(paint(good ? Tone::good : Tone::bad, view.key, true) + " " + paint(Tone::faint, receipt_line(job), true));
}

// Follows the job to its end, past a store that goes away for a while. The embedded server may be that of another
// `run`, and leave with it: then we go on with one of our own on the same state folder, where the job is kept.
Result<JobView> follow_to_the_end(const Invocation& call, Session& session, std::unique_ptr<Store>& store,
                                  Follower& follower, Id context, const std::string& key) {
  std::uint64_t away_since_ms = 0;
  for (;;) {
    const std::uint64_t seen = follower.lines_seen();
    auto followed = follower.follow(*store);
    if (followed) return load_job(*store, context, key);
    if (followed.error().code != Code::unavailable || follower.left()) return tl::unexpected(followed.error());
    const std::uint64_t now = call.parts.clock.boot_ms();
    if (away_since_ms == 0 || follower.lines_seen() > seen) away_since_ms = now;
    if (now - away_since_ms > kAwayMs) {
      return fail(Code::unavailable, followed.error().message + "; " + key +
                                         " goes on without us: `mycojobs job show " + key.substr(4) +
                                         "` tells how it ends");
    }
    ::poll(nullptr, 0, kTryAgainMs);
    if (!call.settings.redis.empty() || session.embedded) continue;
    if (auto again = open_session(call.parts, call.settings, true)) {
      store.reset();
      session = std::move(*again);
      MJ_TRY(reopened, session.stores->open());
      store = std::move(reopened);
    }
  }
}

Result<int> run(const Invocation& call) {
  MJ_TRY(job, job_from(call));
  MJ_TRY(session, open_session(call.parts, call.settings, true));
  MJ_TRY(store, session.stores->open());
  MJ_TRY(submitted, store->submit(job));
  const std::string key = redis_key(submitted);
  Follower follower(call, job.context_id, key);
  MJ_TRY(view, follow_to_the_end(call, session, store, follower, job.context_id, key));
  print_end(view, call.json, follower.lines());
  if (session.agent) {
    // Others may have sent jobs to our private server meanwhile: what runs finishes, what is queued stays there for the
    // next.
    session.agent->drain();
    while (session.agent->busy() > 0 && next_stop_signal(10) == 0) {
    }
  }
  return exit_code(view.job);
}

}  // namespace

int run_command(Invocation& call) { return finish(run(call)); }

}  // namespace mycojobs
