#include "workflows/workflow_state.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/sha256.h"
#include "text/cbor.h"
#include "text/utf8.h"
#include "workflows/manifest/system_schemas.h"
#include "workflows/manifest/workflow_manifest.h"
#include "workflows/workflow_fact_fields.h"

namespace mycojobs {

namespace workflows {

template <class IO>
void visit(IO& io, VisitedType<IO, InboxEvent>& event) {
  io.object_field("id", event.id);
  io.text_field("schema", event.schema);
  io.bytes_field("value", event.value);
  io.object_field("sample", event.sample);
  io.optional_text_field("intent", event.intent);
  io.optional_number_field("depth", event.depth);
}
template <class IO>
void visit(IO& io, VisitedType<IO, PendingIntent>& pending) {
  io.object_field("intent", pending.intent);
  io.number_field("sequence", pending.sequence);
  io.number_field("asked_ms", pending.requested_ms);
  io.flag_field("published", pending.published);
  io.optional_text_field("carrier", pending.effect_ref);
}
template <class IO>
void visit_anonymous(IO& io, VisitedType<IO, InstanceState>& instance);
template <class IO>
void visit(IO& io, VisitedType<IO, InstanceState>& instance) {
  io.object_field("id", instance.id);
  io.text_field("manifest", instance.manifest);
  visit_anonymous(io, instance);
}
template <class IO>
void visit_anonymous(IO& io, VisitedType<IO, InstanceState>& instance) {
  io.optional_object_field("state", instance.state);
  io.object_list("mail", instance.inbox);
  io.text_list("settled", instance.completed_intents);
  io.flag_field("failed", instance.failed);
  io.optional_text_field("failure", instance.failure);
  io.optional_text_field("message", instance.message);
  io.number_field("born", instance.created_height);
  io.number_field("last", instance.last_height);
  io.number_field("steps", instance.steps);
  io.number_field("refused", instance.refused_receipts);
  std::vector<PendingIntent> pending;
  if constexpr (IO::kWrites)
    for (const auto& [hash, intent] : instance.pending_intents) pending.push_back(intent);
  io.object_list("pending", pending);
  if constexpr (!IO::kWrites)
    for (auto& intent : pending) {
      std::string hash = intent.intent.hash;
      instance.pending_intents.emplace(std::move(hash), std::move(intent));
    }
}
// An element of DeploymentState::ready_instances.
struct ReadyEntry {
  std::uint64_t ticket = 0;
  InstanceId instance;
};
template <class IO>
void visit(IO& io, VisitedType<IO, ReadyEntry>& entry) {
  io.number_field("ticket", entry.ticket);
  io.object_field("cell", entry.instance);
}

}  // namespace workflows

namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 4> kStatusNames{"running", "waiting", "completed", "failed"};

std::optional<WorkflowProblem> make_fact_problem(std::string_view rule, const WorkflowFact& fact,
                                                 const std::string& text) {
  return WorkflowProblem{rule,
                         "height " + std::to_string(fact.height) + ", " + std::string(fact_kind(fact)) + ": " + text};
}

Result<std::string> encode_wrapped(json value, const std::string& arm) {
  return encode_cbor(wrap_in_arm(arm, std::move(value)));
}

// Returns the fields that accepted and rejected receipts of an intent have in common.
Result<json> build_receipt_fields(const InstanceState& instance, const std::string& intent, ReceiptStatus status) {
  const PendingIntent& pending = instance.pending_intents.at(intent);
  json map{
      {"workflow", instance.id.workflow}, {"workflow_hash", instance.workflow_hash()}, {"intent", intent},
      {"effect", pending.intent.effect},  {"status", std::string(to_string(status))},  {"sequence", pending.sequence},
      {"index", pending.intent.index}};
  if (!instance.id.key.empty()) {
    MJ_TRY(key, decode_cbor(instance.id.key));
    map["key"] = std::move(key);
  }
  if (!pending.intent.issuer_ref.empty()) map["issuer_ref"] = pending.intent.issuer_ref;
  return map;
}

// Checks a fact against an instance and applies it. REQUIRES for apply(): check() has returned no problem.
class InstanceFactApplier {
 public:
  InstanceFactApplier(const InstanceId& id, const WorkflowFact& fact) : id_(id), fact_(fact) {}

