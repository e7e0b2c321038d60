// Reads the typed values, the inputs and the nodes of a definition. Each value of a wrong type is a problem.
#include "flows/flow_plan_reader.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/parse.h"
#include "flows/flow_plan.h"
#include "model/codec.h"
#include "model/job_validation.h"
#include "model/notify_targets.h"
#include "model/submitted_files.h"
#include "text/json.h"
#include "text/suggestion.h"
#include "text/utf8.h"

namespace mycojobs {

namespace plans {

void read_notify_field(const DocumentValue& source, std::string& out) {
  const ParsedNotify parsed = parse_notify(source.value, "");
  for (const FieldProblem& problem : parsed.problems) {
    // "[1]: on: ..." is appended to the path of the field.
    source.problems.add(source.path + problem.field, problem.message.substr(problem.field.size() + 2));
  }
  if (parsed.problems.empty() && !parsed.targets.empty()) out = dump_json(source.value);
}

bool is_node_name(std::string_view name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto is_allowed_char = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '-'; };
  return !name.empty() && name.size() <= kMaxNameBytes && is_letter(name.front()) &&
         std::all_of(name.begin(), name.end(), is_allowed_char) && name != "stop" && name != "continue";
}

void check_node_name(std::string_view name, const std::string& path, DocumentProblems& problems) {
  if (is_node_name(name)) return;
  const bool is_reserved = name == "stop" || name == "continue";
  problems.add(path,
               "the name " + excerpt(name, 70) +
                   (is_reserved ? " is a reserved word of on_error: choose another"
                                : " is not a valid name of a node: use 1 to 64 letters, digits, '_' and '-', with a "
                                  "letter or '_' first (no '.', which separates names from results)"));
}

// The table of the fields of a node, and their readers.

namespace {

constexpr std::size_t kMaxLogBytes = 64U << 10;
constexpr std::size_t kMaxChildKeyBytes = 255;
constexpr std::size_t kMaxPrerequisites = 100;
constexpr std::size_t kMaxApprovers = 1000;

constexpr std::uint32_t kAllKinds = 63;
constexpr std::uint32_t kJobKind = kind_bit(NodeKind::job);

template <class T>
void read_into(const DocumentValue& source, std::int64_t min, std::int64_t max, T& out) {
  std::int64_t number = 0;
  if (read_integer(source, min, max, number)) out = static_cast<T>(number);
}

void read_names(const DocumentValue& source, std::vector<NodeReference>& out) {
  for_each_item(source, [&out](const DocumentValue& item) {
    std::string name;
    if (read_text(item, name)) out.push_back({std::move(name), item.path});
  });
}

void read_texts(const DocumentValue& source, std::vector<std::string>& out) {
  for_each_item(source, [&out](const DocumentValue& item) {
    std::string text;
    if (read_text(item, text)) out.push_back(std::move(text));
  });
}

void read_on_error(const DocumentValue& source, DraftNode& draft, int) {
  std::string word;
  if (!read_text(source, word)) return;
  draft.has_on_error = true;
  draft.error_node.reset();
  draft.node.on_error = word == "continue" ? OnError::proceed : OnError::stop;
  if (word != "stop" && word != "continue") {
    draft.node.on_error = OnError::route;
    draft.error_node = NodeReference{std::move(word), source.path};
  }
}

void read_compensate(const DocumentValue& source, DraftNode& draft, int) {
  std::string name;
  if (read_text(source, name)) draft.compensation = NodeReference{std::move(name), source.path};
}

// The flow handles approval:NAME, signal:NAME and flow:ID. The other prerequisites remain with the job, because only
// its agent knows which of them the operator allows.
void read_prerequisite(const DocumentValue& source, DraftNode& draft) {
  std::string text;
  if (!read_text(source, text)) return;
  auto& gates = draft.node.gates;
  auto& job_prerequisites = draft.node.job.prerequisites;
  if (gates.size() + job_prerequisites.size() >= kMaxPrerequisites) {
    return source.report_problem("a node has at most " + std::to_string(kMaxPrerequisites) + " prerequisites");
  }
  const std::string name = text.substr(text.find(':') + 1);
  if (text.starts_with("approval:") || text.starts_with("signal:")) {
    if (!is_node_name(name)) {
      return source.report_problem(
          excerpt(text, 90) +
          ": the ':' must be followed by a name: 1 to 64 letters, digits, '_' and '-', with a letter or '_' first");
    }
  } else if (text.starts_with("flow:")) {
    std::uint64_t id = 0;
    if (!parse_u64(name, id) || id == 0 || id > UINT32_MAX) {
      return source.report_problem(excerpt(text) +
                                   ": the ':' must be followed by the id of a flow, for example flow:12");
    }
  } else {
    static constexpr std::array<std::string_view, 7> kJobPrerequisites{
        "wait:", "at:", "redis:", "file:", "tcp:", "http://", "https://"};
    const bool is_known = std::any_of(kJobPrerequisites.begin(), kJobPrerequisites.end(),
                                      [&](auto prefix) { return text.starts_with(prefix); });
    if (!is_known) {
      return source.report_problem(
          excerpt(text) +
          " is not a valid prerequisite: begin with approval:, signal:, flow:, wait:, at:, redis:, file:, "
          "tcp:, http:// or https://");
    }
    if (draft.node.kind != NodeKind::job) {
      return source.report_problem(excerpt(text) + " is checked only by agents: add a job with it before this node");
    }
    job_prerequisites.push_back(std::move(text));
    return;
  }
  if (std::find(gates.begin(), gates.end(), text) != gates.end())
    return source.report_problem(excerpt(text) + " is listed twice");
  gates.push_back(std::move(text));
}

void read_timeout(const DocumentValue& source, DraftNode& draft, int) {
  std::uint64_t ms = 0;
  if (!read_duration(source, ms)) return;
  if (draft.node.kind != NodeKind::job) {
    if (draft.node.timeout_ms != 0) return source.report_problem("is given twice: at the node and in its body");
    draft.node.timeout_ms = ms;
  } else {
    if (ms % 1000 != 0)
      return source.report_problem("is not a whole number of seconds: give 1s or more, or the limit wall of a policy");
    draft.node.job.timeout = static_cast<std::uint32_t>(ms / 1000);
  }
}

void read_approvers(const DocumentValue& source, DraftNode& draft) {
  if (source.value.is_array() && source.value.empty()) {
    return source.report_problem("is empty: name an actor, or omit it to allow all actors that can write");
  }
  if (source.value.size() > kMaxApprovers) {
    return source.report_problem("has more than " + std::to_string(kMaxApprovers) +
                                 " actors: omit it to let admins decide");
  }
  for_each_item(source, [&draft](const DocumentValue& item) {
    Id id = 0;
    read_into(item, 1, UINT32_MAX, id);
    auto& approvers = draft.node.approvers;
    if (id != 0 && std::find(approvers.begin(), approvers.end(), id) == approvers.end()) approvers.push_back(id);
  });
}

// Reads approval or pause: a text, true, or a map.
void read_manual(const DocumentValue& source, DraftNode& draft, int) {
  const bool is_approval = draft.node.kind == NodeKind::approval;
  if (source.value.is_string()) {
    read_text(source, draft.node.text);
    return;
  }
  if (source.value == true) return;
  if (!source.value.is_object()) {
    source.report_wrong_type(is_approval ? "true, a text, or a map of approvers, timeout and comment"
                                         : "true, a text, or a map of timeout and comment");
    return;
  }
  for (const auto& item : source.value.items()) {
    const DocumentValue field = source.at(item.value(), item.key());
    if (item.key() == "comment") {
      read_text(field, draft.node.text);
    } else if (item.key() == "timeout") {
      read_timeout(field, draft, 0);
    } else if (item.key() == "approvers" && is_approval) {
      read_approvers(field, draft);
    } else {
      field.report_problem(is_approval ? "unknown field of an approval; the fields are approvers, timeout and comment"
                                       : "unknown field of a pause; the fields are timeout and comment");
    }
  }
}

void read_log(const DocumentValue& source, DraftNode& draft, int) {
  if (!read_text(source, draft.node.text) || draft.node.text.size() <= kMaxLogBytes) return;
  source.report_problem("is longer than " + std::to_string(kMaxLogBytes) + " bytes");
}

void read_child(const DocumentValue& source, DraftNode& draft, int depth) {
  if (depth + 1 > kMaxChildDepth) {
    return source.report_problem("flows within flows are deeper than " + std::to_string(kMaxChildDepth) + " levels");
  }
  const FlowPlan child = read_flow(source, depth + 1);
  if (!child.missing.empty()) {
    source.report_problem("its input " + child.missing.front() + " has no value: give it a default, or given: {" +
                          child.missing.front() + ": ...}");
  }
  draft.node.child = dump_json(source.value);
}

void read_supervisor(const DocumentValue& source, DraftNode& draft, int) {
  std::string& url = draft.node.supervisor_url;
  if (!read_text(source, url)) return;
  std::uint64_t id = 0;
  const bool is_runner = url.starts_with("runner:") && parse_u64(std::string_view(url).substr(7), id) && id > 0;
  const bool is_printable = std::all_of(url.begin(), url.end(), [](char c) { return c > ' ' && c < 0x7f; });
  const bool is_http =
      (url.starts_with("http://") && url.size() > 7) || (url.starts_with("https://") && url.size() > 8);
  if (!is_runner && !(is_http && is_printable && url.size() <= 2048)) {
    source.report_problem(excerpt(url) + " is not a valid supervisor: use http://HOST:PORT, https://HOST or runner:ID");
  }
}

void read_inputs(const DocumentValue& source, DraftNode& draft, int) {
  read_texts(source, draft.node.job.inputs);
  for_each_item(source, [&draft](const DocumentValue& item) {
    if (const auto* text = item.value.get_ptr<const std::string*>()) {
      draft.inputs.push_back({text->substr(0, text->find('/')), item.path});
    }
  });
}

void read_args(const DocumentValue& source, DraftNode& draft, int) {
  if (!source.value.is_array()) {
    source.report_wrong_type("a list of texts");
    return;
  }
  draft.node.job.args.clear();
  for_each_item(source, [&draft](const DocumentValue& item) {
    std::string text;
    if (item.value == "" || read_scalar(item, text)) draft.node.job.args.push_back(std::move(text));
  });
}

// Reads `stdin` and `files` of a node. The two fields are read together, since their limits apply to the sum.
void read_submitted_files(const DocumentValue& node, DraftNode& draft) {
  auto contents = parse_submitted_files(node.value);
  auto is_set = contents ? set_submitted_files(draft.node.job, std::move(*contents)) : tl::unexpected(contents.error());
  if (is_set) return;
  const std::string& message = is_set.error().message;
  const std::size_t colon = message.find(": ");
  node.problems.add(node.path + '.' + message.substr(0, colon), message.substr(colon + 2));
}

void add_references(const std::string& text, const std::string& path, DraftNode& draft, DocumentProblems& problems) {
  auto references = parse_references(text);
  if (!references) return problems.add(path, references.error().message);
  for (ResultReference& reference : *references) draft.references.push_back({std::move(reference), path});
}

void read_references(const DocumentValue& source, DraftNode& draft) {
  for (const auto& [name, value] : draft.node.job.env_vars)
    add_references(value, source.path + ".env." + name, draft, source.problems);
  for (std::size_t i = 0; i < draft.node.job.args.size(); ++i)
    add_references(draft.node.job.args[i], source.path + ".args[" + std::to_string(i) + ']', draft, source.problems);
}

void read_policy_field(const DocumentValue& source, DraftNode& draft, int) {
  if (!source.value.is_object()) {
    source.report_wrong_type("a map as in docs/manual.md#policies");
    return;
  }
  if (!source.value.empty()) draft.node.job.policy = dump_json(source.value);
}

void read_key(const DocumentValue& source, DraftNode& draft, int) {
  if (!read_text(source, draft.node.child_key) || draft.node.child_key.size() <= kMaxChildKeyBytes) return;
  source.report_problem("is longer than " + std::to_string(kMaxChildKeyBytes) + " bytes");
}

#define MJ_TEXT(member) [](const DocumentValue& source, DraftNode& draft, int) { read_text(source, draft.node.member); }
#define MJ_WHOLE(member, min, max) \
  [](const DocumentValue& source, DraftNode& draft, int) { read_into(source, min, max, draft.node.member); }
#define MJ_DURATION(member) \
  [](const DocumentValue& source, DraftNode& draft, int) { read_duration(source, draft.node.member); }

const std::string kPriorityMeaning =
    std::to_string(-kMaxPriority) + " to " + std::to_string(kMaxPriority) + "; higher is taken first";

const NodeField kFields[] = {
    {"script", kJobKind, MJ_TEXT(job.script), "text", "a job: the source of its script"},
    {"file", kJobKind,
     [](const DocumentValue& source, DraftNode&, int) {
       source.report_problem("is read only by the command line, which submits the file's content as script");
     },
     "path", "instead of script, in a file for the command line: the script's file, beside the flow's"},
    {"log", kind_bit(NodeKind::log), read_log, "text", "writes this line to the run's log"},
    {"wait", kind_bit(NodeKind::wait), MJ_DURATION(wait_ms), "duration", "completes so long after it was reached"},
    {"pause", kind_bit(NodeKind::pause), read_manual, "text, true, map of comment, timeout",
     "waits until an actor resumes it"},
    {"approval", kind_bit(NodeKind::approval), read_manual, "text, true, map of approvers, timeout, comment",
     "waits until an actor approves it, or rejects it, which makes it fail"},
    {"flow", kind_bit(NodeKind::flow), read_child, "a flow",
     "starts this flow; completes with its end, and with its result"},
    {"each", kJobKind, read_each, "list, map, inputs.NAME, NODE.KEY",
     "a node of this job for each element: NAME[0], NAME[1] ..."},
    {"max", kJobKind, read_max, "number", "most elements of each, 1 to 5000; of a result by default 100"},
    {"name", kAllKinds, [](const DocumentValue&, DraftNode&, int) {}, "text",
     "only in a list of jobs: the node's name"},
    {"needs", kAllKinds, [](const DocumentValue& source, DraftNode& draft, int) { read_names(source, draft.needs); },
     "name, list of names", "nodes that must have ended before it begins"},
    {"when", kAllKinds,
     [](const DocumentValue& source, DraftNode& draft, int) {
       for_each_item(source, [&](const DocumentValue& item) { read_condition(item, draft); });
     },
     "condition, list of conditions", "all conditions must be true, otherwise the node is skipped"},
    {"on_error", kAllKinds, read_on_error, "stop, continue, name",
     "effect of a failure; the name of a node: that node handles the error"},
    {"compensate", kAllKinds, read_compensate, "name",
     "a node that runs if the flow fails or is cancelled after this one has completed"},
    {"irreversible", kAllKinds,
     [](const DocumentValue& source, DraftNode& draft, int) { read_switch(source, draft.node.irreversible); },
     "true, false",
     "once it has completed, the flow and its parents are replayed, and a child flow is started again by a retry, "
     "only if that is allowed by name"},
    {"prerequisites", kAllKinds,
     [](const DocumentValue& source, DraftNode& draft, int) {
       for_each_item(source, [&](const DocumentValue& item) { read_prerequisite(item, draft); });
     },
     "text, list of texts",
     "prerequisites that must be met before the node starts: approval:NAME, signal:NAME, flow:ID; of a job also "
     "wait:, at:, redis:, file:, tcp:, http:// and https://"},
    {"gate_timeout", kAllKinds - kind_bit(NodeKind::approval) - kind_bit(NodeKind::pause), MJ_DURATION(timeout_ms),
     "duration", "longest wait for approval:, signal: and flow:; then the node fails; default: any"},
    {"timeout", kJobKind | kind_bit(NodeKind::approval) | kind_bit(NodeKind::pause), read_timeout, "duration",
     "of a job's attempt, in whole seconds; of an approval or pause: longest wait, gates included, then it fails"},
    {"type", kJobKind, MJ_TEXT(job.script_type), "word",
     "script type, such as python; default of a file: by its extension"},
    {"retries", kJobKind, MJ_WHOLE(job.retries, 0, UINT8_MAX), "number", "attempts after a failed one, 0 to 255"},
    {"env", kJobKind,
     [](const DocumentValue& source, DraftNode& draft, int) { read_map(source, draft.node.job.env_vars); }, "map",
     "its environment, over the flow's; ${NODE.KEY} is a value of the result of a node that it needs, $${ is ${"},
    {"args", kJobKind, read_args, "list of texts", "arguments of its script or program; ${NODE.KEY} as in env"},
    {"stdin", kJobKind, [](const DocumentValue&, DraftNode&, int) {}, "text, {base64: text}",
     "its standard input; in a file for the command line also {file: path}"},
    {"files", kJobKind, [](const DocumentValue&, DraftNode&, int) {},
     "map of name to text, {base64: text}, {upload: reference}",
     "files in /job/files; in a file for the command line also {file: path}"},
    {"policy", kJobKind, read_policy_field, "map", "policy that the job requests for its sandbox"},
    {"inputs", kJobKind, read_inputs, "text, list of texts",
     "requested artifacts of nodes that it needs: NODE (all) or NODE/ARTIFACT"},
    {"priority", kJobKind, MJ_WHOLE(job.priority, -kMaxPriority, kMaxPriority), "number", kPriorityMeaning},
    {"queue_timeout", kJobKind, MJ_DURATION(job.queue_timeout_ms), "duration", "longest wait in its queue"},
    {"concurrency_key", kJobKind, MJ_TEXT(job.concurrency_key), "text",
     "of the context's jobs with this key only some run at one time"},
    {"concurrency_limit", kJobKind, MJ_WHOLE(job.concurrency_limit, 1, UINT32_MAX), "number",
     "maximum number of jobs with this key at the same time; default 1"},
    {"supervisor_url", kJobKind, read_supervisor, "url",
     "where it runs, if not with any agent of the context: "
     "http://HOST:PORT, https://HOST, runner:ID"},
    {"notify", kJobKind,
     [](const DocumentValue& source, DraftNode& draft, int) { read_notify_field(source, draft.node.job.notify); },
     "url, map, list of both", "receivers of the notification of the job's end: webhook, job or topic"},
    {"key", kind_bit(NodeKind::flow), read_key, "text",
     "the child is started once for each key of its parent; default: the node's name"},
};

}  // namespace

std::span<const NodeField> node_fields() { return kFields; }

std::string_view resolve_field_alias(std::string_view field) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 17> kAliases{{
      {"depends", "needs"},
      {"depends_on", "needs"},
      {"dependends", "needs"},
      {"dependencies", "needs"},
      {"after", "needs"},
      {"if", "when"},
      {"foreach", "each"},
      {"for_each", "each"},
      {"matrix", "each"},
      {"payload", "script"},
      {"run", "script"},
      {"executor", "type"},
      {"script_type", "type"},
      {"env_vars", "env"},
      {"environment", "env"},
      {"sleep", "wait"},
      {"compensation", "compensate"},
  }};
  const auto* match =
      std::find_if(kAliases.begin(), kAliases.end(), [&](const auto& alias) { return alias.first == field; });
  return match == kAliases.end() ? std::string_view() : match->second;
}

