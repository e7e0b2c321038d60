#include "executors/plugin/plugin_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "executors/channel.h"
#include "executors/job_end_builder.h"
#include "executors/plugin/plugin_protocol.h"
#include "executors/script_answer.h"
#include "executors/script_conversation.h"
#include "model/flow_data.h"
#include "text/base64.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs::plugin {
namespace {

using nlohmann::json;

// All values are texts, which plugins of any version accept.
json encode_inputs(const JobFacts& facts) {
  json out = json::object();
  const ScriptInputs script_inputs = arrange_inputs(facts, parse_flow_data(facts.job));
  for (const auto& [name, input] : script_inputs.single) out[name] = input->result;
  for (const auto& [node, inputs] : script_inputs.lists) {
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
const std::string kScriptFile = "script";  // default name of the script's file

tl::unexpected<Error> reply_error(const std::string& problem) { return fail(Code::invalid, problem); }

Result<void> check_names(const json& object, const std::string& where,
                         std::initializer_list<std::string_view> allowed) {
  for (const auto& item : object.items()) {
    if (std::find(allowed.begin(), allowed.end(), item.key()) != allowed.end()) continue;
    std::string names;
    for (std::string_view name : allowed) names += (names.empty() ? "" : ", ") + std::string(name);
    return reply_error(fmt::format("{}{} is not a known name: use one of {}", where, excerpt(item.key()), names));
  }
  return {};
}

Result<std::string> parse_text(const json& value, const std::string& name) {
  if (!value.is_string()) return reply_error(name + ": it is not text");
  const auto& text = value.get_ref<const std::string&>();
  if (text.find('\0') != std::string::npos) return reply_error(name + ": it contains NUL");
  return text;
}

// Returns an empty text if the member is absent.
Result<std::string> read_text_member(const json& object, const std::string& name, const std::string& where = "") {
  const auto entry = object.find(name);
  if (entry == object.end()) return std::string();
  return parse_text(*entry, where + name);
}

Result<json> parse_object(std::string_view reply) {
  MJ_TRY(value, parse_json(reply, kMaxReplyBytes));
  if (!value.is_object()) return reply_error("it is not a JSON object");
  return std::move(value);
}

Result<std::vector<std::string>> read_texts(const json& object, const std::string& name, std::size_t max_items) {
  std::vector<std::string> out;
  const auto entry = object.find(name);
  if (entry == object.end()) return out;
  if (!entry->is_array()) return reply_error(name + ": it is not a list");
  if (entry->size() > max_items)
    return reply_error(fmt::format("{}: {} items; at most {}", name, entry->size(), max_items));
  for (const json& item : *entry) {
    MJ_TRY(text, parse_text(item, fmt::format("{}[{}]", name, out.size())));
    out.push_back(std::move(text));
  }
  return out;
}

Result<TextMap> parse_text_map(const json& value, const std::string& name, std::size_t max_items) {
  if (!value.is_object()) return reply_error(name + ": it is not an object");
  if (value.size() > max_items)
    return reply_error(fmt::format("{}: {} names; at most {}", name, value.size(), max_items));
  TextMap out;
  for (const auto& [key, member] : value.items()) {
    if (!member.is_string()) return reply_error(fmt::format("{}: the value of {} is not text", name, excerpt(key)));
    out.emplace(key, member.get<std::string>());
  }
  return out;
}

Result<std::optional<PluginRefusal>> read_refusal(const json& object) {
  if (!object.contains("error")) return std::optional<PluginRefusal>();
  MJ_CHECK(check_names(object, "", {"error", "field"}));
  MJ_TRY(error, read_text_member(object, "error"));
  MJ_TRY(field, read_text_member(object, "field"));
  if (error.empty()) return reply_error("error: it is empty: give the reason");
  return std::optional<PluginRefusal>(PluginRefusal{printable_line(error), printable_line(field, 64)});
}

Result<std::vector<std::string>> read_command(const json& object) {
  MJ_TRY(command, read_texts(object, "command", kMaxArguments));
  if (command.empty()) return reply_error("command: it is missing: give the program's absolute path and its arguments");
  if (!command[0].starts_with('/'))
    return reply_error("command[0]: " + excerpt(command[0]) + " is not an absolute path");
  return std::move(command);
}

Result<TextMap> read_environment(const json& object) {
  const auto entry = object.find("environment");
  if (entry == object.end()) return TextMap();
  MJ_TRY(variables, parse_text_map(*entry, "environment", kMaxVariables));
  for (const auto& [name, value] : variables) {
    if (name.empty() || name.find_first_of(std::string_view("=\0", 2)) != std::string::npos)
      return reply_error("environment: " + excerpt(name) + " is not a valid name of a variable");
    if (name.starts_with("MYCOJOBS_"))
      return reply_error("environment: " + excerpt(name) + ": these names are reserved for the agent");
    if (value.find('\0') != std::string::npos)
      return reply_error("environment: the value of " + excerpt(name) + " contains NUL");
  }
  return std::move(variables);
}

// Names in the job's folder that the agent and mycojobs-exechost use.
bool is_reserved(std::string_view name) {
  constexpr std::string_view kReservedNames[] = {"artifacts", "secrets",  "inputs",    "inputs.json", kInputsByIdName,
                                                 kFilesName,  kStdinName, "flow.json", ".result",     ".progress"};
  return std::find(std::begin(kReservedNames), std::end(kReservedNames), name) != std::end(kReservedNames);
}

// Accepts relative paths such as "lib/prelude.awk", without ".." and outside of reserved folders.
Result<void> check_path(const std::string& field, const std::string& path) {
  const auto path_error = [&](const std::string& problem) {
    return reply_error(field + ": " + excerpt(path) + ": " + problem);
  };
  if (path.empty() || path.size() > kMaxPath) return path_error(fmt::format("a path has 1 to {} bytes", kMaxPath));
  if (path.find('\0') != std::string::npos) return path_error("it contains NUL");
  std::string_view remainder = path;
  for (bool is_first = true; !remainder.empty() || is_first; is_first = false) {
    const auto slash = std::min(remainder.find('/'), remainder.size());
    const std::string_view part = remainder.substr(0, slash);
    if (part.empty() || part == "." || part == "..")
      return path_error("it is not a path below the job's folder: use one such as lib/prelude.awk");
    if (is_first && is_reserved(part)) return path_error("this name is reserved for the agent");
    if (slash + 1 == remainder.size()) return path_error("it ends with a slash");
    remainder.remove_prefix(std::min(slash + 1, remainder.size()));
  }
  return {};
}

Result<unsigned> read_mode(const json& file, const std::string& where) {
  if (!file.contains("mode")) return 0644U;
  MJ_TRY(text, read_text_member(file, "mode", where));
  unsigned mode = 0;
  for (char c : text) mode = c >= '0' && c <= '7' && mode <= 0777 ? mode * 8 + static_cast<unsigned>(c - '0') : 01000;
  if (text.empty() || mode > 0777)
    return reply_error(where + "mode: " + excerpt(text) + " is not 0000 to 0777, as text");
  return mode;
}

Result<std::vector<PluginFile>> read_files(const json& object) {
  std::vector<PluginFile> out;
  const auto entry = object.find("files");
  if (entry == object.end()) return out;
  if (!entry->is_object()) return reply_error("files: it is not an object");
  if (entry->size() > kMaxFiles)
    return reply_error(fmt::format("files: {} files; at most {}", entry->size(), kMaxFiles));
  for (const auto& [path, file] : entry->items()) {
    MJ_CHECK(check_path("files", path));
    const std::string where = "files." + printable_line(path) + ".";
    if (!file.is_object()) return reply_error(where + "text: it is missing: give text or base64");
    MJ_CHECK(check_names(file, where, {"text", "base64", "mode"}));
    if (file.contains("text") == file.contains("base64"))
      return reply_error(where + "text: give either text or base64");
    PluginFile plugin_file{path, {}, 0};
    MJ_TRY(mode, read_mode(file, where));
    plugin_file.mode = mode;
    const json& value = file.contains("text") ? file.at("text") : file.at("base64");
    if (!value.is_string())
      return reply_error(where + (file.contains("text") ? "text" : "base64") + ": it is not text");
    plugin_file.bytes = value.get<std::string>();
    if (file.contains("base64")) {
      auto bytes = decode_base64(plugin_file.bytes);
      if (!bytes) return reply_error(where + "base64: it is not base64 of RFC 4648 with padding");
      plugin_file.bytes = std::move(*bytes);
    }
    out.push_back(std::move(plugin_file));
  }
  return out;
}

Result<void> parse_error(const json& error, InterpretReply& out) {
  if (!error.is_object()) return reply_error("error: it is not an object");
  MJ_CHECK(check_names(error, "error.", {"type", "message", "line", "retry"}));
  MJ_TRY(type, read_text_member(error, "type", "error."));
  MJ_TRY(message, read_text_member(error, "message", "error."));
  if (message.empty()) return reply_error("error.message: it is missing: describe the error");
  if (const auto line = error.find("line"); line != error.end()) {
    if (!line->is_number_unsigned() || *line > UINT32_MAX)
      return reply_error("error.line: it is not a whole number from 0");
    out.error_line = line->get<std::uint32_t>();
  }
  if (const auto retry = error.find("retry"); retry != error.end()) {
    if (retry->is_number() && retry->get<double>() >= 0) {
      out.retry_after_ms =
          static_cast<std::uint64_t>(std::min(retry->get<double>(), AnswerReader::kMaxRetrySeconds) * 1000);
    } else if (*retry == false) {
      out.retry_forbidden = true;
    } else {
      return reply_error("error.retry: it is neither false nor a number of seconds");
    }
  }
  out.error_type = type.empty() ? "Error" : printable_line(type, 100);
  out.error_message = std::move(message);
  return {};
}

}  // namespace

std::string printable_line(std::string_view text, std::size_t max_bytes) {
  std::string out = to_utf8(whole_characters(text, max_bytes));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  return text.size() > max_bytes ? out + "..." : out;
}

std::string encode_prepare_request(const JobFacts& facts) {
  const Job& job = facts.job;
  return dump_json({{"id", job.id},
                    {"caller_id", job.caller_id},
                    {"context_id", job.context_id},
                    {"name", job.name},
                    {"attempt", job.attempt},
                    {"script_type", job.script_type},
                    {"script", job.script},
                    {"environment", json(job.env_vars)},
                    {"args", job.args},
                    {"timeout", job.timeout ? json(*job.timeout) : json(nullptr)},
                    {"deadline_unix_ms", facts.deadline_unix_ms},
                    {"inputs", encode_inputs(facts)},
                    {"flow", *parse_flow_data(job).values}});
}

InterpretRequestJob make_interpret_request_job(const Job& job) {
  return {job.id, job.caller_id, job.context_id, job.name, job.script_type, job.attempt, {}, {}};
}

std::string encode_interpret_request(const InterpretRequestJob& request_job, const Outcome& outcome) {
  return dump_json({{"job",
                     {{"id", request_job.id},
                      {"caller_id", request_job.caller_id},
                      {"context_id", request_job.context_id},
                      {"name", request_job.name},
                      {"attempt", request_job.attempt},
                      {"script_type", request_job.script_type}}},
                    {"status", to_string(outcome.status)},
                    {"exit_code", outcome.exit_code},
                    {"signal", outcome.signal},
                    {"stderr", request_job.stderr_tail},
                    {"result", json(request_job.result)},
                    {"usage", json::parse(usage_json(outcome.usage))}});
}

Result<ProbeReply> parse_probe_reply(std::string_view reply) {
  MJ_TRY(object, parse_object(reply));
  ProbeReply out;
  MJ_TRY(refusal, read_refusal(object));
  out.refusal = std::move(refusal);
  if (out.refusal) return out;
  MJ_CHECK(check_names(object, "", {"runs", "error"}));
  MJ_TRY(program, read_text_member(object, "runs"));
  if (program.empty()) return reply_error("runs: it is missing: name the program that runs the scripts, or give error");
  out.program = printable_line(program);
  return out;
}

Result<PrepareReply> parse_prepare_reply(std::string_view reply) {
  MJ_TRY(object, parse_object(reply));
  PrepareReply out;
  MJ_TRY(refusal, read_refusal(object));
  out.refusal = std::move(refusal);
  if (out.refusal) return out;
  MJ_CHECK(check_names(object, "", {"command", "script_file", "environment", "files", "notes", "error", "field"}));
  MJ_TRY(command, read_command(object));
  out.command = std::move(command);
  MJ_TRY(script_file, read_text_member(object, "script_file"));
  if (object.contains("script_file")) MJ_CHECK(check_path("script_file", script_file));
  if (script_file.find('/') != std::string::npos)
    return reply_error("script_file: " + excerpt(script_file) + " is not a file name");
  out.script_file = std::move(script_file);
  MJ_TRY(environment, read_environment(object));
  out.environment = std::move(environment);
  MJ_TRY(files, read_files(object));
  out.files = std::move(files);
  const std::string& script = out.script_file.empty() ? kScriptFile : out.script_file;
  for (const PluginFile& file : out.files) {
    if (file.path == script || file.path.starts_with(script + "/"))
      return reply_error("files: " + excerpt(file.path) + ": this is the path of the script");
  }
  MJ_TRY(notes, read_texts(object, "notes", kMaxNotes));
  for (const std::string& note : notes) out.notes.push_back(printable_line(note, 1000));
  return out;
}

Result<InterpretReply> parse_interpret_reply(std::string_view reply) {
  MJ_TRY(object, parse_object(reply));
  MJ_CHECK(check_names(object, "", {"result", "error"}));
  if (object.contains("result") && object.contains("error")) return reply_error("result: give either result or error");
  InterpretReply out;
  if (object.contains("error")) MJ_CHECK(parse_error(object.at("error"), out));
  if (!object.contains("result")) return out;
  MJ_TRY(result, parse_text_map(object.at("result"), "result", 10000));
  out.result = std::move(result);
  return out;
}

}  // namespace mycojobs::plugin
