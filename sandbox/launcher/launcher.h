// mycojobs-launcher: one thread, no secrets, an empty environment. It executes the commands of the agent on its only
// socket. When the socket closes, it ends with all processes that it has started.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "sandbox/cgroup.h"
#include "sandbox/launcher/egress_link.h"
#include "sandbox/launcher/event_loop.h"
#include "sandbox/launcher/id_map.h"
#include "sandbox/launcher/runs.h"
#include "sandbox/launcher/zygotes.h"
#include "sandbox/messages.h"

namespace mycojobs::sandbox {

class Launcher {
 public:
  // `ids` is this launcher's entry in the host's registry, and `job_niceness` the niceness that jobs get.
  Launcher(Fd agent, IdRegistry ids, int job_niceness);
  int run();  // returns the exit code

 private:
  void read_agent();
  bool handle_message(RawFrame&);
  bool refuse_without_descriptors(const RawFrame&);
  void configure(const Configure&);
  std::optional<std::string> prepare(const Configure&);  // returns the problem
  void launch(const Launch&, std::vector<Fd>);
  void on_canary_finished(const std::string& host, ContextId context, const std::optional<SetupError>& problem);
  // A folder that is checked before the start.
  struct UncheckedFolder {
    ContextId context = 0;
    Volume volume;
    std::string name;        // of the setting
    bool is_volume = false;  // whether it is a volume, not a folder of fs.write
  };
  void add_written_folder(ContextId, const std::string& path);
  void check_next_folders();
  void check_folder(const UncheckedFolder&);
  void report_folder(const UncheckedFolder&, const std::optional<Error>& problem);
  void report_start_if_ready();
  void on_run_ended(SandboxRun&);
  void on_unkillable(const SandboxRun&, Outcome);
  void warn(const std::string&);
  void sample_periodically();
  void schedule_leftover_removal(std::uint64_t delay_ms);
  template <class Message>
  void send(const Message&);
  void flush();

  Fd alive_fd_;  // SandboxConfig::alive_fd; closed last, after the zygotes have ended
  EventLoop loop_;
  Cgroups cgroups_;
  Fd agent_;           // socket of the agent
  Fd agent_writable_;  // duplicate of agent_, watched only while `unsent_` is not empty
  EventLoop::Watch agent_watch_ = 0, writable_watch_ = 0;
  std::deque<std::string> unsent_;
  HostChildren children_;
  RunTable runs_;
  EgressLink egress_;
  Zygotes zygotes_;
  GrantedFolders volume_checks_;
  std::deque<UncheckedFolder> unchecked_folders_;
  std::size_t running_checks_ = 0;
  std::uint64_t checks_end_boot_ms_ = 0;  // no check begins after this time
  std::string start_problem_;
  Fd filters_;
  IdRegistry registry_;
  IdRange ids_;
  FileOwners owners_;
  int job_niceness_;
  bool is_configured_ = false, is_probe_ = false, is_canary_finished_ = false, is_ready_sent_ = false;
  std::vector<std::string> allow_missing_;
  std::map<std::pair<std::string, ContextId>, std::string> reported_problems_;  // last reported problem of each zygote
};

}  // namespace mycojobs::sandbox