// The inputs of a flow: declarations and given values.
namespace {

struct InputType {
  std::string_view name, description;
  bool (*matches)(const json&);
};
// Whole numbers within the range of int64, which every reader represents exactly.
bool is_int64(const json& value) {
  if (const auto* unsigned_value = value.get_ptr<const json::number_unsigned_t*>()) return *unsigned_value <= INT64_MAX;
  return value.is_number_integer();
}
constexpr std::array kTypes = std::to_array<InputType>({
    {"string", "a string", [](const json& value) { return value.is_string(); }},
    {"integer", "an integer", is_int64},
    {"number", "a number", [](const json& value) { return value.is_number(); }},
    {"boolean", "true or false", [](const json& value) { return value.is_boolean(); }},
    {"list", "a list", [](const json& value) { return value.is_array(); }},
    {"object", "a map", [](const json& value) { return value.is_object(); }},
});

const InputType* find_type(std::string_view name) {
  const auto* match =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const InputType& candidate) { return candidate.name == name; });
  return match == kTypes.end() ? nullptr : match;
}

// The name is also the suffix of the variable MYCOJOBS_INPUT_<NAME>, so it has no upper case: names must not differ in
// case only.
bool is_input_name(std::string_view name) {
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  return !name.empty() && name.size() <= kMaxNameBytes && is_letter(name.front()) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_'; });
}

