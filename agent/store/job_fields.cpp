#include "store/job_fields.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "base/parse.h"
#include "base/sha256.h"
#include "model/codec.h"
#include "net/host.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxFields = 1000;  // a Lua script passes all fields to one call of Redis

// Fields that only the store, a claim or an end may write.
constexpr std::array kOwned = std::to_array<std::string_view>(
    {"id",       "status",     "created_at", "updated_at", "detail",    "error",       "error_info",       "result",
     "attempt",  "deliveries", "epoch",      "runner_id",  "claim_id",  "queued_ms",   "lease_until_ms",   "started_ms",
     "ended_ms", "usage",      "layers",     "receipt",    "artifacts", "result_json", "artifacts_dropped"});

// Types of nodes that a flow executes itself. No runner serves kOwnQueue.
constexpr std::array kOwnKinds = std::to_array<std::string_view>({"log", "wait", "pause", "approval", "flow", "each"});
constexpr const char* kOwnQueue = "queue:flow";

bool is_own_kind(const std::string& type) {
  return std::find(kOwnKinds.begin(), kOwnKinds.end(), type) != kOwnKinds.end();
}

bool is_owned(std::string_view name) { return std::find(kOwned.begin(), kOwned.end(), name) != kOwned.end(); }

}  // namespace

Result<Fields> new_job_fields(const Job& job) {
  Job checked = job;
  // The id is allocated later. validate() gets a placeholder that no dependency has.
  if (checked.id == 0) checked.id = UINT32_MAX;
  if (const auto problems = validate(checked); !problems.empty()) return fail(Code::invalid, "job: " + join(problems));
  Fields fields = encode(job);
  std::erase_if(fields, [](const auto& field) { return is_owned(field.first); });
  if (fields.size() > kMaxFields) {
    return fail(Code::invalid,
                "job: " + std::to_string(fields.size()) + " fields are more than " + std::to_string(kMaxFields));
  }
  return fields;
}

std::string runner_queue(std::string_view id) { return "mj:queue:runner" + std::string(id); }

std::string queue_of_new(const Job& job) {
  for (const auto& [name, value] : job.unknown) {
    if (name == "supervisor_url" && value.starts_with("runner:")) return runner_queue(value.substr(7));
  }
  return queue_key(job.script_type);
}

std::string router_queue(std::string_view address) {
  constexpr std::size_t kMaxHostBytes = 255;
  const std::string host = host_of_address(address);
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("-._:[]").find(c) != std::string_view::npos;
  };
  if (host.empty() || host.size() > kMaxHostBytes || !std::all_of(host.begin(), host.end(), is_plain))
    return kRouterQueue;
  return kRouterQueues + host;
}

std::string queue_of_supervisor(const std::string& url) {
  return url.starts_with("runner:") ? runner_queue(url.substr(7)) : router_queue(url);
}

std::string queue_of_planned(const Job& job) {
  if (is_own_kind(job.script_type)) return kOwnQueue;
  for (const auto& [name, value] : job.unknown) {
    if (name == "supervisor_url") return queue_of_supervisor(value);
  }
  return queue_key(job.script_type);
}

Result<Fields> planned_fields(const Job& job) {
  if (job.id == 0) return fail(Code::invalid, "job: id: is missing: give one that create() has allocated");
  if (!job.script.empty() || !is_own_kind(job.script_type)) return new_job_fields(job);
  Job named = job;  // readers expect a script in every record
  named.script = job.name.empty() ? job.script_type : job.name;
  return new_job_fields(named);
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

Fields end_fields_of(const Fields& record) {
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

std::string digest_of_end(const Fields& fields) {
  constexpr std::size_t kDigits = 40;
  std::string all;
  for (const auto& [name, value] : fields) {
    for (const std::string* text : {&name, &value}) {
      all += std::to_string(text->size());
      all += ':';
      all += *text;
    }
  }
  return sha256_hex(all).substr(0, kDigits);
}

bool same_content(const Job& a, const Job& b) {
  return a.script == b.script && a.script_type == b.script_type && a.env_vars == b.env_vars && a.timeout == b.timeout &&
         a.dependends == b.dependends && a.prerequisites == b.prerequisites && a.retries == b.retries &&
         a.inputs == b.inputs && a.given == b.given && a.policy == b.policy;
}

Fields runner_fields(const Runner& runner) {
  Runner own = runner;
  own.created_at = own.updated_at = 0;
  own.seen_ms = 0;
  return encode(own);
}

Result<Job> accepted_record(std::string_view word, const std::string& key, const Fields& record, const Job& wanted) {
  if (word == "used") return fail(Code::conflict, key + " has ended before and its record was deleted; use another id");
  Job stored = decode<Job>(record).record;
  if (word == "exists" && !same_content(stored, wanted)) {
    return fail(Code::conflict, key + " exists with other content; use another id" +
                                    (wanted.idempotency_key.empty() ? "" : " or idempotency_key"));
  }
  return stored;
}

std::uint64_t number_of(const std::string& text) {
  std::uint64_t number = 0;
  return parse_u64(text, number) ? number : 0;
}

}  // namespace mycojobs
