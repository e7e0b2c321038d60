// Client of one plugin. Each caller of a context has a host process of its own, so a script of one tenant cannot
// disturb the plugin for another tenant. A limited number of recently used hosts keeps running. A host that exits,
// hangs or sends an invalid reply is killed, and the next call starts a new one. After three faults in a row, calls of
// that caller fail immediately during a pause (FaultBackoff).
//
// Errors of calls:
//   unavailable   a fault of the plugin, not of the job. The job may be retried immediately, or after the pause while
//                 get_backoff_reason() returns a reason
//   invalid       the plugin rejects the job permanently, or probe() reports that this host cannot run its scripts
//   too_large     the job exceeds the size limit of a request
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

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"
#include "base/spawn.h"
#include "executors/plugin/plugin_json.h"
#include "executors/plugin/plugin_protocol.h"
#include "model/records.h"
#include "sandbox/sandbox_policy.h"

namespace mycojobs::plugin {

// Describes the loaded plugin. The host's data is untrusted.
struct PluginDescription {
  std::uint32_t abi = 0;
  bool interprets = false;
  std::string name, version;
  std::string profile;  // JSON; empty if the plugin has none
  std::vector<std::string> script_types;
  bool operator==(const PluginDescription&) const = default;
};

struct PluginReply {
  PluginFrameKind kind = PluginFrameKind::nothing;  // answer, nothing, threw or too_large
  std::string text;                                 // only for `answer`
};

// One mycojobs-pluginhost process with its plugin. Not thread-safe. After any error of call() the object must be
// destroyed. A call blocks until its deadline and at most 0.5 s longer.
class HostProcess {
 public:
  // program: path of mycojobs-pluginhost; plugin_fd: open file of the plugin; label: prefix of log lines. Errors:
  // invalid if the plugin was refused, with reason and remedy; unavailable if the host crashed, hung or sent invalid
  // data while loading; io if the host could not be started.
  static Result<std::unique_ptr<HostProcess>> start(const std::string& program, int plugin_fd, std::string label,
                                                    std::uint32_t limit_ms);
  HostProcess(const HostProcess&) = delete;
  HostProcess& operator=(const HostProcess&) = delete;
  ~HostProcess();

  const PluginDescription& description() const { return description_; }
  // Error unavailable: the message describes the failure.
  Result<PluginReply> call(PluginFrameKind, std::string_view text, std::uint32_t limit_ms);

 private:
  explicit HostProcess(std::string label) : label_(std::move(label)) {}
  Result<void> wait_for_socket(short events, const std::string& phase);
  Result<void> send(std::string_view bytes, const std::string& phase);
  Result<void> receive(char* buffer, std::size_t size, const std::string& phase);
  Result<PluginReply> receive_frame(std::uint32_t call, const std::string& phase);
  Result<void> parse_description(std::string_view payload);
  tl::unexpected<Error> make_exit_error(const std::string& phase);
  void read_stderr();
  void log_stderr(bool include_incomplete);

  std::string label_;
  Child child_;
  Fd socket_, stderr_;
  PluginDescription description_;
  std::uint32_t call_count_ = 0, limit_ms_ = 0;
  std::uint64_t deadline_boot_ms_ = 0;
  std::string stderr_text_;          // stderr output that is not logged yet
  std::size_t remaining_lines_ = 0;  // number of lines that this call may still log
  std::size_t dropped_lines_ = 0;
};

// Pause after repeated faults. The first kMinFaults - 1 faults in a row cause no pause. After each further fault, calls
// fail for a pause of 1 s at first, doubled each time up to 60 s. A successful call resets the state. After a slow
// fault (kSlowMs), the pause is at least four times the duration of the call, so that scripts that hang the plugin use
// at most a fifth of the time.
class FaultBackoff {
 public:
  static constexpr std::uint32_t kMinFaults = 3;
  static constexpr std::uint64_t kMinPauseMs = 1000, kMaxPauseMs = 60000, kSlowMs = 150;

  void on_failed(std::uint64_t now_boot_ms, std::uint64_t duration_ms = 0) {
    until_boot_ms_ = now_boot_ms + (duration_ms < kSlowMs ? 0 : duration_ms * 4);
    if (++faults_ < kMinFaults) return;
    pause_ms_ = pause_ms_ == 0 ? kMinPauseMs : std::min(pause_ms_ * 2, kMaxPauseMs);
    until_boot_ms_ = std::max(until_boot_ms_, now_boot_ms + pause_ms_);
  }
  void on_success() { *this = FaultBackoff(); }
  // Returns the remaining pause; 0 if calls are allowed.
  std::uint64_t remaining_ms(std::uint64_t now_boot_ms) const {
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
  std::uint32_t load_timeout_ms = 5000, probe_timeout_ms = 5000, prepare_timeout_ms = 2000, interpret_timeout_ms = 1000;
  bool pauses_after_faults = true;
};

// Identifies the owner of the script that a call concerns.
struct PluginUser {
  Id context = 0, caller = 0;  // 0 if the call concerns no script
  auto operator<=>(const PluginUser&) const = default;
};

// Thread-safe. Calls of the same user are serialized.
class PluginClient {
 public:
  // Checks the file, loads the plugin and checks its description. The file stays open, so later hosts load the same
  // file even if its path was replaced. Errors: invalid or not_found if the plugin was refused, with the remedy;
  // unavailable if the host crashed, hung or exited; io.
  static Result<std::unique_ptr<PluginClient>> load(PluginOptions, const Clock&);

  const PluginDescription& description() const { return description_; }
  const Policy& profile() const { return profile_; }
  const std::string& file() const { return options_.file; }

  Result<std::string> probe();  // Returns a line with the name of the program that runs the scripts.
  Result<PrepareReply> prepare(PluginUser, std::string_view job_json);
  // Returns an empty value if the plugin has no interpret function.
  Result<InterpretReply> interpret(PluginUser, std::string_view outcome_json);
  // Returns why calls of this user fail now, or an empty text.
  std::string get_backoff_reason(PluginUser);
  // Returns whether a call of this user has failed and no later call has succeeded.
  bool has_faults(PluginUser);

 private:
  struct UserState {
    std::mutex mutex;
    std::unique_ptr<HostProcess> host;
    FaultBackoff backoff;
    std::string last_fault;
    std::atomic<std::uint64_t> used_boot_ms = 0;
    std::atomic<bool> has_faults = false;
  };
  using UserStates = std::map<PluginUser, std::shared_ptr<UserState>>;
  PluginClient(PluginOptions options, const Clock& clock) : options_(std::move(options)), clock_(clock) {}
  std::shared_ptr<UserState> get_user_state(PluginUser);
  void remove_idle_users();
  std::string describe_backoff(const UserState&) const;
  Result<void> ensure_host(UserState&);
  void stop_idle_hosts(const UserState& active);
  Result<std::string> call_host(UserState&, PluginFrameKind, std::string_view text, std::uint32_t limit_ms);
  tl::unexpected<Error> record_fault(UserState&, const std::string& problem, std::uint64_t start_boot_ms);
  template <class T>
  Result<T> parse_reply(UserState&, Result<T>, PluginFrameKind kind);

  PluginOptions options_;
  const Clock& clock_;
  Fd plugin_fd_;
  PluginDescription description_;
  Policy profile_;

  std::mutex mutex_;  // guards the map
  UserStates user_states_;
};

}  // namespace mycojobs::plugin
