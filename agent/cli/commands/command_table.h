// The table of commands. Parsing, help, completion and the manual's completeness test are derived from it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "cli/config/config.h"
#include "executors/executor.h"
#include "executors/plugin/plugin_check.h"
#include "executors/plugin/plugin_folder.h"
#include "sandbox/sandbox.h"
#include "store/store.h"
#include "telemetry/metrics.h"
#include "telemetry/traces.h"

namespace mycojobs {

// A private Redis server. It is a child process, which the destructor stops.
class EmbeddedServer {
 public:
  virtual ~EmbeddedServer() = default;
};

// Availability of one layer of the sandbox on this host.
struct LayerCheck {
  std::string name;  // as in sandbox.allow_missing
  bool ok = false;
  std::string detail;  // observed state
  std::string remedy;  // empty if ok
};

// Dependencies of the commands. main.cpp creates them and is the only file that names the implementations.
struct ProgramDependencies {
  std::function<std::unique_ptr<StoreFactory>(const Settings&, const std::string& url)> stores;
  // Error conflict: another process runs a server for this state folder, with the url embedded_url().
  std::function<Result<std::unique_ptr<EmbeddedServer>>(const Settings&)> embedded;
  std::function<std::string(const Settings&)> embedded_url;
  // warm: contexts whose script hosts are started at once. alive_fd: a descriptor that the processes of the sandbox
  // keep open, but no job (worker/leases/instance_lock.h); -1: none.
  std::function<Result<std::unique_ptr<Sandbox>>(const Settings&, const std::vector<Id>& warm, int alive_fd)> sandbox;
  std::function<std::vector<std::unique_ptr<Executor>>(const Settings&)> executors;
  std::function<std::vector<plugin::PluginReport>(const Settings&)> plugins;  // all plugins, loaded and probed
  std::function<plugin::PluginCheck(const Settings&, const std::string& file)> check_plugin;
  // null: the plugin is not loaded.
  std::function<std::unique_ptr<Executor>(const plugin::PluginCheck&)> executor_of_plugin;
  std::function<Result<std::vector<LayerCheck>>(const Settings&)> probe_layers;
  // Returns the number of slots that the limits of this host permit, and the reason if there are fewer.
  std::function<std::pair<std::uint32_t, std::string>(std::uint32_t)> fit_slots = [](std::uint32_t slots) {
    return std::pair(slots, std::string());
  };
  const Clock& clock;
  const std::shared_ptr<Metrics>& metrics;  // metrics of this process; set after the settings are read
  const std::shared_ptr<Traces>& traces;    // traces of this process; set after the settings are read
};

// A parsed command with its effective settings.
struct Invocation {
  const ProgramDependencies& parts;
  FlagValues options;  // options of the command line
  Settings settings;   // effective settings; not set for `config`
  bool json = false;
  std::vector<std::string> arguments;
  std::map<std::string, std::vector<std::string>, std::less<>> flags;  // flags of the command
  std::vector<ConfigValue> values = {};                                // effective settings with their sources

