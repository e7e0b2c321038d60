#include "workflows/workflow_decider.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/sha256.h"
#include "model/codec.h"
#include "text/cbor.h"
#include "text/cbor_map_reader.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/utf8.h"
#include "workflows/manifest/system_schemas.h"
#include "workflows/workflow_snapshot.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using Outcome = Result<WorkflowDecision>;

constexpr std::size_t kMaxKeyBytes = 512;

// Returns a hash that is equal for equal answers of the code, including answers that cannot be encoded.
std::string output_hash(const StepAnswer& answer) {
  const auto bytes = encode(answer);
  return sha256_hex(bytes ? *bytes : "no answer: " + bytes.error().message);
}

// A decision uses at most the next mail of an instance, and whether there is more.
constexpr std::size_t kCheckedAt = 2;

// The world after the facts of this decision. Holds only the instances that these facts change.
class DeploymentDraft {
 public:
  DeploymentDraft(const DeploymentState& deployment, std::uint64_t now_ms) : deployment_(deployment), now_ms_(now_ms) {
    after_.id = deployment.id, after_.manifest = deployment.manifest, after_.height = deployment.height;
    made_.base = deployment.height;
  }

  const InstanceState* cell(const InstanceId& id) {
    if (loaded_.insert(id).second)
      if (const InstanceState* found = deployment_.cell(id))
        after_.cells.emplace(id, found->with_limited_mail(kCheckedAt));
    return after_.cell(id);
  }
  std::uint64_t next_height() const { return after_.height + 1; }

  template <class What>
  void add(What what) {
    add_fact({next_height(), now_ms_, std::move(what)});
  }
  void add_fact(WorkflowFact fact) {
    for (const auto& id : instances_of(fact)) cell(id);
    if (auto bad = fold(after_, fact); bad && wrong_.empty()) wrong_ = std::string(bad->rule) + ": " + bad->text;
    made_.facts.push_back(std::move(fact));
  }
  void add_blob(WorkflowBlob blob) { made_.blobs.push_back(std::move(blob)); }

  void failed(const InstanceId& id, const std::string& kind, const std::string& message) {
    InstanceFailed fact{id, kind, to_utf8(message), {}};
    for (const auto& [hash, pending] : cell(id)->pending) fact.dropped.push_back(hash);
    add(std::move(fact));
  }
  // An instance ends if its state is null and it waits for nothing.
  void end_if_spent(const InstanceId& id) {
    const InstanceState* found = cell(id);
    if (found == nullptr || !found->ends_now()) return;
    if (id.key.empty())
      add(InstanceCompleted{id});
    else
      add(InstanceDeleted{id, ""});
  }

  Outcome done() {
    if (!wrong_.empty()) return fail(Code::internal, "a decision does not fit: " + wrong_);
    for (const auto& fact : made_.facts) {
      const auto* step = std::get_if<StepTaken>(&fact.what);
      const InstanceState* found = step == nullptr ? nullptr : after_.cell(step->cell);
      if (found == nullptr) continue;
      for (const auto& intent : step->intents)
        if (const auto pending = found->pending.find(intent.hash); pending != found->pending.end())
          made_.publish.push_back({step->cell, found->workflow_hash(), pending->second});
    }
    for (const auto& [ticket, id] : after_.ready) made_.ready.push_back(id);
    return std::move(made_);
  }
  const std::string& wrong() const { return wrong_; }

 private:
  const DeploymentState& deployment_;
  const std::uint64_t now_ms_;
  DeploymentState after_;
  std::set<InstanceId> loaded_;
  WorkflowDecision made_;
  std::string wrong_;
};

class WorkflowDecider {
 public:
  WorkflowDecider(const DeploymentState& deployment, const ManifestCatalog& catalog, const WorkflowInput& input,
                  const WorkflowRules& rules)
      : deployment_(deployment), catalog_(catalog), input_(input), rules_(rules) {}

  Outcome whole() {
    return std::visit([this](const auto& what) { return on(what); }, input_.what);
  }

 private:
  struct InstanceCode {
    const WorkflowManifest* manifest = nullptr;
    const WorkflowSpec* workflow = nullptr;
  };
  DeploymentDraft draft() const { return DeploymentDraft(deployment_, input_.sample.now_ms); }
  Outcome nothing() const { return draft().done(); }

