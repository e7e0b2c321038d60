#include "executors/plugin/plugin_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "executors/channel.h"
#include "executors/job_end_builder.h"
#include "executors/plugin/plugin_protocol.h"
#include "executors/script_conversation.h"
#include "model/flow_data.h"
#include "text/base64.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs::plugin {
namespace {

using nlohmann::json;

// All values are texts, which plugins of any version accept.
json inputs_of(const JobFacts& facts) {
  json out = json::object();
  const ScriptInputs seen = seen_inputs(facts, flow_data_of(facts.job));
  for (const auto& [name, input] : seen.single) out[name] = input->result;
  for (const auto& [node, inputs] : seen.joined) {
    out[node] = json::array();
    for (const JobInput* input : inputs) out[node].push_back(input == nullptr ? json::object() : json(input->result));
  }
  return out;
}

constexpr std::size_t kMaxArguments = 1000;
constexpr std::size_t kMaxFiles = 100;
constexpr std::size_t kMaxPath = 255;
constexpr std::size_t kMaxVariables = 1000;
constexpr std::size_t kMaxNotes = 20;
const std::string kScriptFile = "script";              // default name of the script's file
constexpr double kMaxRetrySeconds = 30.0 * 24 * 3600;  // longer pauses are reduced to this

tl::unexpected<Error> wrong(const std::string& what) { return fail(Code::invalid, what); }

Result<void> check_names(const json& object, const std::string& where, std::initializer_list<std::string_view> known) {
  for (const auto& item : object.items()) {
    if (std::find(known.begin(), known.end(), item.key()) != known.end()) continue;
    std::string names;
    for (std::string_view name : known) names += (names.empty() ? "" : ", ") + std::string(name);
    return wrong(fmt::format("{}{} is not a known name: use one of {}", where, excerpt(item.key()), names));
  }
  return {};
}

Result<std::string> text_of(const json& value, const std::string& name) {
  if (!value.is_string()) return wrong(name + ": it is not text");
  const auto& text = value.get_ref<const std::string&>();
  if (text.find('\0') != std::string::npos) return wrong(name + ": it contains NUL");
  return text;
}

// Returns an empty text if the member is absent.
Result<std::string> member(const json& object, const std::string& name, const std::string& where = "") {
  const auto found = object.find(name);
  if (found == object.end()) return std::string();
  return text_of(*found, where + name);
}

Result<json> object_of(std::string_view reply) {
  MJ_TRY(value, parse_json(reply, kMaxReplyBytes));
  if (!value.is_object()) return wrong("it is not a JSON object");
  return std::move(value);
}

Result<std::vector<std::string>> texts_of(const json& object, const std::string& name, std::size_t most) {
  std::vector<std::string> out;
  const auto found = object.find(name);
  if (found == object.end()) return out;
  if (!found->is_array()) return wrong(name + ": it is not a list");
  if (found->size() > most) return wrong(fmt::format("{}: {} items; at most {}", name, found->size(), most));
  for (const json& each : *found) {
    MJ_TRY(text, text_of(each, fmt::format("{}[{}]", name, out.size())));
    out.push_back(std::move(text));
  }
  return out;
}

Result<TextMap> map_of(const json& value, const std::string& name, std::size_t most) {
  if (!value.is_object()) return wrong(name + ": it is not an object");
  if (value.size() > most) return wrong(fmt::format("{}: {} names; at most {}", name, value.size(), most));
  TextMap out;
  for (const auto& [key, each] : value.items()) {
    if (!each.is_string()) return wrong(fmt::format("{}: the value of {} is not text", name, excerpt(key)));
    out.emplace(key, each.get<std::string>());
  }
  return out;
}

Result<std::optional<PluginError>> refusal_of(const json& object) {
  if (!object.contains("error")) return std::optional<PluginError>();
  MJ_CHECK(check_names(object, "", {"error", "field"}));
  MJ_TRY(error, member(object, "error"));
  MJ_TRY(field, member(object, "field"));
  if (error.empty()) return wrong("error: it is empty: give the reason");
  return std::optional<PluginError>(PluginError{printable_line(error), printable_line(field, 64)});
}

Result<std::vector<std::string>> command_of(const json& object) {
  MJ_TRY(command, texts_of(object, "command", kMaxArguments));
  if (command.empty()) return wrong("command: it is missing: give the program's absolute path and its arguments");
  if (!command[0].starts_with('/')) return wrong("command[0]: " + excerpt(command[0]) + " is not an absolute path");
  return std::move(command);
}

Result<TextMap> environment_of(const json& object) {
  const auto found = object.find("environment");
  if (found == object.end()) return TextMap();
  MJ_TRY(variables, map_of(*found, "environment", kMaxVariables));
  for (const auto& [name, value] : variables) {
    if (name.empty() || name.find_first_of(std::string_view("=\0", 2)) != std::string::npos)
      return wrong("environment: " + excerpt(name) + " is not a valid name of a variable");
    if (name.starts_with("MYCOJOBS_"))
      return wrong("environment: " + excerpt(name) + ": these names are reserved for the agent");
    if (value.find('\0') != std::string::npos)
      return wrong("environment: the value of " + excerpt(name) + " contains NUL");
  }
  return std::move(variables);
}

// Names in the job's folder that the agent and mycojobs-exechost use.
bool is_reserved(std::string_view name) {
  constexpr std::string_view kOwn[] = {"artifacts",     "secrets",   "inputs",  "inputs.json",
                                       kInputsByIdName, "flow.json", ".result", ".progress"};
  return std::find(std::begin(kOwn), std::end(kOwn), name) != std::end(kOwn);
}

// Accepts relative paths such as "lib/prelude.awk", without ".." and outside of reserved folders.
Result<void> check_path(const std::string& field, const std::string& path) {
  const auto bad = [&](const std::string& why) { return wrong(field + ": " + excerpt(path) + ": " + why); };
  if (path.empty() || path.size() > kMaxPath) return bad(fmt::format("a path has 1 to {} bytes", kMaxPath));
  if (path.find('\0') != std::string::npos) return bad("it contains NUL");
  std::string_view rest = path;
  for (bool first = true; !rest.empty() || first; first = false) {
    const auto slash = std::min(rest.find('/'), rest.size());
    const std::string_view part = rest.substr(0, slash);
    if (part.empty() || part == "." || part == "..")
      return bad("it is not a path below the job's folder: use one such as lib/prelude.awk");
    if (first && is_reserved(part)) return bad("this name is reserved for the agent");
    if (slash + 1 == rest.size()) return bad("it ends with a slash");
    rest.remove_prefix(std::min(slash + 1, rest.size()));
  }
  return {};
}

Result<unsigned> mode_of(const json& file, const std::string& where) {
  if (!file.contains("mode")) return 0644U;
  MJ_TRY(text, member(file, "mode", where));
  unsigned mode = 0;
  for (char c : text) mode = c >= '0' && c <= '7' && mode <= 0777 ? mode * 8 + static_cast<unsigned>(c - '0') : 01000;
  if (text.empty() || mode > 0777) return wrong(where + "mode: " + excerpt(text) + " is not 0000 to 0777, as text");
  return mode;
}

Result<std::vector<PluginFile>> files_of(const json& object) {
  std::vector<PluginFile> out;
  const auto found = object.find("files");
  if (found == object.end()) return out;
  if (!found->is_object()) return wrong("files: it is not an object");
  if (found->size() > kMaxFiles) return wrong(fmt::format("files: {} files; at most {}", found->size(), kMaxFiles));
  for (const auto& [path, file] : found->items()) {
    MJ_CHECK(check_path("files", path));
    const std::string where = "files." + printable_line(path) + ".";
    if (!file.is_object()) return wrong(where + "text: it is missing: give text or base64");
    MJ_CHECK(check_names(file, where, {"text", "base64", "mode"}));
    if (file.contains("text") == file.contains("base64")) return wrong(where + "text: give either text or base64");
    PluginFile made{path, {}, 0};
    MJ_TRY(mode, mode_of(file, where));
    made.mode = mode;
    const json& value = file.contains("text") ? file.at("text") : file.at("base64");
    if (!value.is_string()) return wrong(where + (file.contains("text") ? "text" : "base64") + ": it is not text");
    made.bytes = value.get<std::string>();
    if (file.contains("base64")) {
      auto bytes = decode_base64(made.bytes);
      if (!bytes) return wrong(where + "base64: it is not base64 of RFC 4648 with padding");
      made.bytes = std::move(*bytes);
    }
    out.push_back(std::move(made));
  }
  return out;
}

Result<void> read_error(const json& error, InterpretReply& out) {
  if (!error.is_object()) return wrong("error: it is not an object");
  MJ_CHECK(check_names(error, "error.", {"type", "message", "line", "retry"}));
  MJ_TRY(type, member(error, "type", "error."));
  MJ_TRY(message, member(error, "message", "error."));
  if (message.empty()) return wrong("error.message: it is missing: describe the error");
  if (const auto line = error.find("line"); line != error.end()) {
    if (!line->is_number_unsigned() || *line > UINT32_MAX) return wrong("error.line: it is not a whole number from 0");
    out.line = line->get<std::uint32_t>();
  }
  if (const auto retry = error.find("retry"); retry != error.end()) {
    if (retry->is_number() && retry->get<double>() >= 0) {
      out.retry_after_ms = static_cast<std::uint64_t>(std::min(retry->get<double>(), kMaxRetrySeconds) * 1000);
    } else if (*retry == false) {
      out.retry_forbidden = true;
    } else {
      return wrong("error.retry: it is neither false nor a number of seconds");
    }
  }
  out.type = type.empty() ? "Error" : printable_line(type, 100);
  out.message = std::move(message);
  return {};
}

}  // namespace

