#include "workflows/manifest/workflow_manifest.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/parse.h"
#include "base/sha256.h"
#include "model/policy_json.h"
#include "model/records.h"
#include "text/cbor.h"
#include "text/cbor_map_reader.h"
#include "text/json.h"
#include "text/suggestion.h"
#include "text/utf8.h"
#include "workflows/manifest/manifest_fields.h"
#include "workflows/manifest/system_schemas.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using workflows::check_fields;
using workflows::for_each_item;
using workflows::read_field;
using workflows::read_text_field;

constexpr std::array<std::string_view, 7> kManifestFields{"name",    "description", "schemas",  "effects",
                                                          "routing", "limits",      "workflows"};
constexpr std::array<std::string_view, 9> kWorkflowFields{
    "name", "state", "event", "context", "annotations", "key_schema", "effects_emitted", "impl", "limits"};
constexpr std::array<std::string_view, 10> kEffectFields{"name",   "params", "receipt",   "script_type", "runner",
                                                         "script", "module", "timeout_s", "retries",     "policy"};
constexpr std::array<std::string_view, 3> kSubscriptionFields{"event", "workflow", "key_field"};
constexpr std::array<std::string_view, 2> kLimitFields{"instructions", "memory_bytes"},
    kImplFields{"module", "entrypoint"};
constexpr std::array<std::string_view, 1> kRoutingFields{"subscriptions"};
constexpr std::size_t kMaxCodeBytes = 16U << 20;
constexpr std::size_t kMaxListEntries = 1'000;  // entries in one list of a manifest

void read_name_field(const DocumentValue& node, std::string& out) {
  read_field(node, "name", true, [&](const DocumentValue& value) {
    if (!read_text(value, out)) return;
    if (!is_workflow_name(out)) value.report_problem(excerpt(out) + " is not a name: use namespace/name@version");
  });
}
template <class Number>
void read_number_field(const DocumentValue& node, const char* name, std::int64_t min, std::int64_t max, Number& out) {
  read_field(node, name, false, [&](const DocumentValue& value) {
    std::int64_t number = 0;
    if (read_integer(value, min, max, number)) out = static_cast<Number>(number);
  });
}
bool is_identifier(std::string_view name) {
  return !name.empty() && name.size() <= 100 && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return c < 128 && (std::isalnum(c) || c == '_'); });
}

class ManifestParser {
 public:
  ManifestParser(const json& document, CodeFiles code, ManifestUse use)
      : document_(document), use_(use), manifest_(std::make_shared<WorkflowManifest>()) {
    manifest_->code = std::move(code);
  }

  ParsedManifest parse() {
    const DocumentValue node{document_, "", problems_};
    if (!document_.is_object()) {
      node.report_wrong_type("a map");
    } else {
      const bool has_single_workflow = !document_.contains("workflows");
      std::vector<std::string_view> allowed(kManifestFields.begin(), kManifestFields.end());
      if (has_single_workflow) allowed.insert(allowed.end(), kWorkflowFields.begin(), kWorkflowFields.end());
      check_fields(node, allowed);
      read_document(node, has_single_workflow);
    }
    if (problems_.empty()) compute_hashes();
    return {problems_.empty() ? manifest_ : nullptr, problems_.release_problems()};
  }