  Result<InstanceCode> code_of(const InstanceState& cell) const {
    const auto* manifest = catalog_.find(cell.manifest);
    const auto* workflow = manifest == nullptr ? nullptr : manifest->workflow(cell.id.workflow);
    if (workflow == nullptr)
      return fail(Code::unavailable,
                  "the manifest " + excerpt(cell.manifest, 64) + " that " + shown(cell.id) + " runs is not here");
    return InstanceCode{manifest, workflow};
  }

  // --- events
  struct IncomingEvent {
    std::string schema;
    CanonicalValue value;
  };
  static Result<void> sent_by_people(const WorkflowManifest& manifest, const IncomingEvent& event) {
    const auto* arms = manifest.schemas.arms(event.schema);
    if (is_system_name(event.schema)) return fail(Code::invalid, event.schema + ": only the system sends that");
    if (arms == nullptr) return {};
    for (const auto& arm : *arms)
      if (event.value.value->at("$tag") == arm.tag && is_system_name(arm.ref))
        return fail(Code::invalid, event.schema + ": only the system sends " + arm.ref);
    return {};
  }
  static Result<std::string> key_of(const WorkflowManifest& manifest, const WorkflowSpec& workflow,
                                    const Subscription& subscription, const json& value) {
    if (!workflow.keyed()) return std::string();
    const std::string what = "the key of " + workflow.name + " (" + subscription.key_field + ')';
    const json* key = at_path(value, subscription.key_field);
    if (key == nullptr) return fail(Code::invalid, what + " is missing");
    auto checked = manifest.schemas.check(workflow.key_schema, *key, ValueForm::from_cbor, kMaxKeyBytes);
    if (!checked) return fail(std::move(checked).error(), what);
    if (!checked->value->is_string() && !checked->value->is_number_integer() && !checked->value->is_binary())
      return fail(Code::invalid, what + " is no text, whole number or byte string");
    return checked->bytes;
  }
  // Returns the receivers, in the order of the manifest in force (8). Not journaled yet.
  Result<std::vector<EventTarget>> route(DeploymentDraft& draft, const WorkflowManifest& active,
                                         const IncomingEvent& event) {
    MJ_CHECK(sent_by_people(active, event));
    std::vector<EventTarget> targets;
    for (const auto& subscription : active.subscriptions) {
      if (subscription.event != event.schema) continue;
      const auto* workflow = active.workflow(subscription.workflow);
      MJ_TRY(key, key_of(active, *workflow, subscription, as_arm(subscription.arm, *event.value.value)));
      EventTarget target{{workflow->name, std::move(key)}, active.hash, subscription.arm, ""};
      if (const InstanceState* cell = draft.cell(target.cell); cell != nullptr) MJ_CHECK(fit(*cell, event, target));
      targets.push_back(std::move(target));
    }
    for (const auto& target : targets)
      MJ_CHECK(mail_value(EventAccepted{event.schema, event.value.bytes, "", {}, 0, {}, {}}, target));
    return targets;
  }
  // An existing instance keeps its code, which may take the event in another way or not at all.
  Result<void> fit(const InstanceState& cell, const IncomingEvent& event, EventTarget& target) const {
    if (cell.failed) target.skipped = "failed";
    if (cell.failed || cell.manifest == target.manifest) return {};
    MJ_TRY(code, code_of(cell));
    target.manifest = cell.manifest;
    const auto arm = code.manifest->schemas.arm_of(code.workflow->event, event.schema);
    const auto taken = code.manifest->schemas.check_bytes(event.schema, event.value.bytes);
    if (arm && taken && taken->bytes == event.value.bytes)
      target.arm = *arm;
    else
      target.skipped = "unfit";
    return {};
  }

  Outcome on(const EventArrived& event) {
    const auto* active = catalog_.find(deployment_.manifest);
    if (active == nullptr) return fail(Code::not_found, "no manifest is in force here");
    MJ_TRY(value, active->schemas.check_text(event.schema, event.value, event.form));
    const IncomingEvent incoming{event.schema, std::move(value)};
    DeploymentDraft draft = this->draft();
    MJ_TRY(targets, route(draft, *active, incoming));
    if (targets.empty()) return fail(Code::not_found, "no workflow takes " + excerpt(event.schema, 200));
    for (const auto& target : targets)
      if (const auto* cell = deployment_.cell(target.cell); cell != nullptr && cell->mail.size() >= rules_.max_mail)
        return fail(Code::too_large,
                    shown(target.cell) + " has " + count_with_noun(cell->mail.size(), "event") + " waiting");
    draft.add(EventAccepted{incoming.schema, incoming.value.bytes, to_utf8(event.source), std::nullopt, 0,
                            input_.sample, std::move(targets)});
    return draft.done();
  }

