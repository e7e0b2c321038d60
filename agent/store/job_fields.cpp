#include "store/job_fields.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <string_view>

#include "base/parse.h"
#include "base/sha256.h"
#include "model/codec.h"
#include "model/job_field_sets.h"
#include "model/job_validation.h"
#include "model/submitted_files.h"
#include "net/host.h"
#include "store/keys.h"
#include "store/record_store.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxFields = 1000;  // a Lua script passes all fields to one call of Redis

// Types of nodes that a flow executes itself. No runner serves kFlowQueue.
constexpr std::array kFlowNodeTypes =
    std::to_array<std::string_view>({"log", "wait", "pause", "approval", "flow", "each"});
constexpr const char* kFlowQueue = "queue:flow";

bool is_flow_node_type(const std::string& type) {
  return std::find(kFlowNodeTypes.begin(), kFlowNodeTypes.end(), type) != kFlowNodeTypes.end();
}

bool is_protected(std::string_view name) {
  return std::ranges::find(kProtectedJobFields, name) != std::end(kProtectedJobFields);
}

}  // namespace

Result<Fields> new_job_fields(const Job& job) {
  Job validated = job;
  // The id is allocated later. validate() gets a placeholder that no dependency has.
  if (validated.id == 0) validated.id = UINT32_MAX;
  if (const auto problems = validate(validated); !problems.empty())
    return fail(Code::invalid, "job: " + join(problems));
  if (auto complete = check_file_contents(job); !complete) return fail(std::move(complete).error(), "job");
  Fields fields = encode(job);
  std::erase_if(fields, [](const auto& field) { return is_protected(field.first); });
  if (fields.size() > kMaxFields) {
    return fail(Code::invalid,
                "job: " + std::to_string(fields.size()) + " fields are more than " + std::to_string(kMaxFields));
  }
  return fields;
}

std::string runner_queue(std::string_view id) { return kRunnerQueueKey + std::string(id); }

std::string submission_queue(const Job& job) {
  for (const auto& [name, value] : job.unknown) {
    if (name == "supervisor_url" && value.starts_with("runner:")) return runner_queue(value.substr(7));
  }
  return queue_key(job.script_type);
}

std::string router_queue(std::string_view address) {
  constexpr std::size_t kMaxHostBytes = 255;
  const std::string host = extract_host(address);
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("-._:[]").find(c) != std::string_view::npos;
  };
  if (host.empty() || host.size() > kMaxHostBytes || !std::all_of(host.begin(), host.end(), is_plain))
    return kRouterQueueKey;
  return kRouterHostQueueKey + host;
}

std::string supervisor_queue(const std::string& url) {
  return url.starts_with("runner:") ? runner_queue(url.substr(7)) : router_queue(url);
}

std::string dispatch_queue(const Job& job) {
  if (is_flow_node_type(job.script_type)) return kFlowQueue;
  for (const auto& [name, value] : job.unknown) {
    if (name == "supervisor_url") return supervisor_queue(value);
  }
  return queue_key(job.script_type);
}

Fields new_job_files(const Job& job) {
  return job.submitted_files == nullptr ? Fields() : encode_submitted_files(*job.submitted_files);
}

Result<Fields> load_stored_files(RecordStore& store, Id context, const std::string& job_key, const Job& job) {
  if (!has_submitted_files(job)) return Fields();
  auto stored = store.load(context, job_files_key(job_key));
  if (!stored && stored.error().code != Code::not_found && stored.error().code != Code::invalid)
    return tl::unexpected<Error>(std::move(stored).error());
  return std::move(stored).value_or(Fields());
}

Result<void> load_submitted_files(RecordStore& store, Id context, const std::string& job_key, Job& job) {
  MJ_TRY(stored, load_stored_files(store, context, job_key, job));
  return restore_submitted_files(job, std::move(stored));
}

