// One table of fields per record, with the name in the stored form and the member. visit(record, visitor) calls
// visitor(name, member) or visitor(name, member, JsonTextStyle) for each field, in the order in which fields are
// written. Only codec.cpp includes this file.
#pragma once

#include <array>
#include <string_view>
#include <type_traits>
#include <utility>

#include "model/records.h"

namespace mycojobs {

// The JSON form of a field whose value is text.
enum class JsonTextStyle {
  plain,        // text, or the form of the type if the field is not text
  json_object,  // text in the record and in the hash, an object in JSON
  json_any,     // text in the record and in the hash, an object or a list in JSON
};

template <class R, class Record>
concept IsRecord = std::is_same_v<std::remove_const_t<R>, Record>;
template <class R>
concept AnyRecord = IsRecord<R, Actor> || IsRecord<R, Context> || IsRecord<R, Job> || IsRecord<R, FlowNode> ||
    IsRecord<R, Flow> || IsRecord<R, Log> || IsRecord<R, Message> || IsRecord<R, Runner>;

template <IsRecord<Actor> R, class Visitor>
void visit(R& record, Visitor visitor) {
  visitor("id", record.id);
  visitor("pubkey", record.pubkey);
  visitor("address", record.address);
  visitor("created_at", record.created_at);
  visitor("updated_at", record.updated_at);
}

template <IsRecord<Context> R, class Visitor>
void visit(R& record, Visitor visitor) {
  visitor("id", record.id);
  visitor("admins", record.admins);
  visitor("readers", record.readers);
  visitor("executors", record.executors);
  visitor("submitters", record.submitters);
  visitor("notify", record.notify, JsonTextStyle::json_any);
  visitor("created_at", record.created_at);
  visitor("updated_at", record.updated_at);
}

template <IsRecord<Job> R, class Visitor>
void visit(R& record, Visitor visitor) {
  visitor("id", record.id);
  visitor("caller_id", record.caller_id);
  visitor("context_id", record.context_id);
  visitor("script", record.script);
  visitor("script_type", record.script_type);
  visitor("timeout", record.timeout);
  visitor("retries", record.retries);
  visitor("env_vars", record.env_vars);
  visitor("result", record.result);
  visitor("prerequisites", record.prerequisites);
  visitor("dependends", record.dependends);
  visitor("status", record.status);
  visitor("created_at", record.created_at);
  visitor("updated_at", record.updated_at);
  visitor("name", record.name);
  visitor("flow_id", record.flow_id);
  visitor("detail", record.detail);
  visitor("error", record.error);
  visitor("error_info", record.error_info, JsonTextStyle::json_object);
  visitor("attempt", record.attempt);
  visitor("deliveries", record.deliveries);
  visitor("epoch", record.epoch);
  visitor("runner_id", record.runner_id);
  visitor("claim_id", record.claim_id);
  visitor("lease_until_ms", record.lease_until_ms);
  visitor("queued_ms", record.queued_ms);
  visitor("started_ms", record.started_ms);
  visitor("ended_ms", record.ended_ms);
  visitor("usage", record.usage, JsonTextStyle::json_object);
  visitor("layers", record.layers);
  visitor("receipt", record.receipt, JsonTextStyle::json_object);
  visitor("run_at_ms", record.run_at_ms);
  visitor("priority", record.priority);
  visitor("queue_timeout_ms", record.queue_timeout_ms);
  visitor("idempotency_key", record.idempotency_key);
  visitor("concurrency_key", record.concurrency_key);
  visitor("concurrency_limit", record.concurrency_limit);
  visitor("policy", record.policy, JsonTextStyle::json_object);
  visitor("inputs", record.inputs);
  visitor("artifacts", record.artifacts, JsonTextStyle::json_object);
  visitor("artifacts_dropped", record.artifacts_dropped, JsonTextStyle::json_any);
  visitor("result_json", record.result_json);
  visitor("given", record.remote_inputs, JsonTextStyle::json_object);
  visitor("notify", record.notify, JsonTextStyle::json_any);
  visitor("traceparent", record.traceparent);
}

template <IsRecord<FlowNode> R, class Visitor>
void visit(R& record, Visitor visitor) {
  visitor("id", record.id);
  visitor("name", record.name);
  visitor("depends", record.depends);
  visitor("prerequisites", record.prerequisites);
  visitor("supervisor_url", record.supervisor_url);
  visitor("node_status", record.node_status);
}

template <IsRecord<Flow> R, class Visitor>
void visit(R& record, Visitor visitor) {
  visitor("id", record.id);
  visitor("caller_id", record.caller_id);
  visitor("context_id", record.context_id);
  visitor("jobs", record.jobs);
  visitor("env_vars", record.env_vars);
  visitor("result", record.result);
  visitor("status", record.status);
  visitor("created_at", record.created_at);
  visitor("updated_at", record.updated_at);
  visitor("name", record.name);
  visitor("detail", record.detail);
  visitor("definition", record.definition);
  visitor("definition_hash", record.definition_hash);
  visitor("error", record.error);
  visitor("nodes", record.nodes);
  visitor("started_ms", record.started_ms);
  visitor("ended_ms", record.ended_ms);
  visitor("parent", record.parent);
  visitor("result_json", record.result_json);
  visitor("notify", record.notify, JsonTextStyle::json_any);
  visitor("traceparent", record.traceparent);
}

template <IsRecord<Log> R, class Visitor>
void visit(R& record, Visitor visitor) {
  visitor("ts_ms", record.ts_ms);
  visitor("seq", record.seq);
  visitor("stream", record.stream);
  visitor("text", record.text);
}

template <IsRecord<Message> R, class Visitor>
void visit(R& record, Visitor visitor) {
  visitor("id", record.id);
  visitor("caller_id", record.caller_id);
  visitor("context_id", record.context_id);
  visitor("message", record.message);
  visitor("message_type", record.message_type);
  visitor("message_format_type", record.message_format_type);
  visitor("timeout", record.timeout);
  visitor("timeout_ack", record.timeout_ack);
  visitor("timeout_result", record.timeout_result);
  visitor("job", record.job);
  visitor("flow", record.flow);
  visitor("logs", record.logs);
  visitor("status", record.status);
  visitor("created_at", record.created_at);
  visitor("updated_at", record.updated_at);
  visitor("nodes", record.nodes);
  visitor("flow_id", record.flow_id);
  visitor("transport_id", record.transport_id);
  visitor("transport_status", record.transport_status);
  visitor("signature", record.signature);
  visitor("algorithm", record.algorithm);
  visitor("signer", record.signer);
  visitor("target_context", record.target_context);
  visitor("target_address", record.target_address);
  visitor("target_key", record.target_key);
  visitor("topic", record.topic);
  visitor("error", record.error);
  visitor("stream_logs", record.stream_logs);
  visitor("traceparent", record.traceparent);
}

template <IsRecord<Runner> R, class Visitor>
void visit(R& record, Visitor visitor) {
  visitor("id", record.id);
  visitor("pubkey", record.pubkey);
  visitor("address", record.address);
  visitor("topic", record.topic);
  visitor("local", record.local);
  visitor("type", record.type);
  visitor("secret", record.secret);
  visitor("created_at", record.created_at);
  visitor("updated_at", record.updated_at);
  visitor("target_context", record.target_context);
  visitor("detail", record.detail);
  visitor("version", record.version);
  visitor("executors", record.executors);
  visitor("slots", record.slots);
  visitor("seen_ms", record.seen_ms);
  visitor("actor_id", record.actor_id);
}

// A log line is written with all fields, including empty ones, because readers of a stream expect every field in each
// line.
template <class R>
inline constexpr bool kWritesEmptyFields = std::is_same_v<R, Log>;

// Alternative field names that requests may use, with the real names.
template <class R>
inline constexpr std::array<std::pair<std::string_view, std::string_view>, 0> kAliases{};
template <>
inline constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kAliases<Job>{{
    {"payload", "script"},
    {"executor", "script_type"},
    {"depends", "dependends"},
    {"depends_on", "dependends"},
}};

}  // namespace mycojobs
