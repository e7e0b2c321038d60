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
using DecisionResult = Result<WorkflowDecision>;

constexpr std::size_t kMaxKeyBytes = 512;

// Returns a hash of an answer of the code. An answer that cannot be encoded gets the hash of its error message.
std::string output_hash(const StepAnswer& answer) {
  const auto bytes = encode(answer);
  return sha256_hex(bytes ? *bytes : "no answer: " + bytes.error().message);
}

// A decision depends on the next event of an inbox and on whether the inbox has more events, so a draft copies no more.
constexpr std::size_t kDraftInboxEvents = 2;

// An unfinished decision: its facts, and the state after these facts. The state contains only the instances that the
// facts change.
class DeploymentDraft {
 public:
  DeploymentDraft(const DeploymentState& deployment, std::uint64_t now_ms) : deployment_(deployment), now_ms_(now_ms) {
    state_.id = deployment.id, state_.manifest = deployment.manifest, state_.height = deployment.height;
    decision_.base = deployment.height;
  }

  // Copies the instance to the state of the draft on first use. Returns nullptr if there is no such instance.
  const InstanceState* load_instance(const InstanceId& id) {
    if (loaded_.insert(id).second)
      if (const InstanceState* instance = deployment_.find_instance(id))
        state_.instances.emplace(id, instance->copy_with_inbox_prefix(kDraftInboxEvents));
    return state_.find_instance(id);
  }
  std::uint64_t next_height() const { return state_.height + 1; }

  template <class Content>
  void add(Content content) {
    add_fact({next_height(), now_ms_, std::move(content)});
  }
  void add_fact(WorkflowFact fact) {
    for (const auto& id : affected_instances(fact)) load_instance(id);
    if (auto problem = fold(state_, fact); problem && error_.empty())
      error_ = std::string(problem->rule) + ": " + problem->text;
    decision_.facts.push_back(std::move(fact));
  }
  void add_blob(WorkflowBlob blob) { decision_.blobs.push_back(std::move(blob)); }

  void fail_instance(const InstanceId& id, const std::string& kind, const std::string& message) {
    InstanceFailed fact{id, kind, to_utf8(message), {}};
    for (const auto& [hash, pending] : load_instance(id)->pending_intents) fact.dropped_intents.push_back(hash);
    add(std::move(fact));
  }
  // Adds the fact that the instance has completed, if its status is completed.
  void end_if_completed(const InstanceId& id) {
    const InstanceState* instance = load_instance(id);
    if (instance == nullptr || !instance->has_completed()) return;
    if (id.key.empty())
      add(InstanceCompleted{id});
    else
      add(InstanceDeleted{id, ""});
  }

  // Completes the decision. Error `internal`: a fact does not fit the state.
  DecisionResult finish() {
    if (!error_.empty()) return fail(Code::internal, "a decision does not fit: " + error_);
    for (const auto& fact : decision_.facts) {
      const auto* step = std::get_if<StepTaken>(&fact.content);
      const InstanceState* instance = step == nullptr ? nullptr : state_.find_instance(step->instance);
      if (instance == nullptr) continue;
      for (const auto& intent : step->intents)
        if (const auto pending = instance->pending_intents.find(intent.hash);
            pending != instance->pending_intents.end())
          decision_.effects_to_publish.push_back({step->instance, instance->workflow_hash(), pending->second});
    }
    for (const auto& [ticket, id] : state_.ready_instances) decision_.ready_instances.push_back(id);
    return std::move(decision_);
  }
  // Returns the problem of the first fact that does not fit the state, or an empty text.
  const std::string& error() const { return error_; }

 private:
  const DeploymentState& deployment_;
  const std::uint64_t now_ms_;
  DeploymentState state_;
  std::set<InstanceId> loaded_;  // instances that were searched in deployment_
  WorkflowDecision decision_;
  std::string error_;  // problem of the first fact that does not fit the state
};

class WorkflowDecider {
 public:
  WorkflowDecider(const DeploymentState& deployment, const ManifestCatalog& catalog, const WorkflowInput& input,
                  const WorkflowRules& rules)
      : deployment_(deployment), catalog_(catalog), input_(input), rules_(rules) {}

  DecisionResult decide() {
    return std::visit([this](const auto& content) { return handle(content); }, input_.content);
  }

 private:
  struct InstanceCode {
    const WorkflowManifest* manifest = nullptr;
    const WorkflowSpec* workflow = nullptr;
  };
  DeploymentDraft start_draft() const { return DeploymentDraft(deployment_, input_.sample.now_ms); }
  DecisionResult empty_decision() const { return start_draft().finish(); }

