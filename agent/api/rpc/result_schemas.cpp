#include "api/rpc/result_schemas.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "service/request_params.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

// The schema of an object. `members` lists "name:type", separated by blanks; "name!:type" means that the member is
// always present.
struct ResultShape {
  std::string_view name, help, members;
};
constexpr ResultShape kShapes[] = {
    {"Actor", "an actor", "id!:id pubkey:text address:texts created_at:unix_s updated_at:unix_s"},
    {"Context", "a context and the lists of its roles",
     "id!:id admins:ids submitters:ids executors:ids readers:ids notify:any created_at:unix_s updated_at:unix_s"},
    {"Rights", "rights of the caller in a context, for everything and for its own records",
     "actor!:id operator!:boolean context_id!:id create!:boolean read_all!:boolean read_own!:boolean "
     "steer_all!:boolean steer_own!:boolean administer!:boolean"},
    {"Overview",
     "state of a context. ends: jobs that ended in each slot of slot_ms, the latest first; p50_ms, p99_ms, failures "
     "and waits: of looked_at jobs, since since_ms",
     "now_ms!:unix_ms changed_ms!:unix_ms jobs!:integer running!:integer delayed!:integer prerequisites!:integer "
     "held!:integer missing!:integer ended!:integer stored_bytes!:integer quota_bytes!:integer dead!:integer "
     "anomalies!:integer refusals!:integer notices!:integer outbox!:integer inbox!:integer flows!:integer "
     "flows_active!:integer slot_ms!:ms ends!:list "
     "queues!:[QueueTally] runners!:[RunnerTally] looked_at!:integer since_ms!:unix_ms picked_up!:integer p50_ms!:ms "
     "p99_ms!:ms failures!:object waits!:object"},
    {"QueueTally", "a queue, and its next job",
     "queue!:text length!:integer prioritised!:integer paused!:boolean next!:text next_since_ms!:unix_ms"},
    {"RunnerTally",
     "an agent: live, silent or left; artifact_bytes: artifacts of the context on its host, and their quota (0: none)",
     "id!:id state!:text host!:text claims!:integer slots!:integer seen_ms!:unix_ms artifact_bytes!:integer "
     "artifact_quota_bytes!:integer version!:text executors!:texts"},
    {"Verified", "violated rules, the first 1000 of `found`; violation: false is a note",
     "findings!:[VerifyFinding] found!:integer jobs!:integer facts!:integer queues!:integer"},
    {"VerifyFinding", "a violated rule", "violation!:boolean rule!:text subject!:text text!:text"},
    {"Check", "a checked item; state: ok, warning, error; remedy: empty if none is needed",
     "area!:text name!:text state!:text detail!:text remedy!:text"},
    {"Questions", "questions that wait for a decision; after: for the next call",
     "questions!:[Question] after!:integer truncated!:boolean"},
    {"Question", "a question that waits for a decision; answers: the caller may answer it",
     "job:text node:text workflow:text key:any name!:text pause!:boolean asks!:text approvers!:ids answers!:boolean "
     "since_ms!:unix_ms "
     "until_ms!:unix_ms flow:id flow_name:text"},
    {"LoginChallenge", "the challenge to sign until then, and its server",
     "challenge!:text audience!:text until_ms!:unix_ms"},
    {"Session", "a login; token: for the header Authorization", "token!:text actor!:id until_ms!:unix_ms"},
    {"SessionEnded", "actor whose session has ended", "actor!:id"},
    {"Refusal", "a denied request; list: the list that would allow it",
     "number!:integer at_ms!:unix_ms actor!:id action!:text thing!:text list!:text"},
    {"Deleted", "the key of the deleted record", "key!:text deleted!:boolean"},
    {"Runner", "a runner, without its secret",
     "id!:id pubkey:text address:text topic:text local!:boolean type:text created_at:unix_s updated_at:unix_s "
     "detail:text version:text executors:texts slots:integer seen_ms:unix_ms actor_id:id ceiling:text"},
    {"RunnerState", "a runner and its state: live, silent or left",
     "id!:id state!:text host!:text claims!:integer pubkey:text address:text topic:text local!:boolean type:text "
     "detail:text version:text executors:texts slots:integer seen_ms:unix_ms actor_id:id"},
    {"Message", "a message",
     "id!:id caller_id!:id context_id!:id message:text message_type!:text message_format_type!:text timeout:seconds "
     "timeout_ack:seconds timeout_result:seconds job:list status!:text topic:text error:text created_at:unix_s "
     "updated_at:unix_s transport_id:text transport_status:text flow:object flow_result:object signature:text "
     "signer:text algorithm:text "
     "target_context:id target_address:text target_key:text stream_logs:boolean"},
    {"MessageRow", "a message without text and jobs",
     "id!:id caller_id!:id message_type!:text status!:text topic:text error:text created_at:unix_s"},
    {"Job", "a job's record",
     "id!:id caller_id!:id context_id:id key:text script:text script_type:text timeout:seconds retries:integer "
     "env_vars:object result:object prerequisites:texts dependends:ids status!:text created_at:unix_s "
     "updated_at:unix_s name:text flow_id:id detail:text error:text error_info:object attempt:integer "
     "deliveries:integer epoch:integer runner_id:id queued_ms:unix_ms started_ms:unix_ms ended_ms:unix_ms usage:object "
     "layers:text receipt:object run_at_ms:unix_ms priority:integer queue_timeout_ms:ms idempotency_key:text "
     "concurrency_key:text concurrency_limit:integer inputs:texts args:texts stdin:object files:object "
     "artifacts:object artifacts_dropped:list "
     "policy:object notify:any "
     "traceparent:text changed_ms:unix_ms"},
    {"JobState", "state of a job; 0 or empty: not yet",
     "key!:text id!:id caller_id!:id context_id!:id status!:text detail!:text error!:text ended!:boolean "
     "attempt!:integer runner_id!:integer queued_ms!:unix_ms started_ms!:unix_ms ended_ms!:unix_ms"},
    {"JobResult", "state and result of a job",
     "key!:text id!:id caller_id!:id context_id!:id status!:text detail!:text error!:text ended!:boolean "
     "attempt!:integer runner_id!:integer queued_ms!:unix_ms started_ms!:unix_ms ended_ms!:unix_ms result!:object "
     "error_info:object usage:object artifacts:object artifacts_dropped:list layers:text receipt:object"},
    {"Artifact",
     "a file that a job has stored; runner_id: the runner that has it (0: unknown); problem: why it cannot be read now",
     "name!:text bytes!:integer sha256!:text media_type!:text executable!:boolean runner_id!:integer readable!:boolean "
     "problem!:text"},
    {"ArtifactLink", "a link to a file, relative to the address of the server; no token is needed until until_ms",
     "name!:text bytes!:integer sha256!:text media_type!:text executable!:boolean runner_id!:integer readable!:boolean "
     "problem!:text link!:text until_ms!:unix_ms"},
    {"Upload", "an upload; link: where to send the file (PUT), relative to the address of the server",
     "upload!:text link!:text until_ms!:unix_ms"},
    {"JobsPage", "a page of jobs; after: of the next one", "jobs!:[Job] after!:text looked_at!:integer"},
    {"JobMoment", "history of a job",
     "at_ms!:unix_ms kind!:text attempt:integer runner_id:id due_ms:unix_ms detail:text"},
    {"JobReason", "reason of the state of a job",
     "key!:text state!:text cause!:text reason!:text evidence!:any next!:any"},
    {"LogLine", "a line of a log; stream: stdout, stderr, system",
     "ts_ms!:unix_ms seq!:integer stream!:text text!:text"},
    {"LogPage", "lines of a log; ended: no line will follow", "lines!:[LogLine] ended!:boolean after_seq!:integer"},
    {"Flow", "a flow's record",
     "id!:id caller_id!:id context_id!:id jobs:ids env_vars:object result:object status!:text created_at:unix_s "
     "updated_at:unix_s name:text detail:text definition:any definition_hash:text error:text nodes:list "
     "started_ms:unix_ms ended_ms:unix_ms parent:text notify:any traceparent:text"},
    {"FlowRow", "a flow in the list; retired: its record was deleted",
     "id!:id name!:text at_ms!:unix_ms retired!:boolean status!:text caller_id:id detail:text"},
    {"FlowsPage", "a page of flows; after: of the next one",
     "flows!:[FlowRow] after!:text looked_at!:integer malformed!:integer"},
    {"FlowState", "state of a flow", "id!:id status!:text detail!:text revision!:integer"},
    {"FlowResult", "results of a flow's jobs, by <name>.<key>",
     "id!:id status!:text detail!:text error!:text ended!:boolean result!:object"},
    {"FlowNode", "a node of a flow and its state",
     "id!:id name!:text depends!:ids prerequisites!:texts supervisor_url!:text node_status!:text kind!:text "
     "detail!:text error!:text attempt!:integer started_ms!:unix_ms ended_ms!:unix_ms runner_id!:integer job!:text "
     "since_ms!:unix_ms until_ms!:unix_ms on_call!:boolean gates!:texts approvers!:ids asks!:text child!:integer"},
    {"FlowCheck", "result of the check of a definition: whether it can run, errors and probable mistakes",
     "ok!:boolean problems!:[FlowProblem] warnings!:[FlowProblem] nodes!:integer"},
    {"FlowProblem", "an error or probable mistake of a definition; line, column: 0 is unknown",
     "path!:text message!:text line!:integer column!:integer"},
    {"FlowEdge", "the job `to` needs the job `from`", "from!:id to!:id"},
    {"FlowDag", "nodes and edges of a flow",
     "id!:id caller_id!:id context_id!:id name!:text status!:text detail!:text revision!:integer nodes!:[FlowNode] "
     "edges!:[FlowEdge] anomalies!:list now_ms!:unix_ms"},
    {"FlowReason", "reason of the state of a flow or of its node",
     "node!:text cause!:text reason!:text evidence!:any next!:any"},
    {"FlowMoment", "history of a flow", "at_ms!:unix_ms revision!:integer node!:text what!:text"},
    {"WorkflowApplied", "the applied manifest; replaced: hash of the previous manifest",
     "manifest!:text hash!:text replaced!:text repeated!:boolean owner!:id"},
    {"WorkflowSent", "the accepted event", "manifest!:text event!:text id!:text repeated!:boolean targets!:texts"},
    {"WorkflowRow", "a workflow, and the number of its instances by state",
     "workflow!:text manifest!:text hash!:text owner!:id keyed!:boolean takes!:texts instances!:object "
     "older_code!:integer inbox!:integer height!:integer refused_receipts!:integer"},
    {"WorkflowCell", "an instance",
     "workflow!:text key!:any status!:text steps!:integer mail!:integer pending!:integer born!:integer last!:integer "
     "state_bytes!:integer manifest!:text cursor!:text"},
    {"WorkflowInstance", "an instance, its state and its pending effects",
     "workflow!:text key!:any status!:text steps!:integer mail!:integer pending!:integer born!:integer last!:integer "
     "state_bytes!:integer manifest!:text world!:text state!:any state_hash:text intents!:list waiting_mail!:list "
     "failure:text message:text refused!:integer"},
    {"WorkflowFact", "a fact of the journal; further fields depend on its kind",
     "height!:integer at_ms!:unix_ms kind!:text cells!:texts"},
    {"WorkflowFacts", "facts of the journal, and its height", "world!:text height!:integer facts!:[WorkflowFact]"},
    {"WorkflowFrame", "an output line of an effect's job; dropped: number of lines lost from here on",
     "effect!:text intent!:text job:text flow:text sequence!:integer ts_ms!:unix_ms stream!:text text!:text "
     "dropped:integer"},
    {"WorkflowLog",
     "frames by effect; after: for the next page; more: there is a next page; ended: no line will follow",
     "frames!:[WorkflowFrame] after!:text more!:boolean ended!:boolean"},
    {"WorkflowReason", "reason of the state of an instance", "cause!:text reason!:text evidence!:any next!:any"},
    {"WorkflowAnswer", "the accepted answer", "intent!:text approved!:boolean"},
    {"WorkflowCancel", "the accepted cancellation", "cancelling!:boolean"},
    {"Queue", "a queue",
     "queue!:text length!:integer prioritised!:integer paused!:boolean facts!:integer wrong_type:text"},
    {"DeadLetter", "an entry that cannot run; queue: its former queue, empty if unknown",
     "letter!:text job!:text queue!:text reason!:text at_ms!:unix_ms"},
    {"SettledLetter", "a dead letter that was removed from the list", "letter!:text requeued!:boolean"},
    {"QueueState", "whether a queue is paused", "queue!:text paused!:boolean"},
    {"Version", "the server's version", "version!:text"},
    {"ServerInfo", "served contexts and state of a server",
     "version!:text role!:text contexts!:ids started_ms!:unix_ms calls!:integer refusals!:integer actor!:id "
     "store!:object"},
};

