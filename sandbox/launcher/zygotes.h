// The zygotes of a launcher: one for each host and context, started at the first use and tested before it serves.
//
//   [checking -->] starting --Ready--> testing --success--> serving --successor serves--> retired --idle--> gone
//
// A failure or the end of the process in any state fails the waiting runs with setup_error; active runs are lost.
//
// In the state `testing` the canary job attacks the sandbox. Only hosts with folders have the state `checking`: the
// folders are checked before any file in them may run. There is no zygote process yet, but a child of the launcher that
// accesses the folders (zygote_files.h); it exists as long as the zygote. A successor is started after a number of
// runs, after some time, or after a loaded file has changed. Above `max_zygotes`, the zygote that has served no run for
// the longest time ends; the next run of its context starts it again.
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

// The launcher's own program as a host, to test the sandbox without a script host.
inline constexpr const char* kCanaryHost = "canary";
inline constexpr const char* kCanaryArgument = "--canary-host";

struct ZygotesSettings {
  std::map<std::pair<std::string, ContextId>, ScriptHost> hosts;  // by name and context
  IdRange ids;
  FileOwners owners;
  int filters = -1;   // memfd from write_filters()
  int alive_fd = -1;  // SandboxConfig::alive_fd, or -1
  std::uint32_t max_zygote_runs = 0, max_zygote_age_ms = 0, max_prewarmed = 0, max_warm_processes = 0,
                max_zygotes = 0;
  bool can_landlock_be_missing = false, has_memory_cgroup = false;
  std::string fail_step;
  std::vector<std::string> disabled_steps;
  int job_niceness = 0;
};

class Zygotes {
 public:
  enum class State { checking, starting, testing, serving, retired };
  // Reports the result of each zygote's canary job. Without a problem, the job found none.
  using CanaryFinished =
      std::function<void(const std::string& host, ContextId context, const std::optional<SetupError>& problem)>;

  Zygotes(EventLoop&, RunTable&, HostChildren&, RunTable::Warn, CanaryFinished);
  // Called every few seconds if the counts have changed.
  void on_prewarmed_count(std::function<void(const SandboxCounts&)> handler) {
    on_prewarmed_count_ = std::move(handler);
  }
  // Returns true if the network of a run still works. A warm process without its network is not reused.
  void set_network_check(std::function<bool(const SandboxRun&)> has_network) { has_network_ = std::move(has_network); }
  ~Zygotes();  // kills all zygotes and waits for their end
  void configure(ZygotesSettings);
  bool has_host(const std::string& host, ContextId context) const { return find_host({host, context}) != nullptr; }

  using Key = std::pair<std::string, ContextId>;  // host and context
  void start_now(const Key&);
  // Starts these zygotes in this order, up to max_zygotes, each after the start of the previous one has ended, so that
  // first runs and the report of the launcher's start are not delayed.
  void start_in_background(const std::vector<Key>&);
  void submit(SandboxRun&);            // forks the run now, or when its zygote is ready
  void on_sandbox_ended(SandboxRun&);  // for RunTable::on_sandbox_ended()
  void on_confined(SandboxRun&);
  bool on_idle(SandboxRun&);                  // for RunTable::on_idle()
  bool can_keep_process(const SandboxRun&);   // for RunTable::on_keep_process()
  void fail_unresponsive(const SandboxRun&);  // the run's zygote does not answer
  void end_host(const std::string& host);
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
    bool is_canary_reported = false;                    // the result of its canary job was reported
    std::uint32_t run_count = 0, unanswered_forks = 0;  // total runs; forks without a reply
    std::uint64_t serving_since_boot_ms = 0;            // start of serving
    std::uint64_t last_run_boot_ms = 0;                 // start or end of its last run, or start of serving
    SandboxPool pool;
    std::unordered_set<std::uint64_t> running;
    std::deque<std::uint64_t> waiting;
    std::optional<SetupError> problem;
    std::string stderr_text;     // stderr output; complete until the zygote serves
    bool has_files = false;      // LoadedFiles was received
    LoadedFileSet loaded_files;  // hosts without folders only; otherwise the child has the list
    HostChildren::Child child = 0;
    std::vector<Fd> folders;         // opened folders, until the zygote is started
    std::string changed_in_folders;  // the changed file that the child reported
    std::string reported_change;     // the changed file that was reported last
  };

  const ScriptHost* find_host(const Key&) const;  // for the context, or for every context; null if unknown
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
  static constexpr std::size_t kMaxReasonBytes = 2048;  // limit of the reason, which each waiting run's end contains
  struct FailedStart {
    SetupError problem;
    std::uint64_t until_boot_ms = 0;  // no further attempt before this time
  };

  HostChildren& children_;
  GrantedFolders granted_;
  std::map<std::uint64_t, std::unique_ptr<Zygote>> zygotes_;
  std::map<Key, FailedStart> failed_starts_;         // the last failed start of each key
  std::map<std::string, std::string> other_builds_;  // by program: the reported reason why another build runs
  std::map<Key, std::uint64_t> current_;             // zygotes that receive new runs
  std::map<Key, std::uint64_t> successors_;          // zygotes that will become current
  std::deque<Key> unstarted_;                        // zygotes to start in the background
  std::uint64_t next_id_ = 1;
  WarmTable warm_;
  EventLoop::Timer maintenance_timer_, expiry_timer_;
};

}  // namespace mycojobs::sandbox
