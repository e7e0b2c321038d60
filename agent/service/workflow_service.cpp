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

constexpr int kTries = 10;                  // attempts of a commit while other clients commit
constexpr std::uint32_t kMailShown = 1000;  // number of events in the inbox that are shown

Resource thing_of(const std::string& deployment, Id owner) {
  return {.name = "workflow " + deployment, .maker = owner};
}

tl::unexpected<Error> no_workflow(const RequestContext& by, const std::string& given) {
  return fail(Code::not_found, "workflow: there is no " + excerpt(given, 200) + " in context " +
                                   std::to_string(by.context) + "; `mycojobs workflow list` shows all workflows");
}

// A world and its manifest in force, without the loaded state.
struct DeploymentHead {
  std::string deployment;
  AppliedManifest applied;
};

Result<AppliedManifest> manifest_of(const WorkflowStores& in, Id context, const std::string& deployment,
                                    const std::string& hash) {
  return in.manifests != nullptr ? in.manifests->get(in.deployments, context, deployment, hash)
                                 : stored_manifest(in.deployments, context, deployment, hash);
}
Result<DeploymentHead> head_of(const RequestContext& by, const WorkflowStores& in, const ManifestInForce& row) {
  MJ_TRY(applied, manifest_of(in, by.context, row.deployment, row.hash));
  return DeploymentHead{row.deployment, std::move(applied)};
}

Result<std::vector<ManifestInForce>> read_in_force(const RequestContext& by, const WorkflowStores& in) {
  WorkflowStore& store = in.deployments;
  MJ_TRY(names, store.list_deployments(by.context));
  std::vector<ManifestInForce> all;
  for (std::string& name : names) {
    MJ_TRY(read, store.read(by.context, name, 0, 0));
    if (read.manifest.empty() && read.height > 0) {  // another client has deleted the head
      MJ_TRY(deployment, LoadedDeployment::load(store, by.context, name));
      read.manifest = deployment.state().manifest;
    }
    if (read.manifest.empty()) continue;  // a manifest was stored, but never applied
    MJ_TRY(applied, manifest_of(in, by.context, name, read.manifest));
    ManifestInForce row{std::move(name), std::move(read.manifest), applied.owner, {}, {}};
    for (const WorkflowSpec& spec : applied.manifest->workflows) row.workflows.push_back(spec.name);
    for (const Subscription& each : applied.manifest->subscriptions) {
      if (std::find(row.events.begin(), row.events.end(), each.event) == row.events.end())
        row.events.push_back(each.event);
    }
    all.push_back(std::move(row));
  }
  return all;
}

// Returns the number of manifests that were applied in the context.
Result<std::string> applies_of(const RequestContext& by, const WorkflowStores& in) {
  constexpr std::string_view kAsked[] = {"count"};
  auto fields = in.records.load_fields(by.context, "mj:world-applies", kAsked);
  if (!fields && fields.error().code == Code::not_found) return std::string();
  MJ_CHECK(fields);
  return std::string(field_of(*fields, "count"));
}

// With a cache this is one call to the store, however many manifests are in force, unless one was applied. The number
// is read before the manifests: an application in between makes the next caller read again.
Result<ManifestCache::InForce> in_force(const RequestContext& by, const WorkflowStores& in) {
  std::optional<std::string> applies;
  if (in.manifests != nullptr) {
    auto read = applies_of(by, in);
    if (!read && read.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(read).error());
    if (read) applies = std::move(*read);  // another client can have overwritten the key
    if (auto known = applies ? in.manifests->in_force(by.context, *applies) : nullptr) return known;
  }
  MJ_TRY(all, read_in_force(by, in));
  auto shared = std::make_shared<const std::vector<ManifestInForce>>(std::move(all));
  if (applies) in.manifests->put_in_force(by.context, *applies, shared);
  return shared;
}

// A world that was found by its own name or by the name of a workflow in it.
struct FoundDeployment {
  DeploymentHead head;
  std::string workflow;
};
Result<FoundDeployment> find(const RequestContext& by, const WorkflowStores& in, const std::string& given) {
  MJ_TRY(all, in_force(by, in));
  std::vector<std::string> names, own;
  std::map<std::string, const ManifestInForce*> owners;
  for (const ManifestInForce& row : *all) {
    for (const std::string& workflow : row.workflows) {
      names.push_back(workflow);
      if (row.owner == by.actor) own.push_back(workflow);
      owners[workflow] = &row;
    }
  }
  // A short name is first matched with the caller's own names, so that names of others do not make it ambiguous.
  const bool is_whole = std::find(names.begin(), names.end(), given) != names.end();
  auto name = find_name(given, is_whole ? names : own, "workflow");
  if (!name && name.error().code == Code::not_found) name = find_name(given, names, "workflow");
  if (name) {
    MJ_TRY(head, head_of(by, in, *owners.at(*name)));
    return FoundDeployment{std::move(head), *name};
  }
  for (const ManifestInForce& row : *all) {
    if (row.deployment != given) continue;
    MJ_TRY(head, head_of(by, in, row));
    return FoundDeployment{std::move(head), ""};
  }
  if (name.error().code == Code::not_found) return no_workflow(by, given);
  return tl::unexpected<Error>(std::move(name).error());
}

// Finds a world and checks the caller's right to the action. The refusal is the same for a missing world.
Result<FoundDeployment> open(const RequestContext& by, const WorkflowStores& in, const std::string& given,
                             Action action) {
  auto found = find(by, in, given);
  if (!found && found.error().code == Code::unavailable) return found;
  MJ_CHECK(
      check_permission(by, in.records, action, thing_of(excerpt(given, 200), found ? found->head.applied.owner : 0)));
  return found;
}

struct OpenedDeployment {
  LoadedDeployment deployment;
  InstanceId cell;
};
Result<InstanceId> cell_of(const FoundDeployment& found, const InstanceReference& instance) {
  const WorkflowManifest& manifest = *found.head.applied.manifest;
  const WorkflowSpec* spec = manifest.workflow(found.workflow);
  if (spec == nullptr)
    return fail(Code::invalid,
                "workflow: " + found.head.deployment + " has several workflows: name the one of the instance");
  if (!spec->keyed() && !instance.key.empty()) return fail(Code::invalid, "key: " + spec->name + " has no keys");
  if (!spec->keyed()) return InstanceId{spec->name, ""};
  if (instance.key.empty()) return fail(Code::invalid, "key: " + spec->name + " is keyed: give the key of an instance");
  auto key = key_of_text(manifest, *spec, instance.key);
  if (!key) return fail(key.error(), "key");
  return InstanceId{spec->name, std::move(*key)};
}
Result<OpenedDeployment> open_instance(const RequestContext& by, const WorkflowStores& in,
                                       const InstanceReference& instance, Action action) {
  MJ_TRY(found, open(by, in, instance.workflow, action));
  MJ_TRY(cell, cell_of(found, instance));
  MJ_TRY(deployment, LoadedDeployment::load(in.deployments, by.context, found.head.deployment));
  return OpenedDeployment{std::move(deployment), std::move(cell)};
}
Result<const InstanceState*> there(const LoadedDeployment& deployment, const InstanceId& cell) {
  const InstanceState* found = deployment.state().cell(cell);
  if (found == nullptr)
    return fail(Code::not_found, shown(cell) + ": the instance does not exist; `mycojobs workflow explain` shows " +
                                     "whether an event for it waits, `timeline` shows its history");
  return found;
}

