#include "service/workflow_service.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/parse.h"
#include "base/random.h"
#include "base/sha256.h"
#include "model/codec.h"
#include "model/trace_context.h"
#include "store/acl_context.h"
#include "store/keys.h"
#include "text/cbor.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/shell_word.h"
#include "text/utf8.h"
#include "workflows/manifest/system_schemas.h"
#include "workflows/tools/readable_values.h"
#include "workflows/tools/workflow_names.h"

namespace mycojobs::service {
namespace {

using nlohmann::json;

constexpr int kMaxCommitAttempts = 10;           // attempts of a commit while other clients commit
constexpr std::uint32_t kMaxShownEvents = 1000;  // number of events in the inbox that are shown

Resource workflow_resource(const std::string& deployment, Id owner) {
  return {.name = "workflow " + deployment, .creator = owner};
}

tl::unexpected<Error> workflow_not_found_error(const RequestContext& caller, const std::string& name) {
  return fail(Code::not_found, "workflow: there is no " + excerpt(name, 200) + " in context " +
                                   std::to_string(caller.context) + "; `mycojobs workflow list` shows all workflows");
}

// A deployment and its manifest in force, without the loaded state.
struct DeploymentHead {
  std::string deployment;
  AppliedManifest applied;
};

Result<AppliedManifest> load_applied_manifest(const WorkflowStores& stores, Id context, const std::string& deployment,
                                              const std::string& hash) {
  return stores.manifests != nullptr ? stores.manifests->get(stores.deployments, context, deployment, hash)
                                     : load_manifest(stores.deployments, context, deployment, hash);
}
Result<DeploymentHead> load_head(const RequestContext& caller, const WorkflowStores& stores,
                                 const ManifestInForce& row) {
  MJ_TRY(applied, load_applied_manifest(stores, caller.context, row.deployment, row.hash));
  return DeploymentHead{row.deployment, std::move(applied)};
}

Result<std::vector<ManifestInForce>> read_in_force(const RequestContext& caller, const WorkflowStores& stores) {
  WorkflowStore& store = stores.deployments;
  MJ_TRY(names, store.list_deployments(caller.context));
  std::vector<ManifestInForce> manifests;
  for (std::string& name : names) {
    MJ_TRY(read, store.read(caller.context, name, 0, 0));
    if (read.manifest.empty() && read.height > 0) {  // another client has deleted the head
      MJ_TRY(deployment, LoadedDeployment::load(store, caller.context, name));
      read.manifest = deployment.state().manifest;
    }
    if (read.manifest.empty()) continue;  // a manifest was stored, but never applied
    MJ_TRY(applied, load_applied_manifest(stores, caller.context, name, read.manifest));
    ManifestInForce row{std::move(name), std::move(read.manifest), applied.owner, {}, {}};
    for (const WorkflowSpec& spec : applied.manifest->workflows) row.workflows.push_back(spec.name);
    for (const Subscription& subscription : applied.manifest->subscriptions) {
      if (std::find(row.events.begin(), row.events.end(), subscription.event) == row.events.end())
        row.events.push_back(subscription.event);
    }
    manifests.push_back(std::move(row));
  }
  return manifests;
}

// Returns the number of manifests that were applied in the context.
Result<std::string> read_apply_count(const RequestContext& caller, const WorkflowStores& stores) {
  constexpr std::string_view kCountField[] = {"count"};
  auto fields = stores.records.load_fields(caller.context, kDeploymentAppliesKey, kCountField);
  if (!fields && fields.error().code == Code::not_found) return std::string();
  MJ_CHECK(fields);
  return std::string(field_of(*fields, "count"));
}

// With a cache, this is one call to the store unless a manifest was applied since the last read. The count is read
// before the manifests. If a manifest is applied between the two reads, the cached count is outdated and the next call
// reads the manifests again.
Result<ManifestCache::ManifestsInForce> load_manifests_in_force(const RequestContext& caller,
                                                                const WorkflowStores& stores) {
  std::optional<std::string> apply_count;
  if (stores.manifests != nullptr) {
    auto read = read_apply_count(caller, stores);
    if (!read && read.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(read).error());
    if (read) apply_count = std::move(*read);  // another client can have overwritten the key
    if (auto cached = apply_count ? stores.manifests->find_manifests_in_force(caller.context, *apply_count) : nullptr)
      return cached;
  }
  MJ_TRY(manifests, read_in_force(caller, stores));
  auto shared = std::make_shared<const std::vector<ManifestInForce>>(std::move(manifests));
  if (apply_count) stores.manifests->cache_manifests_in_force(caller.context, *apply_count, shared);
  return shared;
}

// A deployment that was found by its own name or by the name of one of its workflows.
struct FoundDeployment {
  DeploymentHead head;
  std::string workflow;
};
Result<FoundDeployment> find_deployment(const RequestContext& caller, const WorkflowStores& stores,
                                        const std::string& requested_name) {
  MJ_TRY(manifests, load_manifests_in_force(caller, stores));
  std::vector<std::string> names, own_names;
  std::map<std::string, const ManifestInForce*> owners;
  for (const ManifestInForce& row : *manifests) {
    for (const std::string& workflow : row.workflows) {
      names.push_back(workflow);
      if (row.owner == caller.actor) own_names.push_back(workflow);
      owners[workflow] = &row;
    }
  }
  // A short name is first matched with the caller's own names, so that names of others do not make it ambiguous.
  const bool is_full_name = std::find(names.begin(), names.end(), requested_name) != names.end();
  auto name = find_name(requested_name, is_full_name ? names : own_names, "workflow");
  if (!name && name.error().code == Code::not_found) name = find_name(requested_name, names, "workflow");
  if (name) {
    MJ_TRY(head, load_head(caller, stores, *owners.at(*name)));
    return FoundDeployment{std::move(head), *name};
  }
  for (const ManifestInForce& row : *manifests) {
    if (row.deployment != requested_name) continue;
    MJ_TRY(head, load_head(caller, stores, row));
    return FoundDeployment{std::move(head), ""};
  }
  if (name.error().code == Code::not_found) return workflow_not_found_error(caller, requested_name);
  return tl::unexpected<Error>(std::move(name).error());
}

// Finds a deployment and checks the caller's right to the action. The error `denied` is the same for a missing
// deployment.
Result<FoundDeployment> open_deployment(const RequestContext& caller, const WorkflowStores& stores,
                                        const std::string& requested_name, Action action) {
  auto match = find_deployment(caller, stores, requested_name);
  if (!match && match.error().code == Code::unavailable) return match;
  MJ_CHECK(check_permission(caller, stores.records, action,
                            workflow_resource(excerpt(requested_name, 200), match ? match->head.applied.owner : 0)));
  return match;
}

struct OpenedInstance {
  std::string deployment;
  InstanceId cell;
  InstanceState state;
};
Result<InstanceId> resolve_instance_id(const FoundDeployment& match, const InstanceReference& instance) {
  const WorkflowManifest& manifest = *match.head.applied.manifest;
  const WorkflowSpec* spec = manifest.workflow(match.workflow);
  if (spec == nullptr)
    return fail(Code::invalid,
                "workflow: " + match.head.deployment + " has several workflows: name the one of the instance");
  if (!spec->is_keyed() && !instance.key.empty()) return fail(Code::invalid, "key: " + spec->name + " has no keys");
  if (!spec->is_keyed()) return InstanceId{spec->name, ""};
  if (instance.key.empty()) return fail(Code::invalid, "key: " + spec->name + " is keyed: give the key of an instance");
  auto key = encode_key(manifest, *spec, instance.key);
  if (!key) return fail(key.error(), "key");
  return InstanceId{spec->name, std::move(*key)};
}
Result<OpenedInstance> open_instance(const RequestContext& caller, const WorkflowStores& stores,
                                     const InstanceReference& instance, Action action) {
  MJ_TRY(match, open_deployment(caller, stores, instance.workflow, action));
  MJ_TRY(cell, resolve_instance_id(match, instance));
  MJ_TRY(state, read_instance(stores.deployments, caller.context, match.head.deployment, cell));
  if (!state)
    return fail(Code::not_found, display_name(cell) +
                                     ": the instance does not exist; `mycojobs workflow explain` shows " +
                                     "whether an event for it waits, `timeline` shows its history");
  return OpenedInstance{match.head.deployment, std::move(cell), std::move(*state)};
}

// Opens an instance and reads the bytes of its state. A missing blob belongs to a state that was replaced in the
// meantime, so the read is repeated.
Result<OpenedInstance> open_with_state(const RequestContext& caller, const WorkflowStores& stores,
                                       const InstanceReference& instance) {
  for (int attempts_left = kMaxCommitAttempts;; --attempts_left) {
    MJ_TRY(target, open_instance(caller, stores, instance, Action::read));
    std::optional<StateRef>& state = target.state.state;
    if (!state || !state->is_spilled()) return std::move(target);
    auto blob = stores.deployments.blob(caller.context, target.deployment, state->hash);
    if (!blob && blob.error().code == Code::not_found && attempts_left > 0) continue;
    if (!blob) return tl::unexpected<Error>(std::move(blob).error());
    MJ_CHECK(attach_blob(*state, std::move(*blob)));
    return std::move(target);
  }
}

Result<Sample> read_sample(WorkflowStore& store) {
  MJ_TRY(now, store.now_ms());
  return Sample{now, random_bytes(32)};
}

// ---- JSON views ----

json key_to_json(const InstanceId& cell) { return cell.key.empty() ? json(nullptr) : cbor_to_readable_json(cell.key); }

// Returns the arguments of a command line for an instance: its workflow and its key.
std::string format_instance_arguments(const InstanceId& cell) {
  if (cell.key.empty()) return cell.workflow;
  const json key = key_to_json(cell);
  const std::string text = key.is_string() ? key.get<std::string>() : dump_json(key);
  return cell.workflow + ' ' + quote_for_shell(text);
}
std::string format_command(const char* verb, const InstanceId& cell) {
  return "`mycojobs workflow " + std::string(verb) + ' ' + format_instance_arguments(cell) + '`';
}

json intent_to_json(const PendingIntent& pending) {
  return {{"intent", pending.intent.hash},
          {"effect", pending.intent.effect},
          {"params", cbor_to_readable_json(pending.intent.params)},
          {"published", pending.published},
          {"carrier", pending.effect_ref},
          {"asked_ms", pending.requested_ms},
          {"sequence", pending.sequence}};
}

json instance_to_json(const InstanceState& instance) {
  return {{"workflow", instance.id.workflow},
          {"key", key_to_json(instance.id)},
          {"status", to_string(instance.status())},
          {"steps", instance.steps},
          {"mail", instance.inbox.size()},
          {"pending", instance.pending_intents.size()},
          {"born", instance.created_height},
          {"last", instance.last_height},
          {"state_bytes", instance.state ? instance.state->size : 0},
          {"manifest", instance.manifest}};
}

json targets_to_json(const EventAccepted& event) {
  json targets = json::array();
  for (const EventTarget& target : event.targets) {
    json row{{"workflow", target.instance.workflow}, {"key", key_to_json(target.instance)}};
    if (!target.skip_reason.empty()) row["skipped"] = target.skip_reason;
    targets.push_back(std::move(row));
  }
  return targets;
}

// Returns the properties of a fact other than height, time, kind and cell.
class FactFormatter {
 public:
  json operator()(const ManifestApplied& fact) const {
    return {{"manifest", fact.manifest}, {"replaced", fact.replaced_manifest}};
  }
  json operator()(const EventAccepted& fact) const {
    json out{{"schema", fact.schema}, {"value", cbor_to_readable_json(fact.value)}, {"targets", targets_to_json(fact)}};
    if (!fact.source.empty()) out["source"] = fact.source;
    if (fact.emitter) out["from"] = display_name(*fact.emitter), out["from_step"] = fact.emitter_height;
    return out;
  }
  json operator()(const StepTaken& fact) const {
    json intents = json::array();
    for (const Intent& intent : fact.intents)
      intents.push_back(
          {{"intent", intent.hash}, {"effect", intent.effect}, {"params", cbor_to_readable_json(intent.params)}});
    json out{{"mail", fact.event_id.height},
             {"output", fact.output},
             {"effects", std::move(intents)},
             {"events", fact.events},
             {"state", nullptr}};
    if (fact.state)
      out["state"] = fact.state->is_spilled() ? json{{"hash", fact.state->hash}, {"bytes", fact.state->size}}
                                              : cbor_to_readable_json(fact.state->bytes);
    if (fact.annotations) out["annotations"] = cbor_to_readable_json(*fact.annotations);
    return out;
  }
  json operator()(const StepFailed& fact) const {
    return {{"mail", fact.event_id.height}, {"error", fact.kind}, {"message", fact.message}};
  }
  json operator()(const EffectPublished& fact) const { return {{"intent", fact.intent}, {"carrier", fact.effect_ref}}; }
  json operator()(const ReceiptAdmitted& fact) const {
    json out{
        {"intent", fact.intent}, {"status", to_string(fact.status)}, {"payload", cbor_to_readable_json(fact.payload)}};
    if (!fact.module.empty()) out["executor"] = fact.module;
    return out;
  }
  json operator()(const ReceiptRefused& fact) const { return {{"intent", fact.intent}, {"reason", fact.reason}}; }
  json operator()(const ReceiptMismatched& fact) const {
    return {{"intent", fact.intent}, {"status", to_string(fact.status)}, {"reason", fact.reason}};
  }
  json operator()(const InstanceFailed& fact) const {
    return {{"failure", fact.kind}, {"message", fact.message}, {"dropped", fact.dropped_intents}};
  }
  json operator()(const InstanceCompleted&) const { return json::object(); }
  json operator()(const InstanceDeleted& fact) const { return {{"by", fact.actor}}; }
  json operator()(const SnapshotTaken& fact) const { return {{"hash", fact.hash}, {"bytes", fact.size}}; }
};

json fact_to_json(const WorkflowFact& fact) {
  json out = std::visit(FactFormatter(), fact.content);
  out["height"] = fact.height;
  out["at_ms"] = fact.at_ms;
  out["kind"] = fact_kind(fact);
  json cells = json::array();
  for (const InstanceId& cell : affected_instances(fact)) cells.push_back(display_name(cell));
  out["cells"] = std::move(cells);
  return out;
}

// ---- apply ----

// Checks the sizes of the code and of the scripts of the effects.
Result<void> check_effects(const RequestContext& caller, const WorkflowManifest& manifest) {
  for (const auto& [module, text] : manifest.code) {
    if (auto fits = check_script(caller, text); !fits) return fail(fits.error(), "code." + module);
  }
  for (std::size_t i = 0; i < manifest.effects.size(); ++i) {
    const EffectSpec& effect = manifest.effects[i];
    if (auto fits = check_script(caller, effect.script); !fits) return fail(fits.error(), "effects." + effect.name);
  }
  return {};
}

// Stores a manifest and returns the actor as which its effects run: the first actor that stored it under this hash.
Result<Id> store_manifest(const WorkflowStores& stores, Id context, const ManifestText& text, Id owner) {
  const WorkflowManifest& manifest = *text.manifest;
  auto stored = stores.deployments.put_manifest(context, manifest.name, manifest.hash, text.text);
  if (stored) return owner;
  if (stored.error().code != Code::conflict) return tl::unexpected<Error>(std::move(stored).error());
  MJ_TRY(stored_manifest, load_manifest(stores.deployments, context, manifest.name, manifest.hash));
  return stored_manifest.owner;
}

// An actor cannot apply a manifest that another actor has stored, since its effects would run as that other actor.
Result<void> check_owner(const RequestContext& caller, const ApplyWorkflow& request, Id owner, Id runs_as) {
  if (runs_as == owner || (!request.owner && caller.is_operator)) return {};
  return fail(Code::conflict, "owner: the same manifest is stored already, and its effects run as actor " +
                                  std::to_string(runs_as) + ", not as " + std::to_string(owner) +
                                  ": change it (its description is enough)");
}

// Checks the rights that are needed when an effect starts, so that a missing right is reported before the manifest is
// applied.
Result<void> check_owners_rights(const RequestContext& caller, const WorkflowStores& stores, Id owner) {
  MJ_TRY(acl, read_acl_context(stores.records, caller.context, EntryPoint::command));
  auto allowed = mycojobs::check_permission(owner, Action::create, acl, {.name = "jobs"});
  if (allowed) return {};
  return fail(allowed.error().code, "owner: " + allowed.error().message + "; or name another owner");
}

// Returns the owner of the same manifest if it is stored, else `default_owner`.
Result<Id> find_stored_owner(const WorkflowStores& stores, Id context, const WorkflowManifest& manifest,
                             Id default_owner) {
  auto stored_manifest = load_manifest(stores.deployments, context, manifest.name, manifest.hash);
  if (stored_manifest) return stored_manifest->owner;
  return stored_manifest.error().code == Code::not_found ? Result<Id>(default_owner)
                                                         : tl::unexpected<Error>(stored_manifest.error());
}

// ---- names ----

using Names = std::set<std::string, std::less<>>;
// Names by which events are sent to a manifest and names by which the manifest is found.
struct NamesInUse {
  Names events, workflows;
};
void add_names(const WorkflowManifest& manifest, NamesInUse& names_in_use) {
  names_in_use.workflows.insert(manifest.name);
  for (const WorkflowSpec& spec : manifest.workflows) names_in_use.workflows.insert(spec.name);
  for (const Subscription& subscription : manifest.subscriptions) names_in_use.events.insert(subscription.event);
}

Result<void> check_names_available(const Names& new_names, const Names& replaced, const Names& foreign_names,
                                   std::string_view field) {
  for (const std::string& name : new_names) {
    if (replaced.contains(name) || !foreign_names.contains(name)) continue;
    return fail(Code::conflict, std::string(field) + ": " + excerpt(name, 200) +
                                    " is a name of another caller's manifest in this context: choose another one");
  }
  return {};
}

// If two manifests accepted an event of the same name, its senders could not reach a receiver. A name therefore belongs
// to the owner of the first manifest with it. replaced: the manifest in force, which retains its names; null: the first
// manifest of this name.
Result<void> check_names(const std::vector<ManifestInForce>& manifests, const WorkflowManifest& manifest,
                         const WorkflowManifest* replaced, Id owner) {
  NamesInUse new_names, replaced_names, foreign_names;
  add_names(manifest, new_names);
  if (replaced != nullptr) add_names(*replaced, replaced_names);
  for (const ManifestInForce& row : manifests) {
    if (row.deployment == manifest.name || row.owner == owner) continue;
    foreign_names.workflows.insert(row.deployment);
    foreign_names.workflows.insert(row.workflows.begin(), row.workflows.end());
    foreign_names.events.insert(row.events.begin(), row.events.end());
  }
  MJ_CHECK(check_names_available(new_names.workflows, replaced_names.workflows, foreign_names.workflows, "workflows"));
  return check_names_available(new_names.events, replaced_names.events, foreign_names.events, "routing.subscriptions");
}

// Limits the manifests of an owner, since each manifest has a journal and uses memory and time of the coordinator. A
// manifest that the owner has already can be replaced.
Result<void> check_manifest_count(const RequestContext& caller, const std::vector<ManifestInForce>& manifests,
                                  const std::string& deployment, Id owner) {
  std::size_t count = 0;
  for (const ManifestInForce& row : manifests) {
    if (row.owner != owner) continue;
    if (row.deployment == deployment) return {};
    ++count;
  }
  if (caller.is_operator || count < kMaxManifestsOfOwner) return {};
  return fail(Code::too_large, "manifest: actor " + std::to_string(owner) + " has " + std::to_string(count) +
                                   " manifests in context " + std::to_string(caller.context) +
                                   ", the maximum: apply it under the name of one of them, or ask an operator");
}

// Applies a manifest. The manifest is stored only after all checks have succeeded.
Result<AppliedWorkflow> apply_manifest(const RequestContext& caller, const WorkflowStores& stores,
                                       const ManifestText& text, const ApplyWorkflow& request, Id owner) {
  AppliedWorkflow out{text.manifest->name, text.manifest->hash, "", false, owner};
  for (int i = 0; i < kMaxCommitAttempts; ++i) {
    MJ_TRY(apply_count, read_apply_count(caller, stores));
    MJ_TRY(deployment, LoadedDeployment::load(stores.deployments, caller.context, out.deployment));
    MJ_TRY(runs_as, find_stored_owner(stores, caller.context, *text.manifest, owner));
    out.owner = runs_as;
    deployment.add_manifest({text.manifest, runs_as});
    out.replaced = deployment.state().manifest;
    MJ_TRY(sample, read_sample(stores.deployments));
    MJ_CHECK(deployment.decide({sample, ApplyManifest{out.hash}}));
    out.repeated = deployment.pending_facts() == 0;
    if (out.repeated && !request.owner) return out;
    MJ_CHECK(check_owner(caller, request, owner, runs_as));
    if (out.repeated) return out;
    MJ_CHECK(check_owners_rights(caller, stores, runs_as));
    MJ_TRY(manifests, read_in_force(caller, stores));
    MJ_CHECK(check_manifest_count(caller, manifests, out.deployment, runs_as));
    MJ_CHECK(check_names(manifests, *text.manifest, deployment.catalog().find(out.replaced), runs_as));
    MJ_TRY(stored_as, store_manifest(stores, caller.context, text, runs_as));
    if (stored_as != runs_as) continue;  // another client stored it first
    auto result = deployment.commit(stores.deployments, 0, true, apply_count);
    if (result) return out;
    if (result.error().code != Code::conflict) return tl::unexpected<Error>(std::move(result).error());
    MJ_TRY(inbox, stores.deployments.read_inbox(caller.context, out.deployment, 1));
    if (!inbox.empty()) return tl::unexpected<Error>(std::move(result).error());
  }
  return fail(Code::conflict, out.deployment + ": it moves on all the time; try again");
}

}  // namespace

Result<NamedInstance> find_instance(const RequestContext& caller, const WorkflowStores& stores,
                                    const InstanceReference& instance) {
  MJ_TRY(match, open_deployment(caller, stores, instance.workflow, Action::read));
  MJ_TRY(cell, resolve_instance_id(match, instance));
  return NamedInstance{match.head.deployment, std::move(cell)};
}

Result<AppliedManifest> ManifestCache::get(WorkflowStore& store, Id context, const std::string& deployment,
                                           const std::string& hash) {
  const std::tuple key(context, deployment, hash);
  {
    const std::lock_guard lock(mutex_);
    const auto match = manifests_.find(key);
    if (match != manifests_.end()) {
      match->second.last_used = ++use_count_;
      return match->second.applied;
    }
  }
  MJ_TRY(applied, load_manifest(store, context, deployment, hash));
  const std::lock_guard lock(mutex_);
  manifests_[key] = {applied, ++use_count_};
  if (manifests_.size() > max_manifests_)
    manifests_.erase(std::min_element(manifests_.begin(), manifests_.end(), [](const auto& a, const auto& b) {
      return a.second.last_used < b.second.last_used;
    }));
  return applied;
}

ManifestCache::ManifestsInForce ManifestCache::find_manifests_in_force(Id context,
                                                                       const std::string& apply_count) const {
  const std::lock_guard lock(mutex_);
  const auto match = in_force_.find(context);
  const bool is_known = match != in_force_.end() && match->second.apply_count == apply_count &&
                        std::chrono::steady_clock::now() - match->second.read_at < max_age_;
  return is_known ? match->second.manifests : nullptr;
}

void ManifestCache::cache_manifests_in_force(Id context, const std::string& apply_count, ManifestsInForce manifests) {
  const std::lock_guard lock(mutex_);
  if (in_force_.size() >= kMaxContexts) in_force_.clear();
  in_force_[context] = {apply_count, std::move(manifests), std::chrono::steady_clock::now()};
}

void ManifestCache::drop_manifests_in_force(Id context) {
  const std::lock_guard lock(mutex_);
  in_force_.erase(context);
}

json to_json(const AppliedWorkflow& applied) {
  return {{"manifest", applied.deployment},
          {"hash", applied.hash},
          {"replaced", applied.replaced},
          {"repeated", applied.repeated},
          {"owner", applied.owner}};
}

Result<AppliedWorkflow> apply_workflow(const RequestContext& caller, const WorkflowStores& stores, const json& manifest,
                                       const ApplyWorkflow& request) {
  MJ_CHECK(check_permission(caller, stores.records, Action::create, {.name = "workflows"}));
  MJ_TRY(owner, resolve_owner(caller, request.owner));
  const ManifestText text = serialize_manifest(manifest, request.code, owner);
  if (!text.manifest) return fail(Code::invalid, "manifest: " + join(text.problems));
  MJ_CHECK(check_effects(caller, *text.manifest));
  if (request.check_code) {
    if (auto runs = request.check_code(*text.manifest); !runs) return fail(runs.error(), "code");
  }
  MJ_TRY(head, stores.deployments.read(caller.context, text.manifest->name, 0, 0));
  if (!head.manifest.empty()) {
    auto replaced = load_manifest(stores.deployments, caller.context, text.manifest->name, head.manifest);
    // The manifest in force was lost and is applied again.
    const bool is_lost = !replaced && replaced.error().code == Code::not_found && head.manifest == text.manifest->hash;
    if (!replaced && !is_lost) return tl::unexpected<Error>(std::move(replaced).error());
    MJ_CHECK(check_permission(caller, stores.records, Action::steer,
                              workflow_resource(text.manifest->name, is_lost ? 0 : replaced->owner)));
    if (is_lost) {
      MJ_CHECK(check_owners_rights(caller, stores, owner));
      MJ_CHECK(store_manifest(stores, caller.context, text, owner));
    }
  }
  return apply_manifest(caller, stores, text, request, owner);
}

// ---- events ----

namespace {

// The decision for an event in a deployment without instances.
struct CheckedEvent {
  std::vector<PostTarget> targets;
  std::string content_hash;
};
Result<CheckedEvent> check_event(const WorkflowManifest& manifest, const std::string& event, const std::string& value) {
  DeploymentState empty_state;
  empty_state.manifest = manifest.hash;
  ManifestCatalog catalog;
  catalog.add(ManifestRef(&manifest, [](const WorkflowManifest*) {}));
  MJ_TRY(decision, decide(empty_state, catalog, {Sample{1, std::string(32, '\0')}, EventArrived{event, value}}));
  CheckedEvent out;
  for (const WorkflowFact& fact : decision.facts) {
    const auto* accepted = std::get_if<EventAccepted>(&fact.content);
    if (accepted == nullptr) continue;
    for (const EventTarget& target : accepted->targets)
      out.targets.push_back({store_name(target.instance), display_name(target.instance)});
    out.content_hash = sha256_hex(accepted->schema + '\n' + accepted->value);
  }
  return out;
}

struct EventReceiver {
  DeploymentHead head;
  std::string event;
};
// The names that a search compares: full names, short names in the caller's own manifests, or short names in all
// manifests. The searches are done in this order.
enum class NameSearchScope { full_name, own_manifests, all_manifests };
using EventMatch = std::pair<const ManifestInForce*, std::string>;  // a manifest, and the full name of the event
// A manifest in which the short name is ambiguous is ignored if another manifest accepts the event. Otherwise any
// submitter could make the short names in manifests of other owners ambiguous.
Result<std::vector<EventMatch>> find_event_matches(const RequestContext& caller,
                                                   const std::vector<const ManifestInForce*>& candidates,
                                                   const SendEvent& request, NameSearchScope scope) {
  std::vector<EventMatch> matches;
  std::optional<Error> ambiguity_error;
  for (const ManifestInForce* row : candidates) {
    if (scope == NameSearchScope::own_manifests && row->owner != caller.actor) continue;
    auto event = find_name(request.event, row->events, "event");
    if (scope == NameSearchScope::full_name && event && *event != request.event) continue;
    if (event) matches.emplace_back(row, std::move(*event));
    if (!event && event.error().code == Code::invalid) ambiguity_error = std::move(event).error();
  }
  if (matches.empty() && ambiguity_error && scope != NameSearchScope::full_name)
    return fail(std::move(*ambiguity_error), "event");
  return matches;
}

// Returns the manifests whose name matches `workflow`, or all manifests if `workflow` is empty. A full name matches
// only its manifest.
std::vector<const ManifestInForce*> select_manifests(const std::vector<ManifestInForce>& manifests,
                                                     const std::string& workflow) {
  std::vector<const ManifestInForce*> candidates;
  for (const ManifestInForce& row : manifests) {
    if (row.deployment == workflow) return {&row};
    if (workflow.empty() || find_name(workflow, {row.deployment}, "workflow")) candidates.push_back(&row);
  }
  return candidates;
}

Result<EventReceiver> find_event_receiver(const RequestContext& caller, const WorkflowStores& stores,
                                          const SendEvent& request) {
  MJ_TRY(manifests, load_manifests_in_force(caller, stores));
  const auto candidates = select_manifests(*manifests, request.workflow);
  std::vector<EventMatch> matches;
  for (const NameSearchScope scope :
       {NameSearchScope::full_name, NameSearchScope::own_manifests, NameSearchScope::all_manifests}) {
    MJ_TRY(scope_matches, find_event_matches(caller, candidates, request, scope));
    matches = std::move(scope_matches);
    if (!matches.empty()) break;
  }
  if (matches.empty())
    return fail(Code::not_found, "event: no workflow of context " + std::to_string(caller.context) + " takes " +
                                     excerpt(request.event, 200) + "; `mycojobs workflow list` shows their events");
  if (matches.size() > 1) {
    std::string names;
    for (const auto& [row, event] : matches) names += (names.empty() ? "" : ", ") + row->deployment;
    return fail(Code::invalid,
                "event: " + excerpt(request.event, 200) + " is taken by " + names + ": name one of them");
  }
  MJ_TRY(head, load_head(caller, stores, *matches.front().first));
  return EventReceiver{std::move(head), std::move(matches.front().second)};
}

}  // namespace

json to_json(const SentEvent& sent) {
  return {{"manifest", sent.deployment},
          {"event", sent.event},
          {"id", sent.id},
          {"repeated", sent.repeated},
          {"targets", sent.targets}};
}

Result<SentEvent> send_event(const RequestContext& caller, const WorkflowStores& stores, const SendEvent& request) {
  MJ_CHECK(check_permission(caller, stores.records, Action::create, {.name = "events"}));
  MJ_CHECK(check_length("value", request.value, 4 * kMaxValueBytes));
  MJ_CHECK(check_key("idempotency_key", request.idempotency_key));
  if (auto context = check_traceparent(request.traceparent); !context) return fail(context.error(), "traceparent");
  const std::string actor = std::to_string(caller.actor);
  const std::string& traceparent = request.traceparent.empty() ? caller.traceparent : request.traceparent;
  for (int i = 0; i < kMaxCommitAttempts; ++i) {
    MJ_TRY(receiver, find_event_receiver(caller, stores, request));
    const WorkflowManifest& manifest = *receiver.head.applied.manifest;
    auto checked = check_event(manifest, receiver.event, request.value);
    if (!checked) return fail(checked.error(), "value");
    Fields fields{{"schema", receiver.event}, {"value", request.value}, {"source", "actor:" + actor}};
    if (!traceparent.empty()) fields.emplace_back("traceparent", traceparent);
    const std::string key = request.idempotency_key ? actor + ' ' + *request.idempotency_key : "";
    const PostRules rules{manifest.hash, checked->targets, key, checked->content_hash};
    auto sent = stores.deployments.post(caller.context, receiver.head.deployment, "event", fields, rules);
    if (sent) {
      SentEvent out{receiver.head.deployment, receiver.event, sent->id, sent->repeated, {}};
      for (PostTarget& target : checked->targets) out.targets.push_back(std::move(target.display_name));
      return out;
    }
    if (stores.manifests != nullptr) stores.manifests->drop_manifests_in_force(caller.context);
    const bool is_key_conflict = sent.error().message.starts_with("idempotency_key");
    if (is_key_conflict || sent.error().code != Code::conflict) return tl::unexpected<Error>(std::move(sent).error());
  }
  return fail(Code::conflict, request.event + ": manifests are applied all the time; try again");
}

Result<std::string> answer_approval(const RequestContext& caller, const WorkflowStores& stores,
                                    const AnswerApproval& request) {
  MJ_CHECK(check_length("comment", request.comment, 4096));
  auto match = find_deployment(caller, stores, request.instance.workflow);
  if (!match && match.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(match).error());
  Resource resource = workflow_resource(excerpt(request.instance.workflow, 200), match ? match->head.applied.owner : 0);
  resource.names_actors = true;
  std::vector<const PendingIntent*> approvals;
  std::optional<InstanceState> state;
  if (match) {
    MJ_TRY(cell, resolve_instance_id(*match, request.instance));
    MJ_TRY(read, read_instance(stores.deployments, caller.context, match->head.deployment, cell));
    state = std::move(read);
    if (state) {
      for (const auto& [hash, pending] : state->pending_intents) {
        if (pending.intent.effect == kApprovalEffect && hash.starts_with(request.intent)) approvals.push_back(&pending);
      }
    }
  }
  if (approvals.size() == 1) {
    const json params = cbor_to_readable_json(approvals.front()->intent.params);
    const json approvers = params.value("approvers", json::array());
    resource.names_caller = std::find(approvers.begin(), approvers.end(), json(caller.actor)) != approvers.end();
  }
  MJ_CHECK(check_permission(caller, stores.records, Action::answer, resource));
  if (!match) return tl::unexpected<Error>(std::move(match).error());
  if (approvals.empty())
    return fail(Code::not_found, request.instance.workflow +
                                     (request.instance.key.empty() ? "" : ' ' + request.instance.key) +
                                     ": it does not wait for an approval");
  if (approvals.size() > 1) {
    std::string titles;
    for (const PendingIntent* pending : approvals)
      titles += (titles.empty() ? "" : ", ") + pending->intent.hash.substr(0, 12) + ' ' +
                dump_json(cbor_to_readable_json(pending->intent.params).value("title", json()));
    return fail(Code::invalid, "intent: several wait for approval: " + titles);
  }
  json payload{{"approved", request.approved}, {"by", caller.actor}};
  if (!request.comment.empty()) payload["comment"] = to_utf8(request.comment);
  const std::string intent = approvals.front()->intent.hash;
  MJ_CHECK(stores.deployments.post(caller.context, match->head.deployment, "answer",
                                   {{"intent", intent}, {"payload", dump_json(payload)}}));
  return intent;
}

namespace {

// The parameters are not trusted, since another client can write any value into a store.
WaitingApproval parse_approval(const InstanceState& instance, const PendingIntent& pending, Id owner) {
  WaitingApproval out{instance.id.workflow,
                      dump_json(key_to_json(instance.id)),
                      pending.intent.hash,
                      "",
                      {},
                      owner,
                      pending.requested_ms,
                      0};
  const json params = cbor_to_readable_json(pending.intent.params);
  if (!params.is_object()) return out;
  if (params.contains("title") && params["title"].is_string()) out.title = params["title"].get<std::string>();
  for (const json& approver : params.value("approvers", json::array())) {
    if (approver.is_number_unsigned() && approver.get<std::uint64_t>() <= UINT32_MAX)
      out.approvers.push_back(approver.get<Id>());
  }
  if (params.contains("timeout_ms") && params["timeout_ms"].is_number_unsigned())
    out.until_ms = pending.requested_ms + params["timeout_ms"].get<std::uint64_t>();
  return out;
}

using Approvals = std::vector<WaitingApproval>;
constexpr std::uint64_t kMaxScannedFacts = 5000;  // maximum number of facts read instead of loading the deployment

// Returns whether a fact may have changed the waiting approvals.
class ApprovalChangeDetector {
 public:
  explicit ApprovalChangeDetector(const Approvals& approvals) : approvals_(approvals) {}
  bool operator()(const ManifestApplied&) const { return true; }  // the owner may be another actor
  bool operator()(const StepTaken& fact) const {
    return std::any_of(fact.intents.begin(), fact.intents.end(),
                       [](const Intent& intent) { return intent.effect == kApprovalEffect; });
  }
  bool operator()(const ReceiptAdmitted& fact) const { return is_waiting(fact.intent); }
  bool operator()(const ReceiptMismatched& fact) const { return is_waiting(fact.intent); }
  bool operator()(const InstanceFailed& fact) const {
    return std::any_of(fact.dropped_intents.begin(), fact.dropped_intents.end(),
                       [this](const std::string& intent) { return is_waiting(intent); });
  }
  template <class Other>
  bool operator()(const Other&) const {
    return false;
  }

