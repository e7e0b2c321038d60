#include "cli/commands/command_table.h"

#include <cassert>

#include "cli/commands/commands.h"
#include "cli/job_submission.h"
#include "cli/log_output.h"
#include "cli/request_arguments.h"
#include "inspect/flow_view.h"

namespace mycojobs {
namespace {

std::vector<FlagRow> type_flag() {
  return {{"type", "NAME", "script type or profile whose defaults apply (default python)"}};
}

std::vector<FlagRow> join_flags(std::vector<FlagRow> flags, const std::vector<FlagRow>& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

std::vector<FlagRow> role_flags() {
  return {{"admin", "WHO", "an actor with all rights in the context: its id, or the name of its key", true},
          {"submitter", "WHO", "an actor that creates jobs, flows and messages, and controls and reads its own", true},
          {"executor", "WHO", "an actor whose agents run jobs of the context", true},
          {"reader", "WHO", "an actor that reads everything in the context", true}};
}

std::vector<FlagRow> exit_code_flag() {
  return {{"exit-code", "", "exit with the script's own exit code, or 128 and the number of the signal that ended it"}};
}

std::vector<FlagRow> submit_flags() {
  return join_flags(join_flags(submission_flags(), exit_code_flag()),
                    {{"follow", "", "follow it to its end, and exit as the job did"},
                     {"batch", "", "FILE has one job per line, as JSON (`-`: standard input): submit all jobs"}});
}

// Returns the display states of flows (flow_display_states(), docs/flows.md), followed by the statuses of flow records.
std::string_view flow_states() {
  static const std::string states = [] {
    std::string names;
    for (const FlowDisplayState& row : flow_display_states()) names += std::string(row.state) + ' ';
    return names + "dispatched error finished";
  }();
  return states;
}

std::vector<FlagRow> flow_flags() {
  return {{"env", "NAME=VALUE", "an environment variable of all jobs of the flow", true},
          {"input", "NAME=VALUE", "an input that the definition declares; @FILE: a map of inputs", true},
          {"notify", "TARGET", "receiver of the notification of its end, instead of those in the file", true},
          {"caller", "ID", "the actor that creates it (default 1)"}};
}

std::vector<FlagRow> actor_flag(const std::vector<FlagRow>& more = {}) {
  return join_flags({{"actor", "ID", "act as this actor, with its rights (default: as the operator)"}}, more);
}
std::vector<FlagRow> deciding_actor_flag() { return {{"actor", "ID", "the actor that decides (default 1)"}}; }
std::vector<FlagRow> follow_flag(const char* help) { return {{"follow", "", help}}; }

constexpr const char* kLogParams = "since_ms=since tail";

std::vector<FlagRow> flow_log_flags() {
  std::vector<FlagRow> flags =
      join_flags(join_flags(request_flags("job.logs", kLogParams), log_flags()),
                 {{"follow", "", "continue until the flow ends, with lines in order of arrival"},
                  {"node", "NAME", "only the output of this node", true}});
  set_flag_help(flags, "tail", "only the last lines of each node");
  return flags;
}

std::vector<FlagRow> message_flags() {
  return join_flags(
      {{"to", "CONTEXT", "the target context"},
       {"address", "URL", "address of the target's supervisor, as in a runner's record (default: on this Redis)"},
       {"key", "NAME", "the sender's key: its name, or a file"},
       {"flow", "FILE", "a flow instead of a script"},
       {"text", "TEXT", "a text for a person instead of a script"},
       {"mail", "", "the text is mail"},
       {"follow", "", "wait for its end"},
       {"caller", "ID", "the actor that sends it (default 1)"}},
      script_flags());
}

// A public key can be given as the name of a key of this host.
std::vector<FlagRow> actor_key_flags(std::vector<FlagRow> more = {}) {
  return join_flags(actor_flag({{"key", "KEY", "its public key: hex, or the name or path of a key of `key new`"}}),
                    more);
}

std::vector<FlagRow> runner_flags() {
  return actor_flag({{"queues", "WORD", "whether it also claims jobs from queues", false, "yes no"}});
}

// Returns the row of a command that sends a request of the table. params: the parameters that are flags, see
// request_flags(). own_flags: flags that are no parameters. An empty help is that of the request.
Command request_command(std::string_view name, std::string_view request, std::string_view arguments,
                        std::string_view params, Result<int> (*run)(Invocation&),
                        const std::vector<FlagRow>& own_flags = {}, std::string_view help = "") {
  const service::Request* row = service::find_request(request);
  assert(row != nullptr);
  return {name,      help.empty() ? row->help : help,
          arguments, join_flags(request_flags(request, params), own_flags),
          run,       false,
          row};
}

Command with_flag_help(Command command, std::string_view flag, std::string help) {
  set_flag_help(command.flags, flag, std::move(help));
  return command;
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
    {"run", "run one script as a job: follow its log, print its result and receipt, exit with its status",
     "FILE [-- ARG...]", join_flags(submission_flags(), exit_code_flag()), run_command},
    {"job submit", "submit one script as a job, or a file of jobs, and print its key", "FILE [-- ARG...]",
     submit_flags(), job_submit_command},
    request_command("job list", "job.list", "",
                    "status state name script_type=type:TYPE caller_id=caller since_ms=since limit", job_list_command),
    request_command("job show", "job.get", "JOB", "", job_show_command),
    request_command("job logs", "job.logs", "JOB", kLogParams, job_logs_command,
                    join_flags(log_flags(), follow_flag("continue until the job ends, through all of its attempts"))),
    {"job artifacts",
     "list the artifacts of a job, print one, or write them into a folder",
     "JOB [NAME]",
     {{"output", "PATH", "write the artifact to this new file or folder; without NAME: a folder for all"}},
     job_artifacts_command},
    request_command("job cancel", "job.cancel", "JOB", "", job_cancel_command),
    request_command("job retry", "job.retry", "JOB", "", job_retry_command),
    request_command("job restart", "job.restart", "JOB", "idempotency_key", job_restart_command, actor_flag()),
    request_command("job delete", "job.delete", "JOB", "", job_delete_command, actor_flag()),
    request_command("job explain", "job.explain", "JOB", "", job_explain_command),
    request_command("job approve", "job.approve", "JOB NAME", "comment", job_approve_command, deciding_actor_flag()),
    request_command("job reject", "job.reject", "JOB NAME", "comment", job_reject_command, deciding_actor_flag()),
    {"flow start", "start a flow of a definition, or a created flow: follow it, or print its key", "FILE",
     join_flags(join_flags(flow_flags(), request_flags("flow.create", "idempotency_key=key traceparent")),
                {{"follow", "", "show its progress and exit with its status (the default on a terminal)"},
                 {"detach", "", "print its key and exit while it runs"}}),
     flow_start_command},
    request_command("flow create", "flow.create", "FILE", "idempotency_key=key traceparent", flow_create_command,
                    flow_flags(), "create a flow of a definition, to be started by `flow start ID`"),
    {"flow check",
     "check a definition: exit 0 if it is valid, otherwise 65 with all problems",
     "FILE",
     {{"input", "NAME=VALUE", "an input that the definition declares; @FILE: a map of inputs", true}},
     flow_check_command},
    with_flag_help(
        request_command("flow list", "flow.list", "", "name limit before=after:FLOW", flow_list_command,
                        {{"status", "WORD", "only flows in this state or with this status", false, flow_states()}}),
        "after", "continue after this flow, as printed with the preceding page"),
    request_command("flow show", "flow.get", "FLOW", "", flow_show_command, {}, "show a flow and its nodes"),
    {"flow watch", "show the progress of a flow until its end", "FLOW", {}, flow_watch_command},
    {"flow graph",
     "draw a flow, or a definition before it runs",
     "FLOW|FILE",
     {{"format", "WORD", "how to draw it (default text)", false, "text ascii mermaid dot json"}},
     flow_graph_command},
    request_command("flow explain", "flow.explain", "FLOW", "", flow_explain_command),
    {"flow inspect", "show the data of a flow in the store and its journal", "FLOW", {}, flow_inspect_command},
    request_command("flow timeline", "flow.timeline", "FLOW", "", flow_timeline_command),
    {"flow journal",
     "print the facts of a flow's journal",
     "FLOW",
     {{"follow", "", "continue until the flow ends"}},
     flow_journal_command},
    {"flow logs", "print the output of the nodes of a flow in their order, each line with the name of its node", "FLOW",
     flow_log_flags(), flow_logs_command},
    request_command("flow result", "flow.result", "FLOW", "", flow_result_command, {},
                    "print the result of an ended flow and exit with its status"),
    request_command("flow cancel", "flow.cancel", "FLOW", "comment key", flow_cancel_command, actor_flag()),
    request_command("flow pause", "flow.pause", "FLOW", "comment key", flow_pause_command, actor_flag()),
    request_command("flow resume", "flow.resume", "FLOW [NODE]", "comment key", flow_resume_command, actor_flag()),
    request_command("flow approve", "flow.approve", "FLOW NAME", "comment key", flow_approve_command, actor_flag()),
    request_command("flow reject", "flow.reject", "FLOW NAME", "comment key", flow_reject_command, actor_flag()),
    request_command("flow retry", "flow.retry", "FLOW [NODE]", "comment key allow_irreversible", flow_retry_command,
                    actor_flag()),
    request_command("flow signal", "flow.signal", "FLOW NAME", "comment key payload", flow_signal_command,
                    actor_flag()),
    request_command("flow replay", "flow.replay", "FLOW", "allow_irreversible", flow_replay_command, actor_flag(),
                    "run the same definition with the same environment again, as a new flow of its caller"),
    request_command("flow delete", "flow.delete", "FLOW", "", flow_delete_command, actor_flag()),
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
    request_command("actor create", "actor.create", "", "id address:ADDRESS", actor_create_command, actor_key_flags()),
    request_command("actor list", "actor.list", "", "", actor_list_command, actor_flag()),
    request_command("actor show", "actor.get", "ID", "", actor_show_command, actor_flag()),
    request_command("actor update", "actor.update", "ID", "address:ADDRESS", actor_update_command,
                    actor_key_flags({{"no-key", "", "remove its key: its signatures are no longer accepted"}})),
    request_command("actor delete", "actor.delete", "ID", "", actor_delete_command, actor_flag()),
    request_command("context create", "context.create", "ID", "", context_create_command, role_flags()),
    request_command("context list", "context.list", "", "", context_list_command, actor_flag(),
                    "list the contexts with the roles of actors"),
    request_command("context delete", "context.delete", "ID", "", context_delete_command, actor_flag()),
    request_command("context refusals", "context.refusals", "[ID]", "limit", context_refusals_command, actor_flag()),
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
    request_command("workflow apply", "workflow.apply", "FILE", "caller_id=owner", workflow_apply_command,
                    actor_flag()),
    request_command("workflow send", "workflow.send", "EVENT VALUE", "workflow idempotency_key traceparent",
                    workflow_send_command, actor_flag()),
    request_command("workflow list", "workflow.list", "", "", workflow_list_command, actor_flag()),
    request_command("workflow cells", "workflow.cells", "WORKFLOW", "status limit:COUNT after:CURSOR",
                    workflow_cells_command, actor_flag()),
    request_command("workflow show", "workflow.show", "WORKFLOW [KEY]", "", workflow_show_command, actor_flag()),
    request_command("workflow timeline", "workflow.timeline", "WORKFLOW [KEY]", "limit:COUNT before:HEIGHT",
                    workflow_timeline_command, actor_flag()),
    request_command("workflow logs", "workflow.logs", "WORKFLOW [KEY]", "", workflow_logs_command,
                    actor_flag(follow_flag("continue until the instance ends, with new effects"))),
    request_command("workflow explain", "workflow.explain", "WORKFLOW [KEY]", "", workflow_explain_command,
                    actor_flag()),
    request_command("workflow tail", "workflow.facts", "WORKFLOW", "after:HEIGHT", workflow_tail_command,
                    actor_flag(follow_flag("continue with new facts")), "print the facts of a workflow's journal"),
    request_command("workflow approve", "workflow.approve", "WORKFLOW [KEY]", "intent comment",
                    workflow_approve_command, actor_flag()),
    request_command("workflow reject", "workflow.reject", "WORKFLOW [KEY]", "intent comment", workflow_reject_command,
                    actor_flag()),
    request_command("workflow cancel", "workflow.cancel", "WORKFLOW [KEY]", "reason", workflow_cancel_command,
                    actor_flag()),
    request_command("workflow remove", "workflow.remove", "WORKFLOW [KEY]", "", workflow_remove_command, actor_flag()),
    {"workflow export", "print the whole journal of a workflow, for `workflow simulate` and `workflow diff`",
     "WORKFLOW", actor_flag(), workflow_export_command},
    {"workflow verify-replay", "replay the journal of a workflow and repeat each step: exit 1 if an output differs",
     "[WORKFLOW]",
     actor_flag(
         {{"history", "FILE", "replay this journal (`workflow export`, `workflow test --history`), without Redis"}}),
     workflow_verify_replay_command},
    request_command("queue list", "queue.list", "", "", queue_list_command, {},
                    "list the queues with their entries and the runners that serve them"),
    request_command("queue pause", "queue.pause", "QUEUE", "", queue_pause_command),
    request_command("queue resume", "queue.resume", "QUEUE", "", queue_resume_command),
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
    request_command("runner list", "runner.list", "", "", runner_list_command, {},
                    "list the runners with host, queues and state"),
    request_command("runner create", "runner.create", "", "id pubkey:HEX address:URL target_context topic type",
                    runner_create_command, runner_flags()),
    request_command("runner show", "runner.get", "ID", "", runner_show_command, actor_flag()),
    request_command("runner update", "runner.update", "ID", "pubkey:HEX address:URL target_context topic type",
                    runner_update_command, runner_flags()),
    request_command("runner delete", "runner.delete", "ID", "", runner_delete_command, actor_flag()),
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
    {"policy show", "show the default policy of a job and the limits of a request", "", type_flag(),
     policy_show_command},
    {"policy check", "show the policy that a job with this request receives, or all refused fields", "FILE",
     type_flag(), policy_check_command},
    {"policy diff", "show the differences of two policies: exit 0 if there are none, otherwise 1", "A B", type_flag(),
     policy_diff_command},
    {"policy learn", "run one script in a sandbox without Redis, and print the policy that it needs",
     "FILE [-- ARG...]", join_flags(script_flags(), submitted_file_flags()), policy_learn_command},
    {"sandbox run", "run one script in a sandbox without Redis: its output, its outcome, the layers in force",
     "FILE [-- ARG...]",
     join_flags(join_flags(script_flags(), submitted_file_flags()),
                {{"artifacts", "DIR", "store its artifacts in this folder"}}),
     sandbox_run_command},
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
    with_flag_help(
        request_command(
            "message send", "message.create", "[FILE]",
            "topic timeout=deliver-within timeout_ack=ack-within timeout_result=result-within stream_logs=stream",
            message_send_command, message_flags(),
            "send a signed message to another context (a script, a flow or a text) and receive its result"),
        "deliver-within", "fail unless it is delivered in this time (default 24h)"),
    {"message follow", "wait for the end of a message, with the lines of its jobs", "MESSAGE", actor_flag(),
     message_follow_command},
    request_command("message list", "message.list", "", "limit", message_list_command, actor_flag()),
    request_command("message show", "message.get", "MESSAGE", "", message_show_command, actor_flag(),
                    "show everything about one message"),
    {"message sign", "sign a message that is stored in Redis, as its sender", "MESSAGE",
     actor_flag({{"key", "NAME", "the sender's key: its name, or a file"},
                 {"to", "CONTEXT", "target context (default: the context in the message)"}}),
     message_sign_command},
    {"message verify", "check the signature of a message against the key of its caller: exit 0 if valid, otherwise 1",
     "MESSAGE", actor_flag({{"key", "HEX", "the sender's public key (default: the key in the actor's record)"}}),
     message_verify_command},
    request_command("message cancel", "message.cancel", "MESSAGE", "", message_cancel_command, actor_flag(),
                    "cancel a message and its jobs permanently, at sender and receiver"),
    request_command("message delete", "message.delete", "MESSAGE", "", message_delete_command, actor_flag()),
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