  Result<InstanceCode> find_code(const InstanceState& instance) const {
    const auto* manifest = catalog_.find(instance.manifest);
    const auto* workflow = manifest == nullptr ? nullptr : manifest->workflow(instance.id.workflow);
    if (workflow == nullptr)
      return fail(Code::unavailable, "the manifest " + excerpt(instance.manifest, 64) + " that " +
                                         display_name(instance.id) + " runs is not here");
    return InstanceCode{manifest, workflow};
  }

  // --- events
  struct IncomingEvent {
    std::string schema;
    CanonicalValue value;
  };
  static Result<void> check_sender(const WorkflowManifest& manifest, const IncomingEvent& event) {
    const auto* arms = manifest.schemas.arms(event.schema);
    if (is_system_name(event.schema)) return fail(Code::invalid, event.schema + ": only the system sends that");
    if (arms == nullptr) return {};
    for (const auto& arm : *arms)
      if (event.value.value->at("$tag") == arm.tag && is_system_name(arm.ref))
        return fail(Code::invalid, event.schema + ": only the system sends " + arm.ref);
    return {};
  }
  static Result<std::string> extract_key(const WorkflowManifest& manifest, const WorkflowSpec& workflow,
                                         const Subscription& subscription, const json& value) {
    if (!workflow.is_keyed()) return std::string();
    const std::string subject = "the key of " + workflow.name + " (" + subscription.key_field + ')';
    const json* key = find_at_path(value, subscription.key_field);
    if (key == nullptr) return fail(Code::invalid, subject + " is missing");
    auto checked = manifest.schemas.check(workflow.key_schema, *key, ValueForm::from_cbor, kMaxKeyBytes);
    if (!checked) return fail(std::move(checked).error(), subject);
    if (!checked->value->is_string() && !checked->value->is_number_integer() && !checked->value->is_binary())
      return fail(Code::invalid, subject + " is no text, whole number or byte string");
    return checked->bytes;
  }
  // Returns the receivers of an event, in the order of the subscriptions of the active manifest.
  Result<std::vector<EventTarget>> route(DeploymentDraft& draft, const WorkflowManifest& active,
                                         const IncomingEvent& event) {
    MJ_CHECK(check_sender(active, event));
    std::vector<EventTarget> targets;
    for (const auto& subscription : active.subscriptions) {
      if (subscription.event != event.schema) continue;
      const auto* workflow = active.workflow(subscription.workflow);
      MJ_TRY(key, extract_key(active, *workflow, subscription, wrap_in_arm(subscription.arm, *event.value.value)));
      EventTarget target{{workflow->name, std::move(key)}, active.hash, subscription.arm, ""};
      if (const InstanceState* instance = draft.load_instance(target.instance); instance != nullptr)
        MJ_CHECK(adapt_target(*instance, event, target));
      targets.push_back(std::move(target));
    }
    for (const auto& target : targets)
      MJ_CHECK(encode_inbox_value(EventAccepted{event.schema, event.value.bytes, "", {}, 0, {}, {}}, target));
    return targets;
  }
  // Adapts the target to the code of an existing instance. If this is the code of an older manifest, it may accept the
  // event as another arm or not at all.
  Result<void> adapt_target(const InstanceState& instance, const IncomingEvent& event, EventTarget& target) const {
    if (instance.failed) target.skip_reason = "failed";
    if (instance.failed || instance.manifest == target.manifest) return {};
    MJ_TRY(code, find_code(instance));
    target.manifest = instance.manifest;
    const auto arm = code.manifest->schemas.find_arm(code.workflow->event, event.schema);
    const auto canonical = code.manifest->schemas.check_bytes(event.schema, event.value.bytes);
    if (arm && canonical && canonical->bytes == event.value.bytes)
      target.arm = *arm;
    else
      target.skip_reason = "unfit";
    return {};
  }

  DecisionResult handle(const EventArrived& event) {
    const auto* active = catalog_.find(deployment_.manifest);
    if (active == nullptr) return fail(Code::not_found, "no manifest is in force here");
    MJ_TRY(value, active->schemas.check_text(event.schema, event.value, event.form));
    const IncomingEvent incoming{event.schema, std::move(value)};
    DeploymentDraft draft = start_draft();
    MJ_TRY(targets, route(draft, *active, incoming));
    if (targets.empty()) return fail(Code::not_found, "no workflow takes " + excerpt(event.schema, 200));
    for (const auto& target : targets)
      if (const auto* instance = deployment_.find_instance(target.instance);
          instance != nullptr && instance->inbox.size() >= rules_.max_inbox_events)
        return fail(Code::too_large, display_name(target.instance) + " has " +
                                         count_with_noun(instance->inbox.size(), "event") + " waiting");
    draft.add(EventAccepted{incoming.schema, incoming.value.bytes, to_utf8(event.source), std::nullopt, 0,
                            input_.sample, std::move(targets)});
    return draft.finish();
  }