bool is_allowed(const FlowInput& input, const json& value, const DocumentValue& source) {
  const std::string text = dump_json(value);
  const auto& values = input.allowed_values;
  if (values.empty() || std::find(values.begin(), values.end(), text) != values.end()) return true;
  std::string list;
  for (std::size_t i = 0; i < values.size() && i < 20; ++i)
    list += (i == 0 ? "" : ", ") + std::string(whole_characters(values[i], 100));
  source.report_problem("input " + input.name + " is " + std::string(whole_characters(text, 100)) +
                        ", which is not one of " + list + (values.size() > 20 ? ", ..." : ""));
  return false;
}

bool read_type(const DocumentValue& source, FlowInput& input) {
  std::string name;
  if (!read_text(source, name)) return false;
  if (find_type(name) == nullptr) {
    std::vector<std::string_view> names;
    for (const InputType& input_type : kTypes) names.push_back(input_type.name);
    source.report_problem(
        excerpt(name) + " is not a type of an input; the types are string, integer, number, boolean, list and object" +
        did_you_mean(name, names));
    return false;
  }
  input.type = std::move(name);
  return true;
}

bool check_type(const FlowInput& input, const DocumentValue& source) {
  const InputType& type = *find_type(input.type);
  if (type.matches(source.value)) return true;
  DocumentProblems type_problems;
  const DocumentValue value{source.value, "", type_problems};
  value.report_wrong_type(type.description);
  source.report_problem("input " + input.name + ' ' + type_problems.release_problems().front().message +
                        (input.type == "string" && source.value.is_primitive() ? ": quote it" : ""));
  return false;
}

