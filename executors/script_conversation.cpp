#include "executors/script_conversation.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "domain/codec.h"
#include "domain/flow_data.h"
#include "domain/result_values.h"
#include "domain/utf8.h"
#include "executors/answer.h"
#include "executors/channel.h"
#include "executors/outcome_to_end.h"

namespace mycojobs {
namespace {

class ScriptConversation final : public Conversation {
 public:
  ScriptConversation(std::string request, EndContext context, ArtifactSink* sink)
      : output_(std::move(request)), context_(std::move(context)), reader_(context_.max_result_bytes, sink) {}

  std::string take_output() override {
    reader_.taken();
    return std::exchange(output_, {});
  }
  std::vector<std::string> take_calls() override { return reader_.take_calls(); }
  void answer(std::string_view reply) override { reader_.reply(output_, reply); }
  void feed(std::string_view bytes) override { reader_.feed(bytes); }
  std::vector<std::string> take_notes() override { return reader_.take_notes(); }
  JobEnd finish(const Outcome& outcome) const override { return outcome_to_end(context_, outcome, reader_.answer()); }

 private:
  std::string output_;  // not yet taken
  EndContext context_;
  AnswerReader reader_;
};

Result<void> check_utf8(std::string_view field, std::string_view bytes) {
  if (is_utf8(bytes)) return {};
  const std::string mended = to_utf8(bytes);  // differs first where the first wrong byte is
  const auto wrong = std::mismatch(bytes.begin(), bytes.end(), mended.begin(), mended.end()).first;
  return fail(Code::invalid, fmt::format("{}: byte {:#04x} at offset {} is not UTF-8", field,
                                         static_cast<unsigned char>(*wrong), wrong - bytes.begin()));
}

Result<void> check_size(std::string_view field, std::size_t size, std::size_t limit) {
  if (size <= limit) return {};
  return fail(Code::too_large, fmt::format("{}: {} bytes are over the limit of {} bytes", field, size, limit));
}

Result<void> check_job(const Job& job) {
  if (const auto problems = validate(job); !problems.empty()) return fail(Code::invalid, join(problems));
  MJ_CHECK(check_utf8("script", job.script));
  MJ_CHECK(check_utf8("name", job.name));
  if (job.name.find('\0') != std::string::npos) return fail(Code::invalid, "name: has NUL in it: rename the job");
  for (const auto& [name, value] : job.env_vars) {
    MJ_CHECK(check_utf8("env_vars: the name " + shown(name), name));
    MJ_CHECK(check_utf8("env_vars: the value of " + shown(name), value));
  }
  return {};
}

nlohmann::json granted_json(const Policy& policy) {
  nlohmann::json net = policy.network == Network::none ? "none" : "loopback";
  if (policy.network == Network::allow_list) net = policy.net_allow;
  return {{"exec", policy.exec},       {"net", std::move(net)},       {"memory", policy.memory_bytes},
          {"fs.read", policy.fs_read}, {"fs.write", policy.fs_write}, {"secrets", policy.secrets}};
}

// By id, of the jobs whose results stand under their names.
std::map<std::string, std::string> input_names(const SeenInputs& seen) {
  std::map<std::string, std::string> names;
  for (const auto& [name, input] : seen.single) {
    if (name != std::to_string(input->id)) names[std::to_string(input->id)] = name;
  }
  return names;
}

std::string facts_json(const JobFacts& facts, const ScriptExtras& extras) {
  const Job& job = facts.job;
  nlohmann::json out{{"executor", extras.executor},
                     {"id", job.id},
                     {"caller_id", job.caller_id},
                     {"context_id", job.context_id},
                     {"name", job.name},
                     {"attempt", job.attempt},
                     {"deliveries", job.deliveries},
                     {"epoch", job.epoch},
                     {"deadline_unix_ms", facts.deadline_unix_ms},
                     {"runner_id", job.runner_id},
                     {"max_result_bytes", facts.max_result_bytes},
                     {"max_artifact_bytes", facts.max_artifact_bytes},
                     {"granted", granted_json(facts.granted)}};
  if (const auto told = flow_data_of(job).told; !told->empty()) out["flow"] = *told;
  if (auto names = input_names(seen_inputs(facts)); !names.empty()) out["input_names"] = std::move(names);
  if (facts.granted.warm_runs > 0) out["warm"] = true;
  if (!extras.command.empty()) out["command"] = extras.command;
  if (!extras.script_file.empty()) out["script_file"] = extras.script_file;
  if (!extras.attached.empty()) out["attached"] = extras.attached;
  return dump_json(out);
}

std::string inputs_json(const SeenInputs& seen, bool by_id) {
  std::string out = "{";
  const auto add = [&out](const std::string& name) -> std::string& {
    return out += (out.size() > 1 ? "," : "") + dump_json(name) + ':';
  };
  for (const auto& [name, input] : seen.single)
    add(by_id ? std::to_string(input->id) : name) += typed_text(input->result, input->result_json);
  for (const auto& [node, inputs] : seen.joined) {
    add(node) += '[';
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (i > 0) out += ',';
      out += inputs[i] == nullptr ? "{}" : typed_text(inputs[i]->result, inputs[i]->result_json);
    }
    out += ']';
  }
  return out += '}';
}

Result<void> append_files(std::string& request, const JobFacts& facts, const ScriptExtras& extras) {
  constexpr unsigned kForItsOwner = 0400, kForAll = 0444, kProgramForAll = 0555;
  for (const SecretValue& secret : facts.secrets)
    append_file(request, "secrets/" + secret.name, kForItsOwner, secret.value);
  const SeenInputs seen = seen_inputs(facts);
  if (!extras.command.empty() && !input_names(seen).empty())
    append_file(request, kInputsByIdName, kForItsOwner, inputs_json(seen, true));
  for (const ScriptFile& file : extras.programs) append_file(request, file.path, file.mode, file.bytes);
  for (const auto& [job, artifact] : facts.files) {
    std::ifstream file(artifact.path, std::ios::binary);
    std::string bytes(artifact.bytes, '\0');
    if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
      return fail(Code::unavailable, fmt::format("inputs: the artifact {} of job {} cannot be read: {}",
                                                 shown(artifact.name), shown(job), artifact.path));
    }
    append_file(request, "inputs/" + job + "/" + artifact.name, artifact.executable ? kProgramForAll : kForAll, bytes);
  }
  return {};
}

