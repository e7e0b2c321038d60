#include "messaging/message_codec.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "model/codec.h"
#include "text/json.h"
#include "text/split.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxLogLinesPerBody = 2000;

// Details that a remote host may report for the end of a job. Other details are set by the local store only.
constexpr auto kPeerDetails = std::to_array<std::string_view>(
    {"ok",          "exit",        "signal",     "exception",         "timeout",      "timeout_cpu",
     "oom",         "file_limit",  "pids_limit", "output_limit",      "violation",    "result_too_large",
     "setup_error", "cancelled",   "lost",       "dependency_failed", "prerequisite", "policy_refused",
     "too_large",   "result_quota"});

}  // namespace

std::string filter_peer_detail(JobStatus status, const std::string& detail) {
  if (status == JobStatus::finished) return "ok";
  const bool is_permitted = std::find(kPeerDetails.begin(), kPeerDetails.end(), detail) != kPeerDetails.end();
  return is_permitted && detail != "ok" ? detail : "lost";
}

Result<json> parse_answer_jobs(const json& body, std::uint64_t max_bytes, std::uint64_t free_bytes) {
  json result = body.value("jobs", json::array());
  if (!result.is_array() || result.size() > kMaxMessageJobs)
    return fail(Code::invalid, "jobs: is not a valid list of jobs");
  for (json& entry : result) {
    const auto files = find_job_files(entry);
    const std::uint64_t bytes = files ? sum_bytes(files->files) : 0,
                        accounted = files ? accounted_bytes(files->files) : 0;
    if (bytes <= max_bytes && accounted <= free_bytes) {
      free_bytes -= accounted;
      continue;
    }
    const std::string limit = bytes > max_bytes
                                  ? std::string(kMessageFilesSetting) + " is " + std::to_string(max_bytes) + " here"
                                  : std::string("a sender's share of ") + kIncomingBytesSetting +
                                        " at the receiver has no space left for them";
    const std::string status_text = entry.value("status", json()) == json("finished") ? "finished" : "error";
    entry = {{"key", entry["key"]},
             {"ran_as", entry.value("ran_as", json(""))},
             {"status", kJobStatusError},
             {"detail", "too_large"},
             {"error", "the job ended as " + status_text + ", but its artifacts have " + std::to_string(bytes) +
                           " bytes; " + limit}};
  }
  return result;
}

std::optional<JobFiles> find_job_files(const json& job) {
  if (!job.is_object() || job.value("files", json()) != json(true)) return std::nullopt;
  const auto key = job.find("key"), artifacts = job.find("artifacts");
  if (key == job.end() || !key->is_string()) return std::nullopt;
  if (artifacts == job.end() || !artifacts->is_object()) return std::nullopt;
  return JobFiles{key->get<std::string>(), parse_file_contents(dump_json(*artifacts))};
}

std::vector<JobFiles> find_answer_files(const json& jobs) {
  std::vector<JobFiles> result;
  for (const json& entry : jobs) {
    if (auto files = find_job_files(entry)) result.push_back(std::move(*files));
  }
  return result;
}

Result<RemoteJobEnd> parse_answer_job(const json& object, std::size_t index) {
  const std::string prefix = "jobs[" + std::to_string(index) + "]";
  if (!object.is_object() || !object.contains("key") || !object["key"].is_string())
    return fail(Code::invalid, prefix + ".key: is missing");
  RemoteJobEnd result{object["key"].get<std::string>(), {}, {}};
  json fields = object;
  fields.erase("key");
  fields.erase("files");
  auto decoded = decode_json<Job>(fields);
  if (!decoded.ok()) return fail(Code::invalid, prefix + "." + join(decoded.problems));
  Job& job = decoded.record;
  if (job.status != JobStatus::finished && job.status != JobStatus::error)
    return fail(Code::invalid, prefix + ".status: is not the status of an ended job");
  result.end.status = job.status;
  result.end.detail = filter_peer_detail(job.status, job.detail);
  result.end.error = std::move(job.error);
  result.end.error_info = std::move(job.error_info);
  result.end.result = std::move(job.result);
  result.end.result_json = std::move(job.result_json);
  result.end.usage = std::move(job.usage);
  result.end.layers = std::move(job.layers);
  result.end.receipt = std::move(job.receipt);
  result.end.artifacts = set_object_store(job.artifacts, "");
  result.end.artifacts_dropped = std::move(job.artifacts_dropped);
  if (const std::string_view ran_as = field_of(job.unknown, "ran_as"); !ran_as.empty() && ran_as.size() <= 64)
    result.end.ran_as = ran_as;
  if (job.attempt > 0) result.extra_fields.emplace_back("attempt", std::to_string(job.attempt));
  if (job.started_ms > 0) result.extra_fields.emplace_back("started_ms", std::to_string(job.started_ms));
  return result;
}

Result<AnswerBody> parse_answer(const json& body, const json& jobs) {
  AnswerBody result;
  result.is_last = body.value("last", json(true)) != json(false);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    MJ_TRY(job, parse_answer_job(jobs[i], i));
    result.jobs.push_back(std::move(job));
  }
  if (body.value("status", json()) != json(to_string(MessageStatus::processed))) {
    const json error = body.value("error", json());
    result.reason = error.is_string() && !error.get<std::string>().empty() ? error.get<std::string>()
                                                                           : "it failed there without a reason";
  }
  if (body.contains("flow")) {
    auto flow = decode_json<Flow>(body["flow"]);
    if (!flow.ok()) return fail(Code::invalid, "flow." + join(flow.problems));
    result.flow = dump_json(to_json(flow.record));
  }
  return result;
}

Result<LogsBody> parse_logs(const json& body) {
  const json job = body.value("job", json()), lines = body.value("lines", json());
  if (!job.is_string()) return fail(Code::invalid, "job: is not a job key");
  if (!lines.is_array() || lines.size() > kMaxLogLinesPerBody)
    return fail(Code::invalid, "lines: is not a valid list of lines");
  LogsBody result{job.get<std::string>(), {}};
  for (const json& entry : lines) {
    auto line = decode_json<Log>(entry);
    if (!line.ok()) return fail(Code::invalid, "lines." + join(line.problems));
    if (const auto size = entry.find("size"); size != entry.end()) {
      if (!size->is_number_unsigned() || size->get<std::uint64_t>() > line.record.seq)
        return fail(Code::invalid, "lines.size: is not a number up to seq");
      line.record.size = size->get<std::uint64_t>();
    }
    line.record.begins_run = entry.value("run", json()) == true;
    result.lines.push_back(std::move(line.record));
  }
  return result;
}

Result<CancelBody> parse_cancel(const json& body) {
  CancelBody result;
  MJ_TRY(ref, parse_message_ref(body.value("of", json())));
  result.message = std::move(ref);
  const json signer_key = body.value("by", json()), jobs = body.value("jobs", json());
  if (!signer_key.is_string()) return fail(Code::invalid, "by: is missing");
  result.signer_key = signer_key.get<std::string>();
  if (!jobs.is_array() || jobs.size() > kMaxMessageJobs)
    return fail(Code::invalid, "jobs: is not a valid list of job keys");
  for (const json& entry : jobs) {
    if (entry.is_string()) result.jobs.insert(entry.get<std::string>());
  }
  result.includes_flow = body.value("flow", json()) == json(true);
  return result;
}

}  // namespace mycojobs