// Opens an instance and reads the bytes of its state. A missing blob belongs to a state that was replaced in the
// meantime, so the read is repeated.
Result<std::pair<OpenedDeployment, std::optional<StateRef>>> open_with_state(const RequestContext& by,
                                                                             const WorkflowStores& in,
                                                                             const InstanceReference& instance) {
  for (int left = kTries;; --left) {
    MJ_TRY(opened, open_instance(by, in, instance, Action::read));
    MJ_TRY(cell, there(opened.deployment, opened.cell));
    std::optional<StateRef> state = cell->state;
    if (!state || !state->spilled()) return std::pair(std::move(opened), std::move(state));
    auto blob = in.deployments.blob(by.context, opened.deployment.name(), state->hash);
    if (!blob && blob.error().code == Code::not_found && left > 0) continue;
    if (!blob) return tl::unexpected<Error>(std::move(blob).error());
    MJ_CHECK(attach(*state, std::move(*blob)));
    return std::pair(std::move(opened), std::move(state));
  }
}

Result<Sample> sample(WorkflowStore& store) {
  MJ_TRY(now, store.now_ms());
  return Sample{now, random_bytes(32)};
}

// ---- JSON views ----

json key_json(const InstanceId& cell) { return cell.key.empty() ? json(nullptr) : readable_cbor(cell.key); }

// Returns the arguments of a command line for an instance: its workflow and its key.
std::string named(const InstanceId& cell) {
  if (cell.key.empty()) return cell.workflow;
  const json key = key_json(cell);
  const std::string text = key.is_string() ? key.get<std::string>() : dump_json(key);
  return cell.workflow + ' ' + quote_for_shell(text);
}
std::string command(const char* verb, const InstanceId& cell) {
  return "`mycojobs workflow " + std::string(verb) + ' ' + named(cell) + '`';
}

json pending_json(const PendingIntent& pending) {
  return {{"intent", pending.intent.hash},
          {"effect", pending.intent.effect},
          {"params", readable_cbor(pending.intent.params)},
          {"published", pending.published},
          {"carrier", pending.effect_ref},
          {"asked_ms", pending.asked_ms},
          {"sequence", pending.sequence}};
}

json row_of(const InstanceState& cell) {
  return {{"workflow", cell.id.workflow},
          {"key", key_json(cell.id)},
          {"status", to_string(cell.status())},
          {"steps", cell.steps},
          {"mail", cell.mail.size()},
          {"pending", cell.pending.size()},
          {"born", cell.born},
          {"last", cell.last},
          {"state_bytes", cell.state ? cell.state->size : 0},
          {"manifest", cell.manifest}};
}

json targets_json(const EventAccepted& event) {
  json all = json::array();
  for (const EventTarget& target : event.targets) {
    json row{{"workflow", target.cell.workflow}, {"key", key_json(target.cell)}};
    if (!target.skipped.empty()) row["skipped"] = target.skipped;
    all.push_back(std::move(row));
  }
  return all;
}

// Returns the properties of a fact other than height, time, kind and cell.
class FactFormatter {
 public:
  json operator()(const ManifestApplied& fact) const {
    return {{"manifest", fact.manifest}, {"replaced", fact.replaced}};
  }
  json operator()(const EventAccepted& fact) const {
    json out{{"schema", fact.schema}, {"value", readable_cbor(fact.value)}, {"targets", targets_json(fact)}};
    if (!fact.source.empty()) out["source"] = fact.source;
    if (fact.from) out["from"] = shown(*fact.from), out["from_step"] = fact.from_step;
    return out;
  }
  json operator()(const StepTaken& fact) const {
    json intents = json::array();
    for (const Intent& intent : fact.intents)
      intents.push_back({{"intent", intent.hash}, {"effect", intent.effect}, {"params", readable_cbor(intent.params)}});
    json out{{"mail", fact.mail.height},
             {"output", fact.output},
             {"effects", std::move(intents)},
             {"events", fact.events},
             {"state", nullptr}};
    if (fact.state)
      out["state"] = fact.state->spilled() ? json{{"hash", fact.state->hash}, {"bytes", fact.state->size}}
                                           : readable_cbor(fact.state->bytes);
    if (fact.ann) out["annotations"] = readable_cbor(*fact.ann);
    return out;
  }
  json operator()(const StepFailed& fact) const {
    return {{"mail", fact.mail.height}, {"error", fact.kind}, {"message", fact.message}};
  }
  json operator()(const EffectPublished& fact) const { return {{"intent", fact.intent}, {"carrier", fact.effect_ref}}; }
  json operator()(const ReceiptAdmitted& fact) const {
    json out{{"intent", fact.intent}, {"status", to_string(fact.status)}, {"payload", readable_cbor(fact.payload)}};
    if (!fact.module.empty()) out["executor"] = fact.module;
    return out;
  }
  json operator()(const ReceiptRefused& fact) const { return {{"intent", fact.intent}, {"reason", fact.reason}}; }
  json operator()(const ReceiptMismatched& fact) const {
    return {{"intent", fact.intent}, {"status", to_string(fact.status)}, {"reason", fact.reason}};
  }
  json operator()(const InstanceFailed& fact) const {
    return {{"failure", fact.kind}, {"message", fact.message}, {"dropped", fact.dropped}};
  }
  json operator()(const InstanceCompleted&) const { return json::object(); }
  json operator()(const InstanceDeleted& fact) const { return {{"by", fact.by}}; }
  json operator()(const SnapshotTaken& fact) const { return {{"hash", fact.hash}, {"bytes", fact.size}}; }
};

json fact_json(const WorkflowFact& fact) {
  json out = std::visit(FactFormatter(), fact.what);
  out["height"] = fact.height;
  out["at_ms"] = fact.at_ms;
  out["kind"] = kind_of(fact);
  json cells = json::array();
  for (const InstanceId& cell : instances_of(fact)) cells.push_back(shown(cell));
  out["cells"] = std::move(cells);
  return out;
}

// ---- apply ----

// Checks the sizes of the code and of the scripts of the effects.
Result<void> check_effects(const RequestContext& by, const WorkflowManifest& manifest) {
  for (const auto& [module, text] : manifest.code) {
    if (auto fits = check_script(by, text); !fits) return fail(fits.error(), "code." + module);
  }
  for (std::size_t i = 0; i < manifest.effects.size(); ++i) {
    const EffectSpec& effect = manifest.effects[i];
    if (auto fits = check_script(by, effect.script); !fits) return fail(fits.error(), "effects." + effect.name);
  }
  return {};
}

