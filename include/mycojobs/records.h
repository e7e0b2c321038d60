// The six records, their enums and keys. Source: the models specification (Actor, Context, Flow, Message, Runner,
// RunnerJob) and the coordinator's FlowNode. A name that these documents spell is spelled so on the wire.
//
// In Redis a record is one hash: numbers as decimal text, booleans true/false, enums as the bare lower-case word, lists
// and maps as compact JSON text. Absent and empty are read alike. Fields that we do not know are kept in `unknown` and
// written back as they were: another client may own them. Times are Unix seconds unless the name ends in _ms.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mycojobs {

using Id = std::uint32_t;                                         // above 0
using Fields = std::vector<std::pair<std::string, std::string>>;  // a hash as Redis returns it; bytes, not only UTF-8
using TextMap = std::map<std::string, std::string>;

enum class FlowStatus { dispatched, started, error, finished };
enum class JobStatus { dispatched, waiting_for_prerequisites, started, error, finished };
enum class MessageStatus { dispatched, acknowledged, error, processed };
enum class MessageType { job, chat, mail };
enum class MessageFormatType { html, text, md };
enum class RunnerType { v, python, osis, rust };
enum class NodeStatus { pending, ready, dispatched, running, completed, failed, cancelled };
enum class LogStream { out, err, system };  // words: stdout, stderr, system

// word(JobStatus::started) == "started"; parse<JobStatus>("started"). One table per enum, in domain/enums.cpp.
std::string_view word(FlowStatus);
std::string_view word(JobStatus);
std::string_view word(MessageStatus);
std::string_view word(MessageType);
std::string_view word(MessageFormatType);
std::string_view word(RunnerType);
std::string_view word(NodeStatus);
std::string_view word(LogStream);
template <class Enum>
std::optional<Enum> parse(std::string_view word);

// ScriptType is open: osis, sal, v, python, and any name an operator configures ([a-z][a-z0-9_-]{0,31}).
bool is_script_type(std::string_view name);
std::string queue_key(std::string_view script_type);  // "queue:python"

struct Actor {
  Id id = 0;
  std::string pubkey;
  std::vector<std::string> address;
  std::uint32_t created_at = 0, updated_at = 0;
  Fields unknown;
};

struct Context {
  Id id = 0;  // also the number of the Redis database
  std::vector<Id> admins, readers, executors;
  std::vector<Id> submitters;  // of our own: may send work without being able to delete it (agent/domain/rights.h)
  std::string notify;          // JSON list: who hears of ends here (agent/domain/notify.h)
  std::uint32_t created_at = 0, updated_at = 0;
  Fields unknown;
};

struct Job {
  Id id = 0, caller_id = 0, context_id = 0;
  std::string script;
  std::string script_type;
  std::optional<std::uint32_t> timeout;  // seconds of wall clock, 1 or more; absent: the operator's default
  std::uint8_t retries = 0;
  TextMap env_vars, result;
  std::vector<std::string> prerequisites;
  std::vector<Id> dependends;
  JobStatus status = JobStatus::dispatched;
  std::uint32_t created_at = 0, updated_at = 0;
  // Fields of our own.
  std::string name;
  Id flow_id = 0;
  std::string detail;      // finer state: queued, claimed, running, ok, exit, exception, timeout, oom, dead_letter, ...
  std::string error;       // one line
  std::string error_info;  // JSON: type, message, traceback, exit, signal, violation
  std::uint32_t attempt = 0, deliveries = 0;
  std::uint64_t epoch = 0;
  Id runner_id = 0;
  std::string claim_id;
  std::uint64_t lease_until_ms = 0, queued_ms = 0, started_ms = 0, ended_ms = 0;
  std::string usage;    // JSON, as in usage_json()
  std::string layers;   // layers of the sandbox that were in force, separated by blanks
  std::string receipt;  // JSON
  // What its submitter may ask of the dispatch.
  std::uint64_t run_at_ms = 0;          // not before this moment, by the store's clock
  std::int32_t priority = 0;            // -100 to 100; higher is taken first; within one, first come first served
  std::uint64_t queue_timeout_ms = 0;   // longest wait in its queue; 0: any
  std::string idempotency_key;          // of its caller: a second submission with it is the first one again
  std::string concurrency_key;          // at most concurrency_limit jobs of a context with this key run at one time
  std::uint32_t concurrency_limit = 0;  // 0: 1
  std::vector<std::string>
      inputs;             // artifacts of its dependends that it wants: "JOB NAME" (all) or "JOB NAME/ARTIFACT"
  std::string artifacts;  // JSON object: name -> {sha256, bytes, text}; written with its end
  std::string artifacts_dropped = {};  // JSON list: files that it left and that were not kept (domain/artifact_list.h)
  std::string given;        // JSON object: what dependencies that ran elsewhere left (agent/domain/artifact_list.h)
  std::string policy;       // JSON object: what it asks of its sandbox (agent/domain/policy.h); empty: nothing
  std::string notify;       // JSON list: who hears of its end (agent/domain/notify.h)
  std::string traceparent;  // where it stands in a trace (agent/domain/trace_context.h); empty: in none
  std::vector<std::string> result_json = {};  // keys of `result` whose text is JSON; the others are texts
  Fields unknown;
};

