// Typed values of a definition, and the errors for wrong values.
#include "flows/flow_plan_reader.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/parse.h"
#include "flows/flow_plan.h"
#include "model/codec.h"
#include "model/notify_targets.h"
#include "text/json.h"
#include "text/suggestion.h"
#include "text/units.h"
#include "text/utf8.h"

namespace mycojobs {

namespace plans {

namespace {

constexpr std::uint64_t kMaxDurationMs = 3650ULL * 24 * 3600 * 1000;

std::string kind_of(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "empty";
    case json::value_t::object:
      return "a map";
    case json::value_t::array:
      return "a list";
    case json::value_t::string:
      return "the text " + excerpt(*value.get_ptr<const std::string*>());
    case json::value_t::boolean:
      return *value.get_ptr<const bool*>() ? "true" : "false";
    default:
      return "the number " + dump_json(value);
  }
}

}  // namespace

bool JsonPath::report_wrong_type(std::string_view expected) const {
  report_problem("is " + kind_of(value) + ", not " + std::string(expected));
  return false;
}
JsonPath JsonPath::at(const json& item, std::string_view key) const {
  return {item, path.empty() ? std::string(key) : path + '.' + std::string(key), problems};
}
JsonPath JsonPath::at(const json& item, std::size_t index) const {
  return {item, path + '[' + std::to_string(index) + ']', problems};
}

bool read_text(const JsonPath& at, std::string& out) {
  const auto* text = at.value.get_ptr<const std::string*>();
  if (text == nullptr) return at.report_wrong_type("a text");
  if (text->empty()) {
    at.report_problem("is empty");
    return false;
  }
  out = *text;
  return true;
}

bool read_scalar(const JsonPath& at, std::string& out) {
  if (const auto* text = at.value.get_ptr<const std::string*>()) {
    out = *text;
    return true;
  }
  if (at.value.is_structured() || at.value.is_null()) return at.report_wrong_type("a text, a number, true or false");
  out = dump_json(at.value);
  return true;
}

bool read_switch(const JsonPath& at, bool& out) {
  const auto* value = at.value.get_ptr<const bool*>();
  if (value == nullptr) return at.report_wrong_type("true or false");
  out = *value;
  return true;
}

bool read_duration(const JsonPath& at, std::uint64_t& out_ms) {
  std::string text;
  if (at.value.is_number()) {
    text = dump_json(at.value);
  } else if (const auto* written = at.value.get_ptr<const std::string*>()) {
    text = *written;
  } else {
    return at.report_wrong_type("a duration such as 30s, 5m, 2h or 1d");
  }
  const auto parsed = parse_duration_ms(text);
  if (!parsed) {
    at.report_problem(parsed.error().message);
    return false;
  }
  if (*parsed == 0 || *parsed > kMaxDurationMs) {
    at.report_problem(excerpt(text) + " is out of range: use 1ms to 3650d, or omit it");
    return false;
  }
  out_ms = *parsed;
  return true;
}

bool read_whole(const JsonPath& at, std::int64_t min, std::int64_t max, std::int64_t& out) {
  const std::string expected = "a whole number from " + std::to_string(min) + " to " + std::to_string(max);
  std::int64_t number = 0;
  if (const auto* plain = at.value.get_ptr<const json::number_unsigned_t*>()) {
    number = *plain > INT64_MAX ? INT64_MAX : static_cast<std::int64_t>(*plain);
  } else if (const auto* whole = at.value.get_ptr<const json::number_integer_t*>()) {
    number = *whole;
  } else {
    return at.report_wrong_type(expected);
  }
  if (number < min || number > max) return at.report_wrong_type(expected);
  out = number;
  return true;
}

bool read_map(const JsonPath& at, TextMap& out) {
  if (!at.value.is_object()) return at.report_wrong_type("a map of names and texts");
  bool sound = true;
  for (const auto& item : at.value.items()) {
    std::string text;
    if (read_scalar(at.at(item.value(), item.key()), text)) {
      out[item.key()] = std::move(text);
    } else {
      sound = false;
    }
  }
  return sound;
}

void read_notify_field(const JsonPath& at, std::string& out) {
  const ParsedNotify read = read_notify(at.value, "");
  for (const FieldProblem& problem : read.problems) {
    // "[1]: on: ..." is appended to the path of the field.
    at.problems.add(at.path + problem.field, problem.message.substr(problem.field.size() + 2));
  }
  if (read.problems.empty() && !read.targets.empty()) out = dump_json(at.value);
}

void each_of(const JsonPath& at, const std::function<void(const JsonPath&)>& see) {
  if (!at.value.is_array()) return see(at);
  for (std::size_t i = 0; i < at.value.size(); ++i) see(at.at(at.value[i], i));
}

bool is_node_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto any = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '-'; };
  return !name.empty() && name.size() <= kMaxNameBytes && letter(name.front()) &&
         std::all_of(name.begin(), name.end(), any) && name != "stop" && name != "continue";
}