  std::optional<WorkflowProblem> check(const InstanceState* instance) const {
    return std::visit([&](const auto& content) { return check(instance, content); }, fact_.content);
  }
  // Updates the indexes and counters of `deployment`, too, unless it is nullptr.
  void apply(std::optional<InstanceState>& instance, DeploymentState* deployment) const {
    std::visit([&](const auto& content) { apply(instance, content, deployment); }, fact_.content);
  }

 private:
  std::optional<WorkflowProblem> make_problem(std::string_view rule, const std::string& text) const {
    return make_fact_problem(rule, fact_, text);
  }
  std::optional<WorkflowProblem> check_alive(const InstanceState* instance) const {
    if (instance == nullptr) return make_problem(kInstanceRule, "unknown instance " + display_name(id_));
    if (instance->failed) return make_problem(kFailedRule, display_name(id_) + " has failed");
    return {};
  }
  std::optional<WorkflowProblem> check_next_event(const InstanceState* instance, const InboxEventId& event_id) const {
    if (auto problem = check_alive(instance)) return problem;
    if (instance->inbox.empty() || instance->inbox.front().id != event_id)
      return make_problem(kInboxRule, "not the next mail of " + display_name(id_));
    return {};
  }
  std::optional<WorkflowProblem> check_pending(const InstanceState* instance, const std::string& intent) const {
    if (auto problem = check_alive(instance)) return problem;
    if (!instance->pending_intents.contains(intent))
      return make_problem(kIntentRule, "the intent " + excerpt(intent, 64) + " is not pending");
    return {};
  }
  template <class Value>
  std::optional<WorkflowProblem> check_value(const Result<Value>& value) const {
    if (value) return {};
    return make_problem(kValueRule, value.error().message);
  }