  // --- steps
  DecisionResult handle(const StepCompleted& step) {
    const InstanceState* instance = deployment_.find_instance(step.instance);
    if (instance == nullptr || instance->failed || instance->inbox.empty() ||
        instance->inbox.front().id != step.event_id)
      return fail(Code::conflict, "the step is not of the next mail of " + display_name(step.instance));
    MJ_TRY(code, find_code(*instance));
    if (const auto* error = std::get_if<StepError>(&step.answer)) return reject_step(step, error->kind, *error);
    DeploymentDraft draft = start_draft();
    auto applied = apply_output(draft, *instance, code, step, std::get<StepOutput>(step.answer));
    if (!applied && applied.error().code == Code::unavailable) return tl::unexpected(std::move(applied).error());
    if (!applied) return reject_step(step, kStepErrorContract, {kStepErrorContract, applied.error().message, 0});
    draft.end_if_completed(step.instance);
    return draft.finish();
  }
  // Discards the results of the step and fails the instance. A retry is useless, because the same
  // request gives the same answer.
  DecisionResult reject_step(const StepCompleted& step, const std::string& kind, const StepError& error) {
    std::string message = to_utf8(error.message);
    if (error.line != 0) message += " (line " + std::to_string(error.line) + ')';
    DeploymentDraft draft = start_draft();
    draft.add(StepFailed{step.instance, step.event_id, output_hash(step.answer), to_utf8(kind), message});
    draft.fail_instance(step.instance, "step", message);
    return draft.finish();
  }
  Result<void> apply_output(DeploymentDraft& draft, const InstanceState& instance, const InstanceCode& code,
                            const StepCompleted& step, const StepOutput& output) {
    MJ_CHECK(check_output_limits(output));
    StepTaken fact{
        step.instance, step.event_id, output_hash(step.answer), std::nullopt, {}, output.domain_events.size(), {}};
    MJ_CHECK(add_state(draft, code, output, fact));
    MJ_CHECK(add_intents(draft, instance, code, output, fact));
    MJ_CHECK(add_annotations(code, output, fact));
    std::vector<IncomingEvent> events;
    for (const auto& event : output.domain_events) {
      auto value = code.manifest->schemas.check_bytes(event.schema, event.value);
      if (!value) return fail(std::move(value).error(), "the event " + excerpt(event.schema, 200));
      if (is_system_name(event.schema)) return fail(Code::invalid, event.schema + ": only the system sends that");
      events.push_back({event.schema, std::move(*value)});
    }
    const std::uint64_t height = draft.next_height();
    draft.add(std::move(fact));
    return add_derived_events(draft, instance, events, height);
  }
  static Result<void> check_output_limits(const StepOutput& output) {
    const auto check_max = [](std::size_t count, std::size_t limit, const char* noun) -> Result<void> {
      if (count <= limit) return {};
      return fail(Code::too_large, "it gave " + count_with_noun(count, noun) + "; at most " + std::to_string(limit));
    };
    MJ_CHECK(check_max(output.effects.size(), kMaxStepEffects, "effect"));
    MJ_CHECK(check_max(output.domain_events.size(), kMaxStepEvents, "event"));
    std::size_t bytes = output.annotations ? output.annotations->size() : 0;
    for (const auto& effect : output.effects) bytes += effect.params.size() + effect.issuer_ref.size();
    for (const auto& event : output.domain_events) bytes += event.value.size();
    return check_max(bytes, kMaxStepBytes, "byte");
  }
  Result<void> add_state(DeploymentDraft& draft, const InstanceCode& code, const StepOutput& output,
                         StepTaken& fact) const {
    if (!output.state) return {};
    auto checked = code.manifest->schemas.check_bytes(code.workflow->state, *output.state, rules_.max_state_bytes);
    if (!checked) return fail(std::move(checked).error(), "the state");
    StateRef state{sha256_hex(checked->bytes), checked->bytes.size(), std::move(checked->bytes)};
    if (state.size > rules_.inline_state_bytes) draft.add_blob({state.hash, std::exchange(state.bytes, "")});
    fact.state = std::move(state);
    return {};
  }
  Result<void> add_intents(const DeploymentDraft& draft, const InstanceState& instance, const InstanceCode& code,
                           const StepOutput& output, StepTaken& fact) const {
    const IntentOrigin origin{deployment_.id, instance.id, instance.workflow_hash(), draft.next_height()};
    for (std::size_t i = 0; i < output.effects.size(); ++i) {
      const auto& effect = output.effects[i];
      const auto* spec = code.manifest->effect(effect.kind);
      if (spec == nullptr || !code.workflow->can_emit(effect.kind))
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
    return check_pending_limits(instance, fact.intents);
  }
  Result<void> check_pending_limits(const InstanceState& instance, const std::vector<Intent>& new_intents) const {
    if (new_intents.empty()) return {};
    const std::size_t count = instance.pending_intents.size() + new_intents.size();
    if (count > rules_.max_pending_intents)
      return fail(Code::too_large, "it would wait for " + count_with_noun(count, "effect") + "; at most " +
                                       std::to_string(rules_.max_pending_intents));
    std::size_t bytes = 0;
    for (const auto& [hash, pending] : instance.pending_intents) bytes += pending.intent.params.size();
    for (const Intent& intent : new_intents) bytes += intent.params.size();
    if (bytes > rules_.max_pending_param_bytes)
      return fail(Code::too_large, "the parameters of the effects that it would wait for have " +
                                       count_with_noun(bytes, "byte") + "; at most " +
                                       std::to_string(rules_.max_pending_param_bytes));
    return {};
  }
  static Result<void> add_annotations(const InstanceCode& code, const StepOutput& output, StepTaken& fact) {
    if (!output.annotations) return {};
    if (code.workflow->annotations.empty()) return fail(Code::invalid, "it gave annotations, and declares none");
    auto checked = code.manifest->schemas.check_bytes(code.workflow->annotations, *output.annotations);
    if (!checked) return fail(std::move(checked).error(), "the annotations");
    fact.annotations = std::move(checked->bytes);
    return {};
  }
  // Adds the events of a step, each with entropy of its own, as facts of the same decision.
  // `step_height` is the height of the fact of the step.
  Result<void> add_derived_events(DeploymentDraft& draft, const InstanceState& instance,
                                  const std::vector<IncomingEvent>& events, std::uint64_t step_height) {
    const auto* active = catalog_.find(deployment_.manifest);
    const std::uint64_t depth = instance.inbox.front().depth + 1;
    if (!events.empty() && depth > rules_.max_depth)
      return fail(Code::too_large, "its event follows from " + count_with_noun(rules_.max_depth, "event") +
                                       ", each from a step on the one before: a loop; an effect, such as a timer, "
                                       "belongs in between");
    std::size_t deliveries = 0;
    for (std::size_t i = 0; i < events.size(); ++i) {
      EventAccepted fact{events[i].schema,
                         events[i].value.bytes,
                         "",
                         instance.id,
                         step_height,
                         {input_.sample.now_ms, derive_entropy(input_.sample, i)},
                         {},
                         depth};
      auto targets =
          active == nullptr ? Result<std::vector<EventTarget>>() : route_derived(draft, *active, instance, events[i]);
      if (!targets && instance.manifest == deployment_.manifest)
        return fail(std::move(targets).error(), events[i].schema);
      if (!targets && targets.error().code == Code::unavailable) return tl::unexpected(std::move(targets).error());
      // The active manifest may not know an event of older code, or may have another schema for it.
      if (targets)
        fact.targets = std::move(*targets);
      else
        fact.source = "not routed: " + to_utf8(targets.error().message);
      MJ_CHECK(check_capacity(fact.targets));
      deliveries += fact.targets.size();
      if (deliveries > rules_.max_step_deliveries)
        return fail(Code::too_large,
                    "its events go to more than " + count_with_noun(rules_.max_step_deliveries, "instance"));
      draft.add(std::move(fact));
    }
    return {};
  }
  // Bounds the memory for undelivered events: steps can emit events faster than instances process them.
  Result<void> check_capacity(const std::vector<EventTarget>& targets) const {
    if (deployment_.ready_instances.size() >= rules_.max_ready_instances)
      return fail(Code::too_large, "events wait for " +
                                       count_with_noun(deployment_.ready_instances.size(), "instance") +
                                       ": it may send no more");
    for (const EventTarget& target : targets)
      if (const InstanceState* instance = deployment_.find_instance(target.instance);
          instance != nullptr && instance->inbox.size() >= rules_.max_derived_inbox_events)
        return fail(Code::too_large, display_name(target.instance) + " has " +
                                         count_with_noun(instance->inbox.size(), "event") + " waiting");
    return {};
  }
  Result<std::vector<EventTarget>> route_derived(DeploymentDraft& draft, const WorkflowManifest& active,
                                                 const InstanceState& instance, const IncomingEvent& event) {
    if (instance.manifest == active.hash) return route(draft, active, event);
    MJ_TRY(value, active.schemas.check_bytes(event.schema, event.value.bytes));
    return route(draft, active, {event.schema, std::move(value)});
  }

  // --- effects and receipts
  DecisionResult handle(const EffectDispatched& dispatch) {
    const auto entry = deployment_.intents.find(dispatch.intent);
    if (entry == deployment_.intents.end())
      return deployment_.completed_intents.contains(dispatch.intent) ? empty_decision()
                                                                     : unknown_intent_error(dispatch.intent);
    if (deployment_.instances.at(entry->second).pending_intents.at(dispatch.intent).published) return empty_decision();
    DeploymentDraft draft = start_draft();
    draft.add(EffectPublished{entry->second, dispatch.intent, to_utf8(dispatch.effect_ref)});
    return draft.finish();
  }
  static tl::unexpected<Error> unknown_intent_error(const std::string& intent) {
    return fail(Code::not_found, "unknown intent " + excerpt(intent, 64));
  }
  DecisionResult handle(const ReceiptArrived& receipt) {
    const auto pending = deployment_.intents.find(receipt.intent);
    const auto completed = deployment_.completed_intents.find(receipt.intent);
    const bool is_pending = pending != deployment_.intents.end();
    if (!is_pending && completed == deployment_.completed_intents.end()) return unknown_intent_error(receipt.intent);
    DeploymentDraft draft = start_draft();
    if (!receipt.refusal_reason.empty())
      draft.add(ReceiptRefused{is_pending ? pending->second : completed->second, receipt.intent,
                               to_utf8(receipt.refusal_reason)});
    else if (is_pending)
      MJ_CHECK(admit_receipt(draft, deployment_.instances.at(pending->second), receipt));
    return draft.finish();
  }
  Result<void> admit_receipt(DeploymentDraft& draft, const InstanceState& instance,
                             const ReceiptArrived& receipt) const {
    MJ_TRY(code, find_code(instance));
    const auto* effect = code.manifest->effect(instance.pending_intents.at(receipt.intent).intent.effect);
    const bool has_succeeded = receipt.status == ReceiptStatus::ok;
    auto payload = code.manifest->schemas.check_text(
        has_succeeded && effect != nullptr ? effect->receipt : kFailureSchema, receipt.payload, receipt.form);
    std::string mismatch_reason;
    if (payload) {
      ReceiptAdmitted fact{instance.id,
                           receipt.intent,
                           receipt.status,
                           std::move(payload->bytes),
                           to_utf8(receipt.module),
                           to_utf8(receipt.entrypoint),
                           code.workflow->receipt_arm,
                           input_.sample};
      const auto value = encode_inbox_value(instance, fact);
      if (value) return draft.add(std::move(fact)), Result<void>();
      mismatch_reason = value.error().message;
    } else {
      mismatch_reason = payload.error().message;
    }
    draft.add(ReceiptMismatched{instance.id, receipt.intent, receipt.status, to_utf8(mismatch_reason),
                                code.workflow->rejected_arm, input_.sample});
    if (!code.workflow->rejected_arm)
      draft.fail_instance(instance.id, "receipt",
                          "the receipt of " + excerpt(receipt.intent, 64) + " does not fit: " + mismatch_reason);
    return {};
  }

  // --- the deployment
  DecisionResult handle(const ApplyManifest& apply) {
    const auto* manifest = catalog_.find(apply.hash);
    if (manifest == nullptr) return fail(Code::not_found, "unknown manifest " + excerpt(apply.hash, 64));
    if (apply.hash == deployment_.manifest) return empty_decision();
    if (const auto obstacles = find_apply_obstacles(deployment_); !obstacles.empty())
      return fail(Code::conflict, "a manifest cannot be applied now: " + join(obstacles));
    DeploymentDraft draft = start_draft();
    draft.add(ManifestApplied{manifest->hash, manifest->name, deployment_.manifest});
    return draft.finish();
  }
  DecisionResult handle(const TakeSnapshot& take) {
    if (!deployment_.ready_instances.empty())
      return fail(
          Code::conflict,
          "snapshot rejected: " + count_with_noun(deployment_.ready_instances.size(), "instance") + " can take a step");
    if (const auto unpublished = next_effects_to_publish(deployment_); !unpublished.empty())
      return fail(Code::conflict,
                  "snapshot rejected: " + count_with_noun(unpublished.size(), "effect") + " not published");
    if (!take.root.empty()) {
      DeploymentDraft draft = start_draft();
      draft.add(SnapshotTaken{take.root, take.size});
      return draft.finish();
    }
    MJ_TRY(snapshot, build_snapshot(deployment_));
    if (snapshot.bytes() > rules_.max_snapshot_bytes)
      return fail(Code::too_large, "a snapshot of " + count_with_noun(snapshot.bytes(), "byte") + "; at most " +
                                       std::to_string(rules_.max_snapshot_bytes));
    DeploymentDraft draft = start_draft();
    draft.add(SnapshotTaken{snapshot.root.hash, snapshot.bytes()});
    for (WorkflowBlob& page : snapshot.pages) draft.add_blob(std::move(page));
    draft.add_blob(std::move(snapshot.root));
    return draft.finish();
  }
  DecisionResult handle(const OutputMismatchFound& mismatch) {
    const InstanceState* instance = deployment_.find_instance(mismatch.instance);
    if (instance == nullptr) return fail(Code::not_found, "unknown instance " + display_name(mismatch.instance));
    if (instance->failed) return empty_decision();
    DeploymentDraft draft = start_draft();
    draft.fail_instance(instance->id, "nondeterministic",
                        "its code gave another output for the step at height " + std::to_string(mismatch.height));
    return draft.finish();
  }
  DecisionResult handle(const RemoveInstance& remove) {
    const InstanceState* instance = deployment_.find_instance(remove.instance);
    if (instance == nullptr) return fail(Code::not_found, "unknown instance " + display_name(remove.instance));
    if (!instance->failed || remove.actor.empty())
      return fail(Code::conflict, display_name(remove.instance) + " has not failed: only its own code ends it");
    DeploymentDraft draft = start_draft();
    draft.add(InstanceDeleted{instance->id, to_utf8(remove.actor)});
    return draft.finish();
  }

  DecisionResult handle(const CancelInstance& cancel) {
    const InstanceState* instance = deployment_.find_instance(cancel.instance);
    if (instance == nullptr) return fail(Code::not_found, "unknown instance " + display_name(cancel.instance));
    if (instance->failed || instance->status() == InstanceStatus::completed)
      return fail(Code::conflict,
                  display_name(cancel.instance) + " has ended: it is " + std::string(to_string(instance->status())));
    DeploymentDraft draft = start_draft();
    draft.fail_instance(instance->id, kCancelledFailure,
                        "by " + cancel.actor + (cancel.reason.empty() ? "" : ": " + cancel.reason));
    return draft.finish();
  }

  const DeploymentState& deployment_;
  const ManifestCatalog& catalog_;
  const WorkflowInput& input_;
  const WorkflowRules& rules_;
};

Result<std::string> encode_context(const InstanceState& instance, const WorkflowManifest& manifest,
                                   const WorkflowSpec& workflow) {
  const InboxEvent& event = instance.inbox.front();
  json ctx{{"now_ms", event.sample.now_ms},   {"entropy", workflows::to_binary(event.sample.entropy)},
           {"height", event.id.height},       {"manifest_hash", manifest.hash},
           {"workflow", workflow.name},       {"workflow_hash", workflow.hash},
           {"cell_mode", workflow.is_keyed()}};
  if (!instance.id.key.empty()) {
    MJ_TRY(key, decode_cbor(instance.id.key));
    ctx["key"] = std::move(key);
  }
  return encode_cbor(ctx);
}

}  // namespace