void read_enum(const DocumentValue& source, FlowInput& input) {
  if (!source.value.is_array() || source.value.empty()) {
    source.report_wrong_type("a list of the values that it may have");
    return;
  }
  for (std::size_t i = 0; i < source.value.size(); ++i) {
    const DocumentValue item = source.at(source.value[i], i);
    if (check_type(input, item)) input.allowed_values.push_back(dump_json(item.value));
  }
}

// Reads the declaration of an input, which is a type or a map.
void read_declaration(const DocumentValue& source, FlowInput& input) {
  if (source.value.is_string()) {
    read_type(source, input);
    return;
  }
  static constexpr std::string_view kNames[] = {"type", "default", "required", "enum", "comment"};
  if (!source.value.is_object()) {
    source.report_wrong_type("a type, or a map such as {type: string, default: eu}");
    return;
  }
  const auto type = source.value.find("type");
  if (type == source.value.end()) {
    return source.report_problem("type: is missing: give string, integer, number, boolean, list or object");
  }
  if (!read_type(source.at(*type, "type"), input)) return;
  bool has_required = false;
  for (const auto& item : source.value.items()) {
    const DocumentValue field = source.at(item.value(), item.key());
    if (item.key() == "default") {
      if (check_type(input, field)) input.default_value = dump_json(item.value());
    } else if (item.key() == "required") {
      has_required = read_switch(field, input.required);
    } else if (item.key() == "enum") {
      read_enum(field, input);
    } else if (item.key() == "comment") {
      std::string comment;
      read_text(field, comment);
    } else if (item.key() != "type") {
      field.report_problem("unknown field of an input; the fields are type, default, required, enum and comment" +
                           did_you_mean(item.key(), kNames));
    }
  }
  if (input.default_value.empty()) return;
  const DocumentValue default_value = source.at(source.value.at("default"), "default");
  is_allowed(input, default_value.value, default_value);
  if (has_required && input.required)
    source.at(source.value.at("required"), "required").report_problem("has a default: it is never missing");
  input.required = false;
}