 private:
  bool is_waiting(const std::string& intent) const {
    return std::any_of(approvals_.begin(), approvals_.end(),
                       [&](const auto& approval) { return approval.intent == intent; });
  }
  const Approvals& approvals_;
};

// Returns whether the cached approvals are still valid at this height of the deployment.
Result<bool> are_approvals_valid(WorkflowStore& deployments, Id context, const std::string& deployment,
                                 std::uint64_t height, const ApprovalCache::CachedApprovals& cached, std::size_t max) {
  if (height == cached.height) return true;
  if (height < cached.height || height - cached.height > kMaxScannedFacts || cached.waiting.size() >= max) return false;
  bool is_valid = true;
  const ApprovalChangeDetector may_change_approvals(cached.waiting);
  MJ_CHECK(
      for_each_fact(deployments, context, deployment, cached.height, [&](const WorkflowFact& fact) -> Result<bool> {
        is_valid = !std::visit(may_change_approvals, fact.content);
        return is_valid && fact.height < height;
      }));
  return is_valid;
}

Result<Approvals> load_approvals(WorkflowStore& deployments, Id context, const std::string& name, std::size_t max,
                                 std::uint64_t& height) {
  MJ_TRY(deployment, LoadedDeployment::load(deployments, context, name));
  height = deployment.state().height;
  const Id owner = deployment.owner_of(deployment.state().manifest);
  Approvals out;
  for (const auto& [id, instance] : deployment.state().instances) {
    for (const auto& [hash, pending] : instance.pending_intents) {
      if (out.size() == max) return out;
      if (pending.intent.effect == kApprovalEffect) out.push_back(parse_approval(instance, pending, owner));
    }
  }
  return out;
}

Result<Approvals> get_approvals(WorkflowStore& deployments, Id context, const std::string& name, std::size_t max,
                                ApprovalCache* cache) {
  std::uint64_t height = 0;
  if (const auto cached = cache == nullptr ? nullptr : cache->get(context, name)) {
    MJ_TRY(head, deployments.read(context, name, 0, 0));
    MJ_TRY(is_valid, are_approvals_valid(deployments, context, name, head.height, *cached, max));
    if (is_valid && head.height != cached->height) cache->put(context, name, {head.height, cached->waiting});
    if (is_valid) return cached->waiting;
  }
  MJ_TRY(approvals, load_approvals(deployments, context, name, max, height));
  if (cache != nullptr) cache->put(context, name, {height, approvals});
  return approvals;
}

}  // namespace

std::shared_ptr<const ApprovalCache::CachedApprovals> ApprovalCache::get(Id context,
                                                                         const std::string& deployment) const {
  const std::lock_guard lock(mutex_);
  const auto match = approvals_.find({context, deployment});
  return match == approvals_.end() ? nullptr : match->second;
}

void ApprovalCache::put(Id context, const std::string& deployment, CachedApprovals cached) {
  const std::lock_guard lock(mutex_);
  if (approvals_.size() >= kMaxDeployments) approvals_.clear();
  approvals_[{context, deployment}] = std::make_shared<const CachedApprovals>(std::move(cached));
}

Result<Approvals> list_waiting_approvals(WorkflowStore& deployments, Id context, std::size_t max,
                                         ApprovalCache* cache) {
  Approvals out;
  MJ_TRY(names, deployments.list_deployments(context));
  for (const std::string& name : names) {
    auto approvals = get_approvals(deployments, context, name, max, cache);
    if (!approvals && approvals.error().code == Code::unavailable)
      return tl::unexpected<Error>(std::move(approvals).error());
    if (!approvals) continue;  // the view of the deployment reports the error
    for (WaitingApproval& approval : *approvals) {
      if (out.size() == max) return out;
      out.push_back(std::move(approval));
    }
  }
  return out;
}

namespace {

Result<void> post_instance_request(const RequestContext& caller, const WorkflowStores& stores,
                                   const OpenedInstance& target, const std::string& kind, const std::string& reason) {
  Fields fields{{"workflow", target.cell.workflow},
                {"key", to_hex(target.cell.key)},
                {"by", "actor:" + std::to_string(caller.actor)}};
  if (!reason.empty()) fields.emplace_back("reason", reason);
  MJ_CHECK(stores.deployments.post(caller.context, target.deployment, kind, fields));
  return {};
}

}  // namespace

Result<void> remove_instance(const RequestContext& caller, const WorkflowStores& stores,
                             const InstanceReference& instance) {
  MJ_TRY(target, open_instance(caller, stores, instance, Action::steer));
  if (!target.state.failed)
    return fail(Code::conflict,
                display_name(target.cell) + " has not failed; " + format_command("cancel", target.cell) + " ends it");
  return post_instance_request(caller, stores, target, "remove", "");
}

Result<void> cancel_instance(const RequestContext& caller, const WorkflowStores& stores,
                             const InstanceReference& instance, const std::string& reason) {
  MJ_CHECK(check_length("reason", reason, 4096));
  MJ_TRY(target, open_instance(caller, stores, instance, Action::steer));
  if (target.state.failed || target.state.status() == InstanceStatus::completed)
    return fail(Code::conflict,
                display_name(target.cell) + " has ended: it is " + std::string(to_string(target.state.status())));
  return post_instance_request(caller, stores, target, "cancel", reason);
}

// ---- reading ----

Result<json> list_workflows(const RequestContext& caller, const WorkflowStores& stores) {
  MJ_TRY(visible_owner, find_listable_actor(caller, stores.records));
  MJ_TRY(manifests, load_manifests_in_force(caller, stores));
  json rows = json::array();
  for (const ManifestInForce& row : *manifests) {
    if (visible_owner && row.owner != *visible_owner) continue;
    MJ_TRY(head, load_head(caller, stores, row));
    MJ_TRY(deployment, LoadedDeployment::load(stores.deployments, caller.context, head.deployment));
    auto cells = deployment.cell_counts();
    MJ_TRY(poll_results, stores.deployments.poll(caller.context, {{head.deployment, {}}}));
    for (const WorkflowSpec& spec : head.applied.manifest->workflows) {
      std::map<std::string, std::uint64_t> counts{{"running", 0}, {"waiting", 0}, {"completed", 0}, {"failed", 0}};
      std::uint64_t old_code_count = 0;
      for (const auto& [manifest, by_status] : cells[spec.name]) {
        for (std::size_t status = 0; status < by_status.size(); ++status) {
          counts[std::string(to_string(static_cast<InstanceStatus>(status)))] += by_status[status];
          if (manifest != head.applied.manifest->hash) old_code_count += by_status[status];
        }
      }
      json events = json::array();
      for (const Subscription& subscription : head.applied.manifest->subscriptions)
        if (subscription.workflow == spec.name) events.push_back(subscription.event);
      rows.push_back({{"workflow", spec.name},
                      {"manifest", head.deployment},
                      {"hash", head.applied.manifest->hash},
                      {"owner", head.applied.owner},
                      {"keyed", spec.is_keyed()},
                      {"takes", std::move(events)},
                      {"instances", counts},
                      {"older_code", old_code_count},
                      {"inbox", poll_results.at(0).inbox_entries},
                      {"height", deployment.state().height},
                      {"refused_receipts", deployment.state().refused_receipts}});
    }
  }
  return rows;
}

ListInstances parse_list_instances(const RequestParams& params) {
  return {params.text("workflow"), params.text("status"), params.number("limit"), params.text("after")};
}

Result<json> list_instances(const RequestContext& caller, const WorkflowStores& stores, const ListInstances& request) {
  MJ_TRY(match, open_deployment(caller, stores, request.workflow, Action::read));
  MJ_CHECK(check_length("after", request.after, 4096));
  std::optional<InstanceId> cursor;
  if (!request.after.empty()) cursor = parse_store_name(request.after);
  if (cursor &&
      (store_name(*cursor) != request.after || (!match.workflow.empty() && cursor->workflow != match.workflow)))
    return fail(Code::invalid, "after: not a cursor of " + request.workflow);
  std::optional<InstanceStatus> status;
  for (const InstanceStatus each :
       {InstanceStatus::running, InstanceStatus::waiting, InstanceStatus::completed, InstanceStatus::failed})
    if (request.status == to_string(each)) status = each;
  for (int attempts_left = kMaxCommitAttempts;; --attempts_left) {
    MJ_TRY(deployment, LoadedDeployment::load(stores.deployments, caller.context, match.head.deployment));
    std::optional<InstanceId> after = cursor;
    if (!after && !match.workflow.empty()) after = InstanceId{match.workflow, ""};
    json rows = json::array();
    const auto add = [&](const InstanceState& instance) {
      if (!match.workflow.empty() && instance.id.workflow > match.workflow) return false;
      if (!match.workflow.empty() && instance.id.workflow != match.workflow) return true;
      if (rows.size() >= request.limit) return false;
      json row = instance_to_json(instance);
      row["cursor"] = store_name(instance.id);
      rows.push_back(std::move(row));
      return true;
    };
    // The instance of a workflow without keys has the empty key, so it is not after it.
    if (request.after.empty() && after) {
      MJ_TRY(unkeyed, deployment.find_instance(*after));
      if (unkeyed != nullptr && (!status || unkeyed->status() == *status)) add(*unkeyed);
    }
    auto visited = deployment.visit_instances(after, status, add);
    if (visited) return rows;
    if (visited.error().code != Code::conflict || attempts_left == 0)
      return tl::unexpected<Error>(std::move(visited).error());
  }
}

Result<json> show_instance(const RequestContext& caller, const WorkflowStores& stores,
                           const InstanceReference& instance) {
  MJ_TRY(target, open_with_state(caller, stores, instance));
  const InstanceState* instance_state = &target.state;
  json out = instance_to_json(*instance_state);
  out["world"] = target.deployment;
  out["state"] = nullptr;
  if (instance_state->state) {
    out["state"] = cbor_to_readable_json(instance_state->state->bytes);
    out["state_hash"] = instance_state->state->hash;
  }
  out["intents"] = json::array();
  for (const auto& [hash, pending] : instance_state->pending_intents) out["intents"].push_back(intent_to_json(pending));
  out["waiting_mail"] = json::array();
  for (const InboxEvent& mail : instance_state->inbox)
    out["waiting_mail"].push_back({{"height", mail.id.height}, {"schema", mail.schema}, {"intent", mail.intent}});
  if (instance_state->failed) out["failure"] = instance_state->failure, out["message"] = instance_state->message;
  out["refused"] = instance_state->refused_receipts;
  return out;
}

TimelineRequest parse_timeline_request(const RequestParams& params) {
  return {params.number("limit"), params.number("before")};
}

Result<json> read_instance_timeline(const RequestContext& caller, const WorkflowStores& stores,
                                    const InstanceReference& instance, const TimelineRequest& request) {
  constexpr std::uint64_t kMaxFactsBatch = 1000;
  MJ_TRY(match, find_instance(caller, stores, instance));
  const auto& [deployment, cell] = match;
  MJ_TRY(head, stores.deployments.read(caller.context, deployment, 0, 0));
  std::uint64_t last_height = request.before == 0 ? head.height : std::min(head.height, request.before - 1);
  std::vector<json> rows_descending;  // latest first
  while (last_height > 0 && rows_descending.size() < request.limit) {
    const std::uint64_t after = last_height > kMaxFactsBatch ? last_height - kMaxFactsBatch : 0;
    std::vector<json> batch;
    MJ_CHECK(for_each_fact(stores.deployments, caller.context, deployment, after, [&](const WorkflowFact& fact) {
      const auto cells = affected_instances(fact);
      if (std::find(cells.begin(), cells.end(), match.cell) != cells.end()) batch.push_back(fact_to_json(fact));
      return fact.height < last_height;
    }));
    const std::size_t row_count = std::min<std::size_t>(batch.size(), request.limit - rows_descending.size());
    std::move(batch.rbegin(), batch.rbegin() + static_cast<std::ptrdiff_t>(row_count),
              std::back_inserter(rows_descending));
    last_height = after;
  }
  if (rows_descending.empty() && request.before == 0)
    return fail(Code::not_found, display_name(cell) + ": it has no history");
  json rows = json::array();
  std::move(rows_descending.rbegin(), rows_descending.rend(), std::back_inserter(rows));
  return rows;
}

namespace {

json make_reason(const std::string& cause, const std::string& text, const std::string& next,
                 json evidence = json::array()) {
  return {{"cause", cause}, {"reason", text}, {"evidence", std::move(evidence)}, {"next", next}};
}

// Returns the reason for an instance that waits for this intent.
json make_wait_reason(const InstanceId& cell, const PendingIntent& pending) {
  const std::string text = "it waits for " + pending.intent.effect;
  json evidence = json::array(
      {"intent " + pending.intent.hash, "parameters " + dump_json(cbor_to_readable_json(pending.intent.params))});
  if (!pending.published)
    return make_reason(
        "effect_queued", text + ", which is not started yet",
        "nothing: the leading coordinator starts it; `mycojobs doctor` shows whether a coordinator leads",
        std::move(evidence));
  if (pending.effect_ref == kTimerEffectRef)
    return make_reason("timer", text, "nothing: it waits for a time", std::move(evidence));
  if (pending.effect_ref == kApprovalEffectRef) {
    const json approvers = cbor_to_readable_json(pending.intent.params).value("approvers", json::array());
    const std::string approver = approvers.empty() ? "ID" : dump_json(approvers.front());
    return make_reason(
        "approval", text,
        "`mycojobs workflow approve " + format_instance_arguments(cell) + " --actor " + approver + "`, or `reject`",
        std::move(evidence));
  }
  const std::string noun = pending.effect_ref.substr(0, pending.effect_ref.find(':'));
  return make_reason(noun, text + ": " + pending.effect_ref + " carries it out",
                     "`mycojobs " + noun + " explain " + pending.effect_ref.substr(noun.size() + 1) + "`",
                     std::move(evidence));
}

// The first entries of an inbox, divided into the events for one instance and all other entries.
struct Inbox {
  std::size_t other_count = 0;      // number of entries for other instances
  std::vector<std::string> events;  // "SCHEMA ID" of each event for the instance
};
bool is_event_for(const InboxEntry& entry, const WorkflowManifest& manifest, const InstanceId& cell) {
  const auto get_field = [&](const char* name) { return std::string(field_of(entry.fields, name)); };
  if (entry.kind != "event") return false;
  const auto checked = check_event(manifest, get_field("schema"), get_field("value"));
  return checked && std::any_of(checked->targets.begin(), checked->targets.end(),
                                [&](const PostTarget& target) { return target.instance == store_name(cell); });
}
Inbox filter_inbox(const std::vector<InboxEntry>& entries, const WorkflowManifest& manifest, const InstanceId& cell) {
  Inbox out;
  for (const InboxEntry& entry : entries) {
    if (is_event_for(entry, manifest, cell))
      out.events.push_back(std::string(field_of(entry.fields, "schema")) + ' ' + entry.id);
    else
      ++out.other_count;
  }
  return out;
}
json make_wait_reason(const Inbox& inbox) {
  json evidence = json::array();
  for (std::size_t i = 0; i < std::min<std::size_t>(inbox.events.size(), 5); ++i)
    evidence.push_back("event " + inbox.events[i]);
  std::string text =
      count_with_noun(inbox.events.size(), "event") + " for it in the inbox, not taken by a coordinator yet";
  if (inbox.other_count > 0) text += "; for others: " + std::to_string(inbox.other_count);
  return make_reason("inbox", text, "nothing: the leading coordinator processes them, one instance after the other",
                     std::move(evidence));
}

// Adds the reasons for an existing instance.
void add_reasons(json& reasons, const InstanceState& instance) {
  if (instance.failed)
    reasons.push_back(make_reason(
        "failed", instance.failure + ": " + instance.message,
        (instance.failure == kCancelledFailure ? "" : "fix the code and apply it with `mycojobs workflow apply`; ") +
            format_command("remove", instance.id) + " removes the instance"));
  if (!instance.inbox.empty())
    reasons.push_back(make_reason("step", count_with_noun(instance.inbox.size(), "event") + " wait for its next step",
                                  "nothing: a coordinator takes the step; its log reports a failure"));
  if (instance.refused_receipts > 0 && !instance.pending_intents.empty())
    reasons.push_back(make_reason(
        "receipt_refused", count_with_noun(instance.refused_receipts, "receipt") + " of its effects were invalid",
        format_command("timeline", instance.id) + " lists them; `mycojobs receipt verify JOB` has details"));
  for (const auto& [hash, pending] : instance.pending_intents)
    reasons.push_back(make_wait_reason(instance.id, pending));
}

}  // namespace

Result<json> explain_instance(const RequestContext& caller, const WorkflowStores& stores,
                              const InstanceReference& instance, const std::string& leader) {
  MJ_TRY(match, open_deployment(caller, stores, instance.workflow, Action::read));
  MJ_TRY(id, resolve_instance_id(match, instance));
  MJ_TRY(state, read_instance(stores.deployments, caller.context, match.head.deployment, id));
  MJ_TRY(entries, stores.deployments.read_inbox(caller.context, match.head.deployment, kMaxShownEvents));
  const Inbox inbox = filter_inbox(entries, *match.head.applied.manifest, id);
  const InstanceState* instance_state = state ? &*state : nullptr;
  json reasons = json::array();
  if (instance_state != nullptr) add_reasons(reasons, *instance_state);
  if (!inbox.events.empty()) reasons.push_back(make_wait_reason(inbox));
  const bool has_pending_work =
      !inbox.events.empty() ||
      (instance_state != nullptr && (!instance_state->inbox.empty() || !instance_state->pending_intents.empty()));
  if (leader.empty() && has_pending_work) {
    const std::string text = "no coordinator leads context " + std::to_string(caller.context);
    const bool has_failed = instance_state != nullptr && instance_state->failed;
    reasons.insert(reasons.begin() + (has_failed ? 1 : 0),
                   make_reason("no_coordinator", text, "start one: `mycojobs coordinator`, or `mycojobs dev`"));
  }
  if (instance_state == nullptr && reasons.empty())
    reasons.push_back(make_reason("none", "the instance does not exist: it received no event, or its code has ended it",
                                  format_command("timeline", id) + " shows its history"));
  if (reasons.empty() && instance_state->status() == InstanceStatus::completed)
    reasons.push_back(make_reason("completed", "its code has ended it", "nothing"));
  if (reasons.empty())
    reasons.push_back(make_reason("event", "it waits for an event", "`mycojobs workflow send EVENT VALUE`"));
  return reasons;
}

Result<json> read_facts(const RequestContext& caller, const WorkflowStores& stores, const std::string& workflow,
                        std::uint64_t after, std::uint64_t limit) {
  MJ_TRY(match, open_deployment(caller, stores, workflow, Action::read));
  MJ_TRY(head, stores.deployments.read(caller.context, match.head.deployment, 0, 0));
  json facts = json::array();
  if (after < head.height) {
    MJ_CHECK(
        for_each_fact(stores.deployments, caller.context, match.head.deployment, after, [&](const WorkflowFact& fact) {
          facts.push_back(fact_to_json(fact));
          return facts.size() < limit;
        }));
  }
  return json{{"world", match.head.deployment}, {"height", head.height}, {"facts", std::move(facts)}};
}

// ---- replay ----

Result<WorkflowHistory> read_workflow_history(const RequestContext& caller, const WorkflowStores& stores,
                                              const std::string& workflow) {
  MJ_TRY(match, open_deployment(caller, stores, workflow, Action::read));
  const std::string& deployment = match.head.deployment;
  WorkflowHistory out;
  out.deployment = std::to_string(caller.context) + '/' + deployment;
  std::vector<std::string> manifests;
  std::set<std::string> states;  // blobs of long states; the pages of a snapshot are not part of the history
  MJ_CHECK(for_each_fact(stores.deployments, caller.context, deployment, 0, [&](WorkflowFact fact) {
    if (const auto* applied = std::get_if<ManifestApplied>(&fact.content))
      if (std::find(manifests.begin(), manifests.end(), applied->manifest) == manifests.end())
        manifests.push_back(applied->manifest);
    if (const auto* step = std::get_if<StepTaken>(&fact.content); step != nullptr && step->state)
      if (step->state->is_spilled()) states.insert(step->state->hash);
    out.facts.push_back(std::move(fact));
    return true;
  }));
  for (const std::string& hash : manifests) {
    MJ_TRY(text, stores.deployments.manifest(caller.context, deployment, hash));
    MJ_TRY(stored, parse_json(text));
    HistoryManifest history_manifest{dump_json(stored.at("manifest")), {}};
    const json files = stored.value("code", json::object());
    for (const auto& [module, source] : files.items()) history_manifest.code[module] = source.get<std::string>();
    out.manifests.push_back(std::move(history_manifest));
  }
  MJ_TRY(blobs, stores.deployments.blobs(caller.context, deployment));
  for (const std::string& hash : blobs) {
    if (!states.contains(hash)) continue;
    auto blob = stores.deployments.blob(caller.context, deployment, hash);
    if (blob) out.blobs.insert(std::move(*blob));  // a blob that was collected in the meantime is not needed
    if (!blob && blob.error().code != Code::not_found) return tl::unexpected<Error>(std::move(blob).error());
  }
  return out;
}

namespace {

// Folds a deployment from its first fact and runs each step again.
class DeploymentReplay {
 public:
  DeploymentReplay(const RequestContext& caller, const WorkflowStores& stores, std::string deployment,
                   const StepRunner& step)
      : caller_(caller), stores_(stores), name_(std::move(deployment)), step_(step) {
    result_.deployment = name_;
    state_.id = std::to_string(caller.context) + '/' + name_;
  }