  // --- steps
  Outcome on(const StepCompleted& step) {
    const InstanceState* cell = deployment_.cell(step.cell);
    if (cell == nullptr || cell->failed || cell->mail.empty() || cell->mail.front().id != step.mail)
      return fail(Code::conflict, "the step is not of the next mail of " + shown(step.cell));
    MJ_TRY(code, code_of(*cell));
    if (const auto* error = std::get_if<StepError>(&step.answer)) return step_failed(step, error->kind, *error);
    DeploymentDraft draft = this->draft();
    auto taken = take(draft, *cell, code, step, std::get<StepOutput>(step.answer));
    if (!taken && taken.error().code == Code::unavailable) return tl::unexpected(std::move(taken).error());
    if (!taken) return step_failed(step, "contract", {"contract", taken.error().message, 0});
    draft.end_if_spent(step.cell);
    return draft.done();
  }
  // Discards the results of the step (1, 2), because the same request would give the same answer again.
  Outcome step_failed(const StepCompleted& step, const std::string& kind, const StepError& error) {
    std::string message = to_utf8(error.message);
    if (error.line != 0) message += " (line " + std::to_string(error.line) + ')';
    DeploymentDraft draft = this->draft();
    draft.add(StepFailed{step.cell, step.mail, output_hash(step.answer), to_utf8(kind), message});
    draft.failed(step.cell, "step", message);
    return draft.done();
  }
  Result<void> take(DeploymentDraft& draft, const InstanceState& cell, const InstanceCode& code,
                    const StepCompleted& step, const StepOutput& output) {
    MJ_CHECK(within_limits(output));
    StepTaken fact{step.cell, step.mail, output_hash(step.answer), std::nullopt, {}, output.domain_events.size(), {}};
    MJ_CHECK(state_of(draft, code, output, fact));
    MJ_CHECK(intents_of(draft, cell, code, output, fact));
    MJ_CHECK(annotations_of(code, output, fact));
    std::vector<IncomingEvent> events;
    for (const auto& event : output.domain_events) {
      auto value = code.manifest->schemas.check_bytes(event.schema, event.value);
      if (!value) return fail(std::move(value).error(), "the event " + excerpt(event.schema, 200));
      if (is_system_name(event.schema)) return fail(Code::invalid, event.schema + ": only the system sends that");
      events.push_back({event.schema, std::move(*value)});
    }
    const std::uint64_t height = draft.next_height();
    draft.add(std::move(fact));
    return derive(draft, cell, events, height);
  }
  static Result<void> within_limits(const StepOutput& output) {
    const auto max = [](std::size_t found, std::size_t limit, const char* what) -> Result<void> {
      if (found <= limit) return {};
      return fail(Code::too_large, "it gave " + count_with_noun(found, what) + "; at most " + std::to_string(limit));
    };
    MJ_CHECK(max(output.effects.size(), kMaxStepEffects, "effect"));
    MJ_CHECK(max(output.domain_events.size(), kMaxStepEvents, "event"));
    std::size_t bytes = output.ann ? output.ann->size() : 0;
    for (const auto& effect : output.effects) bytes += effect.params.size() + effect.issuer_ref.size();
    for (const auto& event : output.domain_events) bytes += event.value.size();
    return max(bytes, kMaxStepBytes, "byte");
  }
  Result<void> state_of(DeploymentDraft& draft, const InstanceCode& code, const StepOutput& output,
                        StepTaken& fact) const {
    if (!output.state) return {};
    auto checked = code.manifest->schemas.check_bytes(code.workflow->state, *output.state, rules_.max_state_bytes);
    if (!checked) return fail(std::move(checked).error(), "the state");
    StateRef state{sha256_hex(checked->bytes), checked->bytes.size(), std::move(checked->bytes)};
    if (state.size > rules_.inline_state_bytes) draft.add_blob({state.hash, std::exchange(state.bytes, "")});
    fact.state = std::move(state);
    return {};
  }
  Result<void> intents_of(const DeploymentDraft& draft, const InstanceState& cell, const InstanceCode& code,
                          const StepOutput& output, StepTaken& fact) const {
    const IntentOrigin origin{deployment_.id, cell.id, cell.workflow_hash(), draft.next_height()};
    for (std::size_t i = 0; i < output.effects.size(); ++i) {
      const auto& effect = output.effects[i];
      const auto* spec = code.manifest->effect(effect.kind);
      if (spec == nullptr || !code.workflow->may_emit(effect.kind))
        return fail(Code::denied, code.workflow->name + " may not emit " + excerpt(effect.kind, 200) +
                                      ": it is not in effects_emitted");
      if (effect.index != i) return fail(Code::invalid, "effect " + std::to_string(i) + " has another index");
      if (!is_utf8(effect.issuer_ref)) return fail(Code::invalid, "issuer_ref is not UTF-8");
      auto params = code.manifest->schemas.check_bytes(spec->params, effect.params);
      if (!params) return fail(std::move(params).error(), "the parameters of " + effect.kind);
      Intent intent{"", effect.kind, std::move(params->bytes), i, effect.issuer_ref};
      intent.hash = intent_hash(origin, intent);
      fact.intents.push_back(std::move(intent));
    }
    return waits_for_few(cell, fact.intents);
  }
  Result<void> waits_for_few(const InstanceState& cell, const std::vector<Intent>& more) const {
    if (more.empty()) return {};
    const std::size_t count = cell.pending.size() + more.size();
    if (count > rules_.max_pending)
      return fail(Code::too_large, "it would wait for " + count_with_noun(count, "effect") + "; at most " +
                                       std::to_string(rules_.max_pending));
    std::size_t bytes = 0;
    for (const auto& [hash, pending] : cell.pending) bytes += pending.intent.params.size();
    for (const Intent& intent : more) bytes += intent.params.size();
    if (bytes > rules_.max_pending_bytes)
      return fail(Code::too_large, "the parameters of the effects that it would wait for have " +
                                       count_with_noun(bytes, "byte") + "; at most " +
                                       std::to_string(rules_.max_pending_bytes));
    return {};
  }
  static Result<void> annotations_of(const InstanceCode& code, const StepOutput& output, StepTaken& fact) {
    if (!output.ann) return {};
    if (code.workflow->annotations.empty()) return fail(Code::invalid, "it gave annotations, and declares none");
    auto checked = code.manifest->schemas.check_bytes(code.workflow->annotations, *output.ann);
    if (!checked) return fail(std::move(checked).error(), "the annotations");
    fact.ann = std::move(checked->bytes);
    return {};
  }
  // Events of a step become facts of the same decision, each with its own entropy (11).
  Result<void> derive(DeploymentDraft& draft, const InstanceState& cell, const std::vector<IncomingEvent>& events,
                      std::uint64_t step) {
    const auto* active = catalog_.find(deployment_.manifest);
    const std::uint64_t depth = cell.mail.front().depth + 1;
    if (!events.empty() && depth > rules_.max_depth)
      return fail(Code::too_large, "its event follows from " + count_with_noun(rules_.max_depth, "event") +
                                       ", each from a step on the one before: a loop; an effect, such as a timer, "
                                       "belongs in between");
    std::size_t deliveries = 0;
    for (std::size_t i = 0; i < events.size(); ++i) {
      EventAccepted fact{events[i].schema,
                         events[i].value.bytes,
                         "",
                         cell.id,
                         step,
                         {input_.sample.now_ms, derived_entropy(input_.sample, i)},
                         {},
                         depth};
      auto targets = active == nullptr ? Result<std::vector<EventTarget>>() : routed(draft, *active, cell, events[i]);
      if (!targets && cell.manifest == deployment_.manifest) return fail(std::move(targets).error(), events[i].schema);
      if (!targets && targets.error().code == Code::unavailable) return tl::unexpected(std::move(targets).error());
      // An event of older code may be unknown or invalid in the manifest in force.
      if (targets)
        fact.targets = std::move(*targets);
      else
        fact.source = "not routed: " + to_utf8(targets.error().message);
      MJ_CHECK(check_capacity(fact.targets));
      deliveries += fact.targets.size();
      if (deliveries > rules_.max_derived)
        return fail(Code::too_large, "its events go to more than " + count_with_noun(rules_.max_derived, "instance"));
      draft.add(std::move(fact));
    }
    return {};
  }
  // Limits events of steps, because steps could emit more events, or for more instances, than can be processed.
  Result<void> check_capacity(const std::vector<EventTarget>& targets) const {
    if (deployment_.ready.size() >= rules_.max_ready)
      return fail(Code::too_large,
                  "events wait for " + count_with_noun(deployment_.ready.size(), "instance") + ": it may send no more");
    for (const EventTarget& target : targets)
      if (const InstanceState* cell = deployment_.cell(target.cell);
          cell != nullptr && cell->mail.size() >= rules_.max_derived_mail)
        return fail(Code::too_large,
                    shown(target.cell) + " has " + count_with_noun(cell->mail.size(), "event") + " waiting");
    return {};
  }
  Result<std::vector<EventTarget>> routed(DeploymentDraft& draft, const WorkflowManifest& active,
                                          const InstanceState& cell, const IncomingEvent& event) {
    if (cell.manifest == active.hash) return route(draft, active, event);
    MJ_TRY(value, active.schemas.check_bytes(event.schema, event.value.bytes));
    return route(draft, active, {event.schema, std::move(value)});
  }

