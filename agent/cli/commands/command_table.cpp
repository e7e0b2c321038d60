#include "cli/commands/command_table.h"

#include "cli/job_submission.h"
#include "inspect/flow_view.h"

namespace mycojobs {
namespace {

constexpr std::string_view kJobStatus = "dispatched waiting_for_prerequisites started error finished";

const FlagRow kType = {"type", "NAME", "script type or profile whose defaults count (default python)"};

std::vector<FlagRow> role_flags() {
  return {{"admin", "WHO", "an actor who may do everything in it: its id, or the name of its key", true},
          {"submitter", "WHO", "an actor who makes jobs, flows and messages, and steers and reads its own", true},
          {"executor", "WHO", "an actor whose agents run its jobs", true},
          {"reader", "WHO", "an actor who reads everything in it", true}};
}

std::vector<FlagRow> submit_flags() {
  auto flags = submission_flags();
  flags.push_back({"follow", "", "follow it to its end, and exit as the job did"});
  flags.push_back({"batch", "", "FILE has a job a line, as JSON (`-`: standard input): submit them all"});
  return flags;
}

// The status words of flows (flow_words(), docs/flows.md), followed by those of flow records.
std::string_view flow_states() {
  static const std::string all = [] {
    std::string words;
    for (const FlowStateText& row : flow_words()) words += std::string(row.word) + ' ';
    return words + "dispatched error finished";
  }();
  return all;
}

std::vector<FlagRow> flow_flags(bool starts) {
  std::vector<FlagRow> flags = {{"env", "NAME=VALUE", "a variable of its jobs' environment", true},
                                {"input", "NAME=VALUE", "an input that it declares; @FILE: a map of them", true},
                                {"key", "TEXT", "the same key of the same caller again gives the same flow"},
                                {"notify", "TARGET", "who hears of its end, instead of whom its file names", true},
                                {"traceparent", "TEXT", "the trace that it stands in (docs/tracing.md)"},
                                {"caller", "ID", "the actor who creates it (default 1)"}};
  if (!starts) return flags;
  flags.push_back({"follow", "", "show it as it moves, and exit as it ends (the default on a terminal)"});
  flags.push_back({"detach", "", "print its key and leave it running"});
  return flags;
}

std::vector<FlagRow> control_flags(std::vector<FlagRow> more = {}) {
  std::vector<FlagRow> flags = {{"actor", "ID", "ask for it as this actor, with its rights (absent: as the operator)"},
                                {"comment", "TEXT", "why; stands in the journal"},
                                {"key", "TEXT", "asked for again with the same key, nothing changes"}};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

std::vector<FlagRow> answer_flags() {
  return {{"actor", "ID", "who says so (default 1)"},
          {"comment", "TEXT", "why; stands in the job's log, or in its error"}};
}

std::vector<FlagRow> actor_flag(std::vector<FlagRow> more = {}) {
  std::vector<FlagRow> flags = {{"actor", "ID", "ask for it as this actor, with its rights (absent: as the operator)"}};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

std::vector<FlagRow> approval_flags() {
  return actor_flag(
      {{"intent", "TEXT", "as the intent begins, if several wait"}, {"comment", "TEXT", "why; the workflow gets it"}});
}

std::vector<FlagRow> message_flags() {
  std::vector<FlagRow> flags = {
      {"to", "CONTEXT", "the context that it is for"},
      {"address", "URL", "of the supervisor there, as a runner's record names it (default: on this Redis)"},
      {"key", "NAME", "the sender's key: its name, or a file"},
      {"flow", "FILE", "a flow instead of a script"},
      {"text", "TEXT", "a line for people instead of a script"},
      {"mail", "", "the text is mail"},
      {"topic", "TEXT", "of the runner there that its jobs are for (default: any)"},
      {"deliver-within", "DURATION", "give it up unless it is there by then (default 24h)"},
      {"ack-within", "DURATION", "give it up unless the other side has acknowledged it by then"},
      {"result-within", "DURATION", "give it up, and cancel its jobs, unless the result is here by then"},
      {"stream", "", "lines of its jobs come back while they run"},
      {"follow", "", "wait for its end"},
      {"caller", "ID", "the actor who sends (default 1)"}};
  for (const FlagRow& row : local_run_flags()) flags.push_back(row);
  return flags;
}

std::vector<FlagRow> record_flags(std::vector<FlagRow> fields, bool makes) {
  if (makes) fields.insert(fields.begin(), {"id", "ID", "its id (default: the next free one)"});
  return actor_flag(std::move(fields));
}

std::vector<FlagRow> actor_fields(bool makes) {
  std::vector<FlagRow> flags = {
      {"key", "KEY", "its public key: hex, or the name or path of a key of `key new`"},
      {"address", "ADDRESS",
       "where it is reached: a Mycelium key or address, http://, https://, redis:// or unix:", true}};
  if (!makes) flags.insert(flags.begin() + 1, {"no-key", "", "take its key away: it signs nothing any more"});
  return record_flags(std::move(flags), makes);
}

std::vector<FlagRow> runner_fields(bool makes) {
  return record_flags({{"pubkey", "HEX", "its public key, by which receipts are verified"},
                       {"address", "URL", "of a supervisor elsewhere, in coordinator.networks"},
                       {"target-context", "CONTEXT", "of one elsewhere: the context there (default: the same number)"},
                       {"topic", "TEXT", "its topic (default runner<id>)"},
                       {"queues", "WORD", "whether it takes from queues, too", false, "yes no"},
                       {"type", "WORD", "what it runs", false, "v python osis rust"}},
                      makes);
}

std::vector<FlagRow> sandbox_flags() {
  auto flags = local_run_flags();
  flags.push_back({"artifacts", "DIR", "keep the files that it leaves in this folder"});
  return flags;
}

const std::vector<Command> kCommands = {
    {"agent", "serve the queues of a Redis as a runner, until TERM", "", {}, agent_command, true},
    {"coordinator",
     "move the flows of a Redis on, and start what schedules say, until TERM",
     "",
     {},
     coordinator_command,
     true},
    {"dev",
     "keep the embedded default running: a private Redis, an agent and a coordinator",
     "",
     {},
     dev_command,
     true},
    {"run", "run one script as a job: follow its log, print its result and receipt, reflect its exit", "FILE",
     submission_flags(), run_command},
    {"job submit", "submit one script as a job, or a file of jobs, and print its key", "FILE", submit_flags(),
     job_submit_command},
    {"job list",
     "list jobs, what happened last first",
     "",
     {{"status", "WORD", "only jobs of this status", false, kJobStatus},
      {"state", "WORD", "only jobs whose status or detail is this, as in queued, timeout, oom"},
      {"name", "TEXT", "only jobs that have this in their name"},
      {"type", "TYPE", "only jobs of this script type"},
      {"caller", "ID", "only jobs of this actor"},
      {"since", "WHEN", "only jobs to which something happened since: 2h, or a moment"},
      {"limit", "N", "at most so many (default 50)"}},
     job_list_command},
    {"job show", "show everything about one job", "JOB", {}, job_show_command},
    {"job logs", "print a job's log", "JOB", {{"follow", "", "go on until the job ends"}}, job_logs_command},
    {"job artifacts",
     "list the files that a job left, or print one, or write them into a folder",
     "JOB [NAME]",
     {{"output", "PATH", "write it there: a new file, or a folder for it; without NAME: a folder for all"}},
     job_artifacts_command},
    {"job cancel", "end a job wherever it is, for ever", "JOB", {}, job_cancel_command},
    {"job retry", "run a job again that ended as error, as its next attempt", "JOB", {}, job_retry_command},
    {"job restart", "run a job that has ended once more, unchanged, as a new job of its caller, and print its key",
     "JOB", actor_flag(), job_restart_command},
    {"job delete", "delete a job that has ended, or was never queued, with its log", "JOB", actor_flag(),
     job_delete_command},
    {"job explain", "say why a job is where it is, and what to do", "JOB", {}, job_explain_command},
    {"job approve", "approve what a job outside of a flow waits for: approval:NAME", "JOB NAME", answer_flags(),
     job_approve_command},
    {"job reject", "reject it: the job ends as error", "JOB NAME", answer_flags(), job_reject_command},
    {"flow start", "start a flow of a definition, or one that was created: follow it, or print its key", "FILE",
     flow_flags(true), flow_start_command},
    {"flow create", "create a flow of a definition, and leave it to `flow start ID` to begin it", "FILE",
     flow_flags(false), flow_create_command},
    {"flow check",
     "check a definition: exit 0 if all is well, 65 with every problem if not",
     "FILE",
     {{"input", "NAME=VALUE", "an input that it declares; @FILE: a map of them", true}},
     flow_check_command},
    {"flow list",
     "list flows, newest first",
     "",
     {{"status", "WORD", "only flows that stand so, or whose record says so", false, flow_states()},
      {"name", "TEXT", "only flows of the definition of this name"},
      {"limit", "N", "at most so many (default 50)"},
      {"after", "FLOW", "go on behind it, as the page before gives it"}},
     flow_list_command},
    {"flow show", "show a flow and its nodes", "FLOW", {}, flow_show_command},
    {"flow watch", "show a flow as it moves, to its end", "FLOW", {}, flow_watch_command},
    {"flow graph",
     "draw a flow, or a definition before it runs",
     "FLOW|FILE",
     {{"format", "WORD", "how to draw it (default text)", false, "text ascii mermaid dot json"}},
     flow_graph_command},
    {"flow explain", "say why a flow is where it is, and what to do", "FLOW", {}, flow_explain_command},
    {"flow inspect", "show what store and journal hold of a flow", "FLOW", {}, flow_inspect_command},
    {"flow timeline", "tell what has happened in a flow", "FLOW", {}, flow_timeline_command},
    {"flow journal",
     "print the facts of a flow's journal",
     "FLOW",
     {{"follow", "", "go on until the flow ends"}},
     flow_journal_command},
    {"flow logs",
     "print what the nodes of a flow have written, in their order, each line after its node's name",
     "FLOW",
     {{"follow", "", "go on until the flow ends, each line as it comes"}, {"node", "NAME", "only of this node", true}},
     flow_logs_command},
    {"flow result", "print what an ended flow gave, and exit as it ended", "FLOW", {}, flow_result_command},
    {"flow cancel", "end a flow: what runs is asked to end, nothing new begins", "FLOW", control_flags(),
     flow_cancel_command},
    {"flow pause", "let nothing new of a flow begin; what runs goes on", "FLOW", control_flags(), flow_pause_command},
    {"flow resume", "let a paused flow go on, or a node of it that is a pause", "FLOW [NODE]", control_flags(),
     flow_resume_command},
    {"flow approve", "approve what a node waits for: the node's name, or the approval's", "FLOW NAME", control_flags(),
     flow_approve_command},
    {"flow reject", "reject it: the node fails", "FLOW NAME", control_flags(), flow_reject_command},
    {"flow retry", "go on from what failed, as its next attempt", "FLOW [NODE]",
     control_flags({{"allow-irreversible", "",
                     "also where a new child flow repeats nodes that are marked irreversible and have completed"}}),
     flow_retry_command},
    {"flow signal", "give a flow a signal that nodes wait for", "FLOW NAME",
     control_flags({{"payload", "JSON", "what comes with it"}}), flow_signal_command},
    {"flow replay", "run the same definition with the same environment again, as a new flow of its caller", "FLOW",
     actor_flag({{"allow-irreversible", "", "also past nodes that are marked irreversible and have completed"}}),
     flow_replay_command},
    {"flow delete", "delete a flow that has ended, with its journal", "FLOW", actor_flag(), flow_delete_command},
    {"flow schedule add",
     "start a flow by the clock: makes a schedule, or changes the one of this name",
     "NAME FILE",
     {{"cron", "TEXT", "when: minute hour day month weekday, as in \"0 3 * * mon-fri\", or @daily"},
      {"zone", "NAME", "whose clock, as in Europe/Berlin (default UTC)"},
      {"overlap", "WORD", "when the run before has not ended (default skip)", false, "allow skip queue"},
      {"missed", "WORD", "moments that came while no coordinator was there (default once)", false, "skip once all"},
      {"input", "NAME=VALUE", "an input that its definition declares; @FILE: a map of them", true},
      {"caller", "ID", "the actor whose flows they are, and who asks for it (default 1)"}},
     flow_schedule_add_command},
    {"flow schedule list",
     "list the schedules: when they start their flows, and what they did",
     "",
     {},
     flow_schedule_list_command},
    {"flow schedule show", "show a schedule and its next five moments", "NAME", {}, flow_schedule_show_command},
    {"flow schedule pause", "let a schedule start nothing; what runs goes on", "NAME", actor_flag(),
     flow_schedule_pause_command},
    {"flow schedule resume", "let a paused schedule start its flows from now on", "NAME", actor_flag(),
     flow_schedule_resume_command},
    {"flow schedule remove", "remove a schedule; its flows stay", "NAME", actor_flag(), flow_schedule_remove_command},
    {"actor create", "create an actor: who may be named in the lists of contexts", "", actor_fields(true),
     actor_create_command},
    {"actor list", "list the actors", "", actor_flag(), actor_list_command},
    {"actor show", "show an actor", "ID", actor_flag(), actor_show_command},
    {"actor update", "change an actor's key or addresses", "ID", actor_fields(false), actor_update_command},
    {"actor delete", "delete an actor whom no context names", "ID", actor_flag(), actor_delete_command},
    {"context create", "create a context: its Redis database is the one of that number", "ID", role_flags(),
     context_create_command},
    {"context list", "list the contexts: who has which role", "", actor_flag(), context_list_command},
    {"context delete", "delete the record of a context in which nothing lives", "ID", actor_flag(),
     context_delete_command},
    {"context refusals", "list who asked in vain for what, newest first", "[ID]",
     actor_flag({{"limit", "N", "at most so many (default 50)"}}), context_refusals_command},
    {"context show",
     "show who has which role in a context, and what objects it holds",
     "[ID]",
     {},
     context_show_command},
    {"context grant", "give actors roles in a context; makes its record if there is none", "ID", role_flags(),
     context_grant_command},
    {"context revoke", "take roles in a context from actors", "ID", role_flags(), context_revoke_command},
    {"context notify",
     "show or set who hears of the ends of flows, and of jobs outside of flows",
     "[ID]",
     {{"target", "TARGET", "a webhook's URL, or JSON (docs/notify.md); replaces those before", true},
      {"none", "", "nobody hears of them any more"}},
     context_notify_command},
    {"context acl",
     "print users of Redis, one for each role: what it needs in a context, and no more",
     "[ID]",
     {{"role", "WORD", "only of this role", true, "agent coordinator operator reader submitter"},
      {"caller", "ID", "the submitter is this actor, and writes records of its own alone"},
      {"passwords", "", "with new passwords, instead of a word that Redis refuses"}},
     context_acl_command},
    {"workflow check",
     "check a manifest of workflows and its code, and tell everything that is wrong",
     "FILE",
     {},
     workflow_check_command},
    {"workflow test",
     "play scenarios of workflows in memory, and tell what is not as they expect",
     "FILE...",
     {{"name", "TEXT", "only scenarios whose name has this in it"},
      {"manifest", "FILE", "play them on this manifest instead of their own"},
      {"history", "FILE", "write the journal of the scenario that was played last into this file"}},
     workflow_test_command},
    {"workflow simulate",
     "try a new manifest on a copy of a world: its effects, and what it changes",
     "FILE",
     {{"history", "FILE", "the world is the one of this journal (absent: nothing has happened in it)"},
      {"scenario", "FILE", "the world is the one that this scenario leaves; with --name, if it has several"},
      {"name", "TEXT", "the scenario whose name has this in it"},
      {"send", "EVENT=JSON", "send this event there", true},
      {"receipt", "EFFECT=JSON", "the payload of this effect's receipts (default: the least that fits)", true},
      {"pending", "", "effects without --receipt stay without one"},
      {"steps", "COUNT", "end after so many steps of code (default 1000)"}},
     workflow_simulate_command},
    {"workflow diff",
     "show what a new manifest changes: exit 0 if nothing, 1 if something",
     "OLD NEW",
     {{"history", "FILE", "also: which instances of this journal's world are in its way, and which keep their code"}},
     workflow_diff_command},
    {"workflow apply", "put a manifest of workflows in force, if nothing of it is under way", "FILE",
     actor_flag({{"owner", "ID", "as whom its effects run (default: who applies it)"}}), workflow_apply_command},
    {"workflow send", "send an event to the workflows that take it", "EVENT VALUE",
     actor_flag({{"workflow", "NAME", "the manifest, if several take it"},
                 {"idempotency-key", "TEXT", "the same event of the actor with this key again is sent once"},
                 {"traceparent", "TEXT", "the trace that it and its effects stand in (docs/tracing.md)"}}),
     workflow_send_command},
    {"workflow list", "list the workflows in force, and how their instances stand", "", actor_flag(),
     workflow_list_command},
    {"workflow cells", "list the instances of a workflow", "WORKFLOW",
     actor_flag({{"status", "WORD", "only those", false, "running waiting completed failed"},
                 {"limit", "COUNT", "at most so many (default 100)"}}),
     workflow_cells_command},
    {"workflow show", "show an instance: its state, what waits for it, what it waits for", "WORKFLOW [KEY]",
     actor_flag(), workflow_show_command},
    {"workflow timeline", "tell what has happened to an instance", "WORKFLOW [KEY]",
     actor_flag({{"limit", "COUNT", "at most so many of the latest facts (default 300; 1000 at most)"},
                 {"before", "HEIGHT", "only facts before this height"}}),
     workflow_timeline_command},
    {"workflow logs", "print what the jobs of an instance's effects have written", "WORKFLOW [KEY]",
     actor_flag({{"follow", "", "go on until the instance ends, with the effects that come"}}), workflow_logs_command},
    {"workflow explain", "say why an instance is where it is, and what to do", "WORKFLOW [KEY]", actor_flag(),
     workflow_explain_command},
    {"workflow tail", "print the facts of a workflow's journal", "WORKFLOW",
     actor_flag({{"after", "HEIGHT", "only facts behind this height"}, {"follow", "", "go on with what comes"}}),
     workflow_tail_command},
    {"workflow approve", "approve what an instance waits for", "WORKFLOW [KEY]", approval_flags(),
     workflow_approve_command},
    {"workflow reject", "reject what an instance waits for", "WORKFLOW [KEY]", approval_flags(),
     workflow_reject_command},
    {"workflow cancel", "end an instance, and the jobs and flows that run for it", "WORKFLOW [KEY]",
     actor_flag({{"reason", "TEXT", "why; kept with who and when"}}), workflow_cancel_command},
    {"workflow remove", "take an instance away that has failed", "WORKFLOW [KEY]", actor_flag(),
     workflow_remove_command},
    {"workflow export", "print the whole journal of a workflow, for `workflow simulate` and `workflow diff`",
     "WORKFLOW", actor_flag(), workflow_export_command},
    {"workflow verify-replay",
     "fold the journal of a workflow from its beginning and take each step again: exit 1 if an output differs",
     "[WORKFLOW]",
     actor_flag({{"history", "FILE",
                  "of this journal instead (`workflow export`, `workflow test --history`), without Redis"}}),
     workflow_verify_replay_command},
    {"queue list", "list the queues: what waits in them, and who serves them", "", {}, queue_list_command},
    {"queue pause", "let nothing be taken from a queue; what runs goes on", "QUEUE", {}, queue_pause_command},
    {"queue resume", "open a paused queue", "QUEUE", {}, queue_resume_command},
    {"queue purge",
     "cancel all jobs that wait in a queue",
     "QUEUE",
     {{"yes", "", "do it without asking"}},
     queue_purge_command},
    {"queue dead",
     "list the dead letters, or settle them",
     "",
     {{"requeue", "ID", "run the job of this dead letter again"},
      {"requeue-all", "", "the same for all of them"},
      {"drop", "ID", "strike this one off the list"},
      {"limit", "N", "list at most so many, the newest (default 50)"}},
     queue_dead_command},
    {"runner list",
     "list the runners: where they are, what they serve, whether they live",
     "",
     {},
     runner_list_command},
    {"runner create", "register a runner, or a supervisor elsewhere", "", runner_fields(true), runner_create_command},
    {"runner show", "show a runner's record, without its secret", "ID", actor_flag(), runner_show_command},
    {"runner update", "change a runner's record", "ID", runner_fields(false), runner_update_command},
    {"runner delete", "delete a runner that no agent is and no work waits for", "ID", actor_flag(),
     runner_delete_command},
    {"secret list",
     "list the secrets of a context by name, and the files there that are none",
     "",
     {},
     secret_list_command},
    {"secret check",
     "check the files of secrets, and what the ceiling allows of them: exit 0 if all is well, 1 if not",
     "",
     {},
     secret_check_command},
    {"verify",
     "check that the store holds what it must of every job: exit 0 if it does, 1 if not",
     "",
     {{"all", "", "list every finding, not only the first of each rule"}},
     verify_command},
    {"doctor",
     "try each layer of the sandbox and the Redis settings, and name the remedy for what is missing",
     "",
     {{"rebuild", "", "instead, derive queues and indexes again from the journals, and tell each difference"},
      {"dry-run", "", "with --rebuild: tell and change nothing; exit 1 if there is a difference"}},
     doctor_command},
    {"policy show",
     "show what a job has that asks for nothing, and what it may ask for",
     "",
     {kType},
     policy_show_command},
    {"policy check",
     "show what a job with this policy gets, or everything that is refused",
     "FILE",
     {kType},
     policy_check_command},
    {"policy diff",
     "show in what two policies differ: exit 0 if in nothing, 1 if they do",
     "A B",
     {kType},
     policy_diff_command},
    {"policy learn", "run one script in a sandbox without Redis, and print the policy that it needs", "FILE",
     local_run_flags(), policy_learn_command},
    {"sandbox run", "run one script in a sandbox without Redis: its output, its outcome, the layers in force", "FILE",
     sandbox_flags(), sandbox_run_command},
    {"executor list",
     "list what runs scripts on this host: which script types, and why one does not work",
     "",
     {},
     executor_list_command},
    {"executor check",
     "run the contract of executors over one: the same cases for every script type",
     "NAME",
     {{"samples", "FOLDER", "a script for each case; without it: the cases are listed"}},
     executor_check_command},
    {"plugin list",
     "list the plugins of the plugin folder: what they serve, and why one is refused or unusable",
     "",
     {},
     plugin_list_command},
    {"plugin check",
     "try one plugin: its handshake, each of its functions with sound and unsound input, the contract of executors",
     "FILE",
     {{"samples", "FOLDER", "a script for each case of the contract, which `executor check` lists"}},
     plugin_check_command},
    {"program add",
     "keep a prebuilt program for native jobs of a context, and print its hash",
     "FILE",
     {},
     program_add_command},
    {"program list", "list the prebuilt programs of a context", "", {}, program_list_command},
    {"message send", "send a signed message to another context: a script, a flow or a text; its result comes back",
     "[FILE]", message_flags(), message_send_command},
    {"message follow", "wait for the end of a message, with the lines of its jobs", "MESSAGE", actor_flag(),
     message_follow_command},
    {"message list", "list messages, newest first", "", actor_flag({{"limit", "N", "at most so many (default 50)"}}),
     message_list_command},
    {"message show", "show everything about one message", "MESSAGE", actor_flag(), message_show_command},
    {"message sign", "sign a message that stands in Redis, as its sender", "MESSAGE",
     actor_flag({{"key", "NAME", "the sender's key: its name, or a file"},
                 {"to", "CONTEXT", "for which context (default: what the message says)"}}),
     message_sign_command},
    {"message verify", "check a message's signature against the actor that it names as caller: exit 0, or 1", "MESSAGE",
     actor_flag({{"key", "HEX", "the sender's public key (default: what the actor's record says)"}}),
     message_verify_command},
    {"message cancel", "end a message and all that it carries, here and there, for ever", "MESSAGE", actor_flag(),
     message_cancel_command},
    {"message delete", "delete a message that nobody waits for", "MESSAGE", actor_flag(), message_delete_command},
    {"receipt verify",
     "check that a job's receipt was signed by its runner, for the result and the log that are there: exit 0, or 1",
     "JOB",
     {{"key", "HEX", "the runner's public key, from whom you trust (default: what the runner's record says)"}},
     receipt_verify_command},
    {"rpc",
     "call a method of a coordinator's JSON-RPC, and print its result",
     "METHOD [JSON]",
     {{"url", "URL", "its address (default COORDINATOR_URL, else api.listen)"},
      {"token-file", "FILE", "a file that holds the token (default the variable MYCOJOBS_TOKEN)"}},
     rpc_command},
    {"health",
     "ask an agent or coordinator of this host whether it may be given work: exit 0, or 1",
     "",
     {{"url", "URL", "where it listens (default health.listen, else api.listen)"},
      {"alive", "", "ask whether it lives, busy or not"}},
     health_command},
    {"key new", "make a pair of keys that signs, and print the public one", "NAME", {}, key_new_command},
    {"key show", "print the public key of a pair", "NAME", {}, key_show_command},
    {"key list", "list the pairs of keys by name, with the public ones", "", {}, key_list_command},
    {"key token",
     "make a bearer token for the JSON-RPC of coordinators and supervisors, and print it once",
     "",
     {{"actor", "ID", "whose it is"},
      {"operator", "", "may act as any actor and create contexts"},
      {"note", "TEXT", "what it is for"}},
     key_token_command},
    {"config print", "print every setting, its value and where it came from", "", {}, config_print_command},
    {"config check", "check a configuration file", "[FILE]", {}, config_check_command},
    {"completion", "print a completion script: bash or zsh", "SHELL", {}, completion_command},
    {"version", "print the version", "", {}, version_command},
};

}  // namespace

const std::vector<Command>& commands() { return kCommands; }

}  // namespace mycojobs
