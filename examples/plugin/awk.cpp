// A plugin for awk scripts: queue:awk. It puts a prelude in front of each script, with
//
//   inputs[job, key]          results of the dependencies; those of a node with `each` are job[1], job[2], ...
//   result(key, value)        sets a value of the job's result
//   progress(fraction, text)  writes a line to the job's log
// Error messages of awk become the job's error, with the line.
#include <mycojobs/plugin.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

namespace {

using nlohmann::json;

constexpr const char* kAwk = "/usr/bin/mawk";

// Tabs and line ends separate values, so values must not contain them.
constexpr const char* kPrelude = R"awk(
function result(key, value) { printf "%s<<END_OF_%s\n%s\nEND_OF_%s\n", key, key, value, key > ENVIRON["MYCOJOBS_RESULT"] }
function progress(fraction, text) { print fraction, text > ENVIRON["MYCOJOBS_PROGRESS"]; fflush(ENVIRON["MYCOJOBS_PROGRESS"]) }
BEGIN {
  while ((getline mj_line < "/job/inputs.tsv") > 0) {
    split(mj_line, mj_part, "\t")
    inputs[mj_part[1], mj_part[2]] = mj_part[3]
  }
}
)awk";

// Exceptions must not cross the C interface. release() frees the returned text.
char* reply(const json& value) { return ::strdup(value.dump(-1, ' ', false, json::error_handler_t::replace).c_str()); }

std::string field(std::string text) {
  for (char& c : text) {
    if (c == '\t' || c == '\n') c = ' ';
  }
  return text;
}

void add_inputs(std::string& lines, const std::string& job, const json& result) {
  for (const auto& [key, value] : result.items())
    lines += field(job) + '\t' + field(key) + '\t' + field(value.get<std::string>()) + '\n';
}

json plan(const json& job) {
  const auto& script = job.at("script").get_ref<const std::string&>();
  if (script.find_first_not_of(" \t\r\n") == std::string::npos) {
    return {{"error", "there is nothing in it: write at least one rule, such as { print }"}, {"field", "script"}};
  }
  std::string inputs;
  for (const auto& [name, results] : job.at("inputs").items()) {
    if (results.is_object()) add_inputs(inputs, name, results);
    for (std::size_t i = 0; results.is_array() && i < results.size(); ++i)
      add_inputs(inputs, name + '[' + std::to_string(i + 1) + ']', results[i]);
  }
  return {{"command", {kAwk, "-f", "/job/prelude.awk", "-f", "{script}"}},
          {"script_file", "script.awk"},
          {"files", {{"prelude.awk", {{"text", kPrelude}}}, {"inputs.tsv", {{"text", inputs}}}}}};
}

// "mawk: /job/script.awk: line 3: syntax error at or near }"
json reading(const json& outcome) {
  const auto& said = outcome.at("stderr").get_ref<const std::string&>();
  const std::string mark = "script.awk: line ";
  const auto at = said.find(mark);
  if (outcome.at("status") != "exit" || at == std::string::npos) return json::object();
  const auto number = at + mark.size();
  const auto colon = said.find(": ", number);
  if (colon == std::string::npos) return json::object();
  const unsigned long line = std::strtoul(said.c_str() + number, nullptr, 10);
  return {{"error",
           {{"type", "AwkError"},
            {"message", said.substr(colon + 2, said.find('\n', colon) - colon - 2)},
            {"line", line},
            {"retry", false}}}};
}

char* probe() {
  if (::access(kAwk, X_OK) != 0) return reply({{"error", std::string("no ") + kAwk + ": apt install mawk"}});
  return reply({{"runs", kAwk}});
}

char* prepare(const char* job) {
  try {
    return reply(plan(json::parse(job)));
  } catch (const std::exception& error) {
    return reply({{"error", error.what()}});
  }
}

char* interpret(const char* outcome) {
  try {
    return reply(reading(json::parse(outcome)));
  } catch (const std::exception&) {
    return nullptr;  // the default
  }
}

void release(char* text) { std::free(text); }

const char* const kTypes[] = {"awk", nullptr};

}  // namespace

const struct mycojobs_plugin mycojobs_plugin = {MYCOJOBS_PLUGIN_ABI,
                                                sizeof(struct mycojobs_plugin),
                                                "awk",
                                                AWK_PLUGIN_VERSION,
                                                kTypes,
                                                R"({"memory": "64 MiB", "pids": 8})",
                                                probe,
                                                prepare,
                                                interpret,
                                                release};
