#include "executors/plugin/plugin_check.h"

#include <fmt/core.h>

#include "executors/plugin/plugin_json.h"
#include "text/plural.h"
#include "text/utf8.h"

namespace mycojobs::plugin {
namespace {

struct ScriptRow {
  const char* what;
  std::string script;
};

// A plugin may reject any of these scripts, but it must not fail.
std::vector<ScriptRow> scripts() {
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

JobFacts facts_with(const Description& about, std::string script) {
  JobFacts facts;
  facts.job.id = 1;
  facts.job.caller_id = 1;
  facts.job.context_id = 1;
  facts.job.name = "check";
  facts.job.attempt = 1;
  facts.job.script_type = about.script_types.front();
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
bool refused(const Error& error) { return error.code == Code::invalid || error.code == Code::too_large; }

CheckRow prepare_row(PluginClient& client, const std::string& what, const JobFacts& facts) {
  const auto prepared = client.prepare(kUser, job_question(facts));
  if (prepared) return {"prepare: " + what, true, command_line(*prepared)};
  return {"prepare: " + what, refused(prepared.error()), "refused: " + prepared.error().message};
}

CheckRow many_calls(PluginClient& client, const JobFacts& facts) {
  constexpr int kCalls = 100;
  for (int call = 1; call <= kCalls; ++call) {
    const auto prepared = client.prepare(kUser, job_question(facts));
    if (!prepared && !refused(prepared.error()))
      return {"prepare: many times", false, fmt::format("call {}: {}", call, prepared.error().message)};
  }
  return {"prepare: many times", true, fmt::format("{} answers", kCalls)};
}

CheckRow interpret_row(PluginClient& client, const std::string& what, const JobFacts& facts, const Outcome& outcome,
                       std::string stderr_tail) {
  PluginRunEnd ended = ended_of(facts.job);
  ended.stderr_tail = std::move(stderr_tail);
  const auto read = client.interpret(kUser, outcome_question(ended, outcome));
  CheckRow row{"interpret: " + what, true, "the default"};
  if (!read) return {std::move(row.name), false, read.error().message};
  if (read->result) row.detail = "a result of " + count_with_noun(read->result->size(), "key");
  if (read->message) row.detail = "an error: " + read->type + ": " + excerpt(*read->message, 200);
  if (read->result && outcome.status == RunStatus::signal)
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
  rows.push_back(interpret_row(client, "exit code 0", facts, outcome, ""));
  outcome.status = RunStatus::exit;
  outcome.exit_code = 1;
  rows.push_back(
      interpret_row(client, "exit code 1 with an error on line 3", facts, outcome, "tool: line 3: an error\n"));
  rows.push_back(
      interpret_row(client, "64 KiB of stderr without a line end", facts, outcome, std::string(kStderrTail, 'x')));
  rows.push_back(interpret_row(client, "bytes on stderr that are not text", facts, outcome, "\xff\xfe\x01\n"));
  outcome.status = RunStatus::signal;
  outcome.exit_code = 0;
  outcome.signal = 11;
  rows.push_back(interpret_row(client, "signal 11", facts, outcome, ""));
}

}  // namespace

PluginCheck check_plugin(PluginOptions options, const Clock& clock) {
  PluginCheck check;
  options.rests = false;
  auto loaded = PluginClient::load(std::move(options), clock);
  if (!loaded) {
    check.rows.push_back({"handshake", false, loaded.error().message});
    return check;
  }
  check.client = std::move(*loaded);
  PluginClient& client = *check.client;
  const Description& about = client.description();
  std::string types;
  for (const std::string& type : about.script_types) types += " " + type;
  check.rows.push_back(
      {"handshake", true, fmt::format("{} {}, ABI {}, serves{}", about.name, about.version, about.abi, types)});
  const auto runs = client.probe();
  check.rows.push_back({"probe", runs.has_value(), runs ? *runs : runs.error().message});
  for (ScriptRow& row : scripts())
    check.rows.push_back(prepare_row(client, row.what, facts_with(about, std::move(row.script))));
  JobFacts facts = facts_with(about, "1\n");
  facts.job.env_vars["CHECK"] = std::string(1U << 20, 'x');
  check.rows.push_back(prepare_row(client, "an environment of 1 MiB", facts));
  facts = facts_with(about, "1\n");
  check.rows.push_back(many_calls(client, facts));
  check_interpret(client, facts, check.rows);
  return check;
}

}  // namespace mycojobs::plugin