  // --- effects and receipts
  Outcome on(const EffectDispatched& carried) {
    const auto found = deployment_.intents.find(carried.intent);
    if (found == deployment_.intents.end())
      return deployment_.settled.contains(carried.intent) ? nothing() : unknown(carried.intent);
    if (deployment_.cells.at(found->second).pending.at(carried.intent).published) return nothing();
    DeploymentDraft draft = this->draft();
    draft.add(EffectPublished{found->second, carried.intent, to_utf8(carried.effect_ref)});
    return draft.done();
  }
  static tl::unexpected<Error> unknown(const std::string& intent) {
    return fail(Code::not_found, "unknown intent " + excerpt(intent, 64));
  }
  Outcome on(const ReceiptArrived& receipt) {
    const auto pending = deployment_.intents.find(receipt.intent), settled = deployment_.settled.find(receipt.intent);
    const bool waits = pending != deployment_.intents.end();
    if (!waits && settled == deployment_.settled.end()) return unknown(receipt.intent);
    DeploymentDraft draft = this->draft();
    if (!receipt.refused.empty())
      draft.add(ReceiptRefused{waits ? pending->second : settled->second, receipt.intent, to_utf8(receipt.refused)});
    else if (waits)
      MJ_CHECK(admit(draft, deployment_.cells.at(pending->second), receipt));
    return draft.done();
  }
  Result<void> admit(DeploymentDraft& draft, const InstanceState& cell, const ReceiptArrived& receipt) const {
    MJ_TRY(code, code_of(cell));
    const auto* effect = code.manifest->effect(cell.pending.at(receipt.intent).intent.effect);
    const bool ok = receipt.status == ReceiptStatus::ok;
    auto payload = code.manifest->schemas.check_text(ok && effect != nullptr ? effect->receipt : kFailureSchema,
                                                     receipt.payload, receipt.form);
    std::string why;
    if (payload) {
      ReceiptAdmitted fact{cell.id,
                           receipt.intent,
                           receipt.status,
                           std::move(payload->bytes),
                           to_utf8(receipt.module),
                           to_utf8(receipt.entrypoint),
                           code.workflow->receipt_arm,
                           input_.sample};
      const auto value = mail_value(cell, fact);
      if (value) return draft.add(std::move(fact)), Result<void>();
      why = value.error().message;
    } else {
      why = payload.error().message;
    }
    draft.add(ReceiptMismatched{cell.id, receipt.intent, receipt.status, to_utf8(why), code.workflow->rejected_arm,
                                input_.sample});
    if (!code.workflow->rejected_arm)
      draft.failed(cell.id, "receipt", "the receipt of " + excerpt(receipt.intent, 64) + " does not fit: " + why);
    return {};
  }