  std::optional<WorkflowProblem> check(const InstanceState*, const ManifestApplied&) const { return {}; }
  std::optional<WorkflowProblem> check(const InstanceState*, const SnapshotTaken&) const { return {}; }
  std::optional<WorkflowProblem> check(const InstanceState* instance, const EventAccepted& event) const {
    for (const auto& target : event.targets) {
      if (target.instance != id_ || !target.skip_reason.empty()) continue;
      if (instance != nullptr && instance->failed) return make_problem(kFailedRule, display_name(id_) + " has failed");
      if (instance != nullptr && instance->manifest != target.manifest)
        return make_problem(kManifestRule, display_name(id_) + " runs the code of another manifest");
      if (auto problem = check_value(encode_inbox_value(event, target))) return problem;
    }
    return {};
  }
  std::optional<WorkflowProblem> check(const InstanceState* instance, const StepTaken& step) const {
    if (auto problem = check_next_event(instance, step.event_id)) return problem;
    if (step.state && !step.state->is_spilled() &&
        (step.state->hash != sha256_hex(step.state->bytes) || step.state->size != step.state->bytes.size()))
      return make_problem(kStateRule, "the state has another hash or size");
    std::set<std::string> hashes;
    for (const auto& intent : step.intents)
      if (instance->pending_intents.contains(intent.hash) || instance->is_completed_intent(intent.hash) ||
          !hashes.insert(intent.hash).second)
        return make_problem(kIntentRule, "the intent " + excerpt(intent.hash, 64) + " was there before");
    return {};
  }
  std::optional<WorkflowProblem> check(const InstanceState* instance, const StepFailed& step) const {
    return check_next_event(instance, step.event_id);
  }
  std::optional<WorkflowProblem> check(const InstanceState* instance, const EffectPublished& fact) const {
    if (auto problem = check_pending(instance, fact.intent)) return problem;
    if (instance->pending_intents.at(fact.intent).published)
      return make_problem(kIntentRule, "it is published already");
    return {};
  }
  std::optional<WorkflowProblem> check(const InstanceState* instance, const ReceiptAdmitted& fact) const {
    if (auto problem = check_pending(instance, fact.intent)) return problem;
    return check_value(encode_inbox_value(*instance, fact));
  }
  std::optional<WorkflowProblem> check(const InstanceState* instance, const ReceiptRefused& fact) const {
    if (instance == nullptr) return make_problem(kInstanceRule, "unknown instance " + display_name(id_));
    if (!instance->pending_intents.contains(fact.intent) && !instance->is_completed_intent(fact.intent))
      return make_problem(kIntentRule, "not requested: " + excerpt(fact.intent, 64));
    return {};
  }
  std::optional<WorkflowProblem> check(const InstanceState* instance, const ReceiptMismatched& fact) const {
    if (auto problem = check_pending(instance, fact.intent)) return problem;
    return fact.arm ? check_value(encode_inbox_value(*instance, fact)) : std::optional<WorkflowProblem>();
  }
  std::optional<WorkflowProblem> check(const InstanceState* instance, const InstanceFailed& fact) const {
    if (auto problem = check_alive(instance)) return problem;
    const bool drops_all_pending = std::equal(
        fact.dropped_intents.begin(), fact.dropped_intents.end(), instance->pending_intents.begin(),
        instance->pending_intents.end(), [](const auto& hash, const auto& pending) { return hash == pending.first; });
    return drops_all_pending ? std::optional<WorkflowProblem>()
                             : make_problem(kIntentRule, "it does not drop what is pending");
  }
  std::optional<WorkflowProblem> check(const InstanceState* instance, const InstanceCompleted&) const {
    if (auto problem = check_alive(instance)) return problem;
    if (!instance->has_completed() || !id_.key.empty())
      return make_problem(kStateRule, display_name(id_) + " is not at its end");
    return {};
  }
  std::optional<WorkflowProblem> check(const InstanceState* instance, const InstanceDeleted& fact) const {
    if (instance == nullptr) return make_problem(kInstanceRule, "unknown instance " + display_name(id_));
    const bool can_delete =
        instance->failed ? !fact.actor.empty() : fact.actor.empty() && instance->has_completed() && !id_.key.empty();
    return can_delete ? std::optional<WorkflowProblem>()
                      : make_problem(kStateRule, display_name(id_) + " is not at its end");
  }

  void update_last_height(InstanceState& instance) const { instance.last_height = fact_.height; }
  // Moves an intent from the pending to the completed intents. `hash` must not be a reference to the key in
  // instance.pending_intents, because the key is erased.
  void complete_intent(InstanceState& instance, const std::string& hash, DeploymentState* deployment) const {
    instance.pending_intents.erase(hash);
    instance.completed_intents.push_back(hash);
    if (deployment != nullptr) deployment->intents.erase(hash), deployment->completed_intents[hash] = id_;
    if (instance.completed_intents.size() <= kMaxCompletedIntents) return;
    if (deployment != nullptr) deployment->completed_intents.erase(instance.completed_intents.front());
    instance.completed_intents.pop_front();
  }

