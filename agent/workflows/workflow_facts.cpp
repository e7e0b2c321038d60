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
  io.part("cell", target.cell), io.text("manifest", target.manifest);
  io.optional_text_field("arm", target.arm), io.optional_text_field("skipped", target.skipped);
}
template <class IO>
void visit(IO& io, VisitedType<IO, ManifestApplied>& fact) {
  io.text("manifest", fact.manifest), io.text("name", fact.name), io.optional_text_field("replaced", fact.replaced);
}
template <class IO>
void visit(IO& io, VisitedType<IO, EventAccepted>& fact) {
  io.text("schema", fact.schema), io.bytes("value", fact.value), io.optional_text_field("source", fact.source);
  io.optional_field("from", fact.from), io.number("from_step", fact.from_step), io.part("sample", fact.sample);
  io.parts("targets", fact.targets), io.spare_number("depth", fact.depth);
}
template <class IO>
void visit(IO& io, VisitedType<IO, StepTaken>& fact) {
  io.part("cell", fact.cell), io.part("mail", fact.mail), io.text("output", fact.output);
  io.optional_field("state", fact.state), io.parts("intents", fact.intents), io.number("events", fact.events);
  io.maybe_bytes("ann", fact.ann);
}
template <class IO>
void visit(IO& io, VisitedType<IO, StepFailed>& fact) {
  io.part("cell", fact.cell), io.part("mail", fact.mail), io.text("output", fact.output);
  io.text("failure", fact.kind), io.text("message", fact.message);
}
template <class IO>
void visit(IO& io, VisitedType<IO, EffectPublished>& fact) {
  io.part("cell", fact.cell), io.text("intent", fact.intent), io.text("carrier", fact.effect_ref);
}
template <class IO>
void visit(IO& io, VisitedType<IO, ReceiptAdmitted>& fact) {
  io.part("cell", fact.cell), io.text("intent", fact.intent), io.word_of("status", fact.status, parse_receipt_status);
  io.bytes("payload", fact.payload), io.optional_text_field("module", fact.module);
  io.optional_text_field("entrypoint", fact.entrypoint), io.optional_text_field("arm", fact.arm),
      io.part("sample", fact.sample);
}
template <class IO>
void visit(IO& io, VisitedType<IO, ReceiptRefused>& fact) {
  io.part("cell", fact.cell), io.text("intent", fact.intent), io.text("reason", fact.reason);
}
template <class IO>
void visit(IO& io, VisitedType<IO, ReceiptMismatched>& fact) {
  io.part("cell", fact.cell), io.text("intent", fact.intent), io.word_of("status", fact.status, parse_receipt_status);
  io.text("reason", fact.reason), io.maybe_text("arm", fact.arm), io.part("sample", fact.sample);
}
template <class IO>
void visit(IO& io, VisitedType<IO, InstanceFailed>& fact) {
  io.part("cell", fact.cell), io.text("failure", fact.kind), io.text("message", fact.message);
  io.texts("dropped", fact.dropped);
}
template <class IO>
void visit(IO& io, VisitedType<IO, InstanceCompleted>& fact) {
  io.part("cell", fact.cell);
}
template <class IO>
void visit(IO& io, VisitedType<IO, InstanceDeleted>& fact) {
  io.part("cell", fact.cell), io.optional_text_field("by", fact.by);
}
template <class IO>
void visit(IO& io, VisitedType<IO, SnapshotTaken>& fact) {
  io.text("hash", fact.hash), io.number("size", fact.size);
}

}  // namespace workflows

namespace {

using nlohmann::json;
using What = decltype(WorkflowFact::what);

// In the order of the alternatives of the variant.
constexpr std::array<std::string_view, std::variant_size_v<What>> kFactWords{
    "applied",         "event",         "step",   "step_failed", "published", "receipt",
    "receipt_refused", "receipt_fault", "failed", "completed",   "deleted",   "snapshot"};
constexpr std::array<std::string_view, 4> kStatusWords{"ok", "error", "timeout", "cancelled"};

// Returns the alternative with this index.
template <std::size_t I = 0>
What alternative(std::size_t place) {
  if constexpr (I + 1 < std::variant_size_v<What>) {
    if (place != I) return alternative<I + 1>(place);
  }
  return What(std::in_place_index<I>);
}

}  // namespace