void read_given_values(const DocumentValue& source, FlowPlan& plan) {
  if (!source.value.is_object()) {
    source.report_wrong_type("a map from names of inputs to values");
    return;
  }
  std::vector<std::string_view> names;
  for (const FlowInput& input : plan.inputs) names.push_back(input.name);
  for (const auto& item : source.value.items()) {
    const DocumentValue value = source.at(item.value(), item.key());
    const auto input = std::find_if(plan.inputs.begin(), plan.inputs.end(),
                                    [&](const FlowInput& candidate) { return candidate.name == item.key(); });
    if (input == plan.inputs.end()) {
      value.report_problem("there is no input " + excerpt(item.key()) +
                           (names.empty() ? ": the flow declares none (inputs)" : did_you_mean(item.key(), names)));
    } else if (!input->type.empty() && check_type(*input, value) && is_allowed(*input, value.value, value)) {
      plan.values[input->name] = dump_json(value.value);
    }
  }
}

void read_declarations(const DocumentValue& source, FlowPlan& plan) {
  if (!source.value.is_object()) {
    source.report_wrong_type("a map from names to types, such as {region: {type: string, default: eu}}");
    return;
  }
  for (const auto& item : source.value.items()) {
    FlowInput input;
    input.name = item.key();
    const DocumentValue declared = source.at(item.value(), item.key());
    if (is_input_name(item.key())) {
      read_declaration(declared, input);
    } else {
      declared.report_problem(excerpt(item.key(), 70) +
                              " is not a valid name of an input: use 1 to 64 of a-z, 0-9 and '_', with a letter first");
    }
    plan.inputs.push_back(std::move(input));
  }
}