  void apply(std::optional<InstanceState>&, const ManifestApplied&, DeploymentState*) const {}
  void apply(std::optional<InstanceState>&, const SnapshotTaken&, DeploymentState*) const {}
  void apply(std::optional<InstanceState>& instance, const EventAccepted& event, DeploymentState*) const {
    for (std::size_t slot = 0; slot < event.targets.size(); ++slot) {
      const auto& target = event.targets[slot];
      if (target.instance != id_ || !target.skip_reason.empty()) continue;
      if (!instance) {
        instance.emplace();
        instance->id = id_, instance->manifest = target.manifest, instance->created_height = fact_.height;
      }
      instance->inbox.push_back(
          {{fact_.height, slot}, event.schema, *encode_inbox_value(event, target), event.sample, "", event.depth});
      update_last_height(*instance);
    }
  }
  void apply(std::optional<InstanceState>& instance, const StepTaken& step, DeploymentState* deployment) const {
    instance->inbox.pop_front();
    instance->state = step.state;
    ++instance->steps;
    for (const auto& intent : step.intents) {
      instance->pending_intents[intent.hash] = {intent, fact_.height, fact_.at_ms, false, ""};
      if (deployment != nullptr) deployment->intents[intent.hash] = id_;
    }
    update_last_height(*instance);
  }
  void apply(std::optional<InstanceState>& instance, const StepFailed&, DeploymentState*) const {
    instance->inbox.pop_front();
    update_last_height(*instance);
  }
  void apply(std::optional<InstanceState>& instance, const EffectPublished& fact, DeploymentState*) const {
    auto& pending = instance->pending_intents.at(fact.intent);
    pending.published = true, pending.effect_ref = fact.effect_ref;
    update_last_height(*instance);
  }
  void apply(std::optional<InstanceState>& instance, const ReceiptAdmitted& fact, DeploymentState* deployment) const {
    instance->inbox.push_back({{fact_.height, 0},
                               std::string(kReceiptSchema),
                               *encode_inbox_value(*instance, fact),
                               fact.sample,
                               fact.intent});
    complete_intent(*instance, fact.intent, deployment);
    update_last_height(*instance);
  }
  void apply(std::optional<InstanceState>& instance, const ReceiptRefused&, DeploymentState* deployment) const {
    ++instance->refused_receipts;
    if (deployment != nullptr) ++deployment->refused_receipts;
    update_last_height(*instance);
  }
  void apply(std::optional<InstanceState>& instance, const ReceiptMismatched& fact, DeploymentState* deployment) const {
    if (fact.arm)
      instance->inbox.push_back({{fact_.height, 0},
                                 std::string(kRejectedSchema),
                                 *encode_inbox_value(*instance, fact),
                                 fact.sample,
                                 fact.intent});
    complete_intent(*instance, fact.intent, deployment);
    update_last_height(*instance);
  }
  void apply(std::optional<InstanceState>& instance, const InstanceFailed& fact, DeploymentState* deployment) const {
    instance->failed = true, instance->failure = fact.kind, instance->message = fact.message;
    instance->inbox.clear();
    for (const auto& intent : fact.dropped_intents) complete_intent(*instance, intent, deployment);
    update_last_height(*instance);
  }
  void apply(std::optional<InstanceState>& instance, const InstanceCompleted&, DeploymentState*) const {
    update_last_height(*instance);
  }
  void apply(std::optional<InstanceState>& instance, const InstanceDeleted&, DeploymentState* deployment) const {
    if (deployment != nullptr)
      for (const auto& intent : instance->completed_intents) deployment->completed_intents.erase(intent);
    instance.reset();
  }