 private:
  void read_document(const DocumentValue& node, bool has_single_workflow) {
    read_name_field(node, manifest_->name);
    if (is_system_name(manifest_->name)) node.report_problem("names that begin with sys/ are reserved for the system");
    read_text_field(node, "description", false, manifest_->description);
    check_code(node);
    read_field(node, "schemas", false, [&](const DocumentValue& schemas) { read_schemas(schemas); });
    read_field(node, "limits", false, [&](const DocumentValue& value) { read_limits(value, default_limits_); });
    for (const auto& effect : system_effects()) {
      EffectSpec spec;
      spec.name = effect.name, spec.params = effect.params, spec.receipt = effect.receipt, spec.system = true;
      manifest_->effects.push_back(std::move(spec));
    }
    read_list_field(node, "effects", false, [&](const DocumentValue& item) { read_effect(item); });
    if (has_single_workflow)
      read_workflow(node);
    else
      read_list_field(node, "workflows", true, [&](const DocumentValue& item) { read_workflow(item); });
    if (manifest_->workflows.empty() && problems_.empty()) node.report_problem("it has no workflow");
    manifest_->schemas.link(problems_);
    if (has_single_workflow)
      link_workflow(node);
    else if (node.value.at("workflows").is_array() && !manifest_->workflows.empty())
      for_each_item(node, "workflows", false, [&](const DocumentValue& item) { link_workflow(item); });
    read_field(node, "routing", false, [&](const DocumentValue& routing) {
      if (!check_fields(routing, kRoutingFields)) return;
      read_list_field(routing, "subscriptions", true, [&](const DocumentValue& item) { read_subscription(item); });
    });
    if (use_ == ManifestUse::offered && problems_.empty()) check_new_manifest(node);
  }
  // Rejects very long lists of an offered manifest before their entries are read.
  template <class Read>
  void read_list_field(const DocumentValue& node, const char* name, bool required, Read read) {
    const auto value = node.value.find(name);
    if (use_ == ManifestUse::offered && value != node.value.end() && value->is_array() &&
        value->size() > kMaxListEntries)
      return node.at(*value, name)
          .report_problem("has " + std::to_string(value->size()) + " entries; at most " +
                          std::to_string(kMaxListEntries));
    for_each_item(node, name, required, read);
  }
  // Rejects configurations of an offered manifest that can never work.
  void check_new_manifest(const DocumentValue& node) {
    manifest_->schemas.check_choices(problems_);
    for (const auto& workflow : manifest_->workflows) {
      const bool has_subscription = std::any_of(manifest_->subscriptions.begin(), manifest_->subscriptions.end(),
                                                [&](const auto& item) { return item.workflow == workflow.name; });
      if (!has_subscription)
        node.report_problem("routing: no subscription names " + workflow.name + ": no event ever reaches it");
      if (workflow.is_keyed() && !manifest_->schemas.is_key_schema(workflow.key_schema))
        node.report_problem("key_schema of " + workflow.name + ": a key is a text, a whole number or a byte string");
    }
  }

  void check_code(const DocumentValue& node) {
    std::size_t bytes = 0;
    for (const auto& [module, text] : manifest_->code) {
      bytes += text.size();
      if (!is_utf8(module) || module.empty())
        node.report_problem("code: " + excerpt(module) + " is not a valid name of a module");
    }
    if (bytes > kMaxCodeBytes)
      node.report_problem("its code has more than " + std::to_string(kMaxCodeBytes) + " bytes");
  }

  void read_schemas(const DocumentValue& schemas) {
    if (!schemas.value.is_object()) {
      schemas.report_wrong_type("a map of schemas");
      return;
    }
    for (const auto& [name, schema] : schemas.value.items()) {
      const DocumentValue node = schemas.at(schema, name);
      if (!is_workflow_name(name))
        node.report_problem(excerpt(name) + " is not a name: use namespace/name@version");
      else if (is_system_name(name))
        node.report_problem("names that begin with sys/ are reserved for the system");
      else
        manifest_->schemas.add(name, node);
    }
  }
  // Reads a schema by name or inline. The name of an inline schema is that of its owner with the field appended.
  void read_schema_field(const DocumentValue& node, const char* name, bool required, const std::string& owner,
                         std::string& out) {
    read_field(node, name, required, [&](const DocumentValue& value) {
      if (!value.value.is_string()) {
        out = owner + '#' + name;
        return manifest_->schemas.add(out, value);
      }
      if (!read_text(value, out)) return;
      if (manifest_->schemas.has(out)) return;
      const auto names = manifest_->schemas.names();
      const std::vector<std::string_view> views(names.begin(), names.end());
      value.report_problem("there is no schema " + excerpt(out) + did_you_mean(out, views));
    });
  }
  void read_limits(const DocumentValue& node, StepLimits& out) {
    if (!check_fields(node, kLimitFields)) return;
    read_number_field(node, "instructions", 1'000, 10'000'000'000, out.instructions);
    read_number_field(node, "memory_bytes", 256 << 10, 1 << 30, out.memory_bytes);
  }