// Computes the values of all inputs, as conditions and jobs read them.
void compute_values(const DocumentValue& flow, FlowPlan& plan) {
  std::size_t bytes = 0;
  for (const FlowInput& input : plan.inputs) {
    if (!input.default_value.empty()) plan.values.emplace(input.name, input.default_value);
    const auto value = plan.values.find(input.name);
    if (value == plan.values.end()) {
      if (input.required) plan.missing.push_back(input.name);
      continue;
    }
    bytes += value->second.size();
    const auto parsed = parse_json(value->second);
    const auto* text = parsed ? parsed->get_ptr<const std::string*>() : nullptr;
    plan.input_texts[input.name] = text != nullptr ? *text : value->second;
  }
  if (bytes > kMaxInputBytes) {
    flow.problems.add("inputs", "their values have " + std::to_string(bytes) + " bytes together, more than " +
                                    std::to_string(kMaxInputBytes) + ": pass the location of large values");
  }
}

}  // namespace

void read_inputs(const DocumentValue& flow, FlowPlan& plan) {
  if (const auto inputs = flow.value.find("inputs"); inputs != flow.value.end())
    read_declarations(flow.at(*inputs, "inputs"), plan);
  if (const auto given = flow.value.find("given"); given != flow.value.end())
    read_given_values(flow.at(*given, "given"), plan);
  compute_values(flow, plan);
}

}  // namespace plans

Result<void> apply_inputs(nlohmann::json& definition, const nlohmann::json& values) {
  if (!values.is_object()) return fail(Code::invalid, "inputs: must be a map from names to values");
  if (values.empty() || !definition.is_object()) return {};
  auto& given = definition["given"];
  if (!given.is_object()) given = nlohmann::json::object();
  given.update(values);
  return {};
}

Result<nlohmann::json> parse_input(const nlohmann::json& definition, const std::string& name, const std::string& text) {
  const auto inputs = definition.is_object() ? definition.find("inputs") : definition.end();
  const bool is_declared = inputs != definition.end() && inputs->is_object() && inputs->contains(name);
  if (!is_declared) {
    std::vector<std::string_view> names;
    if (inputs != definition.end() && inputs->is_object()) {
      for (const auto& item : inputs->items()) names.push_back(item.key());
    }
    return fail(Code::invalid, "the flow has no input " + excerpt(name) +
                                   (names.empty() ? ": it declares no inputs" : did_you_mean(name, names)));
  }
  const auto& declared = (*inputs)[name];
  const auto type = declared.is_object() && declared.contains("type") ? declared["type"] : declared;
  if (type == "string") {
    if (!is_utf8(text)) return fail(Code::invalid, "input " + name + ": is not UTF-8");
    return nlohmann::json(text);
  }
  auto value = parse_exact_json(text, kMaxInputBytes);
  if (!value) {
    return fail(Code::invalid, "input " + name + ": " + excerpt(text) + " is not " +
                                   (type == "list" || type == "object" ? "JSON: " + value.error().message
                                                                       : "of type " + dump_json(type)));
  }
  return value;
}

nlohmann::json inputs_to_json(const FlowPlan& plan) {
  auto out = nlohmann::json::object();
  for (const auto& [name, text] : plan.values) {
    if (auto value = parse_json(text)) out[name] = std::move(*value);
  }
  return out;
}

std::string describe_missing_inputs(const FlowPlan& plan) {
  std::string names;
  for (const std::string& name : plan.missing) names += (names.empty() ? "" : ", ") + name;
  if (names.empty()) return names;
  const auto first = std::find_if(plan.inputs.begin(), plan.inputs.end(),
                                  [&](const FlowInput& input) { return input.name == plan.missing.front(); });
  return "inputs: " + names + (plan.missing.size() == 1 ? " is" : " are") + " required and not given; " +
         plan.missing.front() + " is of type " + first->type + " (--input " + plan.missing.front() + "=VALUE)";
}

// One node of a definition: its kind, its fields, and the rules across fields.