using nlohmann::json;

std::string printable_line(std::string_view text, std::size_t max) {
  std::string out = to_utf8(whole_characters(text, max));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  return text.size() > max ? out + "..." : out;
}

std::string job_question(const JobFacts& facts) {
  const Job& job = facts.job;
  return dump_json({{"id", job.id},
                    {"caller_id", job.caller_id},
                    {"context_id", job.context_id},
                    {"name", job.name},
                    {"attempt", job.attempt},
                    {"script_type", job.script_type},
                    {"script", job.script},
                    {"environment", json(job.env_vars)},
                    {"timeout", job.timeout ? json(*job.timeout) : json(nullptr)},
                    {"deadline_unix_ms", facts.deadline_unix_ms},
                    {"inputs", inputs_of(facts)},
                    {"flow", *flow_data_of(job).values}});
}

PluginRunEnd ended_of(const Job& job) {
  return {job.id, job.caller_id, job.context_id, job.name, job.script_type, job.attempt, {}, {}};
}

std::string outcome_question(const PluginRunEnd& ended, const Outcome& outcome) {
  return dump_json({{"job",
                     {{"id", ended.id},
                      {"caller_id", ended.caller_id},
                      {"context_id", ended.context_id},
                      {"name", ended.name},
                      {"attempt", ended.attempt},
                      {"script_type", ended.script_type}}},
                    {"status", to_string(outcome.status)},
                    {"exit_code", outcome.exit_code},
                    {"signal", outcome.signal},
                    {"stderr", ended.stderr_tail},
                    {"result", json(ended.result)},
                    {"usage", json::parse(usage_json(outcome.usage))}});
}