// Stores a manifest and returns the actor as which its effects run: the first actor that stored it under this hash.
Result<Id> store_manifest(const WorkflowStores& in, Id context, const ManifestText& text, Id owner) {
  const WorkflowManifest& manifest = *text.manifest;
  auto stored = in.deployments.put_manifest(context, manifest.name, manifest.hash, text.text);
  if (stored) return owner;
  if (stored.error().code != Code::conflict) return tl::unexpected<Error>(std::move(stored).error());
  MJ_TRY(there, stored_manifest(in.deployments, context, manifest.name, manifest.hash));
  return there.owner;
}

// An actor cannot apply a manifest that another actor has stored, since its effects would run as that other actor.
Result<void> check_owner(const RequestContext& by, const ApplyWorkflow& request, Id owner, Id runs_as) {
  if (runs_as == owner || (!request.owner && by.is_operator)) return {};
  return fail(Code::conflict, "owner: the same manifest is stored already, and its effects run as actor " +
                                  std::to_string(runs_as) + ", not as " + std::to_string(owner) +
                                  ": change it (its description is enough)");
}

// Checks the rights that are needed when an effect starts, so that a missing right is reported before the manifest is
// applied.
Result<void> check_owners_rights(const RequestContext& by, const WorkflowStores& in, Id owner) {
  MJ_TRY(place, read_acl_context(in.records, by.context, EntryPoint::command));
  auto allowed = mycojobs::check_permission(owner, Action::create, place, {.name = "jobs"});
  if (allowed) return {};
  return fail(allowed.error().code, "owner: " + allowed.error().message + "; or name another owner");
}

// Returns the owner of the same manifest if it is stored, else `otherwise`.
Result<Id> owner_stored(const WorkflowStores& in, Id context, const WorkflowManifest& manifest, Id otherwise) {
  auto there = stored_manifest(in.deployments, context, manifest.name, manifest.hash);
  if (there) return there->owner;
  return there.error().code == Code::not_found ? Result<Id>(otherwise) : tl::unexpected<Error>(there.error());
}

// ---- names ----

using Names = std::set<std::string, std::less<>>;
// Names by which events are sent to a manifest and names by which the manifest is found.
struct NamesInUse {
  Names events, workflows;
};
void add_names(const WorkflowManifest& manifest, NamesInUse& to) {
  to.workflows.insert(manifest.name);
  for (const WorkflowSpec& spec : manifest.workflows) to.workflows.insert(spec.name);
  for (const Subscription& each : manifest.subscriptions) to.events.insert(each.event);
}

Result<void> check_free(const Names& wanted, const Names& before, const Names& of_others, std::string_view what) {
  for (const std::string& name : wanted) {
    if (before.contains(name) || !of_others.contains(name)) continue;
    return fail(Code::conflict, std::string(what) + ": " + excerpt(name, 200) +
                                    " is a name of another caller's manifest in this context: choose another one");
  }
  return {};
}

// If two manifests accepted an event of the same name, its senders could not reach a receiver. A name therefore belongs
// to the owner of the first manifest with it. before: the replaced manifest, which keeps its names; null: there is
// none.
Result<void> check_names(const std::vector<ManifestInForce>& all, const WorkflowManifest& manifest,
                         const WorkflowManifest* before, Id owner) {
  NamesInUse wanted, former, of_others;
  add_names(manifest, wanted);
  if (before != nullptr) add_names(*before, former);
  for (const ManifestInForce& row : all) {
    if (row.deployment == manifest.name || row.owner == owner) continue;
    of_others.workflows.insert(row.deployment);
    of_others.workflows.insert(row.workflows.begin(), row.workflows.end());
    of_others.events.insert(row.events.begin(), row.events.end());
  }
  MJ_CHECK(check_free(wanted.workflows, former.workflows, of_others.workflows, "workflows"));
  return check_free(wanted.events, former.events, of_others.events, "routing.subscriptions");
}

// Each manifest has its journal, its memory in the coordinator and its turns in a round. A manifest that the owner has
// already can be replaced.
Result<void> check_count(const RequestContext& by, const std::vector<ManifestInForce>& all,
                         const std::string& deployment, Id owner) {
  std::size_t count = 0;
  for (const ManifestInForce& row : all) {
    if (row.owner != owner) continue;
    if (row.deployment == deployment) return {};
    ++count;
  }
  if (by.is_operator || count < kMaxManifestsOfOwner) return {};
  return fail(Code::too_large, "manifest: actor " + std::to_string(owner) + " has " + std::to_string(count) +
                                   " manifests in context " + std::to_string(by.context) +
                                   ", the maximum: apply it under the name of one of them, or ask an operator");
}

// Applies a manifest. The manifest is stored only after nothing prevents it from being applied.
Result<AppliedWorkflow> put_in_force(const RequestContext& by, const WorkflowStores& in, const ManifestText& text,
                                     const ApplyWorkflow& request, Id owner) {
  AppliedWorkflow out{text.manifest->name, text.manifest->hash, "", false, owner};
  for (int i = 0; i < kTries; ++i) {
    MJ_TRY(applies, applies_of(by, in));
    MJ_TRY(deployment, LoadedDeployment::load(in.deployments, by.context, out.deployment));
    MJ_TRY(runs_as, owner_stored(in, by.context, *text.manifest, owner));
    out.owner = runs_as;
    deployment.add_manifest({text.manifest, runs_as});
    out.replaced = deployment.state().manifest;
    MJ_TRY(at, sample(in.deployments));
    MJ_CHECK(deployment.decide({at, ApplyManifest{out.hash}}));
    out.repeated = deployment.pending_facts() == 0;
    if (out.repeated && !request.owner) return out;
    MJ_CHECK(check_owner(by, request, owner, runs_as));
    if (out.repeated) return out;
    MJ_CHECK(check_owners_rights(by, in, runs_as));
    MJ_TRY(others, read_in_force(by, in));
    MJ_CHECK(check_count(by, others, out.deployment, runs_as));
    MJ_CHECK(check_names(others, *text.manifest, deployment.catalog().find(out.replaced), runs_as));
    MJ_TRY(stored_as, store_manifest(in, by.context, text, runs_as));
    if (stored_as != runs_as) continue;  // another client stored it first
    auto done = deployment.commit(in.deployments, 0, true, applies);
    if (done) return out;
    if (done.error().code != Code::conflict) return tl::unexpected<Error>(std::move(done).error());
    MJ_TRY(waiting, in.deployments.mail(by.context, out.deployment, 1));
    if (!waiting.empty()) return tl::unexpected<Error>(std::move(done).error());
  }
  return fail(Code::conflict, out.deployment + ": it moves on all the time; try again");
}

}  // namespace

Result<NamedInstance> find_instance(const RequestContext& by, const WorkflowStores& in,
                                    const InstanceReference& instance) {
  MJ_TRY(found, open(by, in, instance.workflow, Action::read));
  MJ_TRY(cell, cell_of(found, instance));
  return NamedInstance{found.head.deployment, std::move(cell)};
}