void check_node_name(std::string_view name, const std::string& path, Problems& problems) {
  if (is_node_name(name)) return;
  const bool reserved = name == "stop" || name == "continue";
  problems.add(path, "the name " + excerpt(name, 70) +
                         (reserved ? " is a reserved word of on_error: choose another"
                                   : " is not a valid name of a node: use 1 to 64 letters, digits, '_' and '-', with a "
                                     "letter or '_' first (no '.', which separates names from results)"));
}

// The fields of a node and their readers.

namespace {

constexpr std::size_t kMaxLogBytes = 64U << 10;
constexpr std::size_t kMaxChildKeyBytes = 255;
constexpr std::size_t kMaxPrerequisites = 100;
constexpr std::size_t kMaxApprovers = 1000;

constexpr std::uint32_t kAll = 63;
constexpr std::uint32_t kJob = bit(NodeKind::job);

template <class T>
void read_into(const JsonPath& at, std::int64_t min, std::int64_t max, T& out) {
  std::int64_t number = 0;
  if (read_whole(at, min, max, number)) out = static_cast<T>(number);
}

void read_names(const JsonPath& at, std::vector<NodeReference>& out) {
  each_of(at, [&out](const JsonPath& item) {
    std::string name;
    if (read_text(item, name)) out.push_back({std::move(name), item.path});
  });
}

void read_texts(const JsonPath& at, std::vector<std::string>& out) {
  each_of(at, [&out](const JsonPath& item) {
    std::string text;
    if (read_text(item, text)) out.push_back(std::move(text));
  });
}

void read_on_error(const JsonPath& at, DraftNode& draft, int) {
  std::string word;
  if (!read_text(at, word)) return;
  draft.has_on_error = true;
  draft.route.reset();
  draft.node.on_error = word == "continue" ? OnError::go_on : OnError::stop;
  if (word != "stop" && word != "continue") {
    draft.node.on_error = OnError::route;
    draft.route = NodeReference{std::move(word), at.path};
  }
}

void read_compensate(const JsonPath& at, DraftNode& draft, int) {
  std::string name;
  if (read_text(at, name)) draft.compensation = NodeReference{std::move(name), at.path};
}

// The flow handles approval:NAME, signal:NAME and flow:ID. The other prerequisites remain with the job, because only
// its agent knows which of them the operator allows.
void read_prerequisite(const JsonPath& at, DraftNode& draft) {
  std::string text;
  if (!read_text(at, text)) return;
  auto& gates = draft.node.gates;
  auto& others = draft.node.job.prerequisites;
  if (gates.size() + others.size() >= kMaxPrerequisites) {
    return at.report_problem("a node has at most " + std::to_string(kMaxPrerequisites) + " prerequisites");
  }
  const std::string rest = text.substr(text.find(':') + 1);
  if (text.starts_with("approval:") || text.starts_with("signal:")) {
    if (!is_node_name(rest)) {
      return at.report_problem(
          excerpt(text, 90) +
          ": the ':' must be followed by a name: 1 to 64 letters, digits, '_' and '-', with a letter or '_' first");
    }
  } else if (text.starts_with("flow:")) {
    std::uint64_t id = 0;
    if (!parse_u64(rest, id) || id == 0 || id > UINT32_MAX) {
      return at.report_problem(excerpt(text) + ": the ':' must be followed by the id of a flow, for example flow:12");
    }
  } else {
    static constexpr std::array<std::string_view, 7> kOthers{
        "wait:", "at:", "redis:", "file:", "tcp:", "http://", "https://"};
    const bool known = std::any_of(kOthers.begin(), kOthers.end(), [&](auto each) { return text.starts_with(each); });
    if (!known) {
      return at.report_problem(
          excerpt(text) +
          " is not a valid prerequisite: begin with approval:, signal:, flow:, wait:, at:, redis:, file:, "
          "tcp:, http:// or https://");
    }
    if (draft.node.kind != NodeKind::job) {
      return at.report_problem(excerpt(text) + " is checked only by agents: add a job with it before this node");
    }
    others.push_back(std::move(text));
    return;
  }
  if (std::find(gates.begin(), gates.end(), text) != gates.end())
    return at.report_problem(excerpt(text) + " is listed twice");
  gates.push_back(std::move(text));
}

void read_timeout(const JsonPath& at, DraftNode& draft, int) {
  std::uint64_t ms = 0;
  if (!read_duration(at, ms)) return;
  if (draft.node.kind != NodeKind::job) {
    if (draft.node.timeout_ms != 0) return at.report_problem("is given twice: at the node and in its body");
    draft.node.timeout_ms = ms;
  } else {
    if (ms % 1000 != 0)
      return at.report_problem("is not a whole number of seconds: give 1s or more, or the limit wall of a policy");
    draft.node.job.timeout = static_cast<std::uint32_t>(ms / 1000);
  }
}

void read_approvers(const JsonPath& at, DraftNode& draft) {
  if (at.value.is_array() && at.value.empty()) {
    return at.report_problem("is empty: name an actor, or omit it to allow all actors that can write");
  }
  if (at.value.size() > kMaxApprovers) {
    return at.report_problem("has more than " + std::to_string(kMaxApprovers) +
                             " actors: omit it to let admins decide");
  }
  each_of(at, [&draft](const JsonPath& item) {
    Id id = 0;
    read_into(item, 1, UINT32_MAX, id);
    auto& known = draft.node.approvers;
    if (id != 0 && std::find(known.begin(), known.end(), id) == known.end()) known.push_back(id);
  });
}

// Reads approval or pause: a text, true, or a map.
void read_manual(const JsonPath& at, DraftNode& draft, int) {
  const bool approval = draft.node.kind == NodeKind::approval;
  if (at.value.is_string()) {
    read_text(at, draft.node.text);
    return;
  }
  if (at.value == true) return;
  if (!at.value.is_object()) {
    at.report_wrong_type(approval ? "true, a text, or a map of approvers, timeout and comment"
                                  : "true, a text, or a map of timeout and comment");
    return;
  }
  for (const auto& item : at.value.items()) {
    const JsonPath field = at.at(item.value(), item.key());
    if (item.key() == "comment") {
      read_text(field, draft.node.text);
    } else if (item.key() == "timeout") {
      read_timeout(field, draft, 0);
    } else if (item.key() == "approvers" && approval) {
      read_approvers(field, draft);
    } else {
      field.report_problem(approval ? "unknown field of an approval; the fields are approvers, timeout and comment"
                                    : "unknown field of a pause; the fields are timeout and comment");
    }
  }
}

void read_log(const JsonPath& at, DraftNode& draft, int) {
  if (!read_text(at, draft.node.text) || draft.node.text.size() <= kMaxLogBytes) return;
  at.report_problem("is longer than " + std::to_string(kMaxLogBytes) + " bytes");
}

void read_child(const JsonPath& at, DraftNode& draft, int depth) {
  if (depth + 1 > kMaxChildDepth) {
    return at.report_problem("flows within flows are deeper than " + std::to_string(kMaxChildDepth) + " levels");
  }
  const FlowPlan child = read_flow(at, depth + 1);
  if (!child.missing.empty()) {
    at.report_problem("its input " + child.missing.front() + " has no value: give it a default, or given: {" +
                      child.missing.front() + ": ...}");
  }
  draft.node.child = dump_json(at.value);
}

void read_supervisor(const JsonPath& at, DraftNode& draft, int) {
  std::string& url = draft.node.supervisor_url;
  if (!read_text(at, url)) return;
  std::uint64_t id = 0;
  const bool runner = url.starts_with("runner:") && parse_u64(std::string_view(url).substr(7), id) && id > 0;
  const bool plain = std::all_of(url.begin(), url.end(), [](char c) { return c > ' ' && c < 0x7f; });
  const bool web = (url.starts_with("http://") && url.size() > 7) || (url.starts_with("https://") && url.size() > 8);
  if (!runner && !(web && plain && url.size() <= 2048)) {
    at.report_problem(excerpt(url) + " is not a valid supervisor: use http://HOST:PORT, https://HOST or runner:ID");
  }
}

void read_inputs(const JsonPath& at, DraftNode& draft, int) {
  read_texts(at, draft.node.job.inputs);
  each_of(at, [&draft](const JsonPath& item) {
    if (const auto* text = item.value.get_ptr<const std::string*>()) {
      draft.inputs.push_back({text->substr(0, text->find('/')), item.path});
    }
  });
}

void read_policy_field(const JsonPath& at, DraftNode& draft, int) {
  if (!at.value.is_object()) {
    at.report_wrong_type("a map as in docs/manual.md#policies");
    return;
  }
  if (!at.value.empty()) draft.node.job.policy = dump_json(at.value);
}

void read_key(const JsonPath& at, DraftNode& draft, int) {
  if (!read_text(at, draft.node.child_key) || draft.node.child_key.size() <= kMaxChildKeyBytes) return;
  at.report_problem("is longer than " + std::to_string(kMaxChildKeyBytes) + " bytes");
}

#define MJ_TEXT(member) [](const JsonPath& at, DraftNode& draft, int) { read_text(at, draft.node.member); }
#define MJ_WHOLE(member, min, max) \
  [](const JsonPath& at, DraftNode& draft, int) { read_into(at, min, max, draft.node.member); }
#define MJ_DURATION(member) [](const JsonPath& at, DraftNode& draft, int) { read_duration(at, draft.node.member); }

constexpr NodeField kFields[] = {
    {"script", kJob, MJ_TEXT(job.script), "text", "a job: the source of its script"},
    {"file", kJob,
     [](const JsonPath& at, DraftNode&, int) {
       at.report_problem("is read only by the command line, which submits the file's content as script");
     },
     "path", "instead of script, in a file for the command line: the script's file, beside the flow's"},
    {"log", bit(NodeKind::log), read_log, "text", "writes this line to the run's log"},
    {"wait", bit(NodeKind::wait), MJ_DURATION(wait_ms), "duration", "completes so long after it was reached"},
    {"pause", bit(NodeKind::pause), read_manual, "text, true, map of comment, timeout",
     "waits until an actor resumes it"},
    {"approval", bit(NodeKind::approval), read_manual, "text, true, map of approvers, timeout, comment",
     "waits until an actor approves it, or rejects it, which makes it fail"},
    {"flow", bit(NodeKind::flow), read_child, "a flow",
     "starts this flow; completes with its end, and with its result"},
    {"each", kJob, read_each, "list, map, inputs.NAME, NODE.KEY",
     "a node of this job for each element: NAME[0], NAME[1] ..."},
    {"max", kJob, read_max, "number", "most elements of each, 1 to 5000; of a result by default 100"},
    {"name", kAll, [](const JsonPath&, DraftNode&, int) {}, "text", "only in a list of jobs: the node's name"},
    {"needs", kAll, [](const JsonPath& at, DraftNode& draft, int) { read_names(at, draft.needs); },
     "name, list of names", "nodes that must have ended before it begins"},
    {"when", kAll,
     [](const JsonPath& at, DraftNode& draft, int) {
       each_of(at, [&](const JsonPath& item) { read_condition(item, draft); });
     },
     "condition, list of conditions", "all conditions must be true, otherwise the node is skipped"},
    {"on_error", kAll, read_on_error, "stop, continue, name",
     "effect of a failure; the name of a node: that node handles the error"},
    {"compensate", kAll, read_compensate, "name",
     "a node that runs if the flow fails or is cancelled after this one has completed"},
    {"irreversible", kAll, [](const JsonPath& at, DraftNode& draft, int) { read_switch(at, draft.node.irreversible); },
     "true, false",
     "once it has completed, the flow and its parents are replayed, and a child flow is started again by a retry, "
     "only if that is allowed by name"},
    {"prerequisites", kAll,
     [](const JsonPath& at, DraftNode& draft, int) {
       each_of(at, [&](const JsonPath& item) { read_prerequisite(item, draft); });
     },
     "text, list of texts",
     "prerequisites that must be met before the node starts: approval:NAME, signal:NAME, flow:ID; of a job also "
     "wait:, at:, redis:, file:, tcp:, http:// and https://"},
    {"gate_timeout", kAll - bit(NodeKind::approval) - bit(NodeKind::pause), MJ_DURATION(timeout_ms), "duration",
     "longest wait for approval:, signal: and flow:; then the node fails; default: any"},
    {"timeout", kJob | bit(NodeKind::approval) | bit(NodeKind::pause), read_timeout, "duration",
     "of a job's attempt, in whole seconds; of an approval or pause: longest wait, gates included, then it fails"},
    {"type", kJob, MJ_TEXT(job.script_type), "word",
     "script type, such as python; default of a file: by its extension"},
    {"retries", kJob, MJ_WHOLE(job.retries, 0, UINT8_MAX), "number", "attempts after a failed one, 0 to 255"},
    {"env", kJob, [](const JsonPath& at, DraftNode& draft, int) { read_map(at, draft.node.job.env_vars); }, "map",
     "its environment, over the flow's"},
    {"policy", kJob, read_policy_field, "map", "policy that the job requests for its sandbox"},
    {"inputs", kJob, read_inputs, "text, list of texts",
     "requested artifacts of nodes that it needs: NODE (all) or NODE/ARTIFACT"},
    {"priority", kJob, MJ_WHOLE(job.priority, -100, 100), "number", "-100 to 100; higher is taken first"},
    {"queue_timeout", kJob, MJ_DURATION(job.queue_timeout_ms), "duration", "longest wait in its queue"},
    {"concurrency_key", kJob, MJ_TEXT(job.concurrency_key), "text",
     "of the context's jobs with this key only some run at one time"},
    {"concurrency_limit", kJob, MJ_WHOLE(job.concurrency_limit, 1, UINT32_MAX), "number",
     "maximum number of jobs with this key at the same time; default 1"},
    {"supervisor_url", kJob, read_supervisor, "url",
     "where it runs, if not with any agent of the context: "
     "http://HOST:PORT, https://HOST, runner:ID"},
    {"notify", kJob, [](const JsonPath& at, DraftNode& draft, int) { read_notify_field(at, draft.node.job.notify); },
     "url, map, list of both", "receivers of the notification of the job's end: webhook, job or topic"},
    {"key", bit(NodeKind::flow), read_key, "text",
     "the child is started once for each key of its parent; default: the node's name"},
};

}  // namespace