Result<ProbeReply> read_probe(std::string_view reply) {
  MJ_TRY(object, object_of(reply));
  ProbeReply out;
  MJ_TRY(refusal, refusal_of(object));
  out.refusal = std::move(refusal);
  if (out.refusal) return out;
  MJ_CHECK(check_names(object, "", {"runs", "error"}));
  MJ_TRY(runs, member(object, "runs"));
  if (runs.empty()) return wrong("runs: it is missing: name the program that runs the scripts, or give error");
  out.runs = printable_line(runs);
  return out;
}

Result<PrepareReply> read_prepare(std::string_view reply) {
  MJ_TRY(object, object_of(reply));
  PrepareReply out;
  MJ_TRY(refusal, refusal_of(object));
  out.refusal = std::move(refusal);
  if (out.refusal) return out;
  MJ_CHECK(check_names(object, "", {"command", "script_file", "environment", "files", "notes", "error", "field"}));
  MJ_TRY(command, command_of(object));
  out.command = std::move(command);
  MJ_TRY(script_file, member(object, "script_file"));
  if (object.contains("script_file")) MJ_CHECK(check_path("script_file", script_file));
  if (script_file.find('/') != std::string::npos)
    return wrong("script_file: " + excerpt(script_file) + " is not a file name");
  out.script_file = std::move(script_file);
  MJ_TRY(environment, environment_of(object));
  out.environment = std::move(environment);
  MJ_TRY(files, files_of(object));
  out.files = std::move(files);
  const std::string& script = out.script_file.empty() ? kScriptFile : out.script_file;
  for (const PluginFile& file : out.files) {
    if (file.path == script || file.path.starts_with(script + "/"))
      return wrong("files: " + excerpt(file.path) + ": this is the path of the script");
  }
  MJ_TRY(notes, texts_of(object, "notes", kMaxNotes));
  for (const std::string& note : notes) out.notes.push_back(printable_line(note, 1000));
  return out;
}

Result<InterpretReply> read_interpret(std::string_view reply) {
  MJ_TRY(object, object_of(reply));
  MJ_CHECK(check_names(object, "", {"result", "error"}));
  if (object.contains("result") && object.contains("error")) return wrong("result: give either result or error");
  InterpretReply out;
  if (object.contains("error")) MJ_CHECK(read_error(object.at("error"), out));
  if (!object.contains("result")) return out;
  MJ_TRY(result, map_of(object.at("result"), "result", 10000));
  out.result = std::move(result);
  return out;
}

}  // namespace mycojobs::plugin