Result<AppliedManifest> ManifestCache::get(WorkflowStore& store, Id context, const std::string& deployment,
                                           const std::string& hash) {
  const std::tuple key(context, deployment, hash);
  {
    const std::lock_guard lock(mutex_);
    const auto found = stored_.find(key);
    if (found != stored_.end()) {
      found->second.asked = ++turn_;
      return found->second.applied;
    }
  }
  MJ_TRY(applied, stored_manifest(store, context, deployment, hash));
  const std::lock_guard lock(mutex_);
  stored_[key] = {applied, ++turn_};
  if (stored_.size() > most_)
    stored_.erase(std::min_element(stored_.begin(), stored_.end(),
                                   [](const auto& a, const auto& b) { return a.second.asked < b.second.asked; }));
  return applied;
}

ManifestCache::InForce ManifestCache::in_force(Id context, const std::string& applies) const {
  const std::lock_guard lock(mutex_);
  const auto found = in_force_.find(context);
  const bool is_known = found != in_force_.end() && found->second.applies == applies &&
                        std::chrono::steady_clock::now() - found->second.read_at < max_age_;
  return is_known ? found->second.manifests : nullptr;
}

void ManifestCache::put_in_force(Id context, const std::string& applies, InForce manifests) {
  const std::lock_guard lock(mutex_);
  if (in_force_.size() >= kMaxContexts) in_force_.clear();
  in_force_[context] = {applies, std::move(manifests), std::chrono::steady_clock::now()};
}

void ManifestCache::forget_in_force(Id context) {
  const std::lock_guard lock(mutex_);
  in_force_.erase(context);
}

Result<AppliedWorkflow> apply_workflow(const RequestContext& by, const WorkflowStores& in, const json& manifest,
                                       const ApplyWorkflow& request) {
  MJ_CHECK(check_permission(by, in.records, Action::create, {.name = "workflows"}));
  MJ_TRY(owner, resource_owner(by, request.owner));
  const ManifestText text = manifest_text(manifest, request.code, owner);
  if (!text.manifest) return fail(Code::invalid, "manifest: " + join(text.problems));
  MJ_CHECK(check_effects(by, *text.manifest));
  if (request.check_code) {
    if (auto runs = request.check_code(*text.manifest); !runs) return fail(runs.error(), "code");
  }
  MJ_TRY(head, in.deployments.read(by.context, text.manifest->name, 0, 0));
  if (!head.manifest.empty()) {
    auto before = stored_manifest(in.deployments, by.context, text.manifest->name, head.manifest);
    // The manifest in force was lost and is applied again.
    const bool lost = !before && before.error().code == Code::not_found && head.manifest == text.manifest->hash;
    if (!before && !lost) return tl::unexpected<Error>(std::move(before).error());
    MJ_CHECK(check_permission(by, in.records, Action::steer, thing_of(text.manifest->name, lost ? 0 : before->owner)));
    if (lost) {
      MJ_CHECK(check_owners_rights(by, in, owner));
      MJ_CHECK(store_manifest(in, by.context, text, owner));
    }
  }
  return put_in_force(by, in, text, request, owner);
}

// ---- events ----

namespace {

// The result of the kernel for an event as if no instance existed: its targets, and the hash of its content.
struct CheckedEvent {
  std::vector<PostTarget> targets;
  std::string content;
};
Result<CheckedEvent> check_event(const WorkflowManifest& manifest, const std::string& event, const std::string& value) {
  DeploymentState nobody;
  nobody.manifest = manifest.hash;
  ManifestCatalog catalog;
  catalog.add(ManifestRef(&manifest, [](const WorkflowManifest*) {}));
  MJ_TRY(decision, decide(nobody, catalog, {Sample{1, std::string(32, '\0')}, EventArrived{event, value}}));
  CheckedEvent out;
  for (const WorkflowFact& fact : decision.facts) {
    const auto* in = std::get_if<EventAccepted>(&fact.what);
    if (in == nullptr) continue;
    for (const EventTarget& target : in->targets) out.targets.push_back({store_name(target.cell), shown(target.cell)});
    out.content = sha256_hex(in->schema + '\n' + in->value);
  }
  return out;
}

struct EventReceiver {
  DeploymentHead head;
  std::string event;
};
// The manifests that are searched: first by a full name, then by short names of the caller's own manifests, then by
// short names of all manifests.
enum class NameSearchScope { whole, of_own, of_all };
using TakerRow = std::pair<const ManifestInForce*, std::string>;  // and the full name of the event
// A manifest in which the short name is ambiguous is passed over if another manifest accepts the event. Otherwise every
// submitter could make the short names of the others ambiguous.
Result<std::vector<TakerRow>> takers_of(const RequestContext& by, const std::vector<const ManifestInForce*>& all,
                                        const SendEvent& request, NameSearchScope use) {
  std::vector<TakerRow> takers;
  std::optional<Error> ambiguous;
  for (const ManifestInForce* row : all) {
    if (use == NameSearchScope::of_own && row->owner != by.actor) continue;
    auto event = find_name(request.event, row->events, "event");
    if (use == NameSearchScope::whole && event && *event != request.event) continue;
    if (event) takers.emplace_back(row, std::move(*event));
    if (!event && event.error().code == Code::invalid) ambiguous = std::move(event).error();
  }
  if (takers.empty() && ambiguous && use != NameSearchScope::whole) return fail(std::move(*ambiguous), "event");
  return takers;
}

// Returns the manifests that the sender names, all if it names none. A full name means this manifest alone.
std::vector<const ManifestInForce*> named_in(const std::vector<ManifestInForce>& all, const std::string& workflow) {
  std::vector<const ManifestInForce*> named;
  for (const ManifestInForce& row : all) {
    if (row.deployment == workflow) return {&row};
    if (workflow.empty() || find_name(workflow, {row.deployment}, "workflow")) named.push_back(&row);
  }
  return named;
}

Result<EventReceiver> taker_of(const RequestContext& by, const WorkflowStores& in, const SendEvent& request) {
  MJ_TRY(all, in_force(by, in));
  const auto named = named_in(*all, request.workflow);
  std::vector<TakerRow> takers;
  for (const NameSearchScope use : {NameSearchScope::whole, NameSearchScope::of_own, NameSearchScope::of_all}) {
    MJ_TRY(found, takers_of(by, named, request, use));
    takers = std::move(found);
    if (!takers.empty()) break;
  }
  if (takers.empty())
    return fail(Code::not_found, "event: no workflow of context " + std::to_string(by.context) + " takes " +
                                     excerpt(request.event, 200) + "; `mycojobs workflow list` shows their events");
  if (takers.size() > 1) {
    std::string names;
    for (const auto& [row, event] : takers) names += (names.empty() ? "" : ", ") + row->deployment;
    return fail(Code::invalid,
                "event: " + excerpt(request.event, 200) + " is taken by " + names + ": name one of them");
  }
  MJ_TRY(head, head_of(by, in, *takers.front().first));
  return EventReceiver{std::move(head), std::move(takers.front().second)};
}

}  // namespace