std::string shown(const InstanceId& cell) {
  if (cell.key.empty()) return cell.workflow;
  const auto key = decode_cbor(cell.key);
  return cell.workflow + '[' + (key ? excerpt(key->is_string() ? key->get<std::string>() : dump_json(*key), 80) : "?") +
         ']';
}

std::string store_name(const InstanceId& cell) { return cell.workflow + ' ' + to_hex(cell.key); }
InstanceId parse_instance_id(std::string_view name) {
  const std::size_t space = name.find(' ');
  if (space == std::string_view::npos) return {std::string(name), ""};
  return {std::string(name.substr(0, space)), from_hex(name.substr(space + 1))};
}

std::string derived_entropy(const Sample& sample, std::uint64_t place) {
  Sha256 hash;
  hash.update("mycojobs workflow entropy\n");
  hash.update(sample.entropy);
  hash.update(std::to_string(place));
  const std::string hex = hash.hex();
  std::string bytes;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
  return bytes;
}

std::string intent_hash(const IntentOrigin& origin, const Intent& intent) {
  // All texts are byte strings, so that every value can be encoded.
  using workflows::binary;
  const json bound{{"what", "mycojobs workflow intent 1"},
                   {"world", binary(origin.deployment)},
                   {"workflow", binary(origin.cell.workflow)},
                   {"workflow_hash", binary(origin.workflow_hash)},
                   {"key", binary(origin.cell.key)},
                   {"sequence", origin.sequence},
                   {"effect", binary(intent.effect)},
                   {"params", binary(intent.params)},
                   {"index", intent.index}};
  return sha256_hex(*encode_cbor(bound));
}

std::string_view to_string(ReceiptStatus status) { return kStatusWords[static_cast<std::size_t>(status)]; }
std::optional<ReceiptStatus> parse_receipt_status(std::string_view text) {
  const auto found = std::find(kStatusWords.begin(), kStatusWords.end(), text);
  if (found == kStatusWords.end()) return std::nullopt;
  return static_cast<ReceiptStatus>(found - kStatusWords.begin());
}

std::string_view kind_of(const WorkflowFact& fact) { return kFactWords[fact.what.index()]; }

std::vector<InstanceId> instances_of(const WorkflowFact& fact) {
  if (const auto* event = std::get_if<EventAccepted>(&fact.what)) {
    std::vector<InstanceId> cells;
    for (const auto& target : event->targets)
      if (std::find(cells.begin(), cells.end(), target.cell) == cells.end()) cells.push_back(target.cell);
    return cells;
  }
  return std::visit(
      [](const auto& what) -> std::vector<InstanceId> {
        if constexpr (requires { what.cell; })
          return {what.cell};
        else
          return {};
      },
      fact.what);
}

Result<std::string> encode(const WorkflowFact& fact) {
  workflows::FactEncoder put;
  put.number("height", fact.height), put.number("at_ms", fact.at_ms);
  put.text("kind", std::string(kind_of(fact)));
  std::visit([&](const auto& what) { workflows::visit(put, what); }, fact.what);
  return encode_cbor(put.map);
}

Result<WorkflowFact> decode_workflow_fact(std::string_view bytes) {
  MJ_TRY(map, decode_cbor(bytes));
  if (!map.is_object()) return fail(Code::invalid, "it is not a map");
  workflows::FactDecoder take(map, "");
  WorkflowFact fact;
  std::string kind;
  take.number("height", fact.height), take.number("at_ms", fact.at_ms), take.text("kind", kind);
  const auto found = std::find(kFactWords.begin(), kFactWords.end(), kind);
  if (found == kFactWords.end()) return fail(Code::invalid, "kind " + excerpt(kind) + " is not a fact of a workflow");
  fact.what = alternative(static_cast<std::size_t>(found - kFactWords.begin()));
  std::visit([&](auto& what) { workflows::visit(take, what); }, fact.what);
  MJ_CHECK(take.end());
  // Rejects a field that is present with its default value, because it would be a second encoding.
  MJ_TRY(again, encode(fact));
  if (again != bytes) return fail(Code::invalid, "it is not the canonical encoding of its fact");
  return fact;
}

}  // namespace mycojobs