  const InstanceId& id_;
  const WorkflowFact& fact_;
};

void remove_ticket(DeploymentState& deployment, const InstanceId& id) {
  if (const auto ticket = deployment.tickets.find(id); ticket != deployment.tickets.end()) {
    deployment.ready_instances.erase(ticket->second);
    deployment.tickets.erase(ticket);
  }
}
// An instance has a ticket while its inbox has events. After a step it gets a new ticket behind all others.
void update_ticket(DeploymentState& deployment, const InstanceId& id, bool is_step) {
  const InstanceState* instance = deployment.find_instance(id);
  const bool has_events = instance != nullptr && !instance->inbox.empty();
  if (is_step || !has_events) remove_ticket(deployment, id);
  if (!has_events || deployment.tickets.contains(id)) return;
  deployment.tickets[id] = deployment.next_ticket;
  deployment.ready_instances[deployment.next_ticket++] = id;
}

// Checks a decoded snapshot: exactly the instances with events in their inboxes have a ticket.
Result<void> check_tickets(const DeploymentState& deployment) {
  const auto expected = std::count_if(deployment.instances.begin(), deployment.instances.end(),
                                      [](const auto& row) { return !row.second.inbox.empty(); });
  if (deployment.ready_instances.size() != static_cast<std::size_t>(expected) ||
      deployment.tickets.size() != deployment.ready_instances.size())
    return fail(Code::invalid, "the instances with a ticket are not those with mail");
  for (const auto& [ticket, id] : deployment.ready_instances)
    if (const InstanceState* instance = deployment.find_instance(id);
        instance == nullptr || instance->inbox.empty() || ticket >= deployment.next_ticket)
      return fail(Code::invalid, display_name(id) + " has a ticket, and no mail");
  return {};
}

// Checks the properties of a fact that depend on the deployment, not on one instance.
std::optional<WorkflowProblem> check_deployment(const DeploymentState& deployment, const WorkflowFact& fact) {
  if (fact.height != deployment.height + 1)
    return make_fact_problem(kHeightRule, fact, "the next height is " + std::to_string(deployment.height + 1));
  if (const auto* applied = std::get_if<ManifestApplied>(&fact.content);
      applied != nullptr && applied->replaced_manifest != deployment.manifest)
    return make_fact_problem(kManifestRule, fact, "it replaces another manifest than the one in force");
  const auto* step = std::get_if<StepTaken>(&fact.content);
  const InstanceState* instance = step == nullptr ? nullptr : deployment.find_instance(step->instance);
  if (instance == nullptr) return {};
  for (const auto& intent : step->intents) {
    const IntentOrigin origin{deployment.id, step->instance, instance->workflow_hash(), fact.height};
    if (intent.hash != intent_hash(origin, intent))
      return make_fact_problem(kIntentRule, fact,
                               "the hash of intent " + std::to_string(intent.index) + " does not bind it");
  }
  return {};
}

}  // namespace

std::string_view to_string(InstanceStatus status) { return kStatusNames[static_cast<std::size_t>(status)]; }

InstanceStatus InstanceState::status() const {
  if (failed) return InstanceStatus::failed;
  if (!inbox.empty()) return InstanceStatus::running;
  return state || !pending_intents.empty() ? InstanceStatus::waiting : InstanceStatus::completed;
}
std::string InstanceState::workflow_hash() const { return mycojobs::workflow_hash(manifest, id.workflow); }
bool InstanceState::is_completed_intent(std::string_view intent) const {
  return std::find(completed_intents.begin(), completed_intents.end(), intent) != completed_intents.end();
}
bool InstanceState::has_completed() const { return status() == InstanceStatus::completed; }

InstanceState InstanceState::copy_with_inbox_prefix(std::size_t max_events) const {
  InstanceState copy;
  copy.id = id, copy.manifest = manifest, copy.state = state;
  copy.pending_intents = pending_intents, copy.completed_intents = completed_intents;
  copy.failed = failed, copy.failure = failure, copy.message = message;
  copy.created_height = created_height, copy.last_height = last_height;
  copy.steps = steps, copy.refused_receipts = refused_receipts;
  copy.inbox.assign(inbox.begin(), inbox.begin() + static_cast<std::ptrdiff_t>(std::min(max_events, inbox.size())));
  return copy;
}

const InstanceState* DeploymentState::find_instance(const InstanceId& instance_id) const {
  const auto entry = instances.find(instance_id);
  if (entry != instances.end()) return &entry->second;
  if (missing.ids != nullptr) missing.ids->insert(instance_id);
  return nullptr;
}

bool is_idle(const InstanceState& instance) { return instance.inbox.empty() && instance.pending_intents.empty(); }

