// The zygotes of a launcher. A zygote is a process of a script host from which the sandboxes of runs are forked. Each
// host and context has one, which is started at the first use, and tested before it serves.
//
//   [checking -->] starting --Ready--> testing --success--> serving --successor serves--> retired --idle--> gone
//
// A failure or the end of the process in any state fails the waiting runs with setup_error; active runs are lost.
//
// In the state `testing` the canary job attacks the sandbox. Only hosts with folders have the state `checking`: the
// folders are checked before any file in them may run. In this state the zygote process does not exist yet. A child of
// the launcher accesses the folders (zygote_files.h), and exists as long as the zygote.
//
// A successor is started after a number of runs, after some time, or after a loaded file has changed. If there are more
// than max_zygotes, the zygote that has served no run for the longest time ends; the next run of its context starts it
// again.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "sandbox/launcher/file_owners.h"
#include "sandbox/launcher/granted_folders.h"
#include "sandbox/launcher/host_children.h"
#include "sandbox/launcher/runs.h"
#include "sandbox/launcher/sandbox_pool.h"
#include "sandbox/launcher/warm_table.h"
#include "sandbox/launcher/zygote_files.h"
#include "sandbox/launcher/zygote_start.h"
#include "sandbox/sandbox.h"

namespace mycojobs::sandbox {

// Host name and argument with which the launcher's own program serves as a host, to test the sandbox without a script
// host.
inline constexpr const char* kCanaryHost = "canary";
inline constexpr const char* kCanaryArgument = "--canary-host";

struct ZygotesSettings {
  std::map<std::pair<std::string, ContextId>, ScriptHost> hosts;  // by name and context
  IdRange ids;
  FileOwners owners;
  int filters = -1;   // memfd with the seccomp filters, from write_filters()
  int alive_fd = -1;  // SandboxConfig::alive_fd, or -1
  // These limits are the fields of SandboxConfig with the same names.
  std::uint32_t max_zygote_runs = 0, max_zygote_age_ms = 0, max_prewarmed = 0, max_warm_processes = 0, max_zygotes = 0;
  bool can_landlock_be_missing = false, has_memory_cgroup = false;
  std::string fail_step;                    // for tests only: the set-up step that fails with EIO; empty means none
  std::vector<std::string> disabled_steps;  // SandboxConfig::disabled_steps: set-up steps to omit
  int job_niceness = 0;
};

class Zygotes {
 public:
  enum class State { checking, starting, testing, serving, retired };
  // Called at most once for each zygote: when its canary job has ended, or when the zygote ends before that because its
  // start has failed. start_now() also calls it if it cannot start a zygote. Without a problem the zygote serves runs.
  using CanaryFinished =
      std::function<void(const std::string& host, ContextId context, const std::optional<SetupError>& problem)>;

  Zygotes(EventLoop&, RunTable&, HostChildren&, RunTable::Warn, CanaryFinished);
  // Sets a handler, which is called every few seconds if the counts have changed.
  void on_prewarmed_count(std::function<void(const SandboxCounts&)> handler) {
    on_prewarmed_count_ = std::move(handler);
  }
  // Sets the function that returns true if the network of a run still works. A warm process whose network has failed is
  // not reused.
  void set_network_check(std::function<bool(const SandboxRun&)> has_network) { has_network_ = std::move(has_network); }
  ~Zygotes();  // kills all zygotes and waits for their end
  void configure(ZygotesSettings);
  bool has_host(const std::string& host, ContextId context) const { return find_host({host, context}) != nullptr; }

  using Key = std::pair<std::string, ContextId>;  // host and context
  // Starts a zygote unless the key has one.
  void start_now(const Key&);
  // Starts zygotes in the order of the keys, up to max_zygotes. Each start begins after the previous start has ended;
  // concurrent starts would delay the first runs and the report that the launcher has started.
  void start_in_background(const std::vector<Key>&);
  // Starts the run in an idle sandbox or a new one, now or when its zygote serves.
  void submit(SandboxRun&);
  // Removes a run whose sandbox has ended. The handler of RunTable::on_sandbox_ended().
  void on_sandbox_ended(SandboxRun&);
  // Makes a prewarmed sandbox available to runs. The handler of RunTable::on_confined().
  void on_confined(SandboxRun&);
  // Makes the sandbox of an ended run available to other runs. Returns false if it is not needed. The handler of
  // RunTable::on_idle().
  bool on_idle(SandboxRun&);
  // Returns true if the warm process of an ended run can serve another run. The handler of RunTable::on_keep_process().
  bool can_keep_process(const SandboxRun&);
  // Kills the zygote of the run, which does not answer. The handler of RunTable::on_zygote_unresponsive().
  void fail_unresponsive(const SandboxRun&);
  // Kills all zygotes of the host.
  void end_host(const std::string& host);
  // Ends the idle warm processes with this key, and those in use after their run (WarmTable::retire_key()).
  void retire_warm_key(const std::string& key) { discard(warm_.retire_key(key)); }