Result<SentEvent> send_event(const RequestContext& by, const WorkflowStores& in, const SendEvent& request) {
  MJ_CHECK(check_permission(by, in.records, Action::create, {.name = "events"}));
  MJ_CHECK(check_length("value", request.value, 4 * kMaxValueBytes));
  MJ_CHECK(check_key("idempotency_key", request.idempotency_key));
  if (auto context = check_traceparent(request.traceparent); !context) return fail(context.error(), "traceparent");
  const std::string actor = std::to_string(by.actor);
  const std::string& traceparent = request.traceparent.empty() ? by.traceparent : request.traceparent;
  for (int i = 0; i < kTries; ++i) {
    MJ_TRY(taker, taker_of(by, in, request));
    const WorkflowManifest& manifest = *taker.head.applied.manifest;
    auto checked = check_event(manifest, taker.event, request.value);
    if (!checked) return fail(checked.error(), "value");
    Fields fields{{"schema", taker.event}, {"value", request.value}, {"source", "actor:" + actor}};
    if (!traceparent.empty()) fields.emplace_back("traceparent", traceparent);
    const std::string key = request.idempotency_key ? actor + ' ' + *request.idempotency_key : "";
    const PostRules rules{manifest.hash, checked->targets, key, checked->content};
    auto sent = in.deployments.post(by.context, taker.head.deployment, "event", fields, rules);
    if (sent) {
      SentEvent out{taker.head.deployment, taker.event, sent->id, sent->repeated, {}};
      for (PostTarget& target : checked->targets) out.targets.push_back(std::move(target.shown));
      return out;
    }
    if (in.manifests != nullptr) in.manifests->forget_in_force(by.context);
    const bool of_key = sent.error().message.starts_with("idempotency_key");
    if (of_key || sent.error().code != Code::conflict) return tl::unexpected<Error>(std::move(sent).error());
  }
  return fail(Code::conflict, request.event + ": manifests are applied all the time; try again");
}

Result<std::string> answer_approval(const RequestContext& by, const WorkflowStores& in, const AnswerApproval& request) {
  MJ_CHECK(check_length("comment", request.comment, 4096));
  auto found = find(by, in, request.of.workflow);
  if (!found && found.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(found).error());
  Resource thing = thing_of(excerpt(request.of.workflow, 200), found ? found->head.applied.owner : 0);
  thing.names_others = true;
  std::vector<const PendingIntent*> waiting;
  std::optional<LoadedDeployment> deployment;
  if (found) {
    MJ_TRY(cell, cell_of(*found, request.of));
    MJ_TRY(loaded, LoadedDeployment::load(in.deployments, by.context, found->head.deployment));
    deployment = std::move(loaded);
    if (const InstanceState* state = deployment->state().cell(cell)) {
      for (const auto& [hash, pending] : state->pending) {
        if (pending.intent.effect == kApprovalEffect && hash.starts_with(request.intent)) waiting.push_back(&pending);
      }
    }
  }
  if (waiting.size() == 1) {
    const json asked = readable_cbor(waiting.front()->intent.params);
    const json approvers = asked.value("approvers", json::array());
    thing.names_it = std::find(approvers.begin(), approvers.end(), json(by.actor)) != approvers.end();
  }
  MJ_CHECK(check_permission(by, in.records, Action::answer, thing));
  if (!found) return tl::unexpected<Error>(std::move(found).error());
  if (waiting.empty())
    return fail(Code::not_found, request.of.workflow + (request.of.key.empty() ? "" : ' ' + request.of.key) +
                                     ": it does not wait for an approval");
  if (waiting.size() > 1) {
    std::string all;
    for (const PendingIntent* each : waiting)
      all += (all.empty() ? "" : ", ") + each->intent.hash.substr(0, 12) + ' ' +
             dump_json(readable_cbor(each->intent.params).value("title", json()));
    return fail(Code::invalid, "intent: several wait for approval: " + all);
  }
  json payload{{"approved", request.approved}, {"by", by.actor}};
  if (!request.comment.empty()) payload["comment"] = to_utf8(request.comment);
  const std::string intent = waiting.front()->intent.hash;
  MJ_CHECK(in.deployments.post(by.context, found->head.deployment, "answer",
                               {{"intent", intent}, {"payload", dump_json(payload)}}));
  return intent;
}

namespace {

// The parameters are not trusted, since another client can write any value into a store.
WaitingApproval approval_of(const InstanceState& cell, const PendingIntent& pending, Id owner) {
  WaitingApproval out{
      cell.id.workflow, dump_json(key_json(cell.id)), pending.intent.hash, "", {}, owner, pending.asked_ms, 0};
  const json asked = readable_cbor(pending.intent.params);
  if (!asked.is_object()) return out;
  if (asked.contains("title") && asked["title"].is_string()) out.title = asked["title"].get<std::string>();
  for (const json& each : asked.value("approvers", json::array())) {
    if (each.is_number_unsigned() && each.get<std::uint64_t>() <= UINT32_MAX) out.approvers.push_back(each.get<Id>());
  }
  if (asked.contains("timeout_ms") && asked["timeout_ms"].is_number_unsigned())
    out.until_ms = pending.asked_ms + asked["timeout_ms"].get<std::uint64_t>();
  return out;
}

using Approvals = std::vector<WaitingApproval>;
constexpr std::uint64_t kMaxPendingBytes = 5000;  // maximum number of facts read instead of loading the world

// Returns whether a fact may have changed the waiting approvals.
class ApprovalChangeTest {
 public:
  explicit ApprovalChangeTest(const Approvals& waiting) : waiting_(waiting) {}
  bool operator()(const ManifestApplied&) const { return true; }  // the owner may be another actor
  bool operator()(const StepTaken& fact) const {
    return std::any_of(fact.intents.begin(), fact.intents.end(),
                       [](const Intent& each) { return each.effect == kApprovalEffect; });
  }
  bool operator()(const ReceiptAdmitted& fact) const { return waits(fact.intent); }
  bool operator()(const ReceiptMismatched& fact) const { return waits(fact.intent); }
  bool operator()(const InstanceFailed& fact) const {
    return std::any_of(fact.dropped.begin(), fact.dropped.end(),
                       [this](const std::string& each) { return waits(each); });
  }
  template <class Other>
  bool operator()(const Other&) const {
    return false;
  }