  void read_effect(const DocumentValue& node) {
    if (!check_fields(node, kEffectFields)) return;
    EffectSpec spec;
    read_name_field(node, spec.name);
    if (is_system_name(spec.name)) {
      if (manifest_->effect(spec.name) == nullptr)
        node.report_problem("the system has no effect " + excerpt(spec.name));
      if (node.value.size() > 1) node.report_problem("an effect of the system has only a name");
      return;
    }
    if (manifest_->effect(spec.name) != nullptr)
      node.report_problem("the effect " + excerpt(spec.name) + " is listed twice");
    read_schema_field(node, "params", true, spec.name, spec.params);
    read_schema_field(node, "receipt", true, spec.name, spec.receipt);
    read_effect_job(node, spec);
    read_number_field(node, "timeout_s", 1, std::int64_t{365} * 24 * 3600, spec.timeout_s);
    read_number_field(node, "retries", 0, 100, spec.retries);
    read_field(node, "policy", false, [&](const DocumentValue& value) { read_effect_policy(value, spec); });
    manifest_->effects.push_back(std::move(spec));
  }
  // Reads the policy of the job that performs the effect, in the format of the policy of a job (model/policy_json.h).
  static void read_effect_policy(const DocumentValue& node, EffectSpec& spec) {
    if (!node.value.is_object()) {
      node.report_wrong_type("a map as in docs/manual.md#policies");
      return;
    }
    spec.policy = dump_json(node.value);
    for (const FieldProblem& problem : read_policy(spec.policy, "").problems) node.report_problem(problem.message);
  }
  void read_effect_job(const DocumentValue& node, EffectSpec& spec) {
    read_text_field(node, "script_type", false, spec.script_type);
    read_text_field(node, "runner", false, spec.runner);
    read_text_field(node, "script", false, spec.script);
    read_text_field(node, "module", false, spec.module);
    if (!node.value.contains("script_type") && !node.value.contains("runner"))
      node.report_problem("needs script_type or runner, which performs it");
    if (node.value.contains("runner")) read_runner(node, spec);
    if (!spec.script_type.empty() && !is_script_type(spec.script_type))
      node.report_problem("script_type: " + excerpt(spec.script_type) + " is not a script type");
    if (node.value.contains("script") == node.value.contains("module"))
      node.report_problem("needs either script or module");
    if (!spec.module.empty() && !manifest_->code.contains(spec.module))
      node.report_problem("module: " + excerpt(spec.module) + " is not among the code");
  }

  // Normalizes the field `runner`: accepts runner:7 and 7. The script type is then python, unless the effect names one.
  void read_runner(const DocumentValue& node, EffectSpec& spec) {
    std::uint64_t id = 0;
    const std::string_view text = spec.runner;
    if (!parse_u64(text.starts_with("runner:") ? text.substr(7) : text, id) || id == 0 || id > UINT32_MAX)
      return node.report_problem("runner: " + excerpt(spec.runner) + " is not a runner: give runner:ID");
    spec.runner = "runner:" + std::to_string(id);
    if (spec.script_type.empty()) spec.script_type = "python";
  }

