// A manifest: which workflows there are, what they take and emit, where events go. Read once, then never changed; who
// runs code of it holds it by its hash. Pure; any thread. Source: seed 003, 5 and 6; the page workflows.md.
//
//   {name, description?, schemas?: {name: schema}, effects?: [effect], routing?: {subscriptions: [...]}, limits?,
//    workflows: [{name, state, event, context?, annotations?, key_schema?, effects_emitted, impl: {module, entrypoint},
//                 limits?}]}
//   A manifest of one workflow may have the fields of it at the top, beside its own: the name is then the workflow's.
//   effect        {name, params, receipt, script_type?, runner?, script or module, timeout_s?, retries?}
//                 effects of the system (workflow_system.h) need no declaration: {name} alone repeats that they are
//                 used
//   subscription  {event, workflow, key_field?}   evaluated in this order
//   limits        {instructions?, memory_bytes?}  of a step
//   A schema is given in its place, or by name.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "domain/flow_plan.h"
#include "domain/workflow_schema.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct StepLimits {
  std::uint64_t instructions = 50'000'000;  // of the engine's machine; at most 10^10
  std::uint64_t memory_bytes = 64U << 20;   // at most 1 GiB
  bool operator==(const StepLimits&) const = default;
};

struct EffectSpec {
  std::string name, params, receipt;  // params, receipt: names of schemas
  bool system = false;
  std::string script_type;      // of its job, if it is not of the system
  std::string runner;           // runner:<id>, which alone carries it out; empty: any that serves the script type
  std::string script, module;   // one of both: the text, or a file beside the manifest
  std::uint32_t timeout_s = 0;  // 0: the job's default
  std::uint32_t retries = 0;    // of its job, after a failure, before the workflow hears of it
  std::string policy = {};      // of its job, JSON; empty: it asks for nothing
};

struct WorkflowSpec {
  std::string name, state, event, context, annotations, key_schema;  // names of schemas; empty: none
  std::vector<std::string> effects_emitted;
  std::string module, entrypoint;
  StepLimits limits;
  std::string hash;         // of the manifest with its code, and this workflow of it; lower-case hex
  std::string receipt_arm;  // how it takes sys/EffectReceiptEnvelope@1: "" as its event, else wrapped as this arm
  std::optional<std::string> rejected_arm;  // the same for sys/EffectReceiptRejected@1; nothing: it does not take it

  bool keyed() const { return !key_schema.empty(); }
  bool may_emit(std::string_view effect) const;
};

struct Subscription {
  std::string event, workflow, key_field;
  std::string arm;  // "": the event is the workflow's; else it is wrapped as this arm
};

using CodeFiles = std::map<std::string, std::string, std::less<>>;  // module -> text

class WorkflowManifest {
 public:
  std::string name, description, hash;  // hash: of the manifest's JSON and of all code, as canonical CBOR
  std::vector<WorkflowSpec> workflows;
  std::vector<EffectSpec> effects;  // those of the system too, if a workflow may emit them
  std::vector<Subscription> subscriptions;
  CodeFiles code;
  SchemaSet schemas;

  const WorkflowSpec* workflow(std::string_view name) const;
  const EffectSpec* effect(std::string_view name) const;
};
using ManifestRef = std::shared_ptr<const WorkflowManifest>;

struct ManifestRead {
  ManifestRef manifest;               // nullptr: there are problems
  std::vector<PlanProblem> problems;  // all, each with its path (at most 50)
};
// Refused are: unknown fields, names that are none or stand twice, names of the system, schemas that are not there,
// arms alike, effects that are emitted and not declared, modules that are not among the code, a keyed workflow's
// subscription without key_field, an event that its workflow does not take, an event that only the system may send, a
// workflow with effects whose event has no arm for receipts ...
//
// offered: by people, so that what could never work is refused too: a workflow that no subscription names, keys
// that are no text, whole number or byte string, a key_field whose values never fit them, a choice of a schema that the
// schema itself refuses. stored: it was taken once, maybe by an older version, and is taken again.
enum class ManifestUse { stored, offered };
ManifestRead read_manifest(const nlohmann::json&, CodeFiles code, ManifestUse = ManifestUse::stored);

std::string workflow_hash(std::string_view manifest_hash, std::string_view workflow);

// Manifests by their hash: the one in force, and those that older instances keep.
class ManifestCatalog {
 public:
  void add(ManifestRef);
  const WorkflowManifest* find(std::string_view hash) const;
  ManifestRef share(std::string_view hash) const;  // the same, for what outlives the catalog

 private:
  std::map<std::string, ManifestRef, std::less<>> by_hash_;
};

}  // namespace mycojobs