void add_instance(DeploymentState& deployment, InstanceState instance) {
  const InstanceId id = instance.id;
  for (const auto& [hash, pending] : instance.pending_intents) deployment.intents[hash] = id;
  for (const auto& hash : instance.completed_intents) deployment.completed_intents[hash] = id;
  deployment.instances.emplace(id, std::move(instance));
}

void forget_instance(DeploymentState& deployment, const InstanceId& id) {
  const auto entry = deployment.instances.find(id);
  if (entry == deployment.instances.end()) return;
  for (const auto& hash : entry->second.completed_intents) deployment.completed_intents.erase(hash);
  deployment.instances.erase(entry);
}

Result<std::string> encode_anonymous(const InstanceState& instance) {
  workflows::FactEncoder encoder;
  workflows::visit_anonymous(encoder, instance);
  return encode_cbor(encoder.map);
}

Result<InstanceState> decode_anonymous_instance(std::string_view bytes, InstanceId id, std::string manifest) {
  MJ_TRY(map, decode_cbor(bytes, {std::size_t{1} << 30, std::size_t{100'000'000}}));
  if (!map.is_object()) return fail(Code::invalid, "it is not an instance");
  workflows::FactDecoder decoder(map, "");
  InstanceState instance;
  workflows::visit_anonymous(decoder, instance);
  MJ_CHECK(decoder.end());
  instance.id = std::move(id), instance.manifest = std::move(manifest);
  return instance;
}

Result<std::string> encode_inbox_value(const EventAccepted& event, const EventTarget& target) {
  if (target.arm.empty()) return event.value;
  MJ_TRY(value, decode_cbor(event.value));
  return encode_wrapped(std::move(value), target.arm);
}
Result<std::string> encode_inbox_value(const InstanceState& instance, const ReceiptAdmitted& receipt) {
  MJ_TRY(map, build_receipt_fields(instance, receipt.intent, receipt.status));
  MJ_TRY(payload, decode_cbor(receipt.payload));
  map["payload"] = std::move(payload);
  if (!receipt.module.empty()) map["executor"] = {{"module", receipt.module}, {"entrypoint", receipt.entrypoint}};
  return encode_wrapped(std::move(map), receipt.arm);
}
Result<std::string> encode_inbox_value(const InstanceState& instance, const ReceiptMismatched& receipt) {
  MJ_TRY(map, build_receipt_fields(instance, receipt.intent, receipt.status));
  map["reason"] = receipt.reason;
  return encode_wrapped(std::move(map), receipt.arm.value_or(""));
}

std::optional<WorkflowProblem> fold(std::optional<InstanceState>& instance, const InstanceId& id,
                                    const WorkflowFact& fact) {
  const InstanceFactApplier applier(id, fact);
  if (auto problem = applier.check(instance ? &*instance : nullptr)) return problem;
  applier.apply(instance, nullptr);
  return {};
}

std::optional<WorkflowProblem> fold(DeploymentState& deployment, const WorkflowFact& fact) {
  if (auto problem = check_deployment(deployment, fact)) return problem;
  const std::vector<InstanceId> instances = affected_instances(fact);
  for (const auto& id : instances)
    if (auto problem = InstanceFactApplier(id, fact).check(deployment.find_instance(id))) return problem;
  const bool is_step = std::holds_alternative<StepTaken>(fact.content);
  for (const auto& id : instances) {
    std::optional<InstanceState> instance;
    auto node = deployment.instances.extract(id);
    if (!node.empty()) instance = std::move(node.mapped());
    InstanceFactApplier(id, fact).apply(instance, &deployment);
    if (instance) deployment.instances.emplace(id, std::move(*instance));
    update_ticket(deployment, id, is_step);
  }
  if (const auto* applied = std::get_if<ManifestApplied>(&fact.content)) deployment.manifest = applied->manifest;
  deployment.height = fact.height;
  return {};
}