// The job's own loopback is reached without the proxy; of the host's, what the list names is reached through it alone.
std::string not_by_proxy(const Policy& granted) {
  std::string out;
  for (const auto& [host, entry] :
       {std::pair("localhost", "localhost:"), std::pair("127.0.0.1", "127.0.0.1:"), std::pair("::1", "[::1]:")}) {
    const auto named = [&, start = std::string_view(entry)](const std::string& each) {
      return each.starts_with(start);
    };
    if (std::none_of(granted.net_allow.begin(), granted.net_allow.end(), named))
      out += (out.empty() ? "" : ",") + std::string(host);
  }
  return out;
}

}  // namespace

SeenInputs seen_inputs(const JobFacts& facts) {
  std::map<Id, const JobInput*> by_id;
  for (const auto& [name, input] : facts.inputs) by_id[input.id] = &input;
  SeenInputs seen;
  std::set<Id> joined;
  for (const auto& [node, ids] : flow_data_of(facts.job).joins) {
    auto& list = seen.joined[node];
    for (const Id id : ids) {
      const auto found = by_id.find(id);
      list.push_back(found == by_id.end() ? nullptr : found->second);
      joined.insert(id);
    }
  }
  for (const auto& [name, input] : facts.inputs) {
    if (!joined.contains(input.id) && !seen.joined.contains(name)) seen.single.emplace_back(name, &input);
  }
  return seen;
}