 private:
  struct Zygote {
    std::uint64_t id = 0;
    Key key;
    State state = State::starting;
    StartedZygote process;
    EventLoop::Watch control_watch = 0, err_watch = 0, end_watch = 0;
    EventLoop::Timer warm_up_timer;
    std::uint64_t started_boot_ms = 0;
    bool is_canary_reported = false;                    // CanaryFinished was called for it
    std::uint32_t run_count = 0, unanswered_forks = 0;  // total runs; forks without a reply
    std::uint64_t serving_since_boot_ms = 0;            // start of serving
    std::uint64_t last_run_boot_ms = 0;                 // start or end of its last run, or start of serving
    SandboxPool pool;
    std::unordered_set<std::uint64_t> running;  // ids of the runs that were forked from the zygote
    std::deque<std::uint64_t> waiting;          // ids of the runs that wait until the zygote serves
    std::optional<SetupError> problem;          // set when the zygote has been killed, or must end
    std::string stderr_text;                    // stderr output; complete until the zygote serves
    bool has_files = false;                     // LoadedFiles was received
    LoadedFileSet loaded_files;                 // hosts without folders only; otherwise the child has the list
    HostChildren::Child child = 0;
    std::vector<Fd> folders;         // opened folders, until the zygote is started
    std::string changed_in_folders;  // the changed file that the child reported
    std::string reported_change;     // the changed file in the latest warning
  };

  // Returns the host for the context, otherwise the host for all contexts, or null if there is neither.
  const ScriptHost* find_host(const Key&) const;
  Zygote* get_or_start(const Key&, std::optional<SetupError>& problem);
  void start_next_in_background();
  bool is_in_use(const Zygote&);
  void end_excess_zygotes();
  void retire(Zygote&);
  Zygote* start(const Key&, std::optional<SetupError>& problem);
  std::optional<SetupError> start_process(Zygote&);
  bool start_folder_child(Zygote&);
  void on_folders_opened(Zygote&, RawFrame*);
  void record_loaded_files(Zygote&, const std::vector<std::string>& files);
  template <class Message>
  void send_to_child(Zygote&, const Message&);
  void on_warmed_up(Zygote&);
  ScriptHost choose_build(const ScriptHost&, Zygote&);
  bool is_starting(const Zygote&) const;
  Zygote* find(std::uint64_t id);
  void start_waiting_runs(Zygote&);
  bool open_folders(SandboxRun&);
  bool adopt(Zygote&, SandboxRun&);
  bool adopt_warm(SandboxRun&);
  void end_expired();
  void discard_warm(const Zygote&);
  bool fork(Zygote&, SandboxRun&);
  void count_run(Zygote&);
  void refill(Zygote&);
  void on_idle_ended(Zygote&, const SandboxRun&);
  void discard(const std::vector<std::uint64_t>& idle);
  void maintain();
  void report_prewarmed_count();
  void start_successor(Zygote&);
  bool is_outdated(Zygote&);
  void read_control(Zygote&);
  bool handle_message(Zygote&, RawFrame&);
  void read_stderr(Zygote&);
  void report_stderr(Zygote&, std::string text);
  std::string failure_reason(const Zygote&) const;
  void start_canary(Zygote&);
  void finish_canary(Zygote&, SandboxRun& canary);
  void begin_serving(Zygote&);
  void fail(Zygote&, SetupError problem);
  void reap(Zygote&);
  void reap_zygote(Zygote&, bool killed);

  EventLoop& loop_;
  RunTable& runs_;
  RunTable::Warn warn_;
  CanaryFinished on_canary_finished_;
  std::function<void(const SandboxCounts&)> on_prewarmed_count_;
  std::function<bool(const SandboxRun&)> has_network_ = [](const SandboxRun&) { return true; };
  SandboxCounts reported_counts_;
  ZygotesSettings settings_;
  static constexpr std::size_t kMaxReasonBytes = 2048;  // the reason is copied into the end of each waiting run
  struct FailedStart {
    SetupError problem;
    std::uint64_t until_boot_ms = 0;  // boot time before which runs fail with the same problem
  };

  HostChildren& children_;
  GrantedFolders granted_;
  std::map<std::uint64_t, std::unique_ptr<Zygote>> zygotes_;
  std::map<Key, FailedStart> failed_starts_;         // the latest failed start of each key
  std::map<std::string, std::string> other_builds_;  // by program: the reported reason why another build runs
  std::map<Key, std::uint64_t> current_;             // zygotes that receive new runs
  std::map<Key, std::uint64_t> successors_;          // zygotes that will become current
  std::deque<Key> background_starts_;                // keys from start_in_background() that wait for their start
  std::uint64_t next_id_ = 1;
  WarmTable warm_;
  EventLoop::Timer maintenance_timer_, expiry_timer_;
};

}  // namespace mycojobs::sandbox