DecisionResult decide(const DeploymentState& deployment, const ManifestCatalog& catalog, const WorkflowInput& input,
                      const WorkflowRules& rules) {
  return WorkflowDecider(deployment, catalog, input, rules).decide();
}

Result<void> commit(DeploymentState& deployment, const WorkflowDecision& decision) {
  if (decision.base != deployment.height)
    return fail(Code::conflict, "it was decided at height " + std::to_string(decision.base) + "; now it is " +
                                    std::to_string(deployment.height));
  DeploymentDraft draft(deployment, 0);
  for (const auto& fact : decision.facts) draft.add_fact(fact);
  if (!draft.error().empty()) return fail(Code::internal, draft.error());
  for (const auto& fact : decision.facts)
    if (const auto problem = fold(deployment, fact)) return fail(Code::internal, problem->text);
  return {};
}

std::vector<InstanceId> next_instances(const DeploymentState& deployment, std::size_t max,
                                       const std::set<InstanceId>& running) {
  std::vector<InstanceId> instances;
  for (const auto& [ticket, id] : deployment.ready_instances) {
    if (instances.size() >= max) break;
    if (!running.contains(id)) instances.push_back(id);
  }
  return instances;
}

Result<StepRequest> build_step_request(const DeploymentState& deployment, const ManifestCatalog& catalog,
                                       const InstanceId& id) {
  const InstanceState* instance = deployment.find_instance(id);
  if (instance == nullptr || instance->inbox.empty()) return fail(Code::not_found, display_name(id) + " has no mail");
  const auto* manifest = catalog.find(instance->manifest);
  const auto* workflow = manifest == nullptr ? nullptr : manifest->workflow(id.workflow);
  if (workflow == nullptr) return fail(Code::not_found, "the manifest " + instance->manifest + " is not here");
  StepRequest request;
  if (instance->state) {
    MJ_TRY(bytes, get_state_bytes(*instance->state));
    request.state = std::move(bytes);
  }
  const InboxEvent& event = instance->inbox.front();
  request.event = {event.schema, event.value, std::nullopt};
  if (workflow->is_keyed()) request.event.key = id.key;
  if (!workflow->context.empty()) {
    MJ_TRY(ctx, encode_context(*instance, *manifest, *workflow));
    request.ctx = std::move(ctx);
  }
  return request;
}