std::span<const NodeField> node_fields() { return kFields; }

std::string_view resolve_node_name(std::string_view field) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 17> kOthers{{
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
  const auto* found =
      std::find_if(kOthers.begin(), kOthers.end(), [&](const auto& each) { return each.first == field; });
  return found == kOthers.end() ? std::string_view() : found->second;
}

// Inputs of a flow: declared and given.
namespace {

struct InputType {
  std::string_view name, shown;
  bool (*fits)(const json&);
};
// Whole numbers within the range of int64, which every reader represents exactly.
bool is_whole(const json& value) {
  if (const auto* plain = value.get_ptr<const json::number_unsigned_t*>()) return *plain <= INT64_MAX;
  return value.is_number_integer();
}
constexpr std::array kTypes = std::to_array<InputType>({
    {"string", "a string", [](const json& value) { return value.is_string(); }},
    {"integer", "an integer", is_whole},
    {"number", "a number", [](const json& value) { return value.is_number(); }},
    {"boolean", "true or false", [](const json& value) { return value.is_boolean(); }},
    {"list", "a list", [](const json& value) { return value.is_array(); }},
    {"object", "a map", [](const json& value) { return value.is_object(); }},
});

const InputType* type_of(std::string_view name) {
  const auto* found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const InputType& each) { return each.name == name; });
  return found == kTypes.end() ? nullptr : found;
}