TextMap job_environment(const JobFacts& facts, const TextMap& more) {
  const Job& job = facts.job;
  TextMap environment = {{"MYCOJOBS_JOB_ID", std::to_string(job.id)},
                         {"MYCOJOBS_CALLER_ID", std::to_string(job.caller_id)},
                         {"MYCOJOBS_CONTEXT_ID", std::to_string(job.context_id)},
                         {"MYCOJOBS_JOB_NAME", job.name},
                         {"MYCOJOBS_ATTEMPT", std::to_string(job.attempt)},
                         {"MYCOJOBS_DELIVERIES", std::to_string(job.deliveries)},
                         {"MYCOJOBS_EPOCH", std::to_string(job.epoch)},
                         {"MYCOJOBS_DEADLINE_UNIX_MS", std::to_string(facts.deadline_unix_ms)},
                         {"MYCOJOBS_RUNNER_ID", std::to_string(job.runner_id)},
                         {"MYCOJOBS_ARTIFACTS", kArtifactsFolder},
                         {"MYCOJOBS_SECRETS", kSecretsFolder},
                         {"MYCOJOBS_INPUTS_DIR", kInputsFolder}};
  if (!job.traceparent.empty()) environment["MYCOJOBS_TRACEPARENT"] = job.traceparent;
  environment.merge(flow_environment(flow_data_of(job)));
  environment.insert(job.env_vars.begin(), job.env_vars.end());  // what is there already stays: ours win
  environment.insert(more.begin(), more.end());
  // What programs and libraries expect to find; the job's own values win.
  environment.insert(
      {{"HOME", "/job"}, {"LANG", "C.UTF-8"}, {"LOGNAME", "job"}, {"PATH", "/usr/bin:/bin"}, {"USER", "job"}});
  // Programs differ in the case that they read; the job's own values win here too.
  const bool proxy = facts.granted.network == Network::allow_list;
  for (const char* name : {"http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}) {
    if (proxy) environment.insert({name, kProxyUrl});
  }
  for (const char* name : {"no_proxy", "NO_PROXY"}) {
    if (proxy) environment.insert({name, not_by_proxy(facts.granted)});
  }
  return environment;
}

Result<std::string> script_request(const JobFacts& facts, const ScriptExtras& extras) {
  MJ_CHECK(check_job(facts.job));
  const std::string fact_text = facts_json(facts, extras);
  const TextMap variables = extras.whole_environment ? extras.environment : job_environment(facts, extras.environment);
  const std::string environment = dump_json(nlohmann::json(variables));
  const std::string inputs = inputs_json(seen_inputs(facts), false);
  MJ_CHECK(check_size("name and flow_data", fact_text.size(), kMaxFactsBytes));
  MJ_CHECK(check_size("env_vars", environment.size(), kMaxEnvironmentBytes));
  MJ_CHECK(check_size("inputs", inputs.size(), kMaxInputsBytes));
  MJ_CHECK(check_size("script", facts.job.script.size(), kMaxScriptBytes));
  std::string request;
  std::size_t file_bytes = 0;  // reserved at once: a string that grows takes three times as much for a moment
  for (const auto& [job, artifact] : facts.files) file_bytes += artifact.bytes + 1024;
  for (const ScriptFile& file : extras.programs) file_bytes += file.bytes.size() + 1024;
  request.reserve(fact_text.size() + environment.size() + inputs.size() + facts.job.script.size() + file_bytes + 32);
  append_frame(request, FrameKind::facts, fact_text);
  append_frame(request, FrameKind::environment, environment);
  append_frame(request, FrameKind::inputs, inputs);
  MJ_CHECK(append_files(request, facts, extras));
  append_frame(request, FrameKind::script, facts.job.script);
  return request;
}

Result<std::unique_ptr<Conversation>> begin_script(const JobFacts& facts, const ScriptExtras& extras,
                                                   ArtifactSink* sink) {
  MJ_TRY(request, script_request(facts, extras));
  return std::make_unique<ScriptConversation>(std::move(request), end_context(facts, extras.profile), sink);
}

EndContext end_context(const JobFacts& facts, std::string_view profile) {
  const auto intent = facts.job.env_vars.find("MYCOJOBS_INTENT");
  return {job_key(facts.job.caller_id, facts.job.id),
          std::string(profile),
          facts.job.timeout,
          facts.max_result_bytes,
          facts.grant,
          intent == facts.job.env_vars.end() ? "" : intent->second};
}

}  // namespace mycojobs
