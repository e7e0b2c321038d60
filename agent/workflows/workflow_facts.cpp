#include "workflows/workflow_facts.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/parse.h"
#include "base/sha256.h"
#include "model/codec.h"
#include "text/cbor.h"
#include "text/json.h"
#include "text/utf8.h"
#include "workflows/workflow_fact_fields.h"

namespace mycojobs {

namespace workflows {

template <class IO>
void visit(IO& io, VisitedType<IO, EventTarget>& target) {
  io.object_field("cell", target.instance);
  io.text_field("manifest", target.manifest);
  io.optional_text_field("arm", target.arm);
  io.optional_text_field("skipped", target.skip_reason);
}
template <class IO>
void visit(IO& io, VisitedType<IO, ManifestApplied>& fact) {
  io.text_field("manifest", fact.manifest);
  io.text_field("name", fact.name);
  io.optional_text_field("replaced", fact.replaced_manifest);
}
template <class IO>
void visit(IO& io, VisitedType<IO, EventAccepted>& fact) {
  io.text_field("schema", fact.schema);
  io.bytes_field("value", fact.value);
  io.optional_text_field("source", fact.source);
  io.optional_object_field("from", fact.emitter);
  io.number_field("from_step", fact.emitter_height);
  io.object_field("sample", fact.sample);
  io.object_list("targets", fact.targets);
  io.optional_number_field("depth", fact.depth);
}
template <class IO>
void visit(IO& io, VisitedType<IO, StepTaken>& fact) {
  io.object_field("cell", fact.instance);
  io.object_field("mail", fact.event_id);
  io.text_field("output", fact.output);
  io.optional_object_field("state", fact.state);
  io.object_list("intents", fact.intents);
  io.number_field("events", fact.events);
  io.optional_bytes_field("ann", fact.annotations);
}
template <class IO>
void visit(IO& io, VisitedType<IO, StepFailed>& fact) {
  io.object_field("cell", fact.instance);
  io.object_field("mail", fact.event_id);
  io.text_field("output", fact.output);
  io.text_field("failure", fact.kind);
  io.text_field("message", fact.message);
}
template <class IO>
void visit(IO& io, VisitedType<IO, EffectPublished>& fact) {
  io.object_field("cell", fact.instance);
  io.text_field("intent", fact.intent);
  io.text_field("carrier", fact.effect_ref);
}
template <class IO>
void visit(IO& io, VisitedType<IO, ReceiptAdmitted>& fact) {
  io.object_field("cell", fact.instance);
  io.text_field("intent", fact.intent);
  io.enum_field("status", fact.status, parse_receipt_status);
  io.bytes_field("payload", fact.payload);
  io.optional_text_field("module", fact.module);
  io.optional_text_field("entrypoint", fact.entrypoint);
  io.optional_text_field("arm", fact.arm);
  io.object_field("sample", fact.sample);
}
template <class IO>
void visit(IO& io, VisitedType<IO, ReceiptRefused>& fact) {
  io.object_field("cell", fact.instance);
  io.text_field("intent", fact.intent);
  io.text_field("reason", fact.reason);
}
template <class IO>
void visit(IO& io, VisitedType<IO, ReceiptMismatched>& fact) {
  io.object_field("cell", fact.instance);
  io.text_field("intent", fact.intent);
  io.enum_field("status", fact.status, parse_receipt_status);
  io.text_field("reason", fact.reason);
  io.optional_text_field("arm", fact.arm);
  io.object_field("sample", fact.sample);
}
template <class IO>
void visit(IO& io, VisitedType<IO, InstanceFailed>& fact) {
  io.object_field("cell", fact.instance);
  io.text_field("failure", fact.kind);
  io.text_field("message", fact.message);
  io.text_list("dropped", fact.dropped_intents);
}
template <class IO>
void visit(IO& io, VisitedType<IO, InstanceCompleted>& fact) {
  io.object_field("cell", fact.instance);
}
template <class IO>
void visit(IO& io, VisitedType<IO, InstanceDeleted>& fact) {
  io.object_field("cell", fact.instance);
  io.optional_text_field("by", fact.actor);
}
template <class IO>
void visit(IO& io, VisitedType<IO, SnapshotTaken>& fact) {
  io.text_field("hash", fact.hash);
  io.number_field("size", fact.size);
}

}  // namespace workflows

namespace {

using nlohmann::json;
using FactContent = decltype(WorkflowFact::content);

// The names of the kinds of facts in the journal, in the order of the alternatives of FactContent.
constexpr std::array<std::string_view, std::variant_size_v<FactContent>> kFactKinds{
    "applied",         "event",         "step",   "step_failed", "published", "receipt",
    "receipt_refused", "receipt_fault", "failed", "completed",   "deleted",   "snapshot"};
constexpr std::array<std::string_view, 4> kReceiptStatuses{"ok", "error", "timeout", "cancelled"};

// Returns a default value of the alternative with this index.
template <std::size_t I = 0>
FactContent make_alternative(std::size_t index) {
  if constexpr (I + 1 < std::variant_size_v<FactContent>) {
    if (index != I) return make_alternative<I + 1>(index);
  }
  return FactContent(std::in_place_index<I>);
}

}  // namespace

std::string display_name(const InstanceId& instance) {
  if (instance.key.empty()) return instance.workflow;
  const auto key = decode_cbor(instance.key);
  return instance.workflow + '[' +
         (key ? excerpt(key->is_string() ? key->get<std::string>() : dump_json(*key), 80) : "?") + ']';
}

std::string store_name(const InstanceId& instance) { return instance.workflow + ' ' + to_hex(instance.key); }
InstanceId parse_store_name(std::string_view name) {
  const std::size_t space = name.find(' ');
  if (space == std::string_view::npos) return {std::string(name), ""};
  return {std::string(name.substr(0, space)), from_hex(name.substr(space + 1))};
}

std::string derive_entropy(const Sample& sample, std::uint64_t index) {
  Sha256 hash;
  hash.update("mycojobs workflow entropy\n");
  hash.update(sample.entropy);
  hash.update(std::to_string(index));
  return from_hex(hash.hex());
}

std::string intent_hash(const IntentOrigin& origin, const Intent& intent) {
  // Texts are encoded as byte strings, because encode_cbor() rejects texts that are not UTF-8.
  using workflows::to_binary;
  const json input{{"what", "mycojobs workflow intent 1"},
                   {"world", to_binary(origin.deployment)},
                   {"workflow", to_binary(origin.instance.workflow)},
                   {"workflow_hash", to_binary(origin.workflow_hash)},
                   {"key", to_binary(origin.instance.key)},
                   {"sequence", origin.sequence},
                   {"effect", to_binary(intent.effect)},
                   {"params", to_binary(intent.params)},
                   {"index", intent.index}};
  return sha256_hex(*encode_cbor(input));
}

std::string_view to_string(ReceiptStatus status) { return kReceiptStatuses[static_cast<std::size_t>(status)]; }
std::optional<ReceiptStatus> parse_receipt_status(std::string_view text) {
  const auto match = std::find(kReceiptStatuses.begin(), kReceiptStatuses.end(), text);
  if (match == kReceiptStatuses.end()) return std::nullopt;
  return static_cast<ReceiptStatus>(match - kReceiptStatuses.begin());
}

std::string_view fact_kind(const WorkflowFact& fact) { return kFactKinds[fact.content.index()]; }

std::vector<InstanceId> affected_instances(const WorkflowFact& fact) {
  if (const auto* event = std::get_if<EventAccepted>(&fact.content)) {
    std::vector<InstanceId> instances;
    for (const auto& target : event->targets)
      if (std::find(instances.begin(), instances.end(), target.instance) == instances.end())
        instances.push_back(target.instance);
    return instances;
  }
  return std::visit(
      [](const auto& content) -> std::vector<InstanceId> {
        if constexpr (requires { content.instance; })
          return {content.instance};
        else
          return {};
      },
      fact.content);
}

Result<std::string> encode(const WorkflowFact& fact) {
  workflows::FactEncoder encoder;
  encoder.number_field("height", fact.height);
  encoder.number_field("at_ms", fact.at_ms);
  encoder.text_field("kind", std::string(fact_kind(fact)));
  std::visit([&](const auto& content) { workflows::visit(encoder, content); }, fact.content);
  return encode_cbor(encoder.map);
}

Result<WorkflowFact> decode_workflow_fact(std::string_view bytes) {
  MJ_TRY(map, decode_cbor(bytes));
  if (!map.is_object()) return fail(Code::invalid, "it is not a map");
  workflows::FactDecoder decoder(map, "");
  WorkflowFact fact;
  std::string kind;
  decoder.number_field("height", fact.height);
  decoder.number_field("at_ms", fact.at_ms);
  decoder.text_field("kind", kind);
  const auto match = std::find(kFactKinds.begin(), kFactKinds.end(), kind);
  if (match == kFactKinds.end()) return fail(Code::invalid, "kind " + excerpt(kind) + " is not a fact of a workflow");
  fact.content = make_alternative(static_cast<std::size_t>(match - kFactKinds.begin()));
  std::visit([&](auto& content) { workflows::visit(decoder, content); }, fact.content);
  MJ_CHECK(decoder.end());
  // Rejects an optional field that is present with its default value: each fact has exactly one encoding.
  MJ_TRY(canonical, encode(fact));
  if (canonical != bytes) return fail(Code::invalid, "it is not the canonical encoding of its fact");
  return fact;
}

}  // namespace mycojobs
