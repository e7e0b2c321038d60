#include "cli/commands/command_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands/commands.h"
#include "cli/job_submission.h"
#include "inspect/flow_view.h"
#include "model/enums.h"

namespace mycojobs {
namespace {

const FlagRow kTypeFlag = {"type", "NAME", "script type or profile whose defaults apply (default python)"};

std::vector<FlagRow> role_flags() {
  return {{"admin", "WHO", "an actor with all rights in the context: its id, or the name of its key", true},
          {"submitter", "WHO", "an actor that creates jobs, flows and messages, and controls and reads its own", true},
          {"executor", "WHO", "an actor whose agents run jobs of the context", true},
          {"reader", "WHO", "an actor that reads everything in the context", true}};
}

std::vector<FlagRow> submit_flags() {
  auto flags = submission_flags();
  flags.push_back({"follow", "", "follow it to its end, and exit as the job did"});
  flags.push_back({"batch", "", "FILE has one job per line, as JSON (`-`: standard input): submit all jobs"});
  return flags;
}

// Returns the display states of flows (flow_display_states(), docs/flows.md), followed by the statuses of flow records.
std::string_view job_statuses() {
  static const std::string statuses = fmt::format("{}", fmt::join(enum_names<JobStatus>(), " "));
  return statuses;
}

std::string_view flow_states() {
  static const std::string states = [] {
    std::string names;
    for (const FlowDisplayState& row : flow_display_states()) names += std::string(row.state) + ' ';
    return names + "dispatched error finished";
  }();
  return states;
}

std::vector<FlagRow> flow_flags(bool is_start) {
  std::vector<FlagRow> flags = {
      {"env", "NAME=VALUE", "an environment variable of all jobs of the flow", true},
      {"input", "NAME=VALUE", "an input that the definition declares; @FILE: a map of inputs", true},
      {"key", "TEXT", "idempotency key: the same key of the same caller returns the same flow"},
      {"notify", "TARGET", "receiver of the notification of its end, instead of those in the file", true},
      {"traceparent", "TEXT", "the trace that it belongs to (docs/tracing.md)"},
      {"caller", "ID", "the actor that creates it (default 1)"}};
  if (!is_start) return flags;
  flags.push_back({"follow", "", "show its progress and exit with its status (the default on a terminal)"});
  flags.push_back({"detach", "", "print its key and exit while it runs"});
  return flags;
}

std::vector<FlagRow> control_flags(std::vector<FlagRow> additional_flags = {}) {
  std::vector<FlagRow> flags = {
      {"actor", "ID", "act as this actor, with its rights (default: as the operator)"},
      {"comment", "TEXT", "the reason, stored in the journal"},
      {"key", "TEXT", "idempotency key: repeated with the same key, the command changes nothing"}};
  flags.insert(flags.end(), additional_flags.begin(), additional_flags.end());
  return flags;
}

std::vector<FlagRow> decision_flags() {
  return {{"actor", "ID", "the actor that decides (default 1)"},
          {"comment", "TEXT", "the reason, stored in the job's log or error"}};
}

std::vector<FlagRow> actor_flag(std::vector<FlagRow> additional_flags = {}) {
  std::vector<FlagRow> flags = {{"actor", "ID", "act as this actor, with its rights (default: as the operator)"}};
  flags.insert(flags.end(), additional_flags.begin(), additional_flags.end());
  return flags;
}

std::vector<FlagRow> approval_flags() {
  return actor_flag({{"intent", "TEXT", "first characters of the intent, if several wait"},
                     {"comment", "TEXT", "the reason, passed to the workflow"}});
}

std::vector<FlagRow> message_flags() {
  std::vector<FlagRow> flags = {
      {"to", "CONTEXT", "the target context"},
      {"address", "URL", "address of the target's supervisor, as in a runner's record (default: on this Redis)"},
      {"key", "NAME", "the sender's key: its name, or a file"},
      {"flow", "FILE", "a flow instead of a script"},
      {"text", "TEXT", "a text for a person instead of a script"},
      {"mail", "", "the text is mail"},
      {"topic", "TEXT", "topic of the runner for its jobs (default: any)"},
      {"deliver-within", "DURATION", "fail unless it is delivered in this time (default 24h)"},
      {"ack-within", "DURATION", "fail unless the receiver acknowledges it in this time"},
      {"result-within", "DURATION", "fail and cancel its jobs unless the result is received in this time"},
      {"stream", "", "receive log lines of its jobs while they run"},
      {"follow", "", "wait for its end"},
      {"caller", "ID", "the actor that sends it (default 1)"}};
  for (const FlagRow& row : script_flags()) flags.push_back(row);
  return flags;
}

std::vector<FlagRow> record_flags(std::vector<FlagRow> fields, bool creates) {
  if (creates) fields.insert(fields.begin(), {"id", "ID", "its id (default: the next free one)"});
  return actor_flag(std::move(fields));
}

std::vector<FlagRow> actor_fields(bool creates) {
  std::vector<FlagRow> flags = {
      {"key", "KEY", "its public key: hex, or the name or path of a key of `key new`"},
      {"address", "ADDRESS", "its address: a Mycelium key or address, http://, https://, redis:// or unix:", true}};
  if (!creates)
    flags.insert(flags.begin() + 1, {"no-key", "", "remove its key: its signatures are no longer accepted"});
  return record_flags(std::move(flags), creates);
}

std::vector<FlagRow> runner_fields(bool creates) {
  return record_flags({{"pubkey", "HEX", "its public key, with which receipts are verified"},
                       {"address", "URL", "address of a supervisor on another host, in coordinator.networks"},
                       {"target-context", "CONTEXT", "context of that supervisor (default: the same number)"},
                       {"topic", "TEXT", "its topic (default runner<id>)"},
                       {"queues", "WORD", "whether it also claims jobs from queues", false, "yes no"},
                       {"type", "WORD", "kind of its jobs", false, "v python osis rust"}},
                      creates);
}

std::vector<FlagRow> sandbox_flags() {
  auto flags = script_flags();
  flags.push_back({"artifacts", "DIR", "store its artifacts in this folder"});
  return flags;
}

const std::vector<Command> kCommands = {
    {"agent", "serve the queues of a Redis as a runner, until TERM", "", {}, agent_command, true},
    {"coordinator", "run the flows and schedules of a Redis, until TERM", "", {}, coordinator_command, true},
    {"dev",
     "keep the embedded default running: a private Redis, an agent and a coordinator",
     "",
     {},
     dev_command,
     true},
    {"run", "run one script as a job: follow its log, print its result and receipt, exit with its status", "FILE",
     submission_flags(), run_command},
    {"job submit", "submit one script as a job, or a file of jobs, and print its key", "FILE", submit_flags(),
     job_submit_command},
    {"job list",
     "list jobs, the latest change first",
     "",
     {{"status", "WORD", "only jobs of this status", false, job_statuses()},
      {"state", "WORD", "only jobs with this status or detail, for example queued, timeout, oom"},
      {"name", "TEXT", "only jobs whose name contains this text"},
      {"type", "TYPE", "only jobs of this script type"},
      {"caller", "ID", "only jobs of this actor"},
      {"since", "WHEN", "only jobs that changed since: 2h, or a time"},
      {"limit", "N", "maximum number of entries (default 50)"}},
     job_list_command},
    {"job show", "show everything about one job", "JOB", {}, job_show_command},
    {"job logs", "print a job's log", "JOB", {{"follow", "", "continue until the job ends"}}, job_logs_command},
    {"job artifacts",
     "list the artifacts of a job, print one, or write them into a folder",
     "JOB [NAME]",
     {{"output", "PATH", "write the artifact to this new file or folder; without NAME: a folder for all"}},
     job_artifacts_command},
    {"job cancel", "cancel a job permanently, in any state", "JOB", {}, job_cancel_command},
    {"job retry", "run a job again that ended as error, as its next attempt", "JOB", {}, job_retry_command},
    {"job restart", "run an ended job again, unchanged, as a new job of its caller, and print its key", "JOB",
     actor_flag(), job_restart_command},
    {"job delete", "delete a job that has ended, or was never queued, with its log", "JOB", actor_flag(),
     job_delete_command},
    {"job explain", "explain the state of a job and the next step", "JOB", {}, job_explain_command},
    {"job approve", "approve approval:NAME of a job outside of a flow", "JOB NAME", decision_flags(),
     job_approve_command},
    {"job reject", "reject approval:NAME of a job, which then ends as error", "JOB NAME", decision_flags(),
     job_reject_command},
    {"flow start", "start a flow of a definition, or a created flow: follow it, or print its key", "FILE",
     flow_flags(true), flow_start_command},
    {"flow create", "create a flow of a definition, to be started by `flow start ID`", "FILE", flow_flags(false),
     flow_create_command},
    {"flow check",
     "check a definition: exit 0 if it is valid, otherwise 65 with all problems",
     "FILE",
     {{"input", "NAME=VALUE", "an input that the definition declares; @FILE: a map of inputs", true}},
     flow_check_command},
    {"flow list",
     "list flows, newest first",
     "",
     {{"status", "WORD", "only flows in this state or with this status", false, flow_states()},
      {"name", "TEXT", "only flows whose definition has this name"},
      {"limit", "N", "maximum number of entries (default 50)"},
      {"after", "FLOW", "continue after this flow, as printed with the preceding page"}},
     flow_list_command},
    {"flow show", "show a flow and its nodes", "FLOW", {}, flow_show_command},
    {"flow watch", "show the progress of a flow until its end", "FLOW", {}, flow_watch_command},
    {"flow graph",
     "draw a flow, or a definition before it runs",
     "FLOW|FILE",
     {{"format", "WORD", "how to draw it (default text)", false, "text ascii mermaid dot json"}},
     flow_graph_command},
    {"flow explain", "explain the state of a flow and the next step", "FLOW", {}, flow_explain_command},
    {"flow inspect", "show the data of a flow in the store and its journal", "FLOW", {}, flow_inspect_command},
    {"flow timeline", "print the history of a flow", "FLOW", {}, flow_timeline_command},
    {"flow journal",
     "print the facts of a flow's journal",
     "FLOW",
     {{"follow", "", "continue until the flow ends"}},
     flow_journal_command},
    {"flow logs",
     "print the output of the nodes of a flow in their order, each line with the name of its node",
     "FLOW",
     {{"follow", "", "continue until the flow ends, with lines in order of arrival"},
      {"node", "NAME", "only the output of this node", true}},
     flow_logs_command},
    {"flow result", "print the result of an ended flow and exit with its status", "FLOW", {}, flow_result_command},
    {"flow cancel", "cancel a flow: running jobs are requested to end, no node starts", "FLOW", control_flags(),
     flow_cancel_command},
    {"flow pause", "pause a flow: running nodes continue, no node starts", "FLOW", control_flags(), flow_pause_command},
    {"flow resume", "resume a paused flow, or a node of it that is a pause", "FLOW [NODE]", control_flags(),
     flow_resume_command},
    {"flow approve", "approve a node that waits, by the name of the node or of the approval", "FLOW NAME",
     control_flags(), flow_approve_command},
    {"flow reject", "reject a node that waits, which then fails", "FLOW NAME", control_flags(), flow_reject_command},
    {"flow retry", "resume a flow from its failed nodes, as their next attempts", "FLOW [NODE]",
     control_flags(
         {{"allow-irreversible", "", "allow a new child flow to repeat completed nodes that are marked irreversible"}}),
     flow_retry_command},
    {"flow signal", "send a flow a signal for which nodes wait", "FLOW NAME",
     control_flags({{"payload", "JSON", "the payload of the signal"}}), flow_signal_command},
    {"flow replay", "run the same definition with the same environment again, as a new flow of its caller", "FLOW",
     actor_flag({{"allow-irreversible", "", "allow the flow to repeat completed nodes that are marked irreversible"}}),
     flow_replay_command},
    {"flow delete", "delete a flow that has ended, with its journal", "FLOW", actor_flag(), flow_delete_command},
    {"flow schedule add",
     "create a schedule that starts a flow, or change the schedule of this name",
     "NAME FILE",
     {{"cron", "TEXT", "time: minute hour day month weekday, for example \"0 3 * * mon-fri\", or @daily"},
      {"zone", "NAME", "time zone, for example Europe/Berlin (default UTC)"},
      {"overlap", "WORD", "action if the preceding run has not ended (default skip)", false, "allow skip queue"},
      {"missed", "WORD", "action for times at which no coordinator was running (default once)", false, "skip once all"},
      {"input", "NAME=VALUE", "an input that the definition declares; @FILE: a map of inputs", true},
      {"caller", "ID", "the actor that owns the flows and creates the schedule (default 1)"}},
     flow_schedule_add_command},
    {"flow schedule list", "list the schedules with their times and results", "", {}, flow_schedule_list_command},
    {"flow schedule show", "show a schedule and its next five times", "NAME", {}, flow_schedule_show_command},
    {"flow schedule pause", "pause a schedule: it starts no flows, running flows continue", "NAME", actor_flag(),
     flow_schedule_pause_command},
    {"flow schedule resume", "resume a paused schedule from now on", "NAME", actor_flag(),
     flow_schedule_resume_command},
    {"flow schedule remove", "remove a schedule; its flows remain", "NAME", actor_flag(), flow_schedule_remove_command},
    {"actor create", "create an actor, to which contexts can grant roles", "", actor_fields(true),
     actor_create_command},
    {"actor list", "list the actors", "", actor_flag(), actor_list_command},
    {"actor show", "show an actor", "ID", actor_flag(), actor_show_command},
    {"actor update", "change an actor's key or addresses", "ID", actor_fields(false), actor_update_command},
    {"actor delete", "delete an actor without roles", "ID", actor_flag(), actor_delete_command},
    {"context create", "create a context; its Redis database has the same number", "ID", role_flags(),
     context_create_command},
    {"context list", "list the contexts with the roles of actors", "", actor_flag(), context_list_command},
    {"context delete", "delete the record of an empty context", "ID", actor_flag(), context_delete_command},
    {"context refusals", "list denied requests, newest first", "[ID]",
     actor_flag({{"limit", "N", "maximum number of entries (default 50)"}}), context_refusals_command},
    {"context show",
     "show the roles of actors in a context and its kinds of objects",
     "[ID]",
     {},
     context_show_command},
    {"context grant", "grant roles in a context to actors; creates the record if it is missing", "ID", role_flags(),
     context_grant_command},
    {"context revoke", "revoke roles in a context from actors", "ID", role_flags(), context_revoke_command},
    {"context notify",
     "show or set the receivers of notifications about ends of flows and of jobs outside of flows",
     "[ID]",
     {{"target", "TARGET", "URL of a webhook, or JSON (docs/notify.md); replaces the present receivers", true},
      {"none", "", "remove all receivers"}},
     context_notify_command},
    {"context acl",
     "print Redis users, one for each role, with the least permissions in a context",
     "[ID]",
     {{"role", "WORD", "only the user of this role", true, "agent coordinator operator reader submitter"},
      {"caller", "ID", "the submitter is this actor and can write only its own records"},
      {"passwords", "", "generate passwords instead of a placeholder that Redis rejects"}},
     context_acl_command},
    {"workflow check",
     "check a manifest of workflows and its code, and print all problems",
     "FILE",
     {},
     workflow_check_command},
    {"workflow test",
     "run scenarios of workflows in memory, and print unmet expectations",
     "FILE...",
     {{"name", "TEXT", "only scenarios whose name contains this text"},
      {"manifest", "FILE", "run them with this manifest instead of their own"},
      {"history", "FILE", "write the journal of the last scenario to this file"}},
     workflow_test_command},
    {"workflow simulate",
     "try a new manifest on a copy of a deployment, and print its effects and changes",
     "FILE",
     {{"history", "FILE", "the deployment of this journal (default: an empty deployment)"},
      {"scenario", "FILE", "the deployment at the end of this scenario; with --name, if the file has several"},
      {"name", "TEXT", "the scenario whose name contains this text"},
      {"send", "EVENT=JSON", "send this event", true},
      {"receipt", "EFFECT=JSON", "the payload of this effect's receipts (default: the smallest valid payload)", true},
      {"pending", "", "effects without --receipt receive no receipt"},
      {"steps", "COUNT", "maximum number of steps (default 1000)"}},
     workflow_simulate_command},
    {"workflow diff",
     "show the changes of a new manifest: exit 0 if there are none, otherwise 1",
     "OLD NEW",
     {{"history", "FILE", "also show which instances of this journal block the change, and which keep their code"}},
     workflow_diff_command},
    {"workflow apply", "apply a manifest of workflows, unless its instances block the change", "FILE",
     actor_flag({{"owner", "ID", "the actor of its effects (default: the actor that applies it)"}}),
     workflow_apply_command},
    {"workflow send", "send an event to the workflows that accept it", "EVENT VALUE",
     actor_flag({{"workflow", "NAME", "the manifest, if several accept the event"},
                 {"idempotency-key", "TEXT", "an event that is sent again by the actor with this key is sent once"},
                 {"traceparent", "TEXT", "the trace that it and its effects belong to (docs/tracing.md)"}}),
     workflow_send_command},
    {"workflow list", "list the applied workflows with the states of their instances", "", actor_flag(),
     workflow_list_command},
    {"workflow cells", "list the instances of a workflow", "WORKFLOW",
     actor_flag({{"status", "WORD", "only instances with this status", false, "running waiting completed failed"},
                 {"limit", "COUNT", "maximum number of entries (default 100)"}}),
     workflow_cells_command},
    {"workflow show", "show an instance: its state, its waiting events, its pending effects", "WORKFLOW [KEY]",
     actor_flag(), workflow_show_command},
    {"workflow timeline", "print the history of an instance", "WORKFLOW [KEY]",
     actor_flag({{"limit", "COUNT", "maximum number of the latest facts (default 300, at most 1000)"},
                 {"before", "HEIGHT", "only facts before this height"}}),
     workflow_timeline_command},
    {"workflow logs", "print the output of the jobs of an instance's effects", "WORKFLOW [KEY]",
     actor_flag({{"follow", "", "continue until the instance ends, with new effects"}}), workflow_logs_command},
    {"workflow explain", "explain the state of an instance and the next step", "WORKFLOW [KEY]", actor_flag(),
     workflow_explain_command},
    {"workflow tail", "print the facts of a workflow's journal", "WORKFLOW",
     actor_flag({{"after", "HEIGHT", "only facts after this height"}, {"follow", "", "continue with new facts"}}),
     workflow_tail_command},
    {"workflow approve", "approve the pending approval of an instance", "WORKFLOW [KEY]", approval_flags(),
     workflow_approve_command},
    {"workflow reject", "reject the pending approval of an instance", "WORKFLOW [KEY]", approval_flags(),
     workflow_reject_command},
    {"workflow cancel", "end an instance, and the jobs and flows that run for it", "WORKFLOW [KEY]",
     actor_flag({{"reason", "TEXT", "the reason, stored with actor and time"}}), workflow_cancel_command},
    {"workflow remove", "remove a failed instance", "WORKFLOW [KEY]", actor_flag(), workflow_remove_command},
    {"workflow export", "print the whole journal of a workflow, for `workflow simulate` and `workflow diff`",
     "WORKFLOW", actor_flag(), workflow_export_command},
    {"workflow verify-replay", "replay the journal of a workflow and repeat each step: exit 1 if an output differs",
     "[WORKFLOW]",
     actor_flag(
         {{"history", "FILE", "replay this journal (`workflow export`, `workflow test --history`), without Redis"}}),
     workflow_verify_replay_command},
    {"queue list", "list the queues with their entries and the runners that serve them", "", {}, queue_list_command},
    {"queue pause",
     "pause a queue: no job is claimed from it, running jobs continue",
     "QUEUE",
     {},
     queue_pause_command},
    {"queue resume", "resume a paused queue", "QUEUE", {}, queue_resume_command},
    {"queue purge",
     "cancel all jobs that wait in a queue",
     "QUEUE",
     {{"yes", "", "do not ask for confirmation"}},
     queue_purge_command},
    {"queue dead",
     "list the dead letters, or settle them",
     "",
     {{"requeue", "ID", "run the job of this dead letter again"},
      {"requeue-all", "", "run the jobs of all dead letters again"},
      {"drop", "ID", "remove this dead letter from the list"},
      {"limit", "N", "maximum number of entries, the newest (default 50)"}},
     queue_dead_command},
    {"runner list", "list the runners with host, queues and state", "", {}, runner_list_command},
    {"runner create", "register a runner, or a supervisor on another host", "", runner_fields(true),
     runner_create_command},
    {"runner show", "show a runner's record, without its secret", "ID", actor_flag(), runner_show_command},
    {"runner update", "change a runner's record", "ID", runner_fields(false), runner_update_command},
    {"runner delete", "delete a runner without an agent and without waiting work", "ID", actor_flag(),
     runner_delete_command},
    {"secret list",
     "list the secrets of a context by name, and the files that are not valid secrets",
     "",
     {},
     secret_list_command},
    {"secret check",
     "check the files of secrets and the secrets that the ceiling allows: exit 0 if all are valid, otherwise 1",
     "",
     {},
     secret_check_command},
    {"verify",
     "check the data of all jobs, flows and workflows in the store: exit 0 if it is valid, otherwise 1",
     "",
     {{"all", "", "list all findings, not only the first of each rule"}},
     verify_command},
    {"doctor",
     "test the layers of the sandbox and the Redis settings, and print remedies",
     "",
     {{"rebuild", "", "instead, restore queues and indexes from the journals, and print each difference"},
      {"dry-run", "", "with --rebuild: only print the differences; exit 1 if there are any"}},
     doctor_command},
    {"policy show",
     "show the default policy of a job and the limits of a request",
     "",
     {kTypeFlag},
     policy_show_command},
    {"policy check",
     "show the policy that a job with this request receives, or all refused fields",
     "FILE",
     {kTypeFlag},
     policy_check_command},
    {"policy diff",
     "show the differences of two policies: exit 0 if there are none, otherwise 1",
     "A B",
     {kTypeFlag},
     policy_diff_command},
    {"policy learn", "run one script in a sandbox without Redis, and print the policy that it needs", "FILE",
     script_flags(), policy_learn_command},
    {"sandbox run", "run one script in a sandbox without Redis: its output, its outcome, the layers in force", "FILE",
     sandbox_flags(), sandbox_run_command},
    {"executor list",
     "list the executors of this host with their script types and problems",
     "",
     {},
     executor_list_command},
    {"executor check",
     "run the contract test of executors for one executor",
     "NAME",
     {{"samples", "FOLDER", "folder with a script for each case; default: list the cases"}},
     executor_check_command},
    {"plugin list",
     "list the plugins of the plugin folder with their script types and problems",
     "",
     {},
     plugin_list_command},
    {"plugin check",
     "test one plugin: its handshake, its functions with valid and invalid input, the contract of executors",
     "FILE",
     {{"samples", "FOLDER", "folder with a script for each case of the contract, which `executor check` lists"}},
     plugin_check_command},
    {"program add",
     "store a prebuilt program for native jobs of a context, and print its hash",
     "FILE",
     {},
     program_add_command},
    {"program list", "list the prebuilt programs of a context", "", {}, program_list_command},
    {"message send", "send a signed message to another context (a script, a flow or a text) and receive its result",
     "[FILE]", message_flags(), message_send_command},
    {"message follow", "wait for the end of a message, with the lines of its jobs", "MESSAGE", actor_flag(),
     message_follow_command},
    {"message list", "list messages, newest first", "",
     actor_flag({{"limit", "N", "maximum number of entries (default 50)"}}), message_list_command},
    {"message show", "show everything about one message", "MESSAGE", actor_flag(), message_show_command},
    {"message sign", "sign a message that is stored in Redis, as its sender", "MESSAGE",
     actor_flag({{"key", "NAME", "the sender's key: its name, or a file"},
                 {"to", "CONTEXT", "target context (default: the context in the message)"}}),
     message_sign_command},
    {"message verify", "check the signature of a message against the key of its caller: exit 0 if valid, otherwise 1",
     "MESSAGE", actor_flag({{"key", "HEX", "the sender's public key (default: the key in the actor's record)"}}),
     message_verify_command},
    {"message cancel", "cancel a message and its jobs permanently, at sender and receiver", "MESSAGE", actor_flag(),
     message_cancel_command},
    {"message delete", "delete a message that has ended", "MESSAGE", actor_flag(), message_delete_command},
    {"receipt verify",
     "check that a job's receipt was signed by its runner for the stored result and log: exit 0 if so, otherwise 1",
     "JOB",
     {{"key", "HEX", "the runner's public key, from a trusted source (default: the key in the runner's record)"}},
     receipt_verify_command},
    {"rpc",
     "call a method of a coordinator's JSON-RPC, and print its result",
     "METHOD [JSON]",
     {{"url", "URL", "its address (default COORDINATOR_URL, else api.listen)"},
      {"token-file", "FILE", "file with the token (default: the variable MYCOJOBS_TOKEN)"}},
     rpc_command},
    {"health",
     "check whether an agent or coordinator of this host is ready: exit 0 if so, otherwise 1",
     "",
     {{"url", "URL", "where it listens (default health.listen, else api.listen)"},
      {"alive", "", "check whether the process is alive, ready or not"}},
     health_command},
    {"key new", "create a key pair for signatures, and print the public key", "NAME", {}, key_new_command},
    {"key show", "print the public key of a pair", "NAME", {}, key_show_command},
    {"key list", "list the key pairs by name, with the public keys", "", {}, key_show_command},
    {"key token",
     "create a bearer token for the JSON-RPC of coordinators and supervisors, and print it once",
     "",
     {{"actor", "ID", "actor that the token identifies"},
      {"operator", "", "may act as any actor and create contexts"},
      {"note", "TEXT", "purpose, stored as a note"}},
     key_token_command},
    {"config print", "print every setting, its value and its source", "", {}, config_print_command},
    {"config check", "check a configuration file", "[FILE]", {}, config_check_command},
    {"completion", "print a completion script: bash or zsh", "SHELL", {}, completion_command},
    {"version", "print the version", "", {}, version_command},
};

}  // namespace

const std::vector<Command>& commands() { return kCommands; }

}  // namespace mycojobs