std::vector<EffectToPublish> next_effects_to_publish(const DeploymentState& deployment) {
  std::vector<EffectToPublish> effects;
  for (const auto& [hash, id] : deployment.intents) {
    const InstanceState& instance = deployment.instances.at(id);
    const PendingIntent& pending = instance.pending_intents.at(hash);
    if (!pending.published) effects.push_back({id, instance.workflow_hash(), pending});
  }
  std::sort(effects.begin(), effects.end(), [](const auto& a, const auto& b) {
    return std::tie(a.pending_intent.sequence, a.pending_intent.intent.index) <
           std::tie(b.pending_intent.sequence, b.pending_intent.intent.index);
  });
  return effects;
}

std::uint64_t get_expiry_ms(const PendingIntent& pending) {
  const bool is_timer = pending.effect_ref == kTimerEffectRef;
  if (!is_timer && pending.effect_ref != kApprovalEffectRef) return 0;
  const auto params = decode_cbor(pending.intent.params);
  const auto get_number = [&](const char* name) -> std::uint64_t {
    if (!params || !params->is_object()) return 0;
    const auto field = params->find(name);
    return field != params->end() && field->is_number_unsigned() ? field->get<std::uint64_t>() : 0;
  };
  if (is_timer) return std::max(get_number("at_ms"), pending.requested_ms + get_number("after_ms"));
  const std::uint64_t timeout_ms = get_number("timeout_ms");
  return timeout_ms == 0 ? 0 : pending.requested_ms + timeout_ms;
}