namespace plans {

namespace {

const NodeField* find_node_field(std::string_view name) {
  const auto rows = node_fields();
  const auto match = std::find_if(rows.begin(), rows.end(), [&](const NodeField& field) { return field.name == name; });
  return match == rows.end() ? nullptr : &*match;
}

struct KindField {
  std::string_view name;
  NodeKind kind;
};
constexpr KindField kKinds[] = {{"script", NodeKind::job}, {"file", NodeKind::job},    {"log", NodeKind::log},
                                {"wait", NodeKind::wait},  {"pause", NodeKind::pause}, {"approval", NodeKind::approval},
                                {"flow", NodeKind::flow}};

std::optional<NodeKind> find_kind(const DocumentValue& source) {
  std::vector<const KindField*> actions;
  for (const KindField& kind_field : kKinds) {
    if (source.value.contains(kind_field.name)) actions.push_back(&kind_field);
  }
  if (actions.size() == 1) return actions.front()->kind;
  if (actions.empty()) {
    source.report_problem("has no action: add one of script, file, log, wait, pause, approval and flow");
  } else {
    source.report_problem("has both " + std::string(actions[0]->name) + " and " + std::string(actions[1]->name) +
                          ": divide it into two nodes");
  }
  return std::nullopt;
}

void report_unknown_field(const DocumentValue& field, std::string_view name, NodeKind kind) {
  if (const NodeField* other = find_node_field(name)) {
    if (kind == NodeKind::approval || kind == NodeKind::pause) {
      if (name == "gate_timeout")
        return field.report_problem("use timeout, which limits the waiting of this node as well");
    }
    return field.report_problem("is not a field of a node that has " +
                                std::string(kind == NodeKind::job ? "a script" : to_string(kind)) +
                                ": only of one with " + [other] {
                                  std::string kinds;
                                  for (const KindField& each : kKinds) {
                                    if (each.name == "file" || (other->kinds & kind_bit(each.kind)) == 0) continue;
                                    kinds += (kinds.empty() ? "" : ", ") + std::string(each.name);
                                  }
                                  return kinds;
                                }());
  }
  if (const auto suggestion = resolve_field_alias(name); !suggestion.empty()) {
    return field.report_problem("unknown field of a node; did you mean \"" + std::string(suggestion) + "\"?");
  }
  std::vector<std::string_view> names;
  for (const NodeField& node_field : node_fields()) {
    if ((node_field.kinds & kind_bit(kind)) != 0) names.push_back(node_field.name);
  }
  field.report_problem("unknown field of a node" + did_you_mean(name, names));
}

// Checks the rules of every job. Errors use the field names of definitions.
void check_job(const DocumentValue& source, const DraftNode& draft, const json& defaults) {
  Job job = draft.node.job;
  job.id = job.caller_id = job.context_id = 1;
  if (job.script.empty()) job.script = "refused before";
  for (const FieldProblem& problem : validate(job)) {
    std::string field = problem.field;
    if (field == "script_type") field = "type";
    if (field == "env_vars") field = "env";
    std::string message = problem.message;
    if (message.starts_with(problem.field + ": ")) message.erase(0, problem.field.size() + 2);
    // A type that was rejected, or that follows from a file name, must not be reported as missing as well.
    const bool has_type = source.value.contains("type") || source.value.contains("file") || defaults.contains("type");
    if (field == "type" && draft.node.job.script_type.empty() && has_type) continue;
    if (source.value.contains(field)) {
      source.problems.add(source.path + '.' + field, std::move(message));
    } else {
      source.problems.add(source.path + (field.starts_with("policy.") ? "." + field : ""),
                          field.starts_with("policy.") ? std::move(message) : field + ": " + message);
    }
  }
}

constexpr std::string_view kDefaultableFields[] = {
    "type",          "timeout",         "retries",           "env",          "policy",        "on_error", "priority",
    "queue_timeout", "concurrency_key", "concurrency_limit", "gate_timeout", "supervisor_url"};

bool is_defaultable(std::string_view name) {
  return std::find(std::begin(kDefaultableFields), std::end(kDefaultableFields), name) != std::end(kDefaultableFields);
}

// Applies the default fields to a node. Only jobs have default fields. Problems are ignored, because
// check_defaults() has reported them.
void apply_defaults(const json& defaults, NodeKind kind, DraftNode& draft, int depth) {
  if (kind != NodeKind::job) return;
  DocumentProblems reported;
  for (const auto& item : defaults.items()) {
    if (is_defaultable(item.key()))
      find_node_field(item.key())->read({item.value(), "defaults." + item.key(), reported}, draft, depth);
  }
}

// The supervisor of another context gets the fields of a job, but neither files nor results of earlier nodes.
void check_remote_job(const DocumentValue& source, const DraftNode& draft) {
  const std::string& url = draft.node.supervisor_url;
  if (url.empty() || url.starts_with("runner:")) return;
  if (has_submitted_files(draft.node.job)) {
    source.problems.add(source.path + '.' + get_file_field(draft.node.job),
                        "cannot be sent to the supervisor " + excerpt(url, 80) + ": run the job in this context");
  }
  for (const auto& [reference, path] : draft.references) {
    source.problems.add(path, to_string(reference) + " has no value at the supervisor " + excerpt(url, 80) +
                                  ": run the job in this context");
  }
}

void complete_node(const DocumentValue& source, DraftNode& draft, const json& defaults) {
  PlanNode& node = draft.node;
  Job& job = node.job;
  job.name = node.name;
  if (node.kind == NodeKind::job) {
    read_submitted_files(source, draft);
    check_job(source, draft, defaults);
    read_references(source, draft);
    check_remote_job(source, draft);
  }
  if (draft.each) node.kind = NodeKind::each;
  if (node.kind == NodeKind::job || node.kind == NodeKind::each) return;
  // The record of such a node describes the node; no agent runs it.
  job.script_type = to_string(node.kind);
  job.script = node.text.empty() ? std::string(to_string(node.kind)) : node.text;
  if (node.kind == NodeKind::flow && node.child_key.empty()) node.child_key = node.name;
}

}  // namespace

void check_defaults(const DocumentValue& source) {
  if (!source.value.is_object()) {
    source.report_wrong_type("a map of fields of a job, such as {type: python, retries: 1}");
    return;
  }
  DraftNode draft;
  draft.node.kind = NodeKind::job;
  for (const auto& item : source.value.items()) {
    const DocumentValue field = source.at(item.value(), item.key());
    if (is_defaultable(item.key())) {
      find_node_field(item.key())->read(field, draft, 0);
      continue;
    }
    std::string names;
    for (const std::string_view field_name : kDefaultableFields)
      names += (names.empty() ? "" : ", ") + std::string(field_name);
    const std::string suggestion(resolve_field_alias(item.key()));
    field.report_problem(
        "is not a common field of jobs; the fields are " + names +
        (suggestion.empty() ? did_you_mean(item.key(), kDefaultableFields) : "; did you mean \"" + suggestion + "\"?"));
  }
}

DraftNode read_node(const DocumentValue& source, std::string name, bool has_name_field, int depth,
                    const json& defaults) {
  DraftNode draft;
  draft.path = source.path;
  check_node_name(name, has_name_field ? source.path + ".name" : source.path, source.problems);
  draft.node.name = std::move(name);
  if (!source.value.is_object()) {
    source.report_wrong_type("a map such as {script: ..., type: python}");
    return draft;  // returned so that nodes that need it are not rejected as well
  }
  const auto kind = find_kind(source);
  draft.node.kind = kind.value_or(NodeKind::job);
  apply_defaults(defaults, kind.value_or(NodeKind::log), draft, depth);
  for (const auto& item : source.value.items()) {
    const DocumentValue field = source.at(item.value(), item.key());
    const NodeField* row = find_node_field(item.key());
    const bool is_applicable = row != nullptr && (!kind || (row->kinds & kind_bit(*kind)) != 0);
    if (!is_applicable || (item.key() == "name" && !has_name_field)) {
      if (is_applicable) {
        field.report_problem("the key of the map is the name of the node: omit it");
      } else {
        report_unknown_field(field, item.key(), draft.node.kind);
      }
    } else if (kind) {
      row->read(field, draft, depth);
    }
  }
  if (kind) complete_node(source, draft, defaults);
  return draft;
}

void read_condition(const DocumentValue& source, DraftNode& draft) {
  using Test = FlowCondition::Test;
  static constexpr std::pair<std::string_view, Test> kTests[] = {{"equals", Test::equals},
                                                                 {"greater_than", Test::greater_than},
                                                                 {"less_than", Test::less_than},
                                                                 {"exists", Test::exists}};
  static constexpr std::string_view kNames[] = {"key", "equals", "greater_than", "less_than", "exists"};
  if (!source.value.is_object()) {
    source.report_wrong_type("a map such as {key: build.size, greater_than: 10}");
    return;
  }
  DraftCondition draft_condition;
  int tests = 0;
  bool is_valid = source.value.contains("key");
  if (!is_valid) source.report_problem("key: is missing: give NODE.KEY, as in build.size");
  for (const auto& item : source.value.items()) {
    const DocumentValue field = source.at(item.value(), item.key());
    const auto* test = std::find_if(std::begin(kTests), std::end(kTests),
                                    [&](const auto& candidate) { return candidate.first == item.key(); });
    if (item.key() == "key") {
      std::string text;
      if (!(is_valid = read_text(field, text) && is_valid)) continue;
      const std::size_t dot = text.find('.');
      draft_condition.node = {text.substr(0, dot), field.path};
      draft_condition.condition.key = dot == std::string::npos ? "" : text.substr(dot + 1);
      if (dot == 0 || draft_condition.condition.key.empty()) {
        field.report_problem(excerpt(text) + " is not NODE.KEY, as in build.size");
        is_valid = false;
      } else if (draft_condition.condition.key.starts_with('$') && draft_condition.condition.key != "$status") {
        field.report_problem(excerpt(text) + ": the only name that begins with '$' is $status (finished or error)");
        is_valid = false;
      }
    } else if (test == std::end(kTests)) {
      field.report_problem("unknown field of a condition" + did_you_mean(item.key(), kNames));
      is_valid = false;
    } else {
      ++tests;
      draft_condition.condition.test = test->second;
      is_valid = read_scalar(field, draft_condition.condition.value) && is_valid;
      const bool is_comparison = test->second == Test::greater_than || test->second == Test::less_than;
      // An integer beyond 64 bits is written as text.
      const std::string& value_text = draft_condition.condition.value;
      const bool is_large = is_json(value_text) && find_integer_beyond_64_bits(value_text) == value_text;
      if (is_comparison && !item.value().is_number() && !is_large) is_valid = field.report_wrong_type("a number");
      if (test->second == Test::exists && !item.value().is_boolean())
        is_valid = field.report_wrong_type("true or false");
    }
  }
  if (tests != 1) {
    source.report_problem("has " + std::string(tests == 0 ? "no test" : "several tests") +
                          ": give one of equals, greater_than, less_than and exists");
    return;
  }
  if (is_valid) draft.conditions.push_back(std::move(draft_condition));
}

}  // namespace plans

}  // namespace mycojobs
