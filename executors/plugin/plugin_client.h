// One plugin. Each caller of a context has a host process of its own, so that a script of one tenant cannot disturb the
// plugin for another tenant; the hosts that were used last are kept. A host that dies, hangs or answers nonsense is
// killed, and the next call starts another one. After three faults in a row the plugin rests for that caller (Rest),
// and its calls fail at once.
//
// Errors of its calls, by what the caller can do next:
//   unavailable   the plugin's fault. It says nothing about the job, which may be run again at once; or, while the
//                 plugin rests, when its pause is over (resting())
//   invalid       the plugin says that this job can never run, or on probe(), that this host cannot run its scripts
//   too_large     the job does not fit into what a plugin can be asked
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/spawn.h"
#include "executors/plugin/plugin_json.h"
#include "executors/plugin/wire.h"
#include "mycojobs/clock.h"
#include "mycojobs/policy.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs::plugin {

// One mycojobs-pluginhost with its plugin: started, asked, killed. What comes from it is hostile. After any error of
// call() it is of no more use: drop it and start another.
struct Description {
  std::uint32_t abi = 0;
  bool interprets = false;
  std::string name, version;
  std::string profile;  // JSON; empty: none
  std::vector<std::string> script_types;
  bool operator==(const Description&) const = default;
};

struct Reply {
  WireKind kind = WireKind::nothing;  // answer, nothing, threw or too_large
  std::string text;                   // of answer
};

// Owned and called by one thread at a time. Blocks until the deadline of a call, and no longer than some 0.5 s more.
class HostProcess {
 public:
  // program: path of mycojobs-pluginhost; plugin: its open file; label: for the log. Error: invalid, the plugin is
  // refused (reason and remedy); unavailable, it died, hung or spoke nonsense while it was loaded; io, no host.
  static Result<std::unique_ptr<HostProcess>> start(const std::string& program, int plugin, std::string label,
                                                    std::uint32_t limit_ms);
  HostProcess(const HostProcess&) = delete;
  HostProcess& operator=(const HostProcess&) = delete;
  ~HostProcess();

  const Description& description() const { return description_; }
  // Error unavailable: how it failed.
  Result<Reply> call(WireKind, std::string_view text, std::uint32_t limit_ms);

 private:
  explicit HostProcess(std::string label) : label_(std::move(label)) {}
  Result<void> wait(short events, const std::string& during);
  Result<void> send(std::string_view bytes, const std::string& during);
  Result<void> receive(char* to, std::size_t size, const std::string& during);
  Result<Reply> receive_frame(std::uint32_t call, const std::string& during);
  Result<void> take_description(std::string_view payload);
  tl::unexpected<Error> died(const std::string& during);
  void read_stderr();
  void log_stderr(bool all);

  std::string label_;
  Child child_;
  Fd socket_, stderr_;
  Description description_;
  std::uint32_t calls_ = 0, limit_ms_ = 0;
  std::uint64_t deadline_boot_ms_ = 0;
  std::string written_;         // to stderr, and not logged yet
  std::size_t lines_left_ = 0;  // that this call may still log
  std::size_t lines_dropped_ = 0;
};

// When a plugin that fails again and again may be tried: kFaults in a row are answered at once by a new host, then it
// rests, 1 s at first and twice as long after each further fault, 60 s at most. A call that works ends all of that.
// After a fault that took its time it rests four times as long, so that a context whose scripts hang it takes no more
// than a fifth of the time of those that wait for it.
class Rest {
 public:
  static constexpr std::uint32_t kFaults = 3;
  static constexpr std::uint64_t kShortestMs = 1000, kLongestMs = 60000, kSlowMs = 150;

  void failed(std::uint64_t now_boot_ms, std::uint64_t took_ms = 0) {
    until_boot_ms_ = now_boot_ms + (took_ms < kSlowMs ? 0 : took_ms * 4);
    if (++faults_ < kFaults) return;
    pause_ms_ = pause_ms_ == 0 ? kShortestMs : std::min(pause_ms_ * 2, kLongestMs);
    until_boot_ms_ = std::max(until_boot_ms_, now_boot_ms + pause_ms_);
  }
  void worked() { *this = Rest(); }
  // 0: it may be tried now.
  std::uint64_t left_ms(std::uint64_t now_boot_ms) const {
    return now_boot_ms >= until_boot_ms_ ? 0 : until_boot_ms_ - now_boot_ms;
  }
  std::uint32_t faults() const { return faults_; }

 private:
  std::uint32_t faults_ = 0;
  std::uint64_t pause_ms_ = 0, until_boot_ms_ = 0;
};

struct PluginOptions {
  std::string host;  // path of mycojobs-pluginhost
  std::string file;  // path of the plugin
  std::uint32_t load_ms = 5000, probe_ms = 5000, prepare_ms = 2000, interpret_ms = 1000;
  bool rests = true;  // after faults; false: each call is tried
};

// Whose script a call is about.
struct PluginUser {
  Id context = 0, caller = 0;  // 0: the call is about no script
  auto operator<=>(const PluginUser&) const = default;
};

// Thread-safe. Calls of one user wait for one another.
class PluginClient {
 public:
  // Checks the file, loads it, checks the description. The file stays open: what is loaded again later is the same one,
  // also if another has been put in its place. Error: invalid or not_found, it is refused, with the remedy;
  // unavailable, it crashed, hung or ended its host; io.
  static Result<std::unique_ptr<PluginClient>> load(PluginOptions, const Clock&);

  const Description& description() const { return description_; }
  const Policy& profile() const { return profile_; }
  const std::string& file() const { return options_.file; }

  Result<std::string> probe();  // what runs the scripts, in one line
  Result<Prepared> prepare(PluginUser, std::string_view job_json);
  // Without interpret: nothing, at once.
  Result<Interpreted> interpret(PluginUser, std::string_view outcome_json);
  // Why the plugin is not to be called for this user now; empty: it may be.
  std::string resting(PluginUser);
  // True from a fault of the user's calls until one of them works.
  bool has_faults(PluginUser);

 private:
  struct Lane {  // of one user
    std::mutex mutex;
    std::unique_ptr<HostProcess> host;
    Rest rest;
    std::string last_fault;
    std::atomic<std::uint64_t> used_boot_ms = 0;
    std::atomic<bool> has_faults = false;
  };
  using Lanes = std::map<PluginUser, std::shared_ptr<Lane>>;
  PluginClient(PluginOptions options, const Clock& clock) : options_(std::move(options)), clock_(clock) {}
  std::shared_ptr<Lane> lane(PluginUser);
  void forget_idle_lanes();
  std::string why_resting(const Lane&) const;
  Result<void> ensure_host(Lane&);
  void end_idle_hosts(const Lane& but);
  Result<std::string> ask(Lane&, WireKind, std::string_view text, std::uint32_t limit_ms);
  tl::unexpected<Error> fault(Lane&, const std::string& how, std::uint64_t began_boot_ms);
  template <class T>
  Result<T> understood(Lane&, Result<T>, std::string_view function);

  PluginOptions options_;
  const Clock& clock_;
  Fd opened_;
  Description description_;
  Policy profile_;

  std::mutex mutex_;  // of the map
  Lanes lanes_;
};

}  // namespace mycojobs::plugin