  void read_workflow(const DocumentValue& node) {
    const bool is_document = &node.value == &document_;
    if (!is_document && !check_fields(node, kWorkflowFields)) return;
    WorkflowSpec spec;
    spec.limits = default_limits_;
    read_name_field(node, spec.name);
    if (!is_document && is_system_name(spec.name))
      node.report_problem("names that begin with sys/ are reserved for the system");
    if (manifest_->workflow(spec.name) != nullptr)
      node.report_problem("the workflow " + excerpt(spec.name) + " is listed twice");
    read_schema_field(node, "state", true, spec.name, spec.state);
    read_schema_field(node, "event", true, spec.name, spec.event);
    read_schema_field(node, "context", false, spec.name, spec.context);
    read_schema_field(node, "annotations", false, spec.name, spec.annotations);
    read_schema_field(node, "key_schema", false, spec.name, spec.key_schema);
    if (!spec.context.empty() && spec.context != kContextSchema)
      node.report_problem("context: the system provides " + std::string(kContextSchema) + " only");
    read_list_field(node, "effects_emitted", true, [&](const DocumentValue& item) { read_emitted_effect(item, spec); });
    read_field(node, "impl", true, [&](const DocumentValue& impl) { read_impl(impl, spec); });
    if (!is_document)
      read_field(node, "limits", false, [&](const DocumentValue& value) { read_limits(value, spec.limits); });
    manifest_->workflows.push_back(std::move(spec));
  }
  void read_emitted_effect(const DocumentValue& node, WorkflowSpec& spec) {
    std::string name;
    if (!read_text(node, name)) return;
    if (spec.can_emit(name)) return node.report_problem(excerpt(name) + " is listed twice");
    if (manifest_->effect(name) == nullptr) {
      std::vector<std::string_view> names;
      for (const auto& effect : manifest_->effects) names.push_back(effect.name);
      return node.report_problem("the effect " + excerpt(name) + " is not declared" + did_you_mean(name, names));
    }
    spec.effects_emitted.push_back(std::move(name));
  }
  void read_impl(const DocumentValue& node, WorkflowSpec& spec) {
    if (!check_fields(node, kImplFields)) return;
    read_text_field(node, "module", true, spec.module);
    read_text_field(node, "entrypoint", true, spec.entrypoint);
    if (!spec.module.empty() && !manifest_->code.contains(spec.module))
      node.report_problem("module: " + excerpt(spec.module) + " is not among the code");
    if (!spec.entrypoint.empty() && !is_identifier(spec.entrypoint))
      node.report_problem("entrypoint: " + excerpt(spec.entrypoint) + " is not a valid name of a function");
  }

  // Sets the arms of a workflow for receipts. Called after all schemas were linked.
  void link_workflow(const DocumentValue& node) {
    if (!node.value.is_object() || !node.value.contains("name")) return;
    const auto workflow = std::find_if(manifest_->workflows.begin(), manifest_->workflows.end(),
                                       [&](const auto& spec) { return node.value.at("name") == spec.name; });
    if (workflow == manifest_->workflows.end()) return;
    const auto arm = manifest_->schemas.find_arm(workflow->event, kReceiptSchema);
    workflow->receipt_arm = arm.value_or("");
    workflow->rejected_arm = manifest_->schemas.find_arm(workflow->event, kRejectedSchema);
    if (!arm && !workflow->effects_emitted.empty())
      node.report_problem("it emits effects, and its event has no arm " + std::string(kReceiptSchema) +
                          " for their receipts");
  }