  // --- the world
  Outcome on(const ApplyManifest& apply) {
    const auto* manifest = catalog_.find(apply.hash);
    if (manifest == nullptr) return fail(Code::not_found, "unknown manifest " + excerpt(apply.hash, 64));
    if (apply.hash == deployment_.manifest) return nothing();
    if (const auto found = obstacles(deployment_); !found.empty())
      return fail(Code::conflict, "a manifest cannot be applied now: " + join(found));
    DeploymentDraft draft = this->draft();
    draft.add(ManifestApplied{manifest->hash, manifest->name, deployment_.manifest});
    return draft.done();
  }
  Outcome on(const TakeSnapshot&) {
    if (!deployment_.ready.empty())
      return fail(Code::conflict,
                  "snapshot rejected: " + count_with_noun(deployment_.ready.size(), "instance") + " can take a step");
    if (const auto queued = next_effects_to_publish(deployment_); !queued.empty())
      return fail(Code::conflict, "snapshot rejected: " + count_with_noun(queued.size(), "effect") + " not published");
    MJ_TRY(taken, snapshot_of(deployment_));
    if (taken.bytes() > rules_.max_snapshot_bytes)
      return fail(Code::too_large, "a snapshot of " + count_with_noun(taken.bytes(), "byte") + "; at most " +
                                       std::to_string(rules_.max_snapshot_bytes));
    DeploymentDraft draft = this->draft();
    draft.add(SnapshotTaken{taken.root.hash, taken.bytes()});
    for (WorkflowBlob& page : taken.pages) draft.add_blob(std::move(page));
    draft.add_blob(std::move(taken.root));
    return draft.done();
  }
  Outcome on(const OutputMismatchFound& differs) {
    const InstanceState* cell = deployment_.cell(differs.cell);
    if (cell == nullptr) return fail(Code::not_found, "unknown instance " + shown(differs.cell));
    if (cell->failed) return nothing();
    DeploymentDraft draft = this->draft();
    draft.failed(cell->id, "nondeterministic",
                 "its code gave another output for the step at height " + std::to_string(differs.height));
    return draft.done();
  }
  Outcome on(const RemoveInstance& remove) {
    const InstanceState* cell = deployment_.cell(remove.cell);
    if (cell == nullptr) return fail(Code::not_found, "unknown instance " + shown(remove.cell));
    if (!cell->failed || remove.by.empty())
      return fail(Code::conflict, shown(remove.cell) + " has not failed: only its own code ends it");
    DeploymentDraft draft = this->draft();
    draft.add(InstanceDeleted{cell->id, to_utf8(remove.by)});
    return draft.done();
  }