Result<std::string> get_state_bytes(const StateRef& state) {
  if (state.is_spilled())
    return fail(Code::unavailable, "the state " + state.hash + " is in a blob that was not loaded");
  return state.bytes;
}
Result<void> attach_blob(StateRef& state, std::string blob) {
  if (sha256_hex(blob) != state.hash || blob.size() != state.size)
    return fail(Code::invalid, "the blob " + state.hash + " does not match the hash in its name");
  state.bytes = std::move(blob);
  return {};
}

Result<std::string> encode(const DeploymentState& deployment) {
  workflows::FactEncoder encoder;
  encoder.number_field("version", 1);
  encoder.text_field("id", deployment.id);
  encoder.text_field("manifest", deployment.manifest);
  encoder.number_field("height", deployment.height);
  encoder.number_field("next_ticket", deployment.next_ticket);
  encoder.number_field("refused", deployment.refused_receipts);
  std::vector<workflows::ReadyEntry> ready_entries;
  for (const auto& [ticket, instance] : deployment.ready_instances) ready_entries.push_back({ticket, instance});
  encoder.object_list("ready", ready_entries);
  std::vector<InstanceState> instances;
  for (const auto& [id, instance] : deployment.instances) instances.push_back(instance);
  encoder.object_list("cells", instances);
  return encode_cbor(encoder.map);
}

Result<DeploymentState> decode_deployment(std::string_view bytes) {
  MJ_TRY(map, decode_cbor(bytes, {std::size_t{1} << 30, std::size_t{100'000'000}}));
  workflows::FactDecoder decoder(map, "");
  DeploymentState deployment;
  std::uint64_t version = 0;
  std::vector<workflows::ReadyEntry> ready_entries;
  std::vector<InstanceState> instances;
  decoder.number_field("version", version);
  decoder.text_field("id", deployment.id);
  decoder.text_field("manifest", deployment.manifest);
  decoder.number_field("height", deployment.height);
  decoder.number_field("next_ticket", deployment.next_ticket);
  decoder.number_field("refused", deployment.refused_receipts);
  decoder.object_list("ready", ready_entries);
  decoder.object_list("cells", instances);
  MJ_CHECK(decoder.end());
  if (version != 1) return fail(Code::unsupported, "a snapshot of version " + std::to_string(version));
  for (auto& entry : ready_entries)
    deployment.tickets[entry.instance] = entry.ticket, deployment.ready_instances[entry.ticket] = entry.instance;
  for (auto& instance : instances) {
    bool is_unique = true;
    for (const auto& [hash, pending] : instance.pending_intents)
      is_unique = deployment.intents.emplace(hash, instance.id).second && is_unique;
    for (const auto& hash : instance.completed_intents)
      is_unique = deployment.completed_intents.emplace(hash, instance.id).second && is_unique;
    if (!is_unique) return fail(Code::invalid, display_name(instance.id) + " has an intent of another instance");
    const InstanceId id = instance.id;
    deployment.instances.emplace(id, std::move(instance));
  }
  MJ_CHECK(check_tickets(deployment));
  MJ_TRY(canonical, encode(deployment));
  if (canonical != bytes) return fail(Code::invalid, "it is not the canonical encoding of its world");
  return deployment;
}

std::string compute_cell_index_root(const DeploymentState& deployment, std::string_view workflow) {
  std::map<std::string, json> rows;
  for (const auto& [id, instance] : deployment.instances) {
    if (id.workflow != workflow || !instance.state) continue;
    const std::string key = sha256_hex(id.key);
    rows[key] = json::array(
        {key, workflows::to_binary(id.key), instance.state->hash, instance.state->size, instance.last_height});
  }
  Sha256 hash;
  for (const auto& [key, row] : rows) hash.update(*encode_cbor(row));
  return hash.hex();
}

std::set<std::string> referenced_blobs(const DeploymentState& deployment) {
  std::set<std::string> blobs;
  for (const auto& [id, instance] : deployment.instances)
    if (instance.state && instance.state->is_spilled()) blobs.insert(instance.state->hash);
  return blobs;
}

}  // namespace mycojobs