  bool has(std::string_view flag) const { return flags.contains(flag); }
  std::string get(std::string_view flag, std::string_view otherwise = "") const {
    const auto found = flags.find(flag);
    return found == flags.end() ? std::string(otherwise) : found->second.back();
  }
};

// A flag of a command.
struct FlagRow {
  std::string_view name;   // without leading --
  std::string_view value;  // placeholder of the value; "" for a switch
  std::string_view help;
  bool repeats = false;
  std::string_view choices = {};  // allowed values, separated by spaces; empty: any
};

// A row of the table of commands.
struct Command {
  std::string_view name;  // "job list"
  std::string_view help;
  std::string_view arguments;  // "FILE", "[FILE]", "A B", "FILE...", "": names separated by spaces; [] is optional
  std::vector<FlagRow> flags;
  int (*run)(Invocation&);  // returns the exit code
  bool serves = false;      // a service, which logs its actions; other commands log only problems
};

const std::vector<Command>& commands();

int agent_command(Invocation&);
int rpc_command(Invocation&);
int health_command(Invocation&);
int key_new_command(Invocation&);
int key_show_command(Invocation&);
int key_list_command(Invocation&);
int key_token_command(Invocation&);
int receipt_verify_command(Invocation&);
int message_send_command(Invocation&);
int message_follow_command(Invocation&);
int message_list_command(Invocation&);
int message_show_command(Invocation&);
int message_sign_command(Invocation&);
int message_verify_command(Invocation&);
int coordinator_command(Invocation&);
int dev_command(Invocation&);
int run_command(Invocation&);
int job_submit_command(Invocation&);
int job_list_command(Invocation&);
int job_show_command(Invocation&);
int job_logs_command(Invocation&);
int job_artifacts_command(Invocation&);
int job_cancel_command(Invocation&);
int job_retry_command(Invocation&);
int job_restart_command(Invocation&);
int job_delete_command(Invocation&);
int actor_create_command(Invocation&);
int actor_list_command(Invocation&);
int actor_show_command(Invocation&);
int actor_update_command(Invocation&);
int actor_delete_command(Invocation&);
int context_create_command(Invocation&);
int context_list_command(Invocation&);
int context_acl_command(Invocation&);
int context_delete_command(Invocation&);
int context_refusals_command(Invocation&);
int runner_create_command(Invocation&);
int runner_show_command(Invocation&);
int runner_update_command(Invocation&);
int runner_delete_command(Invocation&);
int message_cancel_command(Invocation&);
int message_delete_command(Invocation&);
int job_explain_command(Invocation&);
int job_approve_command(Invocation&);
int job_reject_command(Invocation&);
int context_notify_command(Invocation&);
int workflow_check_command(Invocation&);
int workflow_apply_command(Invocation&);
int workflow_send_command(Invocation&);
int workflow_list_command(Invocation&);
int workflow_cells_command(Invocation&);
int workflow_show_command(Invocation&);
int workflow_timeline_command(Invocation&);
int workflow_explain_command(Invocation&);
int workflow_logs_command(Invocation&);
int workflow_tail_command(Invocation&);
int workflow_approve_command(Invocation&);
int workflow_reject_command(Invocation&);
int workflow_cancel_command(Invocation&);
int workflow_remove_command(Invocation&);
int workflow_export_command(Invocation&);
int workflow_verify_replay_command(Invocation&);
int workflow_test_command(Invocation&);
int workflow_simulate_command(Invocation&);
int workflow_diff_command(Invocation&);
int flow_start_command(Invocation&);
int flow_create_command(Invocation&);
int flow_check_command(Invocation&);
int flow_list_command(Invocation&);
int flow_show_command(Invocation&);
int flow_watch_command(Invocation&);
int flow_graph_command(Invocation&);
int flow_explain_command(Invocation&);
int flow_inspect_command(Invocation&);
int flow_timeline_command(Invocation&);
int flow_journal_command(Invocation&);
int flow_result_command(Invocation&);
int flow_logs_command(Invocation&);
int flow_cancel_command(Invocation&);
int flow_pause_command(Invocation&);
int flow_resume_command(Invocation&);
int flow_approve_command(Invocation&);
int flow_reject_command(Invocation&);
int flow_retry_command(Invocation&);
int flow_signal_command(Invocation&);
int flow_replay_command(Invocation&);
int flow_delete_command(Invocation&);
int flow_schedule_add_command(Invocation&);
int flow_schedule_list_command(Invocation&);
int flow_schedule_show_command(Invocation&);
int flow_schedule_pause_command(Invocation&);
int flow_schedule_resume_command(Invocation&);
int flow_schedule_remove_command(Invocation&);
int context_show_command(Invocation&);
int context_grant_command(Invocation&);
int context_revoke_command(Invocation&);
int queue_list_command(Invocation&);
int queue_pause_command(Invocation&);
int queue_resume_command(Invocation&);
int queue_purge_command(Invocation&);
int queue_dead_command(Invocation&);
int runner_list_command(Invocation&);
int secret_list_command(Invocation&);
int secret_check_command(Invocation&);
int verify_command(Invocation&);
int policy_learn_command(Invocation&);
int plugin_list_command(Invocation&);
int plugin_check_command(Invocation&);
int sandbox_run_command(Invocation&);
int doctor_command(Invocation&);
int doctor_rebuild(Invocation&);
int policy_check_command(Invocation&);
int policy_diff_command(Invocation&);
int policy_show_command(Invocation&);
int program_add_command(Invocation&);
int program_list_command(Invocation&);
int executor_list_command(Invocation&);
int executor_check_command(Invocation&);
int config_print_command(Invocation&);
int config_check_command(Invocation&);
int completion_command(Invocation&);
int version_command(Invocation&);

}  // namespace mycojobs