std::vector<PendingIntent> find_cancelled_intents(const InstanceState& instance, const PendingIntent& cancel) {
  const auto params = decode_cbor(cancel.intent.params);
  const json ref = params && params->is_object() ? params->value("ref", json()) : json();
  const auto get_order = [](const PendingIntent& pending) { return std::pair(pending.sequence, pending.intent.index); };
  std::vector<PendingIntent> out;
  for (const auto& [hash, pending] : instance.pending_intents)
    if (json(pending.intent.issuer_ref) == ref && get_order(pending) < get_order(cancel) &&
        pending.intent.effect != kCancelEffect)
      out.push_back(pending);
  std::sort(out.begin(), out.end(), [&](const auto& a, const auto& b) { return get_order(a) < get_order(b); });
  return out;
}

ReceiptArrived make_cancelled_receipt(const std::string& intent) {
  ReceiptArrived out;
  out.intent = intent;
  out.status = ReceiptStatus::cancelled;
  out.payload = dump_json({{"detail", "cancelled"}, {"message", "the workflow has cancelled it"}});
  return out;
}
ReceiptArrived make_cancel_receipt(const std::string& intent, std::size_t cancelled) {
  ReceiptArrived out;
  out.intent = intent;
  out.payload = dump_json({{"cancelled", cancelled}});
  return out;
}