// The name is also the suffix of the variable MYCOJOBS_INPUT_<NAME>, so it has no upper case: names must not differ in
// case only.
bool is_input_name(std::string_view name) {
  const auto letter = [](char c) { return c >= 'a' && c <= 'z'; };
  return !name.empty() && name.size() <= kMaxNameBytes && letter(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '_'; });
}

bool is_allowed(const FlowInput& input, const json& value, const JsonPath& at) {
  const std::string text = dump_json(value);
  const auto& all = input.allowed;
  if (all.empty() || std::find(all.begin(), all.end(), text) != all.end()) return true;
  std::string list;
  for (std::size_t i = 0; i < all.size() && i < 20; ++i)
    list += (i == 0 ? "" : ", ") + std::string(whole_characters(all[i], 100));
  at.report_problem("input " + input.name + " is " + std::string(whole_characters(text, 100)) +
                    ", which is not one of " + list + (all.size() > 20 ? ", ..." : ""));
  return false;
}

bool read_type(const JsonPath& at, FlowInput& input) {
  std::string name;
  if (!read_text(at, name)) return false;
  if (type_of(name) == nullptr) {
    std::vector<std::string_view> names;
    for (const InputType& each : kTypes) names.push_back(each.name);
    at.report_problem(excerpt(name) +
                      " is not a type of an input; the types are string, integer, number, boolean, list and object" +
                      did_you_mean(name, names));
    return false;
  }
  input.type = std::move(name);
  return true;
}