  Outcome on(const CancelInstance& cancel) {
    const InstanceState* cell = deployment_.cell(cancel.cell);
    if (cell == nullptr) return fail(Code::not_found, "unknown instance " + shown(cancel.cell));
    if (cell->failed || cell->status() == InstanceStatus::completed)
      return fail(Code::conflict, shown(cancel.cell) + " has ended: it is " + std::string(to_string(cell->status())));
    DeploymentDraft draft = this->draft();
    draft.failed(cell->id, kCancelledFailure, "by " + cancel.by + (cancel.reason.empty() ? "" : ": " + cancel.reason));
    return draft.done();
  }

  const DeploymentState& deployment_;
  const ManifestCatalog& catalog_;
  const WorkflowInput& input_;
  const WorkflowRules& rules_;
};

Result<std::string> context_of(const InstanceState& cell, const WorkflowManifest& manifest,
                               const WorkflowSpec& workflow) {
  const Mail& mail = cell.mail.front();
  json ctx{{"now_ms", mail.sample.now_ms}, {"entropy", workflows::binary(mail.sample.entropy)},
           {"height", mail.id.height},     {"manifest_hash", manifest.hash},
           {"workflow", workflow.name},    {"workflow_hash", workflow.hash},
           {"cell_mode", workflow.keyed()}};
  if (!cell.id.key.empty()) {
    MJ_TRY(key, decode_cbor(cell.id.key));
    ctx["key"] = std::move(key);
  }
  return encode_cbor(ctx);
}

}  // namespace

Outcome decide(const DeploymentState& deployment, const ManifestCatalog& catalog, const WorkflowInput& input,
               const WorkflowRules& rules) {
  return WorkflowDecider(deployment, catalog, input, rules).whole();
}