std::vector<ApplyObstacle> find_apply_obstacles(const DeploymentState& deployment) {
  std::set<InstanceId> busy_ids;
  for (const auto& [ticket, id] : deployment.ready_instances) busy_ids.insert(id);
  for (const auto& [intent, id] : deployment.intents) busy_ids.insert(id);
  std::vector<ApplyObstacle> obstacles;
  for (const auto& id : busy_ids) {
    const InstanceState& instance = deployment.instances.at(id);
    ApplyObstacle obstacle{id, instance.inbox.size(), {}, {}};
    for (const auto& [hash, pending] : instance.pending_intents)
      (pending.published ? obstacle.published_intents : obstacle.unpublished_intents).push_back(hash);
    obstacles.push_back(std::move(obstacle));
  }
  return obstacles;
}

std::string join(const std::vector<ApplyObstacle>& obstacles) {
  constexpr std::size_t kMaxListed = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(obstacles.size(), kMaxListed); ++i) {
    text += (i == 0 ? "" : "; ") + display_name(obstacles[i].instance) + ':';
    if (obstacles[i].inbox_size > 0)
      text += " runs (" + count_with_noun(obstacles[i].inbox_size, "event") + " waiting)";
    if (!obstacles[i].published_intents.empty())
      text += ' ' + count_with_noun(obstacles[i].published_intents.size(), "intent") + " in flight";
    if (!obstacles[i].unpublished_intents.empty())
      text += ' ' + count_with_noun(obstacles[i].unpublished_intents.size(), "effect") + " queued";
  }
  if (obstacles.size() > kMaxListed)
    text += "; and " + count_with_noun(obstacles.size() - kMaxListed, "instance") + " more";
  return text;
}

