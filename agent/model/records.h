// The six records with their enums and keys. Source: the models specification (Actor, Context, Flow, Message, Runner,
// RunnerJob) and the coordinator's FlowNode. Names on the wire are spelled as in these documents.
//
// A record is one hash in Redis: numbers as decimal text, booleans as true/false, enums as their lower-case word, lists
// and maps as compact JSON text. A missing field is equal to an empty field. Unknown fields are kept in `unknown` and
// written back unchanged, because another client may use them. Times are Unix seconds unless the name ends in _ms.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/limits.h"
#include "model/states.h"

namespace mycojobs {

using Id = std::uint32_t;                                         // above 0
using Fields = std::vector<std::pair<std::string, std::string>>;  // a hash as returned by Redis; binary-safe
using TextMap = std::map<std::string, std::string>;

// Keys and channels of mycojobs itself begin with this prefix (store/keys.toml). Jobs may not name them.
inline constexpr std::string_view kInternalKeyPrefix = "mj:";

// JobStatus, FlowStatus, MessageStatus and NodeStatus: agent/model/states.toml.
enum class MessageType { job, chat, mail };
enum class MessageFormatType { html, text, md };
enum class RunnerType { v, python, osis, rust };
enum class LogStream { out, err, system };  // written as stdout, stderr and system

// Conversions: to_string(JobStatus::started) == "started"; parse<JobStatus>("started") == JobStatus::started.
// The names are in agent/model/states.toml and model/enums.cpp.
std::string_view to_string(FlowStatus);
std::string_view to_string(JobStatus);
std::string_view to_string(MessageStatus);
std::string_view to_string(MessageType);
std::string_view to_string(MessageFormatType);
std::string_view to_string(RunnerType);
std::string_view to_string(NodeStatus);
std::string_view to_string(LogStream);
template <class Enum>
std::optional<Enum> parse(std::string_view word);

// ScriptType is an open set: osis, sal, v, python, and names that an operator configures ([a-z][a-z0-9_-]{0,31}).
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
  Id id = 0;  // also the number of the Redis database, unless the configuration names another
  std::vector<Id> admins, readers, executors;
  std::vector<Id> submitters;  // an extension: they may submit work, but not delete it (agent/security/rights.h)
  std::string notify;          // JSON list: targets of notifications for this context (agent/model/notify_targets.h)
  std::uint32_t created_at = 0, updated_at = 0;
  Fields unknown;
};

struct SubmittedFiles;  // model/submitted_files.h

struct Job {
  Id id = 0, caller_id = 0, context_id = 0;
  std::string script;
  std::string script_type;
  std::optional<std::uint32_t> timeout;  // seconds of wall clock, 1 or more; nullopt means the operator's default
  std::uint8_t retries = 0;
  TextMap env_vars, result;
  std::vector<std::string> prerequisites;
  std::vector<Id> dependends;
  JobStatus status = JobStatus::dispatched;
  std::uint32_t created_at = 0, updated_at = 0;
  // Extensions of the specification.
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
  std::string layers;   // active sandbox layers, separated by spaces
  std::string receipt;  // JSON
  // Dispatch options of the submitter.
  std::uint64_t run_at_ms = 0;  // earliest start, by the store's clock
  // -kMaxPriority to kMaxPriority; higher is claimed first; the order within a priority is first in, first out.
  std::int32_t priority = 0;
  std::uint64_t queue_timeout_ms = 0;  // maximum wait in the queue; 0 means no limit
  std::string idempotency_key;         // unique per caller: a second submission with the key returns the first job
  std::string concurrency_key;         // at most concurrency_limit jobs with this key run at the same time in a context
  std::uint32_t concurrency_limit = 0;  // 0 means 1
  // Requested artifacts of its dependends: "JOB NAME" (all) or "JOB NAME/ARTIFACT".
  std::vector<std::string> inputs;
  std::string artifacts;               // JSON object: name -> {sha256, bytes, text}; written at the end of the job
  std::string artifacts_dropped = {};  // JSON list: files that were not stored (model/artifact.h)
  // JSON object: results of dependencies that ran on another supervisor (agent/model/artifact.h). The field is `given`.
  std::string remote_inputs;
  std::string policy;       // JSON object: the requested policy (agent/model/policy_json.h), or empty
  std::string notify;       // JSON list: targets of notifications of its end (agent/model/notify_targets.h)
  std::string traceparent;  // position in a trace (agent/model/trace_context.h), or empty if the job is not traced
  std::vector<std::string> result_json = {};  // keys of `result` whose value is JSON; other values are plain text
  std::vector<std::string> args = {};         // arguments of the script or program
  // JSON objects: size and SHA-256 of the standard input, and of each file by its name (model/submitted_files.h). The
  // fields are `stdin` and `files`.
  std::string stdin_description = {}, file_descriptions = {};
  // Contents of the standard input and of the files. Not a field of the record: the contents have a key of their own.
  // Null if the job has no such files, or if the contents were not read.
  std::shared_ptr<const SubmittedFiles> submitted_files = nullptr;
  Fields unknown;
};

struct FlowNode {
  Id id = 0;  // id of the job
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
  // Extensions of the specification.
  std::string name, detail, definition, definition_hash, error;
  std::vector<FlowNode> nodes;
  std::uint64_t started_ms = 0, ended_ms = 0;
  std::string parent;
  std::string notify, traceparent;            // as in Job
  std::vector<std::string> result_json = {};  // as in Job
  Fields unknown;
};

struct Log {
  std::uint64_t ts_ms = 0;
  std::uint64_t seq = 0;
  LogStream stream = LogStream::out;
  std::string text;  // bytes as the job wrote them
  // How many numbers the line takes, up to `seq`. Behind the head of a run's output numbers count bytes, so that a jump
  // of the numbers is the number of bytes that were dropped. 0: one number, and no byte was dropped before the line.
  std::uint64_t size = 0;
  bool begins_run = false;  // the line that the store writes between the output of two runs
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
  // Extensions of the specification.
  std::string signature, algorithm, signer, target_address, topic, error;
  std::string target_key;  // key of the coordinator at target_address; part of the signed content
  Id target_context = 0;
  bool stream_logs = false;  // log lines of its jobs are returned while they run
  std::string traceparent;   // as in Job; used for its jobs without a traceparent
  Fields unknown;
};

struct Runner {
  Id id = 0;
  std::string pubkey, address;
  std::string topic;   // default runner<id>
  bool local = false;  // true if it claims from queues and its topic, false if from its topic only
  std::optional<RunnerType> type;
  std::string secret;
  std::uint32_t created_at = 0, updated_at = 0;
  // Extensions of the specification.
  std::string detail, version;
  Id target_context = 0;  // context of a remote runner in which the jobs run; 0 means the same number
  std::vector<std::string> executors;
  std::uint32_t slots = 0;
  std::uint64_t seen_ms = 0;
  Id actor_id = 0;
  Fields unknown;
};

// Examples: actor:12, context:7, flow:33, message:12:101, runner:20, job:12:2001.
std::string redis_key(const Actor&);
std::string redis_key(const Context&);
std::string redis_key(const Flow&);
std::string redis_key(const Message&);
std::string redis_key(const Runner&);
std::string redis_key(const Job&);
std::string job_key(Id caller, Id job);

}  // namespace mycojobs
