#include "executors/plugin/plugin_check.h"

#include <fmt/core.h>

#include "executors/plugin/plugin_json.h"
#include "text/plural.h"
#include "text/utf8.h"

namespace mycojobs::plugin {
namespace {

struct ScriptRow {
  const char* label;
  std::string script;
};

// A plugin may reject any of these scripts, but it must not fail.
std::vector<ScriptRow> create_scripts() {
  return {{"a script of one line", "1\n"},
          {"an empty script", ""},
          {"a script without a line end", "x"},
          {"a script beyond ASCII", "# \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \"quoted\" \\ back\tslash\n"},
          {"a script of 4 MiB", std::string(4U << 20, 'x')},
          {"a script of 100000 lines", [] {
             std::string text;
             for (int i = 0; i < 100000; ++i) text += "x\n";
             return text;
           }()}};
}

JobFacts make_facts(const PluginDescription& description, std::string script) {
  JobFacts facts;
  facts.job.id = 1;
  facts.job.caller_id = 1;
  facts.job.context_id = 1;
  facts.job.name = "check";
  facts.job.attempt = 1;
  facts.job.script_type = description.script_types.front();
  facts.job.script = std::move(script);
  facts.job.env_vars = {{"CHECK", "a value"}};
  facts.deadline_unix_ms = 1;
  facts.inputs = {{"before", {.id = 1, .result = {{"key", "value"}}}}};
  return facts;
}

std::string command_line(const PrepareReply& prepared) {
  std::string line = "command:";
  for (const std::string& word : prepared.command)
    line += ' ' + (word.find(' ') == std::string::npos ? word : excerpt(word));
  return line;
}

// All checks run as the same caller.
constexpr PluginUser kUser{1, 1};

// The plugin rejected the job; the text would be the job's error.
bool is_refusal(const Error& error) { return error.code == Code::invalid || error.code == Code::too_large; }

CheckRow check_prepare(PluginClient& client, const std::string& label, const JobFacts& facts) {
  const auto prepared = client.prepare(kUser, encode_prepare_request(facts));
  if (prepared) return {"prepare: " + label, true, command_line(*prepared)};
  return {"prepare: " + label, is_refusal(prepared.error()), "refused: " + prepared.error().message};
}

CheckRow check_repeated_calls(PluginClient& client, const JobFacts& facts) {
  constexpr int kCalls = 100;
  for (int call = 1; call <= kCalls; ++call) {
    const auto prepared = client.prepare(kUser, encode_prepare_request(facts));
    if (!prepared && !is_refusal(prepared.error()))
      return {"prepare: many times", false, fmt::format("call {}: {}", call, prepared.error().message)};
  }
  return {"prepare: many times", true, fmt::format("{} answers", kCalls)};
}

CheckRow check_interpret_call(PluginClient& client, const std::string& label, const JobFacts& facts,
                              const Outcome& outcome, std::string stderr_tail) {
  InterpretRequestJob request_job = make_interpret_request_job(facts.job);
  request_job.stderr_tail = std::move(stderr_tail);
  const auto reply = client.interpret(kUser, encode_interpret_request(request_job, outcome));
  CheckRow row{"interpret: " + label, true, "the default"};
  if (!reply) return {std::move(row.name), false, reply.error().message};
  if (reply->result) row.detail = "a result of " + count_with_noun(reply->result->size(), "key");
  if (reply->error_message) row.detail = "an error: " + reply->error_type + ": " + excerpt(*reply->error_message, 200);
  if (reply->result && outcome.status == RunStatus::signal)
    return {std::move(row.name), false, "a result after a signal"};
  return row;
}

void check_interpret(PluginClient& client, const JobFacts& facts, std::vector<CheckRow>& rows) {
  if (!client.description().interprets) {
    rows.push_back({"interpret", true, "it has none: the default result is used"});
    return;
  }
  Outcome outcome;
  outcome.status = RunStatus::ok;
  rows.push_back(check_interpret_call(client, "exit code 0", facts, outcome, ""));
  outcome.status = RunStatus::exit;
  outcome.exit_code = 1;
  rows.push_back(
      check_interpret_call(client, "exit code 1 with an error on line 3", facts, outcome, "tool: line 3: an error\n"));
  rows.push_back(check_interpret_call(client, "64 KiB of stderr without a line end", facts, outcome,
                                      std::string(kMaxStderrTailBytes, 'x')));
  rows.push_back(check_interpret_call(client, "bytes on stderr that are not text", facts, outcome, "\xff\xfe\x01\n"));
  outcome.status = RunStatus::signal;
  outcome.exit_code = 0;
  outcome.signal = 11;
  rows.push_back(check_interpret_call(client, "signal 11", facts, outcome, ""));
}

}  // namespace

PluginCheck check_plugin(PluginOptions options, const Clock& clock) {
  PluginCheck check;
  options.pauses_after_faults = false;
  auto loaded = PluginClient::load(std::move(options), clock);
  if (!loaded) {
    check.rows.push_back({"handshake", false, loaded.error().message});
    return check;
  }
  check.client = std::move(*loaded);
  PluginClient& client = *check.client;
  const PluginDescription& description = client.description();
  std::string types;
  for (const std::string& type : description.script_types) types += " " + type;
  check.rows.push_back(
      {"handshake", true,
       fmt::format("{} {}, ABI {}, serves{}", description.name, description.version, description.abi, types)});
  const auto probe_result = client.probe();
  check.rows.push_back(
      {"probe", probe_result.has_value(), probe_result ? *probe_result : probe_result.error().message});
  for (ScriptRow& row : create_scripts())
    check.rows.push_back(check_prepare(client, row.label, make_facts(description, std::move(row.script))));
  JobFacts facts = make_facts(description, "1\n");
  facts.job.env_vars["CHECK"] = std::string(1U << 20, 'x');
  check.rows.push_back(check_prepare(client, "an environment of 1 MiB", facts));
  facts = make_facts(description, "1\n");
  check.rows.push_back(check_repeated_calls(client, facts));
  check_interpret(client, facts, check.rows);
  return check;
}

}  // namespace mycojobs::plugin