bool fits(const FlowInput& input, const JsonPath& at) {
  const InputType& type = *type_of(input.type);
  if (type.fits(at.value)) return true;
  Problems of_value;
  const JsonPath asked{at.value, "", of_value};
  asked.report_wrong_type(type.shown);
  at.report_problem("input " + input.name + ' ' + of_value.take_problems().front().message +
                    (input.type == "string" && at.value.is_primitive() ? ": quote it" : ""));
  return false;
}

void read_enum(const JsonPath& at, FlowInput& input) {
  if (!at.value.is_array() || at.value.empty()) {
    at.report_wrong_type("a list of the values that it may have");
    return;
  }
  for (std::size_t i = 0; i < at.value.size(); ++i) {
    const JsonPath item = at.at(at.value[i], i);
    if (fits(input, item)) input.allowed.push_back(dump_json(item.value));
  }
}

// Reads a declaration: a type, or a map.
void declare(const JsonPath& at, FlowInput& input) {
  if (at.value.is_string()) {
    read_type(at, input);
    return;
  }
  static constexpr std::string_view kNames[] = {"type", "default", "required", "enum", "comment"};
  if (!at.value.is_object()) {
    at.report_wrong_type("a type, or a map such as {type: string, default: eu}");
    return;
  }
  const auto type = at.value.find("type");
  if (type == at.value.end()) {
    return at.report_problem("type: is missing: give string, integer, number, boolean, list or object");
  }
  if (!read_type(at.at(*type, "type"), input)) return;
  bool has_required = false;
  for (const auto& item : at.value.items()) {
    const JsonPath field = at.at(item.value(), item.key());
    if (item.key() == "default") {
      if (fits(input, field)) input.fallback = dump_json(item.value());
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
  if (input.fallback.empty()) return;
  const JsonPath fallback = at.at(at.value.at("default"), "default");
  is_allowed(input, fallback.value, fallback);
  if (has_required && input.required)
    at.at(at.value.at("required"), "required").report_problem("has a default: it is never missing");
  input.required = false;
}

void read_given(const JsonPath& at, FlowPlan& plan) {
  if (!at.value.is_object()) {
    at.report_wrong_type("a map from names of inputs to values");
    return;
  }
  std::vector<std::string_view> names;
  for (const FlowInput& each : plan.inputs) names.push_back(each.name);
  for (const auto& item : at.value.items()) {
    const JsonPath value = at.at(item.value(), item.key());
    const auto input = std::find_if(plan.inputs.begin(), plan.inputs.end(),
                                    [&](const FlowInput& each) { return each.name == item.key(); });
    if (input == plan.inputs.end()) {
      value.report_problem("there is no input " + excerpt(item.key()) +
                           (names.empty() ? ": the flow declares none (inputs)" : did_you_mean(item.key(), names)));
    } else if (!input->type.empty() && fits(*input, value) && is_allowed(*input, value.value, value)) {
      plan.values[input->name] = dump_json(value.value);
    }
  }
}

void read_declared(const JsonPath& at, FlowPlan& plan) {
  if (!at.value.is_object()) {
    at.report_wrong_type("a map from names to types, such as {region: {type: string, default: eu}}");
    return;
  }
  for (const auto& item : at.value.items()) {
    FlowInput input;
    input.name = item.key();
    const JsonPath declared = at.at(item.value(), item.key());
    if (is_input_name(item.key())) {
      declare(declared, input);
    } else {
      declared.report_problem(excerpt(item.key(), 70) +
                              " is not a valid name of an input: use 1 to 64 of a-z, 0-9 and '_', with a letter first");
    }
    plan.inputs.push_back(std::move(input));
  }
}

// Computes the values that conditions and jobs read.
void settle_values(const JsonPath& flow, FlowPlan& plan) {
  std::size_t bytes = 0;
  for (const FlowInput& input : plan.inputs) {
    if (!input.fallback.empty()) plan.values.emplace(input.name, input.fallback);
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

void read_inputs(const JsonPath& flow, FlowPlan& plan) {
  if (const auto inputs = flow.value.find("inputs"); inputs != flow.value.end())
    read_declared(flow.at(*inputs, "inputs"), plan);
  if (const auto given = flow.value.find("given"); given != flow.value.end())
    read_given(flow.at(*given, "given"), plan);
  settle_values(flow, plan);
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

Result<nlohmann::json> input_of_text(const nlohmann::json& definition, const std::string& name,
                                     const std::string& text) {
  const auto inputs = definition.is_object() ? definition.find("inputs") : definition.end();
  const bool there = inputs != definition.end() && inputs->is_object() && inputs->contains(name);
  if (!there) {
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

nlohmann::json inputs_json(const FlowPlan& plan) {
  auto out = nlohmann::json::object();
  for (const auto& [name, text] : plan.values) {
    if (auto value = parse_json(text)) out[name] = std::move(*value);
  }
  return out;
}

std::string missing_inputs(const FlowPlan& plan) {
  std::string names;
  for (const std::string& name : plan.missing) names += (names.empty() ? "" : ", ") + name;
  if (names.empty()) return names;
  const auto first = std::find_if(plan.inputs.begin(), plan.inputs.end(),
                                  [&](const FlowInput& each) { return each.name == plan.missing.front(); });
  return "inputs: " + names + (plan.missing.size() == 1 ? " is" : " are") + " required and not given; " +
         plan.missing.front() + " is of type " + first->type + " (--input " + plan.missing.front() + "=VALUE)";
}

// One node of a definition: its kind, its fields, and the rules across fields.

namespace plans {

namespace {

const NodeField* field_of(std::string_view name) {
  const auto rows = node_fields();
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const NodeField& each) { return each.name == name; });
  return found == rows.end() ? nullptr : &*found;
}

struct KindField {
  std::string_view name;
  NodeKind kind;
};
constexpr KindField kKinds[] = {{"script", NodeKind::job}, {"file", NodeKind::job},    {"log", NodeKind::log},
                                {"wait", NodeKind::wait},  {"pause", NodeKind::pause}, {"approval", NodeKind::approval},
                                {"flow", NodeKind::flow}};

std::optional<NodeKind> kind_of(const JsonPath& at) {
  std::vector<const KindField*> given;
  for (const KindField& each : kKinds) {
    if (at.value.contains(each.name)) given.push_back(&each);
  }
  if (given.size() == 1) return given.front()->kind;
  if (given.empty()) {
    at.report_problem("has no action: add one of script, file, log, wait, pause, approval and flow");
  } else {
    at.report_problem("has both " + std::string(given[0]->name) + " and " + std::string(given[1]->name) +
                      ": divide it into two nodes");
  }
  return std::nullopt;
}

void refuse_field(const JsonPath& field, std::string_view name, NodeKind kind) {
  if (const NodeField* other = field_of(name)) {
    if (kind == NodeKind::approval || kind == NodeKind::pause) {
      if (name == "gate_timeout")
        return field.report_problem("use timeout, which limits the waiting of this node as well");
    }
    return field.report_problem("is not a field of a node that has " +
                                std::string(kind == NodeKind::job ? "a script" : to_string(kind)) +
                                ": only of one with " + [other] {
                                  std::string kinds;
                                  for (const KindField& each : kKinds) {
                                    if (each.name == "file" || (other->kinds & bit(each.kind)) == 0) continue;
                                    kinds += (kinds.empty() ? "" : ", ") + std::string(each.name);
                                  }
                                  return kinds;
                                }());
  }
  if (const auto meant = resolve_node_name(name); !meant.empty()) {
    return field.report_problem("unknown field of a node; did you mean \"" + std::string(meant) + "\"?");
  }
  std::vector<std::string_view> names;
  for (const NodeField& each : node_fields()) {
    if ((each.kinds & bit(kind)) != 0) names.push_back(each.name);
  }
  field.report_problem("unknown field of a node" + did_you_mean(name, names));
}

// Checks the rules of every job. Errors use the field names of definitions.
void check_job(const JsonPath& at, const DraftNode& draft, const json& defaults) {
  Job job = draft.node.job;
  job.id = job.caller_id = job.context_id = 1;
  if (job.script.empty()) job.script = "refused before";
  for (const FieldProblem& problem : validate(job)) {
    std::string field = problem.field;
    if (field == "script_type") field = "type";
    if (field == "env_vars") field = "env";
    std::string message = problem.message;
    if (message.starts_with(problem.field + ": ")) message.erase(0, problem.field.size() + 2);
    // A field that was rejected, or that comes from a file, is not reported as missing as well.
    const bool has_type = at.value.contains("type") || at.value.contains("file") || defaults.contains("type");
    if (field == "type" && draft.node.job.script_type.empty() && has_type) continue;
    if (at.value.contains(field)) {
      at.problems.add(at.path + '.' + field, std::move(message));
    } else {
      at.problems.add(at.path + (field.starts_with("policy.") ? "." + field : ""),
                      field.starts_with("policy.") ? std::move(message) : field + ": " + message);
    }
  }
}

constexpr std::string_view kWithDefaults[] = {
    "type",          "timeout",         "retries",           "env",          "policy",        "on_error", "priority",
    "queue_timeout", "concurrency_key", "concurrency_limit", "gate_timeout", "supervisor_url"};

bool has_default(std::string_view name) {
  return std::find(std::begin(kWithDefaults), std::end(kWithDefaults), name) != std::end(kWithDefaults);
}

// Reads the default fields for a node of this kind. Errors in them were reported at `defaults`.
void take_defaults(const json& defaults, NodeKind kind, DraftNode& draft, int depth) {
  if (kind != NodeKind::job) return;
  Problems reported;
  for (const auto& item : defaults.items()) {
    if (has_default(item.key()))
      field_of(item.key())->read({item.value(), "defaults." + item.key(), reported}, draft, depth);
  }
}

void finish_node(const JsonPath& at, DraftNode& draft, const json& defaults) {
  PlanNode& node = draft.node;
  Job& job = node.job;
  job.name = node.name;
  if (node.kind == NodeKind::job) check_job(at, draft, defaults);
  if (draft.each) node.kind = NodeKind::each;
  if (node.kind == NodeKind::job || node.kind == NodeKind::each) return;
  // The record of such a node describes the node; no agent runs it.
  job.script_type = to_string(node.kind);
  job.script = node.text.empty() ? std::string(to_string(node.kind)) : node.text;
  if (node.kind == NodeKind::flow && node.child_key.empty()) node.child_key = node.name;
}

}  // namespace

void check_defaults(const JsonPath& at) {
  if (!at.value.is_object()) {
    at.report_wrong_type("a map of fields of a job, such as {type: python, retries: 1}");
    return;
  }
  DraftNode draft;
  draft.node.kind = NodeKind::job;
  for (const auto& item : at.value.items()) {
    const JsonPath field = at.at(item.value(), item.key());
    if (has_default(item.key())) {
      field_of(item.key())->read(field, draft, 0);
      continue;
    }
    std::string all;
    for (const std::string_view each : kWithDefaults) all += (all.empty() ? "" : ", ") + std::string(each);
    const std::string meant(resolve_node_name(item.key()));
    field.report_problem(
        "is not a common field of jobs; the fields are " + all +
        (meant.empty() ? did_you_mean(item.key(), kWithDefaults) : "; did you mean \"" + meant + "\"?"));
  }
}

DraftNode read_node(const JsonPath& at, std::string name, bool in_list, int depth, const json& defaults) {
  DraftNode draft;
  draft.path = at.path;
  check_node_name(name, in_list ? at.path + ".name" : at.path, at.problems);
  draft.node.name = std::move(name);
  if (!at.value.is_object()) {
    at.report_wrong_type("a map such as {script: ..., type: python}");
    return draft;  // returned so that nodes that need it are not rejected as well
  }
  const auto kind = kind_of(at);
  draft.node.kind = kind.value_or(NodeKind::job);
  take_defaults(defaults, kind.value_or(NodeKind::log), draft, depth);
  for (const auto& item : at.value.items()) {
    const JsonPath field = at.at(item.value(), item.key());
    const NodeField* row = field_of(item.key());
    const bool fits = row != nullptr && (!kind || (row->kinds & bit(*kind)) != 0);
    if (!fits || (item.key() == "name" && !in_list)) {
      if (fits) {
        field.report_problem("the key of the map is the name of the node: omit it");
      } else {
        refuse_field(field, item.key(), draft.node.kind);
      }
    } else if (kind) {
      row->read(field, draft, depth);
    }
  }
  if (kind) finish_node(at, draft, defaults);
  return draft;
}

void read_condition(const JsonPath& at, DraftNode& draft) {
  using Test = FlowCondition::Test;
  static constexpr std::pair<std::string_view, Test> kTests[] = {{"equals", Test::equals},
                                                                 {"greater_than", Test::greater_than},
                                                                 {"less_than", Test::less_than},
                                                                 {"exists", Test::exists}};
  static constexpr std::string_view kNames[] = {"key", "equals", "greater_than", "less_than", "exists"};
  if (!at.value.is_object()) {
    at.report_wrong_type("a map such as {key: build.size, greater_than: 10}");
    return;
  }
  DraftCondition read;
  int tests = 0;
  bool sound = at.value.contains("key");
  if (!sound) at.report_problem("key: is missing: give NODE.KEY, as in build.size");
  for (const auto& item : at.value.items()) {
    const JsonPath field = at.at(item.value(), item.key());
    const auto* test =
        std::find_if(std::begin(kTests), std::end(kTests), [&](const auto& each) { return each.first == item.key(); });
    if (item.key() == "key") {
      std::string text;
      if (!(sound = read_text(field, text) && sound)) continue;
      const std::size_t dot = text.find('.');
      read.node = {text.substr(0, dot), field.path};
      read.condition.key = dot == std::string::npos ? "" : text.substr(dot + 1);
      if (dot == 0 || read.condition.key.empty()) {
        field.report_problem(excerpt(text) + " is not NODE.KEY, as in build.size");
        sound = false;
      } else if (read.condition.key.starts_with('$') && read.condition.key != "$status") {
        field.report_problem(excerpt(text) + ": the only name that begins with '$' is $status (finished or error)");
        sound = false;
      }
    } else if (test == std::end(kTests)) {
      field.report_problem("unknown field of a condition" + did_you_mean(item.key(), kNames));
      sound = false;
    } else {
      ++tests;
      read.condition.test = test->second;
      sound = read_scalar(field, read.condition.value) && sound;
      const bool number = test->second == Test::greater_than || test->second == Test::less_than;
      // An integer beyond 64 bits is written as text.
      const std::string& written = read.condition.value;
      const bool is_large = is_json(written) && integer_beyond_64_bits(written) == written;
      if (number && !item.value().is_number() && !is_large) sound = field.report_wrong_type("a number");
      if (test->second == Test::exists && !item.value().is_boolean()) sound = field.report_wrong_type("true or false");
    }
  }
  if (tests != 1) {
    at.report_problem("has " + std::string(tests == 0 ? "no test" : "several tests") +
                      ": give one of equals, greater_than, less_than and exists");
    return;
  }
  if (sound) draft.when.push_back(std::move(read));
}

}  // namespace plans

}  // namespace mycojobs