 private:
  bool waits(const std::string& intent) const {
    return std::any_of(waiting_.begin(), waiting_.end(), [&](const auto& each) { return each.intent == intent; });
  }
  const Approvals& waiting_;
};

// Returns whether the cached approvals are still valid at this height of the world.
Result<bool> still_hold(WorkflowStore& deployments, Id context, const std::string& deployment, std::uint64_t height,
                        const ApprovalCache::CachedApprovals& known, std::size_t max) {
  if (height == known.height) return true;
  if (height < known.height || height - known.height > kMaxPendingBytes || known.waiting.size() >= max) return false;
  bool hold = true;
  const ApprovalChangeTest changes(known.waiting);
  MJ_CHECK(for_each_fact(deployments, context, deployment, known.height, [&](const WorkflowFact& fact) -> Result<bool> {
    hold = !std::visit(changes, fact.what);
    return hold && fact.height < height;
  }));
  return hold;
}

Result<Approvals> load_approvals(WorkflowStore& deployments, Id context, const std::string& name, std::size_t max,
                                 std::uint64_t& height) {
  MJ_TRY(deployment, LoadedDeployment::load(deployments, context, name));
  height = deployment.state().height;
  const Id owner = deployment.owner_of(deployment.state().manifest);
  Approvals out;
  for (const auto& [id, cell] : deployment.state().cells) {
    for (const auto& [hash, pending] : cell.pending) {
      if (out.size() == max) return out;
      if (pending.intent.effect == kApprovalEffect) out.push_back(approval_of(cell, pending, owner));
    }
  }
  return out;
}

Result<Approvals> approvals_of(WorkflowStore& deployments, Id context, const std::string& name, std::size_t max,
                               ApprovalCache* cache) {
  std::uint64_t height = 0;
  if (const auto known = cache == nullptr ? nullptr : cache->get(context, name)) {
    MJ_TRY(head, deployments.read(context, name, 0, 0));
    MJ_TRY(hold, still_hold(deployments, context, name, head.height, *known, max));
    if (hold && head.height != known->height) cache->put(context, name, {head.height, known->waiting});
    if (hold) return known->waiting;
  }
  MJ_TRY(waiting, load_approvals(deployments, context, name, max, height));
  if (cache != nullptr) cache->put(context, name, {height, waiting});
  return waiting;
}

}  // namespace

std::shared_ptr<const ApprovalCache::CachedApprovals> ApprovalCache::get(Id context,
                                                                         const std::string& deployment) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find({context, deployment});
  return found == known_.end() ? nullptr : found->second;
}

void ApprovalCache::put(Id context, const std::string& deployment, CachedApprovals known) {
  const std::lock_guard lock(mutex_);
  if (known_.size() >= kMaxDeployments) known_.clear();
  known_[{context, deployment}] = std::make_shared<const CachedApprovals>(std::move(known));
}

Result<Approvals> waiting_approvals(WorkflowStore& deployments, Id context, std::size_t max, ApprovalCache* cache) {
  Approvals out;
  MJ_TRY(names, deployments.list_deployments(context));
  for (const std::string& name : names) {
    auto waiting = approvals_of(deployments, context, name, max, cache);
    if (!waiting && waiting.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(waiting).error());
    if (!waiting) continue;  // the view of the world reports the error
    for (WaitingApproval& each : *waiting) {
      if (out.size() == max) return out;
      out.push_back(std::move(each));
    }
  }
  return out;
}

namespace {

Result<void> post_of(const RequestContext& by, const WorkflowStores& in, const OpenedDeployment& opened,
                     const std::string& kind, const std::string& reason) {
  Fields fields{{"workflow", opened.cell.workflow},
                {"key", to_hex(opened.cell.key)},
                {"by", "actor:" + std::to_string(by.actor)}};
  if (!reason.empty()) fields.emplace_back("reason", reason);
  MJ_CHECK(in.deployments.post(by.context, opened.deployment.name(), kind, fields));
  return {};
}

}  // namespace

Result<void> remove_instance(const RequestContext& by, const WorkflowStores& in, const InstanceReference& instance) {
  MJ_TRY(opened, open_instance(by, in, instance, Action::steer));
  MJ_TRY(cell, there(opened.deployment, opened.cell));
  if (!cell->failed)
    return fail(Code::conflict, shown(opened.cell) + " has not failed; " + command("cancel", opened.cell) + " ends it");
  return post_of(by, in, opened, "remove", "");
}

Result<void> cancel_instance(const RequestContext& by, const WorkflowStores& in, const InstanceReference& instance,
                             const std::string& reason) {
  MJ_CHECK(check_length("reason", reason, 4096));
  MJ_TRY(opened, open_instance(by, in, instance, Action::steer));
  MJ_TRY(cell, there(opened.deployment, opened.cell));
  if (cell->failed || cell->status() == InstanceStatus::completed)
    return fail(Code::conflict, shown(opened.cell) + " has ended: it is " + std::string(to_string(cell->status())));
  return post_of(by, in, opened, "cancel", reason);
}

// ---- reading ----

Result<json> list_workflows(const RequestContext& by, const WorkflowStores& in) {
  MJ_TRY(only, listable_actor(by, in.records));
  MJ_TRY(all, in_force(by, in));
  json rows = json::array();
  for (const ManifestInForce& row : *all) {
    if (only && row.owner != *only) continue;
    MJ_TRY(head, head_of(by, in, row));
    MJ_TRY(deployment, LoadedDeployment::load(in.deployments, by.context, head.deployment));
    MJ_TRY(glance, in.deployments.poll(by.context, {{head.deployment, {}}}));
    for (const WorkflowSpec& spec : head.applied.manifest->workflows) {
      std::map<std::string, std::uint64_t> counts{{"running", 0}, {"waiting", 0}, {"completed", 0}, {"failed", 0}};
      std::uint64_t older = 0;
      for (const auto& [id, cell] : deployment.state().cells) {
        if (id.workflow != spec.name) continue;
        ++counts[std::string(to_string(cell.status()))];
        if (cell.manifest != head.applied.manifest->hash) ++older;
      }
      json events = json::array();
      for (const Subscription& each : head.applied.manifest->subscriptions)
        if (each.workflow == spec.name) events.push_back(each.event);
      rows.push_back({{"workflow", spec.name},
                      {"manifest", head.deployment},
                      {"hash", head.applied.manifest->hash},
                      {"owner", head.applied.owner},
                      {"keyed", spec.keyed()},
                      {"takes", std::move(events)},
                      {"instances", counts},
                      {"older_code", older},
                      {"inbox", glance.at(0).mail},
                      {"height", deployment.state().height},
                      {"refused_receipts", deployment.state().refused}});
    }
  }
  return rows;
}

Result<json> list_cells(const RequestContext& by, const WorkflowStores& in, const ListInstances& request) {
  if (request.limit == 0 || request.limit > 10000) return fail(Code::invalid, "limit: from 1 to 10000");
  const std::string words = "running waiting completed failed";
  if (!request.status.empty() && (" " + words + " ").find(' ' + request.status + ' ') == std::string::npos)
    return fail(Code::invalid, "status: " + excerpt(request.status) + " is not one of " + words);
  MJ_TRY(found, open(by, in, request.workflow, Action::read));
  MJ_TRY(deployment, LoadedDeployment::load(in.deployments, by.context, found.head.deployment));
  json rows = json::array();
  for (const auto& [id, cell] : deployment.state().cells) {
    if (!found.workflow.empty() && id.workflow != found.workflow) continue;
    if (!request.status.empty() && to_string(cell.status()) != request.status) continue;
    if (rows.size() >= request.limit) break;
    rows.push_back(row_of(cell));
  }
  return rows;
}