struct FlowNode {
  Id id = 0;  // the job's
  std::string name;
  std::vector<Id> depends;
  std::vector<std::string> prerequisites;
  std::string supervisor_url;
  NodeStatus node_status = NodeStatus::pending;
};

struct Flow {
  Id id = 0, caller_id = 0, context_id = 0;
  std::vector<Id> jobs;
  TextMap env_vars, result;
  FlowStatus status = FlowStatus::dispatched;
  std::uint32_t created_at = 0, updated_at = 0;
  // Fields of our own.
  std::string name, detail, definition, definition_hash, error;
  std::vector<FlowNode> nodes;
  std::uint64_t started_ms = 0, ended_ms = 0;
  std::string parent;
  std::string notify, traceparent;            // as of a job
  std::vector<std::string> result_json = {};  // as of a job
  Fields unknown;
};

struct Log {
  std::uint64_t ts_ms = 0;
  std::uint64_t seq = 0;
  LogStream stream = LogStream::out;
  std::string text;  // bytes as the job wrote them
};

struct Message {
  Id id = 0, caller_id = 0, context_id = 0;
  std::string message;
  MessageType message_type = MessageType::job;
  MessageFormatType message_format_type = MessageFormatType::text;
  std::uint32_t timeout = 0, timeout_ack = 0, timeout_result = 0;
  std::vector<Job> job;
  std::optional<Flow> flow;
  std::vector<Log> logs;
  MessageStatus status = MessageStatus::dispatched;
  std::uint32_t created_at = 0, updated_at = 0;
  std::vector<FlowNode> nodes;
  Id flow_id = 0;
  std::string transport_id, transport_status;
  // Fields of our own.
  std::string signature, algorithm, signer, target_address, topic, error;
  std::string target_key;  // of the coordinator at target_address, for which it is signed
  Id target_context = 0;
  bool stream_logs = false;  // lines of its jobs come back while they run
  std::string traceparent;   // as of a job, for those of its jobs that have none
  Fields unknown;
};

struct Runner {
  Id id = 0;
  std::string pubkey, address;
  std::string topic;   // default runner<id>
  bool local = false;  // true: takes from queues too; false: from its topic only
  std::optional<RunnerType> type;
  std::string secret;
  std::uint32_t created_at = 0, updated_at = 0;
  // Fields of our own.
  std::string detail, version;
  Id target_context = 0;  // of one elsewhere: whose jobs of ours it runs; 0: the same number
  std::vector<std::string> executors;
  std::uint32_t slots = 0;
  std::uint64_t seen_ms = 0;
  Id actor_id = 0;
  Fields unknown;
};

// actor:12, context:7, flow:33, message:12:101, runner:20, job:12:2001
std::string redis_key(const Actor&);
std::string redis_key(const Context&);
std::string redis_key(const Flow&);
std::string redis_key(const Message&);
std::string redis_key(const Runner&);
std::string redis_key(const Job&);
std::string job_key(Id caller, Id job);

}  // namespace mycojobs