Result<void> commit(DeploymentState& deployment, const WorkflowDecision& decision) {
  if (decision.base != deployment.height)
    return fail(Code::conflict, "it was decided at height " + std::to_string(decision.base) + "; now it is " +
                                    std::to_string(deployment.height));
  DeploymentDraft trial(deployment, 0);
  for (const auto& fact : decision.facts) trial.add_fact(fact);
  if (!trial.wrong().empty()) return fail(Code::internal, trial.wrong());
  for (const auto& fact : decision.facts)
    if (const auto bad = fold(deployment, fact)) return fail(Code::internal, bad->text);
  return {};
}

std::vector<InstanceId> next_instances(const DeploymentState& deployment, std::size_t max,
                                       const std::set<InstanceId>& running) {
  std::vector<InstanceId> cells;
  for (const auto& [ticket, id] : deployment.ready) {
    if (cells.size() >= max) break;
    if (!running.contains(id)) cells.push_back(id);
  }
  return cells;
}

Result<StepRequest> request_of(const DeploymentState& deployment, const ManifestCatalog& catalog,
                               const InstanceId& id) {
  const InstanceState* cell = deployment.cell(id);
  if (cell == nullptr || cell->mail.empty()) return fail(Code::not_found, shown(id) + " has no mail");
  const auto* manifest = catalog.find(cell->manifest);
  const auto* workflow = manifest == nullptr ? nullptr : manifest->workflow(id.workflow);
  if (workflow == nullptr) return fail(Code::not_found, "the manifest " + cell->manifest + " is not here");
  StepRequest request;
  if (cell->state) {
    MJ_TRY(bytes, bytes_of(*cell->state));
    request.state = std::move(bytes);
  }
  const Mail& mail = cell->mail.front();
  request.event = {mail.schema, mail.value, std::nullopt};
  if (workflow->keyed()) request.event.key = id.key;
  if (!workflow->context.empty()) {
    MJ_TRY(ctx, context_of(*cell, *manifest, *workflow));
    request.ctx = std::move(ctx);
  }
  return request;
}

std::vector<EffectToPublish> next_effects_to_publish(const DeploymentState& deployment) {
  std::vector<EffectToPublish> effects;
  for (const auto& [hash, id] : deployment.intents) {
    const InstanceState& cell = deployment.cells.at(id);
    const PendingIntent& pending = cell.pending.at(hash);
    if (!pending.published) effects.push_back({id, cell.workflow_hash(), pending});
  }
  std::sort(effects.begin(), effects.end(), [](const auto& a, const auto& b) {
    return std::tie(a.pending.sequence, a.pending.intent.index) < std::tie(b.pending.sequence, b.pending.intent.index);
  });
  return effects;
}

std::uint64_t expired_receipts(const PendingIntent& pending) {
  const bool timer = pending.effect_ref == kTimerEffectRef;
  if (!timer && pending.effect_ref != kApprovalEffectRef) return 0;
  const auto params = decode_cbor(pending.intent.params);
  const auto number = [&](const char* name) -> std::uint64_t {
    if (!params || !params->is_object()) return 0;
    const auto found = params->find(name);
    return found != params->end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
  };
  if (timer) return std::max(number("at_ms"), pending.asked_ms + number("after_ms"));
  const std::uint64_t limit = number("timeout_ms");
  return limit == 0 ? 0 : pending.asked_ms + limit;
}

std::vector<PendingIntent> cancelled_by(const InstanceState& cell, const PendingIntent& cancel) {
  const auto params = decode_cbor(cancel.intent.params);
  const json ref = params && params->is_object() ? params->value("ref", json()) : json();
  const auto asked = [](const PendingIntent& pending) { return std::pair(pending.sequence, pending.intent.index); };
  std::vector<PendingIntent> out;
  for (const auto& [hash, pending] : cell.pending)
    if (json(pending.intent.issuer_ref) == ref && asked(pending) < asked(cancel) &&
        pending.intent.effect != kCancelEffect)
      out.push_back(pending);
  std::sort(out.begin(), out.end(), [&](const auto& a, const auto& b) { return asked(a) < asked(b); });
  return out;
}

ReceiptArrived cancelled_receipt(const std::string& intent) {
  ReceiptArrived out;
  out.intent = intent;
  out.status = ReceiptStatus::cancelled;
  out.payload = dump_json({{"detail", "cancelled"}, {"message", "the workflow has cancelled it"}});
  return out;
}
ReceiptArrived cancel_receipt(const std::string& intent, std::size_t cancelled) {
  ReceiptArrived out;
  out.intent = intent;
  out.payload = dump_json({{"cancelled", cancelled}});
  return out;
}