Result<FileHolder> find_received_files_holder(RecordStore& store, Id context, const std::string& job_key) {
  static constexpr std::array<std::string_view, 1> kNames = {"holder"};
  const auto fields = store.load_fields(context, job_files_key(job_key), kNames);
  if (fields) return parse_file_holder(field_of(*fields, "holder"));
  if (fields.error().code == Code::not_found || fields.error().code == Code::invalid) return FileHolder();
  return tl::unexpected<Error>(fields.error());
}

Result<FileHolder> find_artifact_holder(RecordStore& store, Id context, const std::string& job_key, Id runner) {
  if (runner != 0) return FileHolder(runner);
  return find_received_files_holder(store, context, job_key);
}

Result<Fields> planned_fields(const Job& job) {
  if (job.id == 0) return fail(Code::invalid, "job: id: is missing: give one that create() has allocated");
  if (!job.script.empty() || !is_flow_node_type(job.script_type)) return new_job_fields(job);
  Job with_script = job;  // readers expect a script in every record
  with_script.script = job.name.empty() ? job.script_type : job.name;
  return new_job_fields(with_script);
}

Fields end_fields(const JobEnd& end) {
  Job job;
  job.status = end.status;
  job.detail = end.detail;
  job.error = end.error;
  job.error_info = end.error_info;
  job.result = end.result;
  job.usage = end.usage;
  job.layers = end.layers;
  job.receipt = end.receipt;
  job.artifacts = end.artifacts;
  job.artifacts_dropped = end.artifacts_dropped;
  job.result_json = end.result_json;
  Fields fields = encode(job);
  if (!end.ran_as.empty()) fields.emplace_back("ran_as", end.ran_as);
  std::stable_partition(fields.begin(), fields.end(), [](const auto& field) { return field.first == "status"; });
  return fields;
}

Fields extract_end_fields(const Fields& record) {
  static const Fields kAll =
      end_fields({JobStatus::error, "x", "x", "x", {{"x", "x"}}, "x", "x", "x", "x", "x", {"x"}, "x"});
  Fields fields;
  for (const auto& [name, value] : kAll) {
    for (const auto& field : record) {
      if (field.first == name) fields.push_back(field);
    }
  }
  return fields;
}

std::string compute_end_digest(const Fields& fields) {
  constexpr std::size_t kDigits = 40;
  std::string content;
  for (const auto& [name, value] : fields) {
    for (const std::string* text : {&name, &value}) {
      content += std::to_string(text->size());
      content += ':';
      content += *text;
    }
  }
  return sha256_hex(content).substr(0, kDigits);
}

bool same_content(const Job& a, const Job& b) {
  return a.script == b.script && a.script_type == b.script_type && a.env_vars == b.env_vars && a.args == b.args &&
         a.stdin_description == b.stdin_description && a.file_descriptions == b.file_descriptions &&
         a.timeout == b.timeout && a.dependends == b.dependends && a.prerequisites == b.prerequisites &&
         a.retries == b.retries && a.inputs == b.inputs && a.remote_inputs == b.remote_inputs && a.policy == b.policy;
}

Fields runner_fields(const Runner& runner) {
  Runner record = runner;
  record.created_at = record.updated_at = 0;
  record.seen_ms = 0;
  return encode(record);
}

Result<Job> check_created_record(std::string_view outcome, const std::string& key, const Fields& record,
                                 const Job& submitted) {
  if (outcome == "used")
    return fail(Code::conflict, key + " has ended before and its record was deleted; use another id");
  Job stored = decode<Job>(record).record;
  if (outcome == "exists" && !same_content(stored, submitted)) {
    return fail(Code::conflict, key + " exists with other content; use another id" +
                                    (submitted.idempotency_key.empty() ? "" : " or idempotency_key"));
  }
  return stored;
}

std::uint64_t parse_whole_number(const std::string& text) {
  std::uint64_t number = 0;
  return parse_u64(text, number) ? number : 0;
}

}  // namespace mycojobs