  void read_subscription(const DocumentValue& node) {
    if (!check_fields(node, kSubscriptionFields)) return;
    Subscription spec;
    read_text_field(node, "workflow", true, spec.workflow);
    read_text_field(node, "event", true, spec.event);
    read_text_field(node, "key_field", false, spec.key_field);
    if (spec.workflow.empty() || spec.event.empty()) return;
    const auto* workflow = manifest_->workflow(spec.workflow);
    if (workflow == nullptr) return node.report_problem("there is no workflow " + excerpt(spec.workflow));
    if (!manifest_->schemas.has(spec.event)) return node.report_problem("there is no schema " + excerpt(spec.event));
    if (is_system_name(spec.event)) return node.report_problem(excerpt(spec.event) + ": only the system sends that");
    const auto arm = manifest_->schemas.find_arm(workflow->event, spec.event);
    if (!arm) return node.report_problem(spec.workflow + " does not accept " + excerpt(spec.event));
    spec.arm = *arm;
    check_key(node, spec, *workflow);
    for (const auto& other : manifest_->subscriptions)
      if (other.event == spec.event && other.workflow == spec.workflow)
        return node.report_problem("it is listed twice");
    manifest_->subscriptions.push_back(std::move(spec));
  }
  void check_key(const DocumentValue& node, const Subscription& spec, const WorkflowSpec& workflow) {
    if (workflow.is_keyed() == spec.key_field.empty())
      return node.report_problem(workflow.is_keyed() ? spec.workflow + " is keyed: key_field is missing"
                                                     : spec.workflow + " has no key_schema, and there is a key_field");
    if (!workflow.is_keyed()) return;
    std::string_view path = spec.key_field;
    bool is_below_value = true;
    if (!spec.arm.empty()) {
      is_below_value = path.starts_with("$value.");
      if (is_below_value) path.remove_prefix(7);
    }
    if (!is_below_value || !manifest_->schemas.has_path(spec.event, path))
      node.report_problem("key_field: " + excerpt(spec.key_field) + " does not exist in what " + spec.workflow +
                          " gets" + (spec.arm.empty() ? "" : ": the fields of an arm are below $value"));
    else if (use_ == ManifestUse::offered && !manifest_->schemas.can_match(spec.event, path, workflow.key_schema))
      node.report_problem("key_field: the value at " + excerpt(spec.key_field) + " is never a key of " + spec.workflow);
  }

  void compute_hashes() {
    json code = json::object();
    for (const auto& [module, text] : manifest_->code) code[module] = workflows::to_binary(text);
    const auto bytes = encode_cbor(json{{"code", std::move(code)}, {"manifest", document_}});
    if (!bytes) return problems_.add("", bytes.error().message);
    manifest_->hash = sha256_hex(*bytes);
    for (auto& workflow : manifest_->workflows) workflow.hash = workflow_hash(manifest_->hash, workflow.name);
  }

  const json& document_;
  const ManifestUse use_;
  std::shared_ptr<WorkflowManifest> manifest_;
  DocumentProblems problems_;
  StepLimits default_limits_;  // limits of the workflows without limits of their own
};

template <class Spec>
const Spec* find_by_name(const std::vector<Spec>& specs, std::string_view name) {
  const auto match = std::find_if(specs.begin(), specs.end(), [&](const Spec& spec) { return spec.name == name; });
  return match == specs.end() ? nullptr : &*match;
}

}  // namespace

bool WorkflowSpec::can_emit(std::string_view effect) const {
  return std::find(effects_emitted.begin(), effects_emitted.end(), effect) != effects_emitted.end();
}
const WorkflowSpec* WorkflowManifest::workflow(std::string_view workflow_name) const {
  return find_by_name(workflows, workflow_name);
}
const EffectSpec* WorkflowManifest::effect(std::string_view effect_name) const {
  return find_by_name(effects, effect_name);
}

ParsedManifest read_manifest(const json& document, CodeFiles code, ManifestUse use) {
  return ManifestParser(document, std::move(code), use).parse();
}

std::string workflow_hash(std::string_view manifest_hash, std::string_view workflow) {
  using workflows::to_binary;
  return sha256_hex(*encode_cbor(json{{"manifest", to_binary(manifest_hash)}, {"workflow", to_binary(workflow)}}));
}

void ManifestCatalog::add(ManifestRef manifest) {
  std::string hash = manifest->hash;
  by_hash_[std::move(hash)] = std::move(manifest);
}
const WorkflowManifest* ManifestCatalog::find(std::string_view hash) const { return find_shared(hash).get(); }
ManifestRef ManifestCatalog::find_shared(std::string_view hash) const {
  const auto entry = by_hash_.find(hash);
  return entry == by_hash_.end() ? nullptr : entry->second;
}

}  // namespace mycojobs
