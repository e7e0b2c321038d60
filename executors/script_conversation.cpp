#include "executors/script_conversation.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "executors/channel.h"
#include "executors/job_end_builder.h"
#include "executors/script_answer.h"
#include "model/codec.h"
#include "model/flow_data.h"
#include "model/job_validation.h"
#include "model/result_values.h"
#include "model/submitted_files.h"
#include "text/json.h"
#include "text/json_writer.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

class ScriptConversation final : public Conversation {
 public:
  ScriptConversation(std::string request, EndContext context, std::size_t stage, ArtifactSink* sink)
      : stage_(stage),
        output_(std::move(request)),
        context_(std::move(context)),
        reader_(context_.max_result_bytes, sink) {}

  std::size_t stage() const override { return stage_; }

  std::string consume_output() override {
    reader_.on_replies_sent();
    return std::exchange(output_, {});
  }
  std::vector<std::string> consume_calls() override { return reader_.consume_calls(); }
  void answer(std::string_view reply) override { reader_.append_reply(output_, reply); }
  void feed(std::string_view bytes) override { reader_.feed(bytes); }
  std::uint64_t frame_count() const override { return reader_.frame_count(); }
  std::vector<std::string> consume_notes() override { return reader_.consume_notes(); }
  JobEnd finish(const Outcome& outcome) const override { return build_job_end(context_, outcome, reader_.answer()); }

 private:
  const std::size_t stage_;
  std::string output_;  // bytes that were not sent yet
  EndContext context_;
  AnswerReader reader_;
};

Result<void> check_utf8(std::string_view field, std::string_view bytes) {
  if (is_utf8(bytes)) return {};
  const std::string repaired = to_utf8(bytes);  // first differs from `bytes` at the first invalid byte
  const auto invalid_byte = std::mismatch(bytes.begin(), bytes.end(), repaired.begin(), repaired.end()).first;
  return fail(Code::invalid, fmt::format("{}: byte {:#04x} at offset {} is not UTF-8", field,
                                         static_cast<unsigned char>(*invalid_byte), invalid_byte - bytes.begin()));
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
  for (const std::string& argument : job.args) MJ_CHECK(check_utf8("args", argument));
  return {};
}

void append_granted_policy(std::string& out, const Policy& policy) {
  JsonObject object(out);
  object.add("exec", policy.exec);
  object.add("fs.read", policy.fs_read);
  object.add("fs.write", policy.fs_write);
  object.add("memory", policy.memory_bytes);
  if (policy.network == Network::allow_list) {
    object.add("net", policy.net_allow);
  } else {
    object.add("net", policy.network == Network::none ? "none" : "loopback");
  }
  object.add("secrets", policy.secrets);
  object.add("volumes", policy.volumes);
  object.end();
}

// Returns the names of the jobs whose results are keyed by name, by job id.
TextMap map_ids_to_names(const ScriptInputs& inputs) {
  TextMap names;
  for (const auto& [name, input] : inputs.single) {
    if (std::string id = std::to_string(input->id); name != id) names[std::move(id)] = name;
  }
  return names;
}

// Returns the payload of the `facts` frame. JsonObject requires that members are added in alphabetical order.
std::string encode_facts(const JobFacts& facts, const ScriptExtras& extras, const FlowData& flow,
                         const TextMap& names) {
  const Job& job = facts.job;
  std::string out;
  out.reserve(512);
  JsonObject object(out);
  // The arguments of a program are part of its command line.
  std::vector<std::string> command = extras.command;
  if (!command.empty()) command.insert(command.end(), job.args.begin(), job.args.end());
  if (command.empty() && !job.args.empty()) object.add("args", job.args);
  if (!extras.attached_path.empty()) object.add("attached", extras.attached_path);
  object.add("attempt", job.attempt);
  object.add("caller_id", job.caller_id);
  if (!command.empty()) object.add("command", command);
  object.add("context_id", job.context_id);
  object.add("deadline_unix_ms", facts.deadline_unix_ms);
  object.add("deliveries", job.deliveries);
  object.add("epoch", job.epoch);
  object.add("executor", extras.executor);
  if (!flow.values->empty()) object.append_member("flow") += dump_json(*flow.values);
  append_granted_policy(object.append_member("granted"), facts.granted_policy);
  object.add("id", job.id);
  if (!names.empty()) object.add("input_names", names);
  object.add("max_artifact_bytes", facts.max_artifact_bytes);
  object.add("max_result_bytes", facts.max_result_bytes);
  object.add("name", job.name);
  if (extras.packages) object.add("packages", *extras.packages);
  object.add("runner_id", job.runner_id);
  if (!extras.script_file.empty()) object.add("script_file", extras.script_file);
  if (facts.granted_policy.warm_runs > 0) object.add("warm", true);
  object.end();
  return out;
}

