// One table of fields per record, with the name in the stored form and the member. visit(record, see) calls see(name,
// member) or see(name, member, Style) for each field, in the order in which fields are written. Only codec.cpp includes
// this file.
#pragma once

#include <array>
#include <string_view>
#include <type_traits>
#include <utility>

#include "model/records.h"

namespace mycojobs {

enum class Style {
  plain,
  json_object,  // text in the record and in the hash, an object in JSON
  json_any,     // as json_object, but an object or a list
};

template <class R, class Record>
concept IsRecord = std::is_same_v<std::remove_const_t<R>, Record>;
template <class R>
concept AnyRecord = IsRecord<R, Actor> || IsRecord<R, Context> || IsRecord<R, Job> || IsRecord<R, FlowNode> ||
    IsRecord<R, Flow> || IsRecord<R, Log> || IsRecord<R, Message> || IsRecord<R, Runner>;

template <IsRecord<Actor> R, class See>
void visit(R& r, See see) {
  see("id", r.id), see("pubkey", r.pubkey), see("address", r.address);
  see("created_at", r.created_at), see("updated_at", r.updated_at);
}

template <IsRecord<Context> R, class See>
void visit(R& r, See see) {
  see("id", r.id), see("admins", r.admins), see("readers", r.readers), see("executors", r.executors);
  see("submitters", r.submitters), see("notify", r.notify, Style::json_any), see("created_at", r.created_at),
      see("updated_at", r.updated_at);
}

template <IsRecord<Job> R, class See>
void visit(R& r, See see) {
  see("id", r.id), see("caller_id", r.caller_id), see("context_id", r.context_id);
  see("script", r.script), see("script_type", r.script_type), see("timeout", r.timeout), see("retries", r.retries);
  see("env_vars", r.env_vars), see("result", r.result);
  see("prerequisites", r.prerequisites), see("dependends", r.dependends), see("status", r.status);
  see("created_at", r.created_at), see("updated_at", r.updated_at);
  see("name", r.name), see("flow_id", r.flow_id), see("detail", r.detail), see("error", r.error);
  see("error_info", r.error_info, Style::json_object), see("attempt", r.attempt), see("deliveries", r.deliveries);
  see("epoch", r.epoch), see("runner_id", r.runner_id), see("claim_id", r.claim_id);
  see("lease_until_ms", r.lease_until_ms), see("queued_ms", r.queued_ms);
  see("started_ms", r.started_ms), see("ended_ms", r.ended_ms);
  see("usage", r.usage, Style::json_object), see("layers", r.layers), see("receipt", r.receipt, Style::json_object);
  see("run_at_ms", r.run_at_ms), see("priority", r.priority), see("queue_timeout_ms", r.queue_timeout_ms);
  see("idempotency_key", r.idempotency_key), see("concurrency_key", r.concurrency_key);
  see("concurrency_limit", r.concurrency_limit), see("policy", r.policy, Style::json_object);
  see("inputs", r.inputs), see("artifacts", r.artifacts, Style::json_object);
  see("artifacts_dropped", r.artifacts_dropped, Style::json_any), see("result_json", r.result_json);
  see("given", r.given, Style::json_object), see("notify", r.notify, Style::json_any);
  see("traceparent", r.traceparent);
}

template <IsRecord<FlowNode> R, class See>
void visit(R& r, See see) {
  see("id", r.id), see("name", r.name), see("depends", r.depends), see("prerequisites", r.prerequisites);
  see("supervisor_url", r.supervisor_url), see("node_status", r.node_status);
}

template <IsRecord<Flow> R, class See>
void visit(R& r, See see) {
  see("id", r.id), see("caller_id", r.caller_id), see("context_id", r.context_id), see("jobs", r.jobs);
  see("env_vars", r.env_vars), see("result", r.result), see("status", r.status);
  see("created_at", r.created_at), see("updated_at", r.updated_at);
  see("name", r.name), see("detail", r.detail), see("definition", r.definition);
  see("definition_hash", r.definition_hash), see("error", r.error), see("nodes", r.nodes);
  see("started_ms", r.started_ms), see("ended_ms", r.ended_ms), see("parent", r.parent);
  see("result_json", r.result_json), see("notify", r.notify, Style::json_any);
  see("traceparent", r.traceparent);
}

template <IsRecord<Log> R, class See>
void visit(R& r, See see) {
  see("ts_ms", r.ts_ms), see("seq", r.seq), see("stream", r.stream), see("text", r.text);
}

template <IsRecord<Message> R, class See>
void visit(R& r, See see) {
  see("id", r.id), see("caller_id", r.caller_id), see("context_id", r.context_id), see("message", r.message);
  see("message_type", r.message_type), see("message_format_type", r.message_format_type);
  see("timeout", r.timeout), see("timeout_ack", r.timeout_ack), see("timeout_result", r.timeout_result);
  see("job", r.job), see("flow", r.flow), see("logs", r.logs), see("status", r.status);
  see("created_at", r.created_at), see("updated_at", r.updated_at), see("nodes", r.nodes), see("flow_id", r.flow_id);
  see("transport_id", r.transport_id), see("transport_status", r.transport_status);
  see("signature", r.signature), see("algorithm", r.algorithm), see("signer", r.signer);
  see("target_context", r.target_context), see("target_address", r.target_address);
  see("target_key", r.target_key), see("topic", r.topic), see("error", r.error), see("stream_logs", r.stream_logs);
  see("traceparent", r.traceparent);
}

template <IsRecord<Runner> R, class See>
void visit(R& r, See see) {
  see("id", r.id), see("pubkey", r.pubkey), see("address", r.address), see("topic", r.topic), see("local", r.local);
  see("type", r.type), see("secret", r.secret), see("created_at", r.created_at), see("updated_at", r.updated_at);
  see("target_context", r.target_context);
  see("detail", r.detail), see("version", r.version), see("executors", r.executors), see("slots", r.slots);
  see("seen_ms", r.seen_ms), see("actor_id", r.actor_id);
}

// A log line is written with all fields, including empty ones, because readers of a stream expect every field in each
// line.
template <class R>
inline constexpr bool kAllFields = std::is_same_v<R, Log>;

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
