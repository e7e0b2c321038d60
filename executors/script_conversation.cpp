#include "executors/script_conversation.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "executors/channel.h"
#include "executors/job_end_builder.h"
#include "executors/script_answer.h"
#include "model/codec.h"
#include "model/flow_data.h"
#include "model/result_values.h"
#include "text/json.h"
#include "text/json_writer.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

class ScriptConversation final : public Conversation {
 public:
  ScriptConversation(std::string request, EndContext context, ArtifactSink* sink)
      : output_(std::move(request)), context_(std::move(context)), reader_(context_.max_result_bytes, sink) {}

  std::string take_output() override {
    reader_.mark_answered();
    return std::exchange(output_, {});
  }
  std::vector<std::string> take_calls() override { return reader_.take_calls(); }
  void answer(std::string_view reply) override { reader_.reply(output_, reply); }
  void feed(std::string_view bytes) override { reader_.feed(bytes); }
  std::uint64_t frames() const override { return reader_.frames(); }
  std::vector<std::string> take_notes() override { return reader_.take_notes(); }
  JobEnd finish(const Outcome& outcome) const override { return outcome_to_end(context_, outcome, reader_.answer()); }

 private:
  std::string output_;  // not yet sent
  EndContext context_;
  AnswerReader reader_;
};

Result<void> check_utf8(std::string_view field, std::string_view bytes) {
  if (is_utf8(bytes)) return {};
  const std::string repaired = to_utf8(bytes);  // differs from `bytes` first at the first invalid byte
  const auto wrong = std::mismatch(bytes.begin(), bytes.end(), repaired.begin(), repaired.end()).first;
  return fail(Code::invalid, fmt::format("{}: byte {:#04x} at offset {} is not UTF-8", field,
                                         static_cast<unsigned char>(*wrong), wrong - bytes.begin()));
}

Result<void> check_size(std::string_view field, std::size_t size, std::size_t limit) {
  if (size <= limit) return {};
  return fail(Code::too_large, fmt::format("{}: {} bytes are over the limit of {} bytes", field, size, limit));
}

Result<void> check_job(const Job& job) {
  if (const auto problems = validate_script(job); !problems.empty()) return fail(Code::invalid, join(problems));
  MJ_CHECK(check_utf8("script", job.script));
  MJ_CHECK(check_utf8("name", job.name));
  for (const auto& [name, value] : job.env_vars) {
    MJ_CHECK(check_utf8("env_vars: the name " + excerpt(name), name));
    MJ_CHECK(check_utf8("env_vars: the value of " + excerpt(name), value));
  }
  return {};
}

void append_granted(std::string& out, const Policy& policy) {
  JsonObject granted(out);
  granted.add("exec", policy.exec);
  granted.add("fs.read", policy.fs_read);
  granted.add("fs.write", policy.fs_write);
  granted.add("memory", policy.memory_bytes);
  if (policy.network == Network::allow_list) {
    granted.add("net", policy.net_allow);
  } else {
    granted.add("net", policy.network == Network::none ? "none" : "loopback");
  }
  granted.add("secrets", policy.secrets);
  granted.end();
}

// Maps id to name, for the jobs with results keyed by name.
TextMap input_names(const ScriptInputs& seen) {
  TextMap names;
  for (const auto& [name, input] : seen.single) {
    if (std::string id = std::to_string(input->id); name != id) names[std::move(id)] = name;
  }
  return names;
}

// Members are added in alphabetical order.
std::string facts_json(const JobFacts& facts, const ScriptExtras& extras, const FlowData& flow, const TextMap& names) {
  const Job& job = facts.job;
  std::string out;
  out.reserve(512);
  JsonObject object(out);
  if (!extras.attached.empty()) object.add("attached", extras.attached);
  object.add("attempt", job.attempt);
  object.add("caller_id", job.caller_id);
  if (!extras.command.empty()) object.add("command", extras.command);
  object.add("context_id", job.context_id);
  object.add("deadline_unix_ms", facts.deadline_unix_ms);
  object.add("deliveries", job.deliveries);
  object.add("epoch", job.epoch);
  object.add("executor", extras.executor);
  if (!flow.values->empty()) object.append_member("flow") += dump_json(*flow.values);
  append_granted(object.append_member("granted"), facts.granted);
  object.add("id", job.id);
  if (!names.empty()) object.add("input_names", names);
  object.add("max_artifact_bytes", facts.max_artifact_bytes);
  object.add("max_result_bytes", facts.max_result_bytes);
  object.add("name", job.name);
  object.add("runner_id", job.runner_id);
  if (!extras.script_file.empty()) object.add("script_file", extras.script_file);
  if (facts.granted.warm_runs > 0) object.add("warm", true);
  object.end();
  return out;
}

std::string inputs_json(const ScriptInputs& seen, bool by_id) {
  std::string out;
  JsonObject object(out);
  for (const auto& [name, input] : seen.single)
    object.append_member(by_id ? std::to_string(input->id) : name) += typed_text(input->result, input->result_json);
  for (const auto& [node, inputs] : seen.joined) {
    object.append_member(node) += '[';
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (i > 0) out += ',';
      out += inputs[i] == nullptr ? "{}" : typed_text(inputs[i]->result, inputs[i]->result_json);
    }
    out += ']';
  }
  object.end();
  return out;
}