std::string encode_inputs(const ScriptInputs& inputs, bool use_ids_as_keys) {
  std::string out;
  JsonObject object(out);
  for (const auto& [name, input] : inputs.single)
    object.append_member(use_ids_as_keys ? std::to_string(input->id) : name) +=
        to_typed_json_text(input->result, input->result_json);
  for (const auto& [node, instances] : inputs.lists) {
    object.append_member(node) += '[';
    for (std::size_t i = 0; i < instances.size(); ++i) {
      if (i > 0) out += ',';
      out += instances[i] == nullptr ? "{}" : to_typed_json_text(instances[i]->result, instances[i]->result_json);
    }
    out += ']';
  }
  object.end();
  return out;
}

// A file of the job: its content, or an artifact on this host.
struct RequestFile {
  std::string path;
  unsigned mode;
  std::string_view content = {};
  const StoredArtifact* stored = nullptr;
  std::string description = {};  // of `stored`, for errors

  std::uint64_t bytes() const { return stored != nullptr ? stored->bytes : content.size(); }
};

// inputs_by_id: the inputs keyed by id for programs, or empty. The result refers to the arguments.
std::vector<RequestFile> list_files(const JobFacts& facts, const ScriptExtras& extras, std::string_view inputs_by_id) {
  constexpr unsigned kOwnerReadable = 0400, kReadable = 0444, kExecutable = 0555;
  std::vector<RequestFile> files;
  for (const Secret& secret : facts.secrets) files.push_back({"secrets/" + secret.name, kOwnerReadable, secret.value});
  if (!inputs_by_id.empty()) files.push_back({kInputsByIdName, kOwnerReadable, inputs_by_id});
  for (const ScriptFile& file : extras.files) files.push_back({file.path, file.mode, file.bytes});
  if (const SubmittedFiles* submitted = facts.job.submitted_files.get()) {
    if (submitted->stdin_bytes) files.push_back({kStdinName, kOwnerReadable, *submitted->stdin_bytes});
    for (const auto& [name, bytes] : submitted->files) files.push_back({kFilesName + ('/' + name), kReadable, bytes});
  }
  for (const auto& [job, artifact] : facts.files) {
    files.push_back({"inputs/" + job + "/" + artifact.name,
                     artifact.executable ? kExecutable : kReadable,
                     {},
                     &artifact,
                     fmt::format("the artifact {} of job {}", excerpt(artifact.name), excerpt(job))});
  }
  for (const StoredArtifact& upload : facts.uploads) {
    files.push_back(
        {kFilesName + ('/' + upload.name), kReadable, {}, &upload, "the uploaded file " + excerpt(upload.name)});
  }
  return files;
}

Result<void> append_request_file(std::string& request, const RequestFile& file) {
  if (file.stored == nullptr) {
    append_file(request, file.path, file.mode, file.content);
    return {};
  }
  std::ifstream stream(file.stored->path, std::ios::binary);
  const auto read_part = [&stream](std::span<char> part) {
    return static_cast<bool>(stream.read(part.data(), static_cast<std::streamsize>(part.size())));
  };
  if (stream && append_file(request, file.path, file.mode, file.bytes(), read_part)) return {};
  return fail(Code::unavailable, fmt::format("inputs: {} cannot be read: {}", file.description, file.stored->path));
}

// Returns the value of the variable no_proxy. A job connects to its own loopback addresses without the proxy. Loopback
// addresses of the host are reached through the proxy, if the allow-list contains them.
std::string build_no_proxy(const Policy& policy) {
  std::string out;
  for (const auto& [host, entry] :
       {std::pair("localhost", "localhost:"), std::pair("127.0.0.1", "127.0.0.1:"), std::pair("::1", "[::1]:")}) {
    const auto has_host = [&, prefix = std::string_view(entry)](const std::string& address) {
      return address.starts_with(prefix);
    };
    if (std::none_of(policy.net_allow.begin(), policy.net_allow.end(), has_host))
      out += (out.empty() ? "" : ",") + std::string(host);
  }
  return out;
}

}  // namespace

ScriptInputs arrange_inputs(const JobFacts& facts, const FlowData& flow) {
  std::map<Id, const JobInput*> by_id;
  for (const auto& [name, input] : facts.inputs) by_id[input.id] = &input;
  ScriptInputs inputs;
  std::set<Id> ids_in_lists;
  for (const auto& [node, ids] : flow.joins) {
    auto& list = inputs.lists[node];
    for (const Id id : ids) {
      const auto input = by_id.find(id);
      list.push_back(input == by_id.end() ? nullptr : input->second);
      ids_in_lists.insert(id);
    }
  }
  for (const auto& [name, input] : facts.inputs) {
    if (!ids_in_lists.contains(input.id) && !inputs.lists.contains(name)) inputs.single.emplace_back(name, &input);
  }
  return inputs;
}

