// A manifest: the workflows, their schemas and effects, and the routing of events. Immutable after it was read, and
// identified by its hash. Pure and thread-safe. Specification: seed 003, sections 5 and 6; docs/workflows/README.md.
//
//   {name, description?, schemas?: {name: schema}, effects?: [effect], routing?: {subscriptions: [...]}, limits?,
//    workflows: [{name, state, event, context?, annotations?, key_schema?, effects_emitted, impl: {module, entrypoint},
//                 limits?}]}
//   A manifest of one workflow may have the fields of the workflow at the top level; both then have the same name.
//   effect        {name, params, receipt, script_type?, runner?, script or module, timeout_s?, retries?, policy?}
//                 An effect of the system (system_schemas.h) needs no declaration; {name} alone is allowed.
//   subscription  {event, workflow, key_field?}; subscriptions are evaluated in the order of the list
//   limits        {instructions?, memory_bytes?}; limits of one step
//   A schema is given inline or by name.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/document_reader.h"
#include "workflows/manifest/workflow_schema.h"

namespace mycojobs {

struct StepLimits {
  std::uint64_t instructions = 50'000'000;  // instructions of the engine's virtual machine; at most 10^10
  std::uint64_t memory_bytes = 64U << 20;   // at most 1 GiB
  bool operator==(const StepLimits&) const = default;
};

struct EffectSpec {
  std::string name;
  std::string params, receipt;  // names of schemas
  bool system = false;
  std::string script_type;      // script type of the job; empty for an effect of the system
  std::string runner;           // runner:<id> that must run the job; if empty, any runner with the script type
  std::string script, module;   // either the text, or the name of a file beside the manifest
  std::uint32_t timeout_s = 0;  // 0 for the default of jobs
  std::uint32_t retries = 0;    // retries of the job before the workflow receives the failure
  std::string policy = {};      // requested policy of the job, JSON; may be empty
};

struct WorkflowSpec {
  std::string name;
  std::string state, event, context, annotations, key_schema;  // names of schemas; optional schemas may be empty
  std::vector<std::string> effects_emitted;
  std::string module, entrypoint;
  StepLimits limits;
  std::string hash;         // covers the manifest with its code and the name of this workflow; lower-case hex
  std::string receipt_arm;  // arm that wraps sys/EffectReceiptEnvelope@1; empty if the envelope is the event itself
  // Arm that wraps sys/EffectReceiptRejected@1, as for receipt_arm. No value if the workflow does not accept the
  // schema.
  std::optional<std::string> rejected_arm;

  bool is_keyed() const { return !key_schema.empty(); }
  bool can_emit(std::string_view effect) const;
};

struct Subscription {
  std::string event, workflow, key_field;
  std::string arm;  // arm that wraps the event; empty if the event itself has the event schema of the workflow
};

using CodeFiles = std::map<std::string, std::string, std::less<>>;  // module -> text

class WorkflowManifest {
 public:
  std::string name, description, hash;  // `hash` covers the JSON of the manifest and all code
  std::vector<WorkflowSpec> workflows;
  std::vector<EffectSpec> effects;  // including effects of the system that a workflow may emit
  std::vector<Subscription> subscriptions;
  CodeFiles code;
  SchemaSet schemas;

  const WorkflowSpec* workflow(std::string_view workflow_name) const;
  const EffectSpec* effect(std::string_view effect_name) const;
};
using ManifestRef = std::shared_ptr<const WorkflowManifest>;

struct ParsedManifest {
  ManifestRef manifest;                   // nullptr if there are problems
  std::vector<DocumentProblem> problems;  // all problems, each with its path (at most 50)
};
// read_manifest() rejects: unknown fields, invalid or duplicate names, names of the system, unknown schemas, equal
// arms, emitted effects that are not declared, modules that are not in the code, a subscription of a keyed workflow
// without key_field, an event that its workflow does not accept, an event that only the system may send, a workflow
// with effects whose event has no arm for receipts, and so on.
//
// ManifestUse::offered is a new manifest. Configurations that can never work are rejected, too: a workflow without a
// subscription, keys that are not a text, whole number or byte string, a key_field whose values never fit the key
// schema, and choices of a schema that the schema itself rejects. ManifestUse::stored is a manifest that was accepted
// before, possibly by an older version, and must be accepted again.
enum class ManifestUse { stored, offered };
ParsedManifest read_manifest(const nlohmann::json&, CodeFiles code, ManifestUse = ManifestUse::stored);

std::string workflow_hash(std::string_view manifest_hash, std::string_view workflow);

// Manifests by hash: the manifest in force, and older manifests whose code instances still run.
class ManifestCatalog {
 public:
  void add(ManifestRef);
  const WorkflowManifest* find(std::string_view hash) const;
  ManifestRef find_shared(std::string_view hash) const;  // for users that outlive the catalog

 private:
  std::map<std::string, ManifestRef, std::less<>> by_hash_;
};

}  // namespace mycojobs