// Builds the request for the next step. The bytes of a spilled state come from the repeated step that returned the
// state.
Result<StepRequest> ReplayVerifier::build_request(const InstanceId& id) {
  const auto instance = deployment_.instances.find(id);
  const auto spilled = spilled_states_.find(id);
  const bool is_spilled =
      instance != deployment_.instances.end() && instance->second.state && instance->second.state->is_spilled();
  if (!is_spilled || spilled == spilled_states_.end()) return build_step_request(deployment_, catalog_, id);
  StateRef& state = *instance->second.state;
  MJ_CHECK(attach_blob(state, spilled->second));
  auto request = build_step_request(deployment_, catalog_, id);
  state.bytes.clear();
  return request;
}

void ReplayVerifier::repeat_step(const InstanceId& id, const std::string& output, std::uint64_t height) {
  ++result_.steps;
  auto request = build_request(id);
  if (!request) return result_.problem = WorkflowProblem{kInstanceRule, request.error().message}, void();
  const auto* manifest = catalog_.find(deployment_.find_instance(id)->manifest);
  const WorkflowSpec& spec = *manifest->workflow(id.workflow);
  StepAnswer answer = engine_(spec, *manifest, *request);
  // Older versions counted instructions in another way, so that the recorded step may have reached the instruction
  // limit at another instruction or not at all. Therefore the step is repeated with the older ways of counting.
  while (output_hash(answer) != output && --request->counting > 0) answer = engine_(spec, *manifest, *request);
  if (output_hash(answer) != output) result_.mismatch = OutputMismatchFound{id, height};
  last_state_.reset();
  const auto* step_output = std::get_if<StepOutput>(&answer);
  if (step_output == nullptr || !step_output->state) return;
  auto canonical = manifest->schemas.check_bytes(spec.state, *step_output->state, WorkflowRules().max_state_bytes);
  if (canonical) last_state_ = std::move(canonical->bytes);
}

bool ReplayVerifier::fold_one(const WorkflowFact& fact) {
  const auto* step = std::get_if<StepTaken>(&fact.content);
  if (step != nullptr) repeat_step(step->instance, step->output, fact.height);
  if (const auto* failed = std::get_if<StepFailed>(&fact.content))
    repeat_step(failed->instance, failed->output, fact.height);
  if (result_.mismatch || result_.problem) return false;
  result_.problem = fold(deployment_, fact);
  if (result_.problem) return false;
  if (step != nullptr && step->state && step->state->is_spilled() && last_state_)
    spilled_states_[step->instance] = std::move(*last_state_);
  else if (step != nullptr)
    spilled_states_.erase(step->instance);
  return true;
}

StepReplayResult verify_replay(DeploymentState& deployment, const ManifestCatalog& catalog,
                               const std::vector<WorkflowFact>& facts, const StepEngine& engine) {
  ReplayVerifier verifier(deployment, catalog, engine);
  for (const auto& fact : facts)
    if (!verifier.fold_one(fact)) break;
  return verifier.result();
}

}  // namespace mycojobs