const ResultShape* find_shape(std::string_view name) {
  const auto* it = std::find_if(std::begin(kShapes), std::end(kShapes),
                                [&](const ResultShape& shape) { return shape.name == name; });
  return it == std::end(kShapes) ? nullptr : it;
}

std::string_view element_type(std::string_view type) {
  return type.starts_with('[') && type.ends_with(']') ? type.substr(1, type.size() - 2) : type;
}

json shape_to_schema(const ResultShape& shape) {
  json properties = json::object(), required = json::array();
  for (std::string_view members = shape.members; !members.empty();) {
    const auto end = std::min(members.find(' '), members.size());
    const std::string_view member = members.substr(0, end);
    members.remove_prefix(std::min(end + 1, members.size()));
    const auto colon = member.find(':');
    const bool is_required = member[colon - 1] == '!';
    const std::string name(member.substr(0, is_required ? colon - 1 : colon));
    properties[name] = get_result_schema(member.substr(colon + 1));
    if (is_required) required.push_back(name);
  }
  return {{"type", "object"},
          {"description", shape.help},
          {"properties", std::move(properties)},
          {"required", std::move(required)}};
}

}  // namespace

bool is_result_type(std::string_view type) {
  return find_shape(element_type(type)) != nullptr || service::is_param_type(element_type(type));
}

json get_result_schema(std::string_view type) {
  if (element_type(type) != type) return {{"type", "array"}, {"items", get_result_schema(element_type(type))}};
  if (find_shape(type) != nullptr) return {{"$ref", "#/components/schemas/" + std::string(type)}};
  return service::get_type_schema(type);
}

json list_result_schemas() {
  json schemas = json::object();
  for (const ResultShape& shape : kShapes) schemas[std::string(shape.name)] = shape_to_schema(shape);
  return schemas;
}

}  // namespace mycojobs::api