Result<json> show_instance(const RequestContext& by, const WorkflowStores& in, const InstanceReference& instance) {
  MJ_TRY(found, open_with_state(by, in, instance));
  const auto& [opened, state] = found;
  MJ_TRY(cell, there(opened.deployment, opened.cell));
  json out = row_of(*cell);
  out["world"] = opened.deployment.name();
  out["state"] = nullptr;
  if (state) {
    out["state"] = readable_cbor(state->bytes);
    out["state_hash"] = state->hash;
  }
  out["intents"] = json::array();
  for (const auto& [hash, pending] : cell->pending) out["intents"].push_back(pending_json(pending));
  out["waiting_mail"] = json::array();
  for (const Mail& mail : cell->mail)
    out["waiting_mail"].push_back({{"height", mail.id.height}, {"schema", mail.schema}, {"intent", mail.intent}});
  if (cell->failed) out["failure"] = cell->failure, out["message"] = cell->message;
  out["refused"] = cell->refused;
  return out;
}

Result<json> instance_timeline(const RequestContext& by, const WorkflowStores& in, const InstanceReference& instance,
                               const TimelineRequest& request) {
  constexpr std::uint64_t kAtOnce = 1000;
  if (request.limit == 0 || request.limit > 1000) return fail(Code::invalid, "limit: from 1 to 1000");
  MJ_TRY(found, find_instance(by, in, instance));
  const auto& [deployment, cell] = found;
  MJ_TRY(head, in.deployments.read(by.context, deployment, 0, 0));
  std::uint64_t last = request.before == 0 ? head.height : std::min(head.height, request.before - 1);
  std::vector<json> latest;  // latest first
  while (last > 0 && latest.size() < request.limit) {
    const std::uint64_t after = last > kAtOnce ? last - kAtOnce : 0;
    std::vector<json> part;
    MJ_CHECK(for_each_fact(in.deployments, by.context, deployment, after, [&](const WorkflowFact& fact) {
      const auto cells = instances_of(fact);
      if (std::find(cells.begin(), cells.end(), found.cell) != cells.end()) part.push_back(fact_json(fact));
      return fact.height < last;
    }));
    const std::size_t room = std::min<std::size_t>(part.size(), request.limit - latest.size());
    std::move(part.rbegin(), part.rbegin() + static_cast<std::ptrdiff_t>(room), std::back_inserter(latest));
    last = after;
  }
  if (latest.empty() && request.before == 0) return fail(Code::not_found, shown(cell) + ": it has no history");
  json rows = json::array();
  std::move(latest.rbegin(), latest.rend(), std::back_inserter(rows));
  return rows;
}

namespace {

json reason(const std::string& cause, const std::string& text, const std::string& next, json evidence = json::array()) {
  return {{"cause", cause}, {"reason", text}, {"evidence", std::move(evidence)}, {"next", next}};
}

// Returns the reason for an instance that waits for this intent.
json reason_of(const InstanceId& cell, const PendingIntent& pending) {
  const std::string what = "it waits for " + pending.intent.effect;
  json evidence =
      json::array({"intent " + pending.intent.hash, "parameters " + dump_json(readable_cbor(pending.intent.params))});
  if (!pending.published)
    return reason("effect_queued", what + ", which is not implemented", "is a coordinator there? `mycojobs doctor`",
                  std::move(evidence));
  if (pending.effect_ref == kTimerEffectRef)
    return reason("timer", what, "nothing: it waits for a time", std::move(evidence));
  if (pending.effect_ref == kApprovalEffectRef) {
    const json approvers = readable_cbor(pending.intent.params).value("approvers", json::array());
    const std::string who = approvers.empty() ? "ID" : dump_json(approvers.front());
    return reason("approval", what, "`mycojobs workflow approve " + named(cell) + " --actor " + who + "`, or `reject`",
                  std::move(evidence));
  }
  const std::string noun = pending.effect_ref.substr(0, pending.effect_ref.find(':'));
  return reason(noun, what + ": " + pending.effect_ref + " carries it out",
                "`mycojobs " + noun + " explain " + pending.effect_ref.substr(noun.size() + 1) + "`",
                std::move(evidence));
}

// The entries for an instance among the first entries of the inbox.
struct Inbox {
  std::size_t others = 0;
  std::vector<std::string> events;
};
bool is_for(const InboxEntry& mail, const WorkflowManifest& manifest, const InstanceId& cell) {
  const auto field = [&](const char* name) { return std::string(field_of(mail.fields, name)); };
  if (mail.kind != "event") return false;
  const auto checked = check_event(manifest, field("schema"), field("value"));
  return checked && std::any_of(checked->targets.begin(), checked->targets.end(),
                                [&](const PostTarget& target) { return target.instance == store_name(cell); });
}
Inbox inbox_of(const std::vector<InboxEntry>& waiting, const WorkflowManifest& manifest, const InstanceId& cell) {
  Inbox out;
  for (const InboxEntry& mail : waiting) {
    if (is_for(mail, manifest, cell))
      out.events.push_back(std::string(field_of(mail.fields, "schema")) + ' ' + mail.id);
    else
      ++out.others;
  }
  return out;
}
json reason_of(const Inbox& inbox) {
  json evidence = json::array();
  for (std::size_t i = 0; i < std::min<std::size_t>(inbox.events.size(), 5); ++i)
    evidence.push_back("event " + inbox.events[i]);
  std::string text =
      count_with_noun(inbox.events.size(), "event") + " for it in the inbox, not taken by a coordinator yet";
  if (inbox.others > 0) text += "; for others: " + std::to_string(inbox.others);
  return reason("inbox", text, "nothing: the leading coordinator processes them, one instance after the other",
                std::move(evidence));
}

// Adds the reasons for an existing instance.
void add_reasons(json& all, const InstanceState& cell) {
  if (cell.failed)
    all.push_back(
        reason("failed", cell.failure + ": " + cell.message,
               (cell.failure == kCancelledFailure ? "" : "fix the code and apply it with `mycojobs workflow apply`; ") +
                   command("remove", cell.id) + " removes the instance"));
  if (!cell.mail.empty())
    all.push_back(reason("step", count_with_noun(cell.mail.size(), "event") + " wait for its next step",
                         "nothing: a coordinator takes the step; its log reports a failure"));
  if (cell.refused > 0 && !cell.pending.empty())
    all.push_back(reason("receipt_refused", count_with_noun(cell.refused, "receipt") + " of its effects were invalid",
                         command("timeline", cell.id) + " lists them; `mycojobs receipt verify JOB` has details"));
  for (const auto& [hash, pending] : cell.pending) all.push_back(reason_of(cell.id, pending));
}

}  // namespace