std::vector<ApplyObstacle> obstacles(const DeploymentState& deployment) {
  std::set<InstanceId> busy;
  for (const auto& [ticket, id] : deployment.ready) busy.insert(id);
  for (const auto& [intent, id] : deployment.intents) busy.insert(id);
  std::vector<ApplyObstacle> found;
  for (const auto& id : busy) {
    const InstanceState& cell = deployment.cells.at(id);
    ApplyObstacle obstacle{id, cell.mail.size(), {}, {}};
    for (const auto& [hash, pending] : cell.pending)
      (pending.published ? obstacle.pending : obstacle.queued).push_back(hash);
    found.push_back(std::move(obstacle));
  }
  return found;
}

std::string join(const std::vector<ApplyObstacle>& all) {
  constexpr std::size_t kShown = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(all.size(), kShown); ++i) {
    text += (i == 0 ? "" : "; ") + shown(all[i].cell) + ':';
    if (all[i].mail > 0) text += " runs (" + count_with_noun(all[i].mail, "event") + " waiting)";
    if (!all[i].pending.empty()) text += ' ' + count_with_noun(all[i].pending.size(), "intent") + " in flight";
    if (!all[i].queued.empty()) text += ' ' + count_with_noun(all[i].queued.size(), "effect") + " queued";
  }
  if (all.size() > kShown) text += "; and " + count_with_noun(all.size() - kShown, "instance") + " more";
  return text;
}

// Returns the request. A spilled state is taken from the repeated step that returned it.
Result<StepRequest> ReplayCheck::request_for(const InstanceId& id) {
  const auto cell = deployment_.cells.find(id);
  const auto known = states_.find(id);
  const bool spilled = cell != deployment_.cells.end() && cell->second.state && cell->second.state->spilled();
  if (!spilled || known == states_.end()) return request_of(deployment_, catalog_, id);
  StateRef& state = *cell->second.state;
  MJ_CHECK(attach(state, known->second));
  auto request = request_of(deployment_, catalog_, id);
  state.bytes.clear();
  return request;
}

void ReplayCheck::repeat_step(const InstanceId& id, const std::string& output, std::uint64_t height) {
  ++verdict_.steps;
  auto request = request_for(id);
  if (!request) return verdict_.problem = WorkflowProblem{kWfCell, request.error().message}, void();
  const auto* manifest = catalog_.find(deployment_.cell(id)->manifest);
  const WorkflowSpec& spec = *manifest->workflow(id.workflow);
  StepAnswer answer = engine_(spec, *manifest, *request);
  // Older versions counted instructions in another way, so the step may have reached its limit elsewhere or not at all.
  while (output_hash(answer) != output && --request->counting > 0) answer = engine_(spec, *manifest, *request);
  if (output_hash(answer) != output) verdict_.differs = OutputMismatchFound{id, height};
  last_.reset();
  const auto* given = std::get_if<StepOutput>(&answer);
  if (given == nullptr || !given->state) return;
  auto canonical = manifest->schemas.check_bytes(spec.state, *given->state, WorkflowRules().max_state_bytes);
  if (canonical) last_ = std::move(canonical->bytes);
}

bool ReplayCheck::fold_one(const WorkflowFact& fact) {
  const auto* step = std::get_if<StepTaken>(&fact.what);
  if (step != nullptr) repeat_step(step->cell, step->output, fact.height);
  if (const auto* failed = std::get_if<StepFailed>(&fact.what)) repeat_step(failed->cell, failed->output, fact.height);
  if (verdict_.differs || verdict_.problem) return false;
  verdict_.problem = fold(deployment_, fact);
  if (verdict_.problem) return false;
  if (step != nullptr && step->state && step->state->spilled() && last_)
    states_[step->cell] = std::move(*last_);
  else if (step != nullptr)
    states_.erase(step->cell);
  return true;
}

ReplayVerdict verify_replay(DeploymentState& from, const ManifestCatalog& catalog,
                            const std::vector<WorkflowFact>& facts, const StepEngine& engine) {
  ReplayCheck check(from, catalog, engine);
  for (const auto& fact : facts)
    if (!check.fold_one(fact)) break;
  return check.verdict();
}

}  // namespace mycojobs