Result<void> append_files(std::string& request, const JobFacts& facts, const ScriptExtras& extras,
                          const ScriptInputs& seen, bool any_by_name) {
  constexpr unsigned kForItsOwner = 0400, kForAll = 0444, kProgramForAll = 0555;
  for (const Secret& secret : facts.secrets) append_file(request, "secrets/" + secret.name, kForItsOwner, secret.value);
  if (!extras.command.empty() && any_by_name)
    append_file(request, kInputsByIdName, kForItsOwner, inputs_json(seen, true));
  for (const ScriptFile& file : extras.programs) append_file(request, file.path, file.mode, file.bytes);
  request += extras.encoded_files;
  for (const auto& [job, artifact] : facts.files) {
    std::ifstream file(artifact.path, std::ios::binary);
    std::string bytes(artifact.bytes, '\0');
    if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
      return fail(Code::unavailable, fmt::format("inputs: the artifact {} of job {} cannot be read: {}",
                                                 excerpt(artifact.name), excerpt(job), artifact.path));
    }
    append_file(request, "inputs/" + job + "/" + artifact.name, artifact.executable ? kProgramForAll : kForAll, bytes);
  }
  return {};
}

// A job reaches its own loopback without the proxy. Loopback addresses of the host that the allow-list contains are
// reached only through the proxy.
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

ScriptInputs seen_inputs(const JobFacts& facts, const FlowData& flow) {
  std::map<Id, const JobInput*> by_id;
  for (const auto& [name, input] : facts.inputs) by_id[input.id] = &input;
  ScriptInputs seen;
  std::set<Id> joined;
  for (const auto& [node, ids] : flow.joins) {
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

std::string environment_json(const JobFacts& facts, const FlowData& flow, const TextMap& more) {
  const Job& job = facts.job;
  const TextMap of_flow = flow_environment(flow);
  // If a name occurs more than once, the first value is used.
  std::vector<std::pair<std::string_view, std::string>> all{
      {"MYCOJOBS_JOB_ID", std::to_string(job.id)},
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
  if (!job.traceparent.empty()) all.emplace_back("MYCOJOBS_TRACEPARENT", job.traceparent);
  for (const TextMap* from : {&of_flow, &job.env_vars, &more}) all.insert(all.end(), from->begin(), from->end());
  // Defaults that programs and libraries expect; the job's own values take precedence.
  for (const auto& [name, value] :
       {std::pair("HOME", "/job"), std::pair("LANG", "C.UTF-8"), std::pair("LOGNAME", "job"),
        std::pair("PATH", "/usr/bin:/bin"), std::pair("USER", "job")})
    all.emplace_back(name, value);
  // Programs read either case; the job's own values take precedence here too.
  const bool proxy = facts.granted.network == Network::allow_list;
  for (const char* name : {"http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}) {
    if (proxy) all.emplace_back(name, kProxyUrl);
  }
  for (const char* name : {"no_proxy", "NO_PROXY"}) {
    if (proxy) all.emplace_back(name, not_by_proxy(facts.granted));
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string out;
  out.reserve(1024);
  JsonObject object(out);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i == 0 || all[i].first != all[i - 1].first) object.add(all[i].first, all[i].second);
  }
  object.end();
  return out;
}

Result<std::string> script_request(const JobFacts& facts, const ScriptExtras& extras) {
  MJ_CHECK(check_job(facts.job));
  const FlowData flow = flow_data_of(facts.job);
  const ScriptInputs seen = seen_inputs(facts, flow);
  const TextMap names = input_names(seen);
  const std::string fact_text = facts_json(facts, extras, flow, names);
  std::string environment;
  if (extras.whole_environment) {
    append_json(environment, extras.environment);
  } else {
    environment = environment_json(facts, flow, extras.environment);
  }
  const std::string inputs = inputs_json(seen, false);
  MJ_CHECK(check_size("name and flow_data", fact_text.size(), kMaxFactsBytes));
  MJ_CHECK(check_size("env_vars", environment.size(), kMaxEnvironmentBytes));
  MJ_CHECK(check_size("inputs", inputs.size(), kMaxInputsBytes));
  MJ_CHECK(check_size("script", facts.job.script.size(), kMaxScriptBytes));
  std::string request;
  std::size_t file_bytes =
      extras.encoded_files.size();  // reserve once: growing the string would temporarily need three times its size
  for (const auto& [job, artifact] : facts.files) file_bytes += artifact.bytes + 1024;
  for (const ScriptFile& file : extras.programs) file_bytes += file.bytes.size() + 1024;
  request.reserve(fact_text.size() + environment.size() + inputs.size() + facts.job.script.size() + file_bytes + 32);
  append_frame(request, FrameKind::facts, fact_text);
  append_frame(request, FrameKind::environment, environment);
  append_frame(request, FrameKind::inputs, inputs);
  MJ_CHECK(append_files(request, facts, extras, seen, !names.empty()));
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
