// The zygotes of a launcher: one for each host and context, started when first needed, tried before it serves.
//
//   [checking -->] starting --Ready--> trying (the canary job) --it holds--> serving --successor serves--> retired
//       \                            \                        \                                        |
//        `-- any failure, or its end: what waits is a setup_error, what runs is lost         `-- idle: gone
//
// checking: of a host with folders, which are looked through before anything in them may run. It has no process yet,
// but a child of the launcher that touches its folders (zygote_files.h), as long as it lives. A successor is started
// after a number of runs or a time, and when a file that the zygote is made of has changed (Loaded).
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "mycojobs/sandbox.h"
#include "sandbox/granted_folders.h"
#include "sandbox/host_children.h"
#include "sandbox/pool.h"
#include "sandbox/runs.h"
#include "sandbox/warm_table.h"
#include "sandbox/zygote_files.h"
#include "sandbox/zygote_start.h"

namespace mycojobs::sandbox {

// The launcher's own program as a host: to try the sandbox where no script host is needed.
inline constexpr const char* kCanaryHost = "canary";
inline constexpr const char* kCanaryArgument = "--canary-host";

struct ZygotesSettings {
  std::map<std::pair<std::string, Id>, ScriptHost> hosts;  // by name and context
  IdRange ids;
  int filters = -1, alive = -1;
  std::uint32_t runs_each = 0, age_each_ms = 0, prewarmed = 0, warm_processes = 0;
  bool landlock_may_miss = false, memory_cgroup = false;
  std::string fail_step;
  std::vector<std::string> leave_out;
  int rank = 0;  // niceness of jobs
};

class Zygotes {
 public:
  enum class State { checking, starting, trying, serving, retired };
  // A canary's outcome, once for each zygote that came so far; an empty problem: it holds.
  using Tried = std::function<void(const std::string& host, Id context, const std::optional<SetupError>& problem)>;

  Zygotes(Loop&, Runs&, HostChildren&, Runs::Warn, Tried);
  // Reported every few seconds, when it has changed.
  void on_kept(std::function<void(const SandboxCounts&)> kept) { kept_ = std::move(kept); }
  // Whether a run that was given a network still has it: a warm process without one serves nobody.
  void on_network(std::function<bool(const Run&)> has_network) { has_network_ = std::move(has_network); }
  ~Zygotes();  // kills them all, and waits
  void configure(ZygotesSettings);
  bool knows(const std::string& host, Id context) const { return row_of({host, context}) != nullptr; }

  void warm(const std::string& host, Id context);
  void submit(Run&);    // now, or when its zygote is ready
  void run_gone(Run&);  // Runs::on_gone()
  void confined(Run&);
  bool turned(Run&);             // Runs::on_turned()
  bool staying(const Run&);      // Runs::on_staying()
  void fail_silent(const Run&);  // its zygote does not answer
  void retire(const std::string& host);
  void forget_warm(const std::string& key) { discard(warm_.forget(key)); }

 private:
  using Key = std::pair<std::string, Id>;
  struct Zygote {
    std::uint64_t id = 0;
    Key key;
    State state = State::starting;
    StartedZygote process;
    Loop::Watch control_watch = 0, err_watch = 0, end_watch = 0;
    Loop::Timer warm_up;
    std::uint64_t started_boot_ms = 0;
    bool reported = false;                     // how its trial went
    std::uint32_t served = 0, unanswered = 0;  // runs in all; forks that it has not confirmed
    std::uint64_t since_boot_ms = 0;           // it serves
    Pool pool;
    std::unordered_set<std::uint64_t> running;
    std::deque<std::uint64_t> waiting;
    std::optional<SetupError> problem;
    std::string last_words;  // on stderr; until it serves, all of them
    bool has_files = false;  // it has sent what it is made of
    Loaded loaded;           // of a host without folders; else the child knows
    HostChildren::Child child = 0;
    std::vector<Fd> folders;  // opened, until it is started
    std::string outlived;     // which of its files has changed, as the child says
    std::string changed;      // the last of them that was reported
  };

  const ScriptHost* row_of(const Key&) const;  // the context's own before the general one; null: there is none
  Zygote* current_or_new(const Key&, std::optional<SetupError>& problem);
  Zygote* start(const Key&, std::optional<SetupError>& problem);
  std::optional<SetupError> begin(Zygote&);
  bool stand_by(Zygote&);
  void heard_of_folders(Zygote&, RawFrame*);
  void loaded(Zygote&, const std::vector<std::string>& files);
  template <class Message>
  void tell_child(Zygote&, const Message&);
  void warmed_up(Zygote&);
  ScriptHost choose_build(const ScriptHost&, Zygote&);
  bool comes_up(const Zygote&) const;
  Zygote* find(std::uint64_t id);
  void feed(Zygote&);
  bool opens_folders(Run&);
  bool adopt(Zygote&, Run&);
  bool adopt_warm(Run&);
  void end_expired();
  void discard_warm(const Zygote&);
  bool fork(Zygote&, Run&);
  void count_run(Zygote&);
  void refill(Zygote&);
  void idle_ended(Zygote&, const Run&);
  void discard(const std::vector<std::uint64_t>& idle);
  void tend();
  void tell_kept();
  void replace(Zygote&);
  bool outlived(Zygote&);
  void read_control(Zygote&);
  bool obey(Zygote&, RawFrame&);
  void read_err(Zygote&);
  void report_words(Zygote&, std::string words);
  std::string words_of(const Zygote&) const;
  void begin_trial(Zygote&);
  void end_trial(Zygote&, Run& canary);
  void begin_serving(Zygote&);
  void fail(Zygote&, SetupError why);
  void reap(Zygote&);
  void bury(Zygote&, bool killed);

  Loop& loop_;
  Runs& runs_;
  Runs::Warn warn_;
  Tried tried_;
  std::function<void(const SandboxCounts&)> kept_;
  std::function<bool(const Run&)> has_network_ = [](const Run&) { return true; };
  SandboxCounts reported_;
  ZygotesSettings settings_;
  static constexpr std::size_t kMostWords = 2048;  // of its reason to refuse, which each run that waits has in its end
  struct Failed {
    SetupError problem;
    std::uint64_t until_boot_ms = 0;  // it is not tried again before
  };

  HostChildren& children_;
  GrantedFolders granted_;
  std::map<std::uint64_t, std::unique_ptr<Zygote>> zygotes_;
  std::map<Key, Failed> failed_;                     // what did not come up, last
  std::map<std::string, std::string> other_builds_;  // of programs: why another build of them runs, as reported
  std::map<Key, std::uint64_t> current_;             // takes new runs
  std::map<Key, std::uint64_t> successors_;          // warming up to become current
  std::uint64_t next_ = 1;
  WarmTable warm_;
  Loop::Timer tending_, expiring_;
};

}  // namespace mycojobs::sandbox