  // Folds the next fact. Returns false if the output of the step differs from the journal.
  Result<bool> fold_one(const WorkflowFact& fact) {
    if (const auto* applied = std::get_if<ManifestApplied>(&fact.content)) {
      MJ_TRY(stored, load_manifest(stores_.deployments, caller_.context, name_, applied->manifest));
      catalog_.add(stored.manifest);
    }
    verifier_.fold_one(fact);
    if (error_) return tl::unexpected<Error>(*error_);
    const StepReplayResult& replay_result = verifier_.result();
    ++result_.entries;
    result_.steps = replay_result.steps;
    result_.mismatch = replay_result.mismatch;
    if (replay_result.problem)
      return fail(Code::invalid,
                  name_ + ": " + std::string(replay_result.problem->rule) + ": " + replay_result.problem->text);
    return !replay_result.mismatch;
  }

  const ReplayResult& result() const { return result_; }

 private:
  StepAnswer rerun_step(const WorkflowSpec& spec, const WorkflowManifest& manifest, const StepRequest& request) {
    auto answer = step_(spec, manifest, request);
    if (answer) return std::move(*answer);
    error_ = answer.error();
    return StepError{kStepErrorEngine, answer.error().message, 0};
  }

  const RequestContext& caller_;
  const WorkflowStores& stores_;
  std::string name_;
  const StepRunner& step_;
  DeploymentState state_;
  ManifestCatalog catalog_;
  ReplayVerifier verifier_{
      state_, catalog_, [this](const WorkflowSpec& spec, const WorkflowManifest& manifest, const StepRequest& request) {
        return rerun_step(spec, manifest, request);
      }};
  std::optional<Error> error_;
  ReplayResult result_;
};

// Records the mismatch, which makes only this instance fail.
Result<void> record_mismatch(const RequestContext& caller, const WorkflowStores& stores, const std::string& name,
                             const OutputMismatchFound& mismatch) {
  for (int i = 0; i < kMaxCommitAttempts; ++i) {
    MJ_TRY(deployment, LoadedDeployment::load(stores.deployments, caller.context, name));
    MJ_TRY(instance, deployment.find_instance(mismatch.instance));
    if (instance == nullptr) return {};  // the instance has ended since
    MJ_TRY(sample, read_sample(stores.deployments));
    MJ_CHECK(deployment.decide({sample, mismatch}));
    auto result = deployment.commit(stores.deployments, sample.now_ms);
    if (result || result.error().code != Code::conflict) return result;
  }
  return fail(Code::conflict, name + ": it moves on all the time; try again");
}

}  // namespace

Result<ReplayResult> verify_workflow(const RequestContext& caller, const WorkflowStores& stores,
                                     const std::string& workflow, const StepRunner& step) {
  MJ_TRY(match, open_deployment(caller, stores, workflow, Action::steer));
  DeploymentReplay replay(caller, stores, match.head.deployment, step);
  MJ_CHECK(for_each_fact(stores.deployments, caller.context, match.head.deployment, 0,
                         [&](const WorkflowFact& fact) { return replay.fold_one(fact); }));
  const ReplayResult& result = replay.result();
  if (result.mismatch) MJ_CHECK(record_mismatch(caller, stores, match.head.deployment, *result.mismatch));
  return result;
}

}  // namespace mycojobs::service
