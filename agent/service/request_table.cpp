#include "service/request_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "model/enums.h"
#include "model/limits.h"
#include "model/records.h"
#include "service/flow_service.h"
#include "service/job_service.h"
#include "service/workflow_logs.h"
#include "service/workflow_service.h"

namespace mycojobs::service {
namespace {

// Parameters that several requests have. They are constants, so that the table can be built before main().

constexpr Param kContext{"context_id", "id", "the context; absent: the server's first"};
constexpr Param kId{"id", "id", "its id", true}, kNewId{"id", "id", "its id; absent: the next free one"};
constexpr Param kActor{"actor_id", "id", "the acting actor, if an operator calls; default: the caller"};
constexpr Param kComment{"comment", "text", "the reason, stored with actor and time"};
constexpr Param kTraceparent{"traceparent", "text",
                             "the trace that it belongs to, in the format of W3C Trace Context (docs/tracing.md); "
                             "default: the trace in the header of an HTTP request"};
constexpr Param kNotify{"notify", "any",
                        "receivers of the notification of its end: a list of addresses and targets (docs/notify.md)"};
constexpr Param kPageAfter{"after", "text", "the value `after` of the preceding page; absent: the first page"};

// Returns the parameter with another help.
constexpr Param with_help(Param param, std::string_view help) {
  param.help = help;
  return param;
}

constexpr Param make_choice(std::string_view name, std::string_view help, std::string_view choices) {
  return {.name = name, .type = "text", .help = help, .choices = choices};
}
// Returns a parameter that accepts the names of the values of an enum.
template <class Enum>
Param make_enum_choice(std::string_view name, std::string_view help) {
  static const std::string choices = fmt::format("{}", fmt::join(enum_names<Enum>(), " "));
  return make_choice(name, help, choices);
}
// Same, for a field of a record, which an empty text removes.
template <class Enum>
Param make_enum_field(std::string_view name, std::string_view help) {
  Param param = make_enum_choice<Enum>(name, help);
  param.allows_empty = true;
  return param;
}
constexpr Param make_wait_list(std::string_view name, std::string_view type, std::string_view help) {
  return {.name = name, .type = type, .help = help, .required = true, .min = 1, .max = 1000};
}
// Maximum number of entries of a list, which a server reduces to `server_max`.
constexpr Param make_limit(std::uint64_t default_value, std::uint64_t server_max = 1000,
                           std::string_view help = "maximum number of entries") {
  return {.name = "limit",
          .type = "count",
          .help = help,
          .default_value = default_value,
          .min = 1,
          .server_max = server_max};
}
// Maximum number of entries of a list, with a limit that applies to all clients.
constexpr Param make_strict_limit(std::uint64_t default_value, std::int64_t max,
                                  std::string_view help = "maximum number of entries") {
  return {.name = "limit", .type = "count", .help = help, .default_value = default_value, .min = 1, .max = max};
}
constexpr Param make_wait(std::string_view help, std::uint64_t default_value, std::uint64_t server_max) {
  return {.name = "wait_ms", .type = "ms", .help = help, .default_value = default_value, .server_max = server_max};
}
constexpr Param kTail{.name = "tail", .type = "count", .help = "only the last lines", .min = 1, .server_max = 1000};
constexpr Param kWait = make_wait("maximum wait", 600'000, 3'600'000);

std::vector<Param> join_params(std::vector<Param> params, const std::vector<Param>& more) {
  params.insert(params.end(), more.begin(), more.end());
  return params;
}

std::vector<Request> list_actor_requests() {
  const Param pubkey{"pubkey", "text", "public key, ed25519; empty: remove the key"};
  const Param address{"address", "texts",
                      "its address: a Mycelium key or address, http://, https://, redis://, rediss:// or unix:"};
  return {
      {"actor.create",
       "create an actor, to which contexts can grant roles",
       {kNewId, pubkey, address},
       "Actor: the actor"},
      {"actor.get", "show an actor", {kId}, "Actor: the actor"},
      {"actor.list", "list the actors", {}, "[Actor]: the actors, by id"},
      {"actor.update", "change an actor's key or addresses", {kId, pubkey, address}, "Actor: the actor"},
      {"actor.delete", "delete an actor without roles", {kId}, "Deleted: its key"},
  };
}

std::vector<Request> list_context_requests() {
  const Param id{"id", "id", "its id; absent: the server's first"};
  const Param admins{"admins", "ids", "actors with all rights"};
  const Param submitters{"submitters", "ids",
                         "actors that create jobs, flows and messages, and control and read their own"};
  const Param readers{"readers", "ids", "actors that read everything"};
  const Param executors{"executors", "ids", "actors whose agents run jobs of the context"};
  const Param notify{"notify", "any",
                     "receivers of notifications about ends: a list of addresses and targets (docs/notify.md)"};
  return {
      {"context.create",
       "create a context",
       {kNewId, with_help(admins, "actors with all rights; default: the caller"), readers, executors, submitters,
        notify},
       "Context: the context"},
      {"context.get", "read a context", {id}, "Context: the context"},
      {"context.list",
       "list the contexts that name the caller, or all for an operator",
       {},
       "[Context]: the contexts, by id"},
      {"context.update",
       "change a context's lists of roles",
       {id, admins, readers, executors, submitters, notify},
       "Context: the context"},
      {"context.delete", "delete the record of a context without unfinished work", {kId}, "Deleted: its key"},
      {"context.refusals",
       "list denied requests, newest first",
       {id, make_limit(50)},
       "[Refusal]: number, at_ms, actor, action, thing, list"},
      {"context.rights",
       "list the rights of the caller",
       {kContext},
       "Rights: for all records, and for records of its own"},
      {"context.overview",
       "summarize a context: counts, queues, agents, the last minutes",
       {kContext},
       "Overview: numbers, queues, runners"},
      {"context.verify",
       "check the invariants of jobs, objects, flows and workflows of a context, and the keys of actors",
       {kContext},
       "Verified: findings, and numbers of checked records"},
      {"context.doctor",
       "check the Redis, the leader and the agents of a context, and name the remedy for each problem",
       {kContext},
       "[Check]: area, name, state, detail, remedy"},
  };
}

std::vector<Request> list_runner_requests() {
  const std::vector<Param> fields{
      kContext,
      {"pubkey", "text", "its public key, with which receipts are verified"},
      {"address", "text", "address of a supervisor on another host: http://HOST:PORT, in coordinator.networks"},
      {"topic", "text", "its topic; absent: runner<id>"},
      {"target_context", "id",
       "context of a supervisor on another host that runs jobs of this context; default: the same number"},
      {"local", "boolean", "whether it also claims jobs from queues"},
      make_enum_field<RunnerType>("type", "kind of its jobs"),
      {"secret", "text", "sent to its supervisor as bearer token; never shown"}};
  return {
      {"runner.create", "register a runner, or a supervisor on another host", join_params({kNewId}, fields),
       "Runner: the runner, without its secret"},
      {"runner.get",
       "show a runner's record, without its secret",
       {kId, kContext},
       "Runner: the runner, without its secret"},
      {"runner.list",
       "list the runners with their states",
       {kContext},
       "[RunnerState]: runners with state (live, silent, left), host and claims"},
      {"runner.update", "change a runner's record", join_params({kId}, fields),
       "Runner: the runner, without its secret"},
      {"runner.delete",
       "delete a runner without an agent and without waiting work",
       {kId, kContext},
       "Deleted: its key"},
  };
}

std::vector<Request> list_message_requests() {
  const Param caller{"caller_id", "id", "owner; default: the caller"};
  return {
      {"message.create",
       "write a message; with a topic, hand it to that topic",
       {kNewId,
        kContext,
        caller,
        {"message", "text", "its text"},
        make_enum_field<MessageType>("message_type", "kind of its content"),
        make_enum_field<MessageFormatType>("message_format_type", "format of its text"),
        {"timeout", "seconds", "fail unless it is delivered in this time"},
        {"timeout_ack", "seconds", "fail unless the receiver acknowledges it in this time"},
        {"timeout_result", "seconds", "fail and cancel its jobs unless the result is received in this time"},
        {"job", "jobs", "complete jobs with their ids"},
        {"flow", "object", "a flow: name, definition (a flow's JSON as text), env_vars"},
        {"topic", "text", "topic of the runner that receives the message's jobs; default: any runner"},
        {"target_context", "id", "the target context; absent: its own"},
        {"target_address", "text",
         "of the supervisor of that context, on another host; the answer has its target_key, to be signed with it"},
        {"stream_logs", "boolean", "receive log lines of its jobs while they run"}},
       "Message: the message"},
      {"message.send",
       "send a signed message to another context",
       {kId,
        kContext,
        caller,
        {"signature", "text", "by its caller's key; absent: the record has it"},
        {"signer", "text", "the public key"},
        {"algorithm", "text", "ed25519"},
        {"created_at", "unix_s", "the signed time, in Unix seconds"}},
       "Message: the message"},
      {"message.get", "read a message", {kId, kContext, caller}, "Message: the message"},
      {"message.list",
       "list messages, newest first",
       {kContext, make_limit(50)},
       "[MessageRow]: messages without text and jobs"},
      {"message.cancel",
       "cancel a message with its jobs and flow, permanently",
       {kId, kContext, caller},
       "Message: the message"},
      {"message.delete",
       "delete a message that no queue or caller waits for",
       {kId, kContext, caller},
       "Deleted: its key"},
  };
}

constexpr Param kJobOwner{"caller_id", "id", "owner of the job; default: the caller"};

// Returns the parameters of a request that names or describes a job.
std::vector<Param> job_fields(const Param& id) {
  return {id,
          kContext,
          kJobOwner,
          {"script", "text", "script to run"},
          {"payload", "text", "the same as script"},
          {"script_type", "text", "python, v, osis, sal or another executor's name"},
          {"executor", "text", "the same as script_type"},
          {.name = "timeout", .type = "seconds", .help = "maximum run time; default: set by the operator", .min = 1},
          {.name = "retries",
           .type = "count",
           .help = "further attempts after a failure",
           .default_value = 0,
           .min = 0,
           .max = 255},
          {"env_vars", "variables", "environment variables"},
          {"args", "texts", "arguments of the script or program"},
          {"stdin", "content", "standard input, at most 1 MiB"},
          {"files", "contents", "files in /job/files by name, at most 1 MiB each and 4 MiB with stdin"},
          {"prerequisites", "texts", "prerequisites of the job, such as file:/data/x or wait:30s"},
          {"dependends", "ids", "jobs of the same caller that must have finished"},
          {"depends", "ids", "the same as dependends"},
          {"depends_on", "ids", "the same as dependends"},
          {"name", "text", "name for display and for nodes of flows"},
          {"run_at_ms", "unix_ms", "earliest start, in the time of the store"},
          {.name = "priority",
           .type = "integer",
           .help = "jobs with a higher priority are claimed first",
           .default_value = 0,
           .min = -kMaxPriority,
           .max = kMaxPriority},
          {"queue_timeout_ms", "ms", "maximum wait in the queue; 0: no limit"},
          {"idempotency_key", "text", "the same key of the same caller returns the same record"},
          {"concurrency_key", "text", "at most concurrency_limit jobs with the same key run at the same time"},
          {.name = "concurrency_limit",
           .type = "count",
           .help = "maximum number of running jobs with this concurrency_key",
           .default_value = 1,
           .min = 1,
           .max = UINT32_MAX},
          {"inputs", "texts", "artifacts of a job that it depends on: JOB or JOB/ARTIFACT, by id or name"},
          kNotify,
          {"policy", "object", "policy that the job requests for its sandbox (docs/sandbox.md)"},
          kTraceparent};
}

std::vector<Param> job_filters() {
  return {kContext,
          make_enum_choice<JobStatus>("status", "only jobs with this status"),
          {"state", "text", "only jobs with this status or detail, for example queued, timeout, oom"},
          {"name", "text", "only jobs whose name contains this text"},
          {"script_type", "text", "only jobs of this script type"},
          {"caller_id", "id", "only jobs of this actor"},
          {"since_ms", "unix_ms", "only jobs that changed since"}};
}

std::vector<Request> list_job_requests() {
  const Param key{"id", "key", "the job's id, or \"CALLER:ID\"", true};
  const std::vector<Param> job{key, kContext, kJobOwner};
  const std::vector<Param> run_fields = job_fields(
      {"id", "key", "id of a job that job.create has written, or of the new job; default: the next free id"});
  const std::vector<Param> decision =
      join_params(job, {{"name", "text", "name of the approval, without the prefix approval:", true},
                        with_help(kComment, "the reason, stored in the log of the job or in its error")});
  return {
      {"job.create", "write a job's record without queueing it: job.start queues it, a flow adopts it",
       job_fields(kNewId), "Job: the job"},
      {"job.get", "show everything about a job", job, "Job: the job"},
      {"job.list", "list jobs, latest change first", join_params(job_filters(), {make_limit(ListJobs().limit)}),
       "[Job]: jobs without script and result"},
      {"job.start", "queue a job: one that was created, or a new one", run_fields, "JobState: where it is"},
      {"job.run", "queue a job and wait for its end", join_params(run_fields, {kWait}),
       "JobResult: where it is, and its result; ended is false if the wait was over first"},
      {"job.status", "read the state of a job", job, "JobState: where it is"},
      {"job.result", "read the result of a job", job, "JobResult: where it is, and its result"},
      {"job.logs", "read a job's log",
       join_params(job, {{"after_seq", "count", "only lines after this one"},
                         {"since_ms", "unix_ms", "only lines since; a page may begin with the rest of an earlier line"},
                         kTail,
                         make_limit(500, 1000, "maximum number of lines"),
                         make_wait("maximum wait for the first line", 0, 30'000)}),
       "LogPage: lines, ended (no line will follow), after_seq for the next call"},
      {"job.cancel", "cancel a job permanently, in any state", job, "JobState: where it is"},
      {"job.retry", "run a job again that ended as error, as its next attempt", job, "JobState: where it is"},
      {"job.restart",
       "queue an ended job again, unchanged, as a new job of its original caller",
       {key,
        kContext,
        {"idempotency_key", "text", "the same key of the job's caller returns the new job of the first call"}},
       "JobState: where the new job is"},
      {"job.delete", "delete a job that has ended, or was never queued, with its log", job, "Deleted: its key"},
      {"job.approve", "approve the prerequisite approval:NAME of a job outside of a flow", decision,
       "JobState: where it is"},
      {"job.reject", "reject the prerequisite approval:NAME of a job, which then ends as error", decision,
       "JobState: where it is"},
      {"job.explain", "explain the state of a job and the next step", job,
       "JobReason: state, cause, reason, evidence, next"},
      {"job.history", "read the history of a job, attempt by attempt", job,
       "[JobMoment]: at_ms, kind, attempt, runner_id, due_ms, detail"},
  };
}

std::vector<Request> list_artifact_requests() {
  const std::vector<Param> job{{"id", "key", "the job's id, or \"CALLER:ID\"", true}, kContext, kJobOwner};
  return {
      {"artifact.list", "list the files that a job has stored", job,
       "[Artifact]: the files, and whether each can be read now"},
      {"artifact.get", "request a link that downloads a file of a job",
       join_params(job, {{"name", "text", "name of the file, as artifact.list returns it", true}}),
       "ArtifactLink: the file, and a link that is valid for a minute"},
      {"artifact.put",
       "begin the upload of a file for a job",
       {{"bytes", "count", "size of the file in bytes", true},
        {"sha256", "text", "SHA-256 hash of the file, 64 hex digits", true},
        kContext,
        {"caller_id", "id", "caller of the jobs that may use the file; only operators name another than themselves"}},
       "Upload: its reference for `files` of a job, and a link to which the file is sent (PUT) within a minute"},
  };
}

std::vector<Request> list_jobs_requests() {
  return {
      {"jobs.create",
       "write several jobs, or none if one is invalid; an error reports the number of written jobs",
       {{.name = "jobs", .type = "jobs", .help = "jobs as for job.create", .required = true, .max = 1000},
        {"start", "boolean", "also queue the jobs"},
        kContext,
        kJobOwner},
       "[Job]: the jobs"},
      {"jobs.list", "the same as job.list", join_params(job_filters(), {make_limit(ListJobs().limit)}),
       "[Job]: jobs without script and result"},
      {"jobs.page", "list jobs page by page, latest change first",
       join_params(job_filters(),
                   {{"until_ms", "unix_ms", "only jobs that changed until then"},
                    make_limit(ListJobs().limit),
                    {"fields", "texts", "names of fields to return besides ids, key and status; default: all fields"},
                    kPageAfter}),
       "JobsPage: jobs, after (empty: this is the last page), looked_at"},
      {"jobs.wait",
       "wait until one of many jobs has ended",
       {make_wait_list("jobs", "texts", "keys of the jobs, \"CALLER:ID\""), kContext, kWait},
       "[JobState]: those that have ended; none if the wait was over first"},
  };
}

std::vector<Request> list_flow_view_requests() {
  const std::vector<Param> flow{kId, kContext};
  return {
      {"flow.get", "read a flow's record", join_params(flow, {{"definition", "boolean", "include its definition"}}),
       "Flow: the flow"},
      {"flow.dag", "read nodes and edges with their state", flow,
       "FlowDag: status, detail, nodes (FlowNode and more), edges {from, to} of job ids"},
      {"flow.explain", "explain the state of a flow and the next step", flow,
       "[FlowReason]: reasons, the first one first: node, cause, reason, evidence, next"},
      {"flow.timeline", "read the history of a flow, in order",
       join_params(flow, {make_limit(10000, 10000, "maximum number of rows")}),
       "[FlowMoment]: at_ms, revision, node, what"},
      {"flow.result", "read the results of a flow's jobs", flow,
       "FlowResult: status, detail, error, ended, result {<name>.<key>: value}"},
      {"flow.delete", "delete a flow that has ended, with its journal", flow, "Deleted: its key"},
      {"flow.replay", "create a new flow of the same definition, environment and caller",
       join_params(flow, {{"allow_irreversible", "boolean",
                           "allow the flow to repeat completed nodes that are marked irreversible"},
                          kTraceparent}),
       "Flow: the new flow, not started"},
  };
}

std::vector<Request> list_flow_requests() {
  const std::vector<Param> filters{kContext,
                                   {"name", "text", "only flows whose definition has this name"},
                                   make_enum_choice<FlowStatus>("status", "only flows with this status"),
                                   {"state", "text", "only flows in this state: a word of docs/flows.md"},
                                   {"caller_id", "id", "only flows of this actor"},
                                   {"until_ms", "unix_ms", "only flows that were created until then"},
                                   make_limit(ListFlows().limit, 1000, "maximum number of flows")};
  return {
      {"flow.create",
       "create a flow of existing jobs, or of a definition; flow.start starts it",
       {kContext,
        {"caller_id", "id", "owner of the flow; default: the caller"},
        {"jobs", "ids", "jobs of the caller that job.create has written"},
        {"nodes", "object",
         "fields of nodes that are not in the jobs' records, by job id or name: when, on_error, compensate, "
         "supervisor_url, irreversible"},
        {"definition", "any", "instead of jobs: a whole definition (docs/flows.md), or its text in YAML"},
        {"inputs", "object", "values of the inputs that the definition declares, by name"},
        {"name", "text", "name of a flow of jobs"},
        {"env_vars", "variables", "these replace variables of the definition"},
        with_help(kNotify,
                  "receivers of the notification of its end (docs/notify.md), instead of those of the definition"),
        {"idempotency_key", "text", "idempotency key: the same key of the same caller returns the same flow"},
        kTraceparent},
       "Flow: the flow"},
      {"flow.check",
       "report errors and probable mistakes in a definition; creates nothing",
       {{"definition", "any", "a whole definition (docs/flows.md), or its text in YAML or JSON", true}},
       "FlowCheck: ok, problems, warnings"},
      {"flow.list", "list flows, newest first", join_params(filters, {{"before", "id", "only flows before this one"}}),
       "[FlowRow]: flows without definition, nodes and result"},
      {"flows.page", "list flows page by page, newest first", join_params(filters, {kPageAfter}),
       "FlowsPage: flows, after (empty: this is the last page), looked_at, malformed"},
      {"flows.wait",
       "wait until one of many flows has ended",
       {make_wait_list("flows", "ids", "ids of the flows"), kContext, kWait},
       "[FlowResult]: those that have ended; none if the wait was over first"},
  };
}

std::vector<Request> list_flow_control_requests() {
  const Param key{"key", "text", "idempotency key: the same control with the same key changes nothing"};
  const Param node{"node", "text", "a node's name; absent: the whole flow"};
  const Param node_name{"name", "text", "the approval's or node's name", true};
  const std::string_view result = "FlowState: id, status, detail, revision";
  const auto control = [&](std::vector<Param> target) {
    return join_params(join_params({kId, kContext}, target), {kActor, kComment, key});
  };
  return {
      {"flow.start", "begin a flow", {kId, kContext, kActor}, result},
      {"flow.cancel", "cancel a flow: running jobs are requested to end, no node starts", control({}), result},
      {"flow.pause", "pause a flow: running nodes continue, no node starts", control({}), result},
      {"flow.resume", "resume a paused flow, or a node of it that is a pause", control({node}), result},
      {"flow.approve", "approve a node that waits, by the name of the node or of the approval", control({node_name}),
       result},
      {"flow.reject", "reject a node that waits, which then fails", control({node_name}), result},
      {"flow.signal", "send a flow a signal for which nodes wait",
       control({{"name", "text", "the signal's name", true}, {"payload", "any", "payload: JSON, at most 64 KiB"}}),
       result},
      {"flow.retry", "resume a flow from its failed nodes, as their next attempts",
       control({node,
                {"allow_irreversible", "boolean",
                 "allow a new child flow to repeat completed nodes that are marked irreversible"}}),
       result},
      {"approval.list",
       "list approvals and pauses that wait for a person",
       {kContext, {"after", "id", "only flows after this one"}},
       "Questions: questions, after (0: there are no more)"},
  };
}

constexpr Param kWorkflow{"workflow", "text", "name of the workflow; parts can be omitted while the name stays unique",
                          true};

std::vector<Param> instance_params(const std::vector<Param>& more = {}) {
  return join_params({kWorkflow, {"key", "any", "key of the instance; absent: the workflow has no keys"}, kContext},
                     more);
}

std::vector<Request> list_instance_control_requests() {
  const std::vector<Param> decision =
      instance_params({{"intent", "text", "first characters of the intent, if several wait"},
                       with_help(kComment, "the reason, passed to the workflow"),
                       kActor});
  return {
      {"workflow.approve", "approve the pending approval of an instance", decision, "WorkflowAnswer: the intent"},
      {"workflow.reject", "reject the pending approval of an instance", decision, "WorkflowAnswer: the intent"},
      {"workflow.cancel", "end an instance, and the jobs and flows that run for it",
       instance_params({with_help({"reason", "text", ""}, kComment.help)}), "WorkflowCancel: cancelling"},
      {"workflow.remove", "remove a failed instance", instance_params(), "Deleted: workflow and key"},
  };
}

std::vector<Request> list_workflow_requests() {
  return {
      {"workflow.apply",
       "apply a manifest of workflows, unless its instances block the change",
       {{"manifest", "object", "the manifest (docs/workflows)", true},
        {"code", "variables", "Lua modules of the workflows: text by name"},
        {"caller_id", "id", "actor that owns the effects of the workflows; default: the caller"},
        kContext},
       "WorkflowApplied: hash, replaced, owner"},
      {"workflow.send",
       "send an event to the workflows that accept it",
       {{"event", "text", "name of the event; parts can be omitted while the name stays unique", true},
        {"value", "any", "value of the event; must match its schema", true},
        {"workflow", "text", "the manifest, if several manifests accept the event"},
        {"idempotency_key", "text",
         "idempotency key: an event that the same actor sends again with the same key is accepted once"},
        kTraceparent,
        kContext},
       "WorkflowSent: its id and targets"},
      {"workflow.list",
       "list the applied workflows with the states of their instances",
       {kContext},
       "[WorkflowRow]: the workflows, by manifest"},
      {"workflow.cells",
       "list the instances of a workflow",
       {kWorkflow, make_choice("status", "only instances with this status", "running waiting completed failed"),
        make_strict_limit(ListInstances().limit, 10'000),
        with_help(kPageAfter, "the value `cursor` of the last row of the preceding page; absent: the first page"),
        kContext},
       "[WorkflowCell]: instances by key"},
      {"workflow.show", "show an instance: its state, its waiting events, its pending effects", instance_params(),
       "WorkflowInstance: state, intents, mail"},
      {"workflow.timeline", "read the latest facts of an instance",
       instance_params({{"before", "count", "only facts before this height; absent or 0: the latest"},
                        make_strict_limit(kTimelineFacts, 1000, "maximum number of the latest facts")}),
       "[WorkflowFact]: facts, oldest first"},
      {"workflow.logs", "read the output of the jobs of an instance's effects",
       instance_params(
           {kPageAfter, make_strict_limit(kLogFrames, 1000), make_wait("maximum wait for the first frame", 0, 30'000)}),
       "WorkflowLog: frames, after, more, ended"},
      {"workflow.explain", "explain the state of an instance and the next step", instance_params(),
       "[WorkflowReason]: cause, reason, evidence, next"},
      {"workflow.facts",
       "read the journal of a workflow's manifest",
       {kWorkflow, {"after", "count", "only facts after this height"}, make_strict_limit(100, 1000), kContext},
       "WorkflowFacts: height, facts"},
  };
}

std::vector<Request> list_server_requests() {
  const Param queue{"queue", "text", "a script type, or a queue's key", true};
  const Param letter{"letter", "text", "a dead letter, as queue.dead names it", true};
  return {
      {"queue.list", "list the queues", {kContext}, "[Queue]: queue, length, prioritised, paused, facts, wrong_type"},
      {"queue.pause",
       "pause a queue: no job is claimed from it, running jobs continue",
       {queue, kContext},
       "QueueState: queue, paused"},
      {"queue.resume", "resume a paused queue", {queue, kContext}, "QueueState: queue, paused"},
      {"queue.dead",
       "list dead letters: jobs and entries that cannot run, or not again; latest last",
       {kContext, make_limit(100)},
       "[DeadLetter]: letter, job, queue, reason, at_ms"},
      {"queue.requeue", "run a dead letter again", {letter, kContext}, "SettledLetter: letter, requeued"},
      {"queue.drop", "remove a dead letter from the list", {letter, kContext}, "SettledLetter: letter, requeued"},
      {"system.ping", "check that the server answers", {}, "text: pong"},
      {"system.version", "read the version of the server", {}, "Version: version"},
      {"system.info",
       "read role, contexts and state of the server",
       {},
       "ServerInfo: version, role, contexts, calls, refusals, actor, store"},
      {"session.challenge", "request a challenge to sign", {}, "LoginChallenge: challenge, audience, until_ms"},
      {"session.begin",
       "log in by a signed challenge",
       {{"challenge", "text", "as session.challenge has answered", true},
        {"audience", "text", "the origin that it is signed for, as the client calls it: https://jobs.example.org",
         true},
        {"signer", "text", "the actor's public key", true},
        {"algorithm", "text", "ed25519", true},
        {"signature", "text", "of all these (docs/rpc.md, Logins by key)", true}},
       "Session: token, actor, until_ms"},
      {"session.end", "end the session by which it is called", {}, "SessionEnded: actor"},
  };
}

}  // namespace

const std::vector<Request>& requests() {
  static const std::vector<Request> table = [] {
    std::vector<Request> rows;
    for (const auto list :
         {list_actor_requests, list_context_requests, list_runner_requests, list_message_requests, list_job_requests,
          list_artifact_requests, list_jobs_requests, list_flow_requests, list_flow_view_requests,
          list_flow_control_requests, list_workflow_requests, list_instance_control_requests, list_server_requests}) {
      std::vector<Request> part = list();
      std::move(part.begin(), part.end(), std::back_inserter(rows));
    }
    return rows;
  }();
  return table;
}

const Request* find_request(std::string_view name) {
  const auto it =
      std::find_if(requests().begin(), requests().end(), [&](const Request& row) { return row.name == name; });
  return it == requests().end() ? nullptr : &*it;
}

const Param* find_param(const Request& request, std::string_view name) {
  const auto it = std::find_if(request.params.begin(), request.params.end(),
                               [&](const Param& param) { return param.name == name; });
  return it == request.params.end() ? nullptr : &*it;
}

}  // namespace mycojobs::service