Result<json> explain_instance(const RequestContext& by, const WorkflowStores& in, const InstanceReference& instance,
                              const std::string& leader) {
  MJ_TRY(found, open(by, in, instance.workflow, Action::read));
  MJ_TRY(id, cell_of(found, instance));
  MJ_TRY(deployment, LoadedDeployment::load(in.deployments, by.context, found.head.deployment));
  MJ_TRY(waiting, in.deployments.mail(by.context, found.head.deployment, kMailShown));
  const Inbox inbox = inbox_of(waiting, *found.head.applied.manifest, id);
  const InstanceState* cell = deployment.state().cell(id);
  json all = json::array();
  if (cell != nullptr) add_reasons(all, *cell);
  if (!inbox.events.empty()) all.push_back(reason_of(inbox));
  const bool works = !inbox.events.empty() || (cell != nullptr && (!cell->mail.empty() || !cell->pending.empty()));
  if (leader.empty() && works) {
    const std::string text = "no coordinator leads context " + std::to_string(by.context);
    const bool failed = cell != nullptr && cell->failed;
    all.insert(all.begin() + (failed ? 1 : 0),
               reason("no_coordinator", text, "start one: `mycojobs coordinator`, or `mycojobs dev`"));
  }
  if (cell == nullptr && all.empty())
    all.push_back(reason("none", "the instance does not exist: it received no event, or its code has ended it",
                         command("timeline", id) + " shows its history"));
  if (all.empty() && cell->status() == InstanceStatus::completed)
    all.push_back(reason("completed", "its code has ended it", "nothing"));
  if (all.empty()) all.push_back(reason("event", "it waits for an event", "`mycojobs workflow send EVENT VALUE`"));
  return all;
}

Result<json> read_facts(const RequestContext& by, const WorkflowStores& in, const std::string& workflow,
                        std::uint64_t after, std::uint64_t limit) {
  if (limit == 0 || limit > 1000) return fail(Code::invalid, "limit: from 1 to 1000");
  MJ_TRY(found, open(by, in, workflow, Action::read));
  MJ_TRY(head, in.deployments.read(by.context, found.head.deployment, 0, 0));
  json facts = json::array();
  if (after < head.height) {
    MJ_CHECK(for_each_fact(in.deployments, by.context, found.head.deployment, after, [&](const WorkflowFact& fact) {
      facts.push_back(fact_json(fact));
      return facts.size() < limit;
    }));
  }
  return json{{"world", found.head.deployment}, {"height", head.height}, {"facts", std::move(facts)}};
}

// ---- replay ----

Result<WorkflowHistory> workflow_history(const RequestContext& by, const WorkflowStores& in,
                                         const std::string& workflow) {
  MJ_TRY(found, open(by, in, workflow, Action::read));
  const std::string& deployment = found.head.deployment;
  WorkflowHistory out;
  out.deployment = std::to_string(by.context) + '/' + deployment;
  std::vector<std::string> manifests;
  MJ_CHECK(for_each_fact(in.deployments, by.context, deployment, 0, [&](WorkflowFact fact) {
    if (const auto* applied = std::get_if<ManifestApplied>(&fact.what))
      if (std::find(manifests.begin(), manifests.end(), applied->manifest) == manifests.end())
        manifests.push_back(applied->manifest);
    out.facts.push_back(std::move(fact));
    return true;
  }));
  for (const std::string& hash : manifests) {
    MJ_TRY(text, in.deployments.manifest(by.context, deployment, hash));
    MJ_TRY(stored, parse_json(text));
    HistoryManifest made{dump_json(stored.at("manifest")), {}};
    const json files = stored.value("code", json::object());
    for (const auto& [module, source] : files.items()) made.code[module] = source.get<std::string>();
    out.manifests.push_back(std::move(made));
  }
  MJ_TRY(blobs, in.deployments.blobs(by.context, deployment));
  for (const std::string& hash : blobs) {
    auto blob = in.deployments.blob(by.context, deployment, hash);
    if (blob) out.blobs.insert(std::move(*blob));  // a blob that was collected in the meantime is not needed
    if (!blob && blob.error().code != Code::not_found) return tl::unexpected<Error>(std::move(blob).error());
  }
  return out;
}

namespace {

// Folds a world from the beginning and runs each step again.
class DeploymentReplay {
 public:
  DeploymentReplay(const RequestContext& by, const WorkflowStores& in, std::string deployment, const StepRunner& step)
      : by_(by), in_(in), name_(std::move(deployment)), step_(step) {
    out.deployment = name_;
    state_.id = std::to_string(by.context) + '/' + name_;
  }

  // Returns false if the output differs.
  Result<bool> fold_one(const WorkflowFact& fact) {
    if (const auto* applied = std::get_if<ManifestApplied>(&fact.what)) {
      MJ_TRY(stored, stored_manifest(in_.deployments, by_.context, name_, applied->manifest));
      catalog_.add(stored.manifest);
    }
    check_.fold_one(fact);
    if (trouble_) return tl::unexpected<Error>(*trouble_);
    const ReplayVerdict& verdict = check_.verdict();
    ++out.entries;
    out.steps = verdict.steps;
    out.differs = verdict.differs;
    if (verdict.problem)
      return fail(Code::invalid, name_ + ": " + std::string(verdict.problem->rule) + ": " + verdict.problem->text);
    return !verdict.differs;
  }

  ReplayResult out;

 private:
  StepAnswer again(const WorkflowSpec& spec, const WorkflowManifest& manifest, const StepRequest& request) {
    auto answer = step_(spec, manifest, request);
    if (answer) return std::move(*answer);
    trouble_ = answer.error();
    return StepError{"engine", answer.error().message, 0};
  }

  const RequestContext& by_;
  const WorkflowStores& in_;
  std::string name_;
  const StepRunner& step_;
  DeploymentState state_;
  ManifestCatalog catalog_;
  ReplayCheck check_{state_, catalog_,
                     [this](const WorkflowSpec& spec, const WorkflowManifest& manifest, const StepRequest& request) {
                       return again(spec, manifest, request);
                     }};
  std::optional<Error> trouble_;
};

// Makes only the instance with the difference fail (12).
Result<void> note_difference(const RequestContext& by, const WorkflowStores& in, const std::string& name,
                             const OutputMismatchFound& differs) {
  for (int i = 0; i < kTries; ++i) {
    MJ_TRY(deployment, LoadedDeployment::load(in.deployments, by.context, name));
    if (deployment.state().cell(differs.cell) == nullptr) return {};  // the instance has ended since
    MJ_TRY(at, sample(in.deployments));
    MJ_CHECK(deployment.decide({at, differs}));
    auto done = deployment.commit(in.deployments, at.now_ms);
    if (done || done.error().code != Code::conflict) return done;
  }
  return fail(Code::conflict, name + ": it moves on all the time; try again");
}

}  // namespace

Result<ReplayResult> verify_workflow(const RequestContext& by, const WorkflowStores& in, const std::string& workflow,
                                     const StepRunner& step) {
  MJ_TRY(found, open(by, in, workflow, Action::steer));
  DeploymentReplay replay(by, in, found.head.deployment, step);
  MJ_CHECK(for_each_fact(in.deployments, by.context, found.head.deployment, 0,
                         [&](const WorkflowFact& fact) { return replay.fold_one(fact); }));
  if (replay.out.differs) MJ_CHECK(note_difference(by, in, found.head.deployment, *replay.out.differs));
  return replay.out;
}

}  // namespace mycojobs::service
