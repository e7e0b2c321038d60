#include "workflows/manifest/workflow_manifest.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "base/parse.h"
#include "base/sha256.h"
#include "flows/flow_plan_reader.h"
#include "model/policy_json.h"
#include "model/records.h"
#include "text/cbor.h"
#include "text/cbor_map_reader.h"
#include "text/suggestion.h"
#include "text/utf8.h"
#include "workflows/manifest/manifest_fields.h"
#include "workflows/manifest/system_schemas.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using plans::JsonPath;
using plans::Problems;
using workflows::each_in;
using workflows::field;
using workflows::read_fields;
using workflows::text_field;

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
constexpr std::size_t kMaxCode = 16U << 20;
constexpr std::size_t kMaxListed = 1'000;  // entries in one list of a manifest

void name_field(const JsonPath& at, std::string& out) {
  field(at, "name", true, [&](const JsonPath& found) {
    if (!plans::read_text(found, out)) return;
    if (!is_workflow_name(out)) found.report_problem(excerpt(out) + " is not a name: use namespace/name@version");
  });
}
template <class Number>
void number_field(const JsonPath& at, const char* name, std::int64_t min, std::int64_t max, Number& out) {
  field(at, name, false, [&](const JsonPath& found) {
    std::int64_t number = 0;
    if (plans::read_whole(found, min, max, number)) out = static_cast<Number>(number);
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
      : document_(document), use_(use), made_(std::make_shared<WorkflowManifest>()) {
    made_->code = std::move(code);
  }

  ParsedManifest whole() {
    const JsonPath at{document_, "", problems_};
    if (!document_.is_object()) {
      at.report_wrong_type("a map");
    } else {
      const bool single = !document_.contains("workflows");
      std::vector<std::string_view> known(kManifestFields.begin(), kManifestFields.end());
      if (single) known.insert(known.end(), kWorkflowFields.begin(), kWorkflowFields.end());
      read_fields(at, known);
      read(at, single);
    }
    if (problems_.empty()) finish();
    return {problems_.empty() ? made_ : nullptr, problems_.take_problems()};
  }

 private:
  void read(const JsonPath& at, bool single) {
    name_field(at, made_->name);
    if (is_system_name(made_->name)) at.report_problem("names that begin with sys/ are reserved for the system");
    text_field(at, "description", false, made_->description);
    check_code(at);
    field(at, "schemas", false, [&](const JsonPath& all) { read_schemas(all); });
    field(at, "limits", false, [&](const JsonPath& found) { read_limits(found, limits_); });
    for (const auto& effect : system_effects()) {
      EffectSpec spec;
      spec.name = effect.name, spec.params = effect.params, spec.receipt = effect.receipt, spec.system = true;
      made_->effects.push_back(std::move(spec));
    }
    each_of(at, "effects", false, [&](const JsonPath& each) { read_effect(each); });
    if (single)
      read_workflow(at);
    else
      each_of(at, "workflows", true, [&](const JsonPath& each) { read_workflow(each); });
    if (made_->workflows.empty() && problems_.empty()) at.report_problem("it has no workflow");
    made_->schemas.link(problems_);
    if (single)
      link_workflow(at);
    else if (at.value.at("workflows").is_array() && !made_->workflows.empty())
      each_in(at, "workflows", false, [&](const JsonPath& each) { link_workflow(each); });
    field(at, "routing", false, [&](const JsonPath& routing) {
      if (!read_fields(routing, kRoutingFields)) return;
      each_of(routing, "subscriptions", true, [&](const JsonPath& each) { read_subscription(each); });
    });
    if (use_ == ManifestUse::offered && problems_.empty()) check_offered(at);
  }
  // Rejects very long lists of an offered manifest before their entries are read.
  template <class Read>
  void each_of(const JsonPath& at, const char* name, bool required, Read read) {
    const auto found = at.value.find(name);
    if (use_ == ManifestUse::offered && found != at.value.end() && found->is_array() && found->size() > kMaxListed)
      return at.at(*found, name)
          .report_problem("has " + std::to_string(found->size()) + " entries; at most " + std::to_string(kMaxListed));
    each_in(at, name, required, read);
  }
  void check_offered(const JsonPath& at) {
    made_->schemas.check_choices(problems_);
    for (const auto& workflow : made_->workflows) {
      const bool reached = std::any_of(made_->subscriptions.begin(), made_->subscriptions.end(),
                                       [&](const auto& each) { return each.workflow == workflow.name; });
      if (!reached) at.report_problem("routing: no subscription names " + workflow.name + ": no event ever reaches it");
      if (workflow.keyed() && !made_->schemas.is_of_keys(workflow.key_schema))
        at.report_problem("key_schema of " + workflow.name + ": a key is a text, a whole number or a byte string");
    }
  }

  void check_code(const JsonPath& at) {
    std::size_t bytes = 0;
    for (const auto& [module, text] : made_->code) {
      bytes += text.size();
      if (!is_utf8(module) || module.empty())
        at.report_problem("code: " + excerpt(module) + " is not a valid name of a module");
    }
    if (bytes > kMaxCode) at.report_problem("its code has more than " + std::to_string(kMaxCode) + " bytes");
  }

  void read_schemas(const JsonPath& all) {
    if (!all.value.is_object()) {
      all.report_wrong_type("a map of schemas");
      return;
    }
    for (const auto& [name, schema] : all.value.items()) {
      const JsonPath at = all.at(schema, name);
      if (!is_workflow_name(name))
        at.report_problem(excerpt(name) + " is not a name: use namespace/name@version");
      else if (is_system_name(name))
        at.report_problem("names that begin with sys/ are reserved for the system");
      else
        made_->schemas.add(name, at);
    }
  }
  // Reads a schema by name or inline. The name of an inline schema is that of its owner with the field appended.
  void schema_field(const JsonPath& at, const char* name, bool required, const std::string& owner, std::string& out) {
    field(at, name, required, [&](const JsonPath& found) {
      if (!found.value.is_string()) {
        out = owner + '#' + name;
        return made_->schemas.add(out, found);
      }
      if (!plans::read_text(found, out)) return;
      if (made_->schemas.has(out)) return;
      const auto names = made_->schemas.names();
      const std::vector<std::string_view> views(names.begin(), names.end());
      found.report_problem("there is no schema " + excerpt(out) + did_you_mean(out, views));
    });
  }
  void read_limits(const JsonPath& at, StepLimits& out) {
    if (!read_fields(at, kLimitFields)) return;
    number_field(at, "instructions", 1'000, 10'000'000'000, out.instructions);
    number_field(at, "memory_bytes", 256 << 10, 1 << 30, out.memory_bytes);
  }

  void read_effect(const JsonPath& at) {
    if (!read_fields(at, kEffectFields)) return;
    EffectSpec spec;
    name_field(at, spec.name);
    if (is_system_name(spec.name)) {
      if (made_->effect(spec.name) == nullptr) at.report_problem("the system has no effect " + excerpt(spec.name));
      if (at.value.size() > 1) at.report_problem("an effect of the system has only a name");
      return;
    }
    if (made_->effect(spec.name) != nullptr) at.report_problem("the effect " + excerpt(spec.name) + " is listed twice");
    schema_field(at, "params", true, spec.name, spec.params);
    schema_field(at, "receipt", true, spec.name, spec.receipt);
    read_effect_ref(at, spec);
    number_field(at, "timeout_s", 1, std::int64_t{365} * 24 * 3600, spec.timeout_s);
    number_field(at, "retries", 0, 100, spec.retries);
    field(at, "policy", false, [&](const JsonPath& found) { read_effect_policy(found, spec); });
    made_->effects.push_back(std::move(spec));
  }
  // The same form as the policy of a job (model/policy_json.h).
  static void read_effect_policy(const JsonPath& at, EffectSpec& spec) {
    if (!at.value.is_object()) {
      at.report_wrong_type("a map as in docs/manual.md#policies");
      return;
    }
    spec.policy = dump_json(at.value);
    for (const FieldProblem& problem : read_policy(spec.policy, "").problems) at.report_problem(problem.message);
  }
  void read_effect_ref(const JsonPath& at, EffectSpec& spec) {
    text_field(at, "script_type", false, spec.script_type);
    text_field(at, "runner", false, spec.runner);
    text_field(at, "script", false, spec.script);
    text_field(at, "module", false, spec.module);
    if (!at.value.contains("script_type") && !at.value.contains("runner"))
      at.report_problem("needs script_type or runner, which performs it");
    if (at.value.contains("runner")) read_runner(at, spec);
    if (!spec.script_type.empty() && !is_script_type(spec.script_type))
      at.report_problem("script_type: " + excerpt(spec.script_type) + " is not a script type");
    if (at.value.contains("script") == at.value.contains("module")) at.report_problem("needs either script or module");
    if (!spec.module.empty() && !made_->code.contains(spec.module))
      at.report_problem("module: " + excerpt(spec.module) + " is not among the code");
  }

  // Accepts runner:7 or 7.
  void read_runner(const JsonPath& at, EffectSpec& spec) {
    std::uint64_t id = 0;
    const std::string_view text = spec.runner;
    if (!parse_u64(text.starts_with("runner:") ? text.substr(7) : text, id) || id == 0 || id > UINT32_MAX)
      return at.report_problem("runner: " + excerpt(spec.runner) + " is not a runner: give runner:ID");
    spec.runner = "runner:" + std::to_string(id);
    if (spec.script_type.empty()) spec.script_type = "python";
  }

  void read_workflow(const JsonPath& at) {
    const bool top = &at.value == &document_;
    if (!top && !read_fields(at, kWorkflowFields)) return;
    WorkflowSpec spec;
    spec.limits = limits_;
    name_field(at, spec.name);
    if (!top && is_system_name(spec.name)) at.report_problem("names that begin with sys/ are reserved for the system");
    if (made_->workflow(spec.name) != nullptr)
      at.report_problem("the workflow " + excerpt(spec.name) + " is listed twice");
    schema_field(at, "state", true, spec.name, spec.state);
    schema_field(at, "event", true, spec.name, spec.event);
    schema_field(at, "context", false, spec.name, spec.context);
    schema_field(at, "annotations", false, spec.name, spec.annotations);
    schema_field(at, "key_schema", false, spec.name, spec.key_schema);
    if (!spec.context.empty() && spec.context != kContextSchema)
      at.report_problem("context: the system provides " + std::string(kContextSchema) + " only");
    each_of(at, "effects_emitted", true, [&](const JsonPath& each) { read_emitted(each, spec); });
    field(at, "impl", true, [&](const JsonPath& impl) { read_impl(impl, spec); });
    if (!top) field(at, "limits", false, [&](const JsonPath& found) { read_limits(found, spec.limits); });
    made_->workflows.push_back(std::move(spec));
  }
  void read_emitted(const JsonPath& at, WorkflowSpec& spec) {
    std::string name;
    if (!plans::read_text(at, name)) return;
    if (spec.may_emit(name)) return at.report_problem(excerpt(name) + " is listed twice");
    if (made_->effect(name) == nullptr) {
      std::vector<std::string_view> names;
      for (const auto& effect : made_->effects) names.push_back(effect.name);
      return at.report_problem("the effect " + excerpt(name) + " is not declared" + did_you_mean(name, names));
    }
    spec.effects_emitted.push_back(std::move(name));
  }
  void read_impl(const JsonPath& at, WorkflowSpec& spec) {
    if (!read_fields(at, kImplFields)) return;
    text_field(at, "module", true, spec.module);
    text_field(at, "entrypoint", true, spec.entrypoint);
    if (!spec.module.empty() && !made_->code.contains(spec.module))
      at.report_problem("module: " + excerpt(spec.module) + " is not among the code");
    if (!spec.entrypoint.empty() && !is_identifier(spec.entrypoint))
      at.report_problem("entrypoint: " + excerpt(spec.entrypoint) + " is not a valid name of a function");
  }

  // Links parts of a workflow that need all schemas.
  void link_workflow(const JsonPath& at) {
    if (!at.value.is_object() || !at.value.contains("name")) return;
    const auto found = std::find_if(made_->workflows.begin(), made_->workflows.end(),
                                    [&](const auto& each) { return at.value.at("name") == each.name; });
    if (found == made_->workflows.end()) return;
    const auto arm = made_->schemas.arm_of(found->event, kReceiptSchema);
    found->receipt_arm = arm.value_or("");
    found->rejected_arm = made_->schemas.arm_of(found->event, kRejectedSchema);
    if (!arm && !found->effects_emitted.empty())
      at.report_problem("it emits effects, and its event has no arm " + std::string(kReceiptSchema) +
                        " for their receipts");
  }

  void read_subscription(const JsonPath& at) {
    if (!read_fields(at, kSubscriptionFields)) return;
    Subscription spec;
    text_field(at, "workflow", true, spec.workflow);
    text_field(at, "event", true, spec.event);
    text_field(at, "key_field", false, spec.key_field);
    if (spec.workflow.empty() || spec.event.empty()) return;
    const auto* workflow = made_->workflow(spec.workflow);
    if (workflow == nullptr) return at.report_problem("there is no workflow " + excerpt(spec.workflow));
    if (!made_->schemas.has(spec.event)) return at.report_problem("there is no schema " + excerpt(spec.event));
    if (is_system_name(spec.event)) return at.report_problem(excerpt(spec.event) + ": only the system sends that");
    const auto arm = made_->schemas.arm_of(workflow->event, spec.event);
    if (!arm) return at.report_problem(spec.workflow + " does not accept " + excerpt(spec.event));
    spec.arm = *arm;
    check_key(at, spec, *workflow);
    for (const auto& other : made_->subscriptions)
      if (other.event == spec.event && other.workflow == spec.workflow) return at.report_problem("it is listed twice");
    made_->subscriptions.push_back(std::move(spec));
  }
  void check_key(const JsonPath& at, const Subscription& spec, const WorkflowSpec& workflow) {
    if (workflow.keyed() == spec.key_field.empty())
      return at.report_problem(workflow.keyed() ? spec.workflow + " is keyed: key_field is missing"
                                                : spec.workflow + " has no key_schema, and there is a key_field");
    if (!workflow.keyed()) return;
    std::string_view path = spec.key_field;
    bool leads = true;
    if (!spec.arm.empty()) {
      leads = path.starts_with("$value.");
      if (leads) path.remove_prefix(7);
    }
    if (!leads || !made_->schemas.has_path(spec.event, path))
      at.report_problem("key_field: " + excerpt(spec.key_field) + " does not exist in what " + spec.workflow + " gets" +
                        (spec.arm.empty() ? "" : ": the fields of an arm are below $value"));
    else if (use_ == ManifestUse::offered && !made_->schemas.may_fit(spec.event, path, workflow.key_schema))
      at.report_problem("key_field: the value at " + excerpt(spec.key_field) + " is never a key of " + spec.workflow);
  }

  void finish() {
    json code = json::object();
    for (const auto& [module, text] : made_->code) code[module] = workflows::binary(text);
    const auto bytes = encode_cbor(json{{"code", std::move(code)}, {"manifest", document_}});
    if (!bytes) return problems_.add("", bytes.error().message);
    made_->hash = sha256_hex(*bytes);
    for (auto& workflow : made_->workflows) workflow.hash = workflow_hash(made_->hash, workflow.name);
  }

  const json& document_;
  const ManifestUse use_;
  std::shared_ptr<WorkflowManifest> made_;
  Problems problems_;
  StepLimits limits_;
};

template <class Spec>
const Spec* named(const std::vector<Spec>& all, std::string_view name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Spec& each) { return each.name == name; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

bool WorkflowSpec::may_emit(std::string_view effect) const {
  return std::find(effects_emitted.begin(), effects_emitted.end(), effect) != effects_emitted.end();
}
const WorkflowSpec* WorkflowManifest::workflow(std::string_view wanted) const { return named(workflows, wanted); }
const EffectSpec* WorkflowManifest::effect(std::string_view wanted) const { return named(effects, wanted); }

ParsedManifest read_manifest(const json& document, CodeFiles code, ManifestUse use) {
  return ManifestParser(document, std::move(code), use).whole();
}

std::string workflow_hash(std::string_view manifest_hash, std::string_view workflow) {
  using workflows::binary;
  return sha256_hex(*encode_cbor(json{{"manifest", binary(manifest_hash)}, {"workflow", binary(workflow)}}));
}

void ManifestCatalog::add(ManifestRef manifest) {
  std::string hash = manifest->hash;
  by_hash_[std::move(hash)] = std::move(manifest);
}
const WorkflowManifest* ManifestCatalog::find(std::string_view hash) const { return share_code(hash).get(); }
ManifestRef ManifestCatalog::share_code(std::string_view hash) const {
  const auto found = by_hash_.find(hash);
  return found == by_hash_.end() ? nullptr : found->second;
}

}  // namespace mycojobs