std::string encode_environment(const JobFacts& facts, const FlowData& flow, const TextMap& executor_variables) {
  const Job& job = facts.job;
  const TextMap flow_variables = flow_environment(flow);
  // If a name occurs more than once, the first value is used.
  std::vector<std::pair<std::string_view, std::string>> variables{
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
  if (!job.file_descriptions.empty()) variables.emplace_back("MYCOJOBS_FILES_DIR", kFilesFolder);
  if (!job.traceparent.empty()) variables.emplace_back("MYCOJOBS_TRACEPARENT", job.traceparent);
  if (job.flow_id != 0) {
    const auto add_name = [&variables](std::string_view variable, const std::string& name) {
      // An environment variable cannot hold a NUL.
      if (name.find('\0') == std::string::npos) variables.emplace_back(variable, name);
    };
    variables.emplace_back("MYCOJOBS_FLOW_ID", std::to_string(job.flow_id));
    add_name("MYCOJOBS_FLOW_NAME", flow.flow_name);
    add_name("MYCOJOBS_NODE", job.name);
  }
  for (const TextMap* source : {&flow_variables, &job.env_vars, &executor_variables})
    variables.insert(variables.end(), source->begin(), source->end());
  // Defaults that programs and libraries expect; the job's own values take precedence.
  for (const auto& [name, value] :
       {std::pair("HOME", "/job"), std::pair("LANG", "C.UTF-8"), std::pair("LOGNAME", "job"),
        std::pair("PATH", "/usr/bin:/bin"), std::pair("USER", "job")})
    variables.emplace_back(name, value);
  // Some programs read the names in lower case, others in upper case. The job's own values take precedence.
  const bool uses_proxy = facts.granted_policy.network == Network::allow_list;
  for (const char* name : {"http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}) {
    if (uses_proxy) variables.emplace_back(name, kProxyUrl);
  }
  for (const char* name : {"no_proxy", "NO_PROXY"}) {
    if (uses_proxy) variables.emplace_back(name, build_no_proxy(facts.granted_policy));
  }
  std::stable_sort(variables.begin(), variables.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string out;
  out.reserve(1024);
  JsonObject object(out);
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (i == 0 || variables[i].first != variables[i - 1].first) object.add(variables[i].first, variables[i].second);
  }
  object.end();
  return out;
}

Result<std::string> encode_script_request(const JobFacts& facts, const ScriptExtras& extras) {
  MJ_CHECK(check_job(facts.job));
  const FlowData flow = parse_flow_data(facts.job);
  const ScriptInputs inputs = arrange_inputs(facts, flow);
  const TextMap names = map_ids_to_names(inputs);
  const std::string facts_text = encode_facts(facts, extras, flow, names);
  std::string environment;
  if (extras.replaces_environment) {
    append_json(environment, extras.environment);
  } else {
    environment = encode_environment(facts, flow, extras.environment);
  }
  const std::string inputs_text = encode_inputs(inputs, false);
  MJ_CHECK(check_size("name and flow_data", facts_text.size(), kMaxFactsBytes));
  MJ_CHECK(check_size("env_vars", environment.size(), kMaxEnvironmentBytes));
  MJ_CHECK(check_size("inputs", inputs_text.size(), kMaxInputsBytes));
  MJ_CHECK(check_size("script", facts.job.script.size(), kMaxScriptBytes));
  const bool needs_inputs_by_id = !extras.command.empty() && !names.empty();
  const std::string inputs_by_id = needs_inputs_by_id ? encode_inputs(inputs, true) : std::string();
  const std::vector<RequestFile> files = list_files(facts, extras, inputs_by_id);
  // The memory is reserved once: growing the string would temporarily need three times its size.
  std::uint64_t file_bytes = extras.encoded_files.size();
  for (const RequestFile& file : files) file_bytes += encoded_file_bytes(file.path, file.mode, file.bytes());
  std::string request;
  request.reserve(facts_text.size() + environment.size() + inputs_text.size() + facts.job.script.size() + file_bytes +
                  32);
  append_frame(request, FrameKind::facts, facts_text);
  append_frame(request, FrameKind::environment, environment);
  append_frame(request, FrameKind::inputs, inputs_text);
  for (const RequestFile& file : files) MJ_CHECK(append_request_file(request, file));
  request += extras.encoded_files;
  append_frame(request, FrameKind::script, facts.job.script);
  return request;
}

Result<std::unique_ptr<Conversation>> begin_script(const JobFacts& facts, const ScriptExtras& extras,
                                                   ArtifactSink* sink) {
  MJ_TRY(request, encode_script_request(facts, extras));
  return std::make_unique<ScriptConversation>(std::move(request), make_end_context(facts, extras.profile), extras.stage,
                                              sink);
}

EndContext make_end_context(const JobFacts& facts, std::string_view profile) {
  const auto intent = facts.job.env_vars.find("MYCOJOBS_INTENT");
  return {job_key(facts.job.caller_id, facts.job.id),
          std::string(profile),
          facts.job.timeout,
          facts.max_result_bytes,
          facts.grant_json,
          intent == facts.job.env_vars.end() ? "" : intent->second};
}

}  // namespace mycojobs
