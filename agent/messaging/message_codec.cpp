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

constexpr std::size_t kMaxLines = 2000;

// Details that a remote host may report for the end of a job. Other details are set by the local store only.
constexpr auto kDetailsOfPeers = std::to_array<std::string_view>(
    {"ok",          "exit",        "signal",     "exception",         "timeout",      "timeout_cpu",
     "oom",         "file_limit",  "pids_limit", "output_limit",      "violation",    "result_too_large",
     "setup_error", "cancelled",   "lost",       "dependency_failed", "prerequisite", "policy_refused",
     "too_large",   "result_quota"});

}  // namespace

std::string detail_of_peer(JobStatus status, const std::string& detail) {
  if (status == JobStatus::finished) return "ok";
  const bool may = std::find(kDetailsOfPeers.begin(), kDetailsOfPeers.end(), detail) != kDetailsOfPeers.end();
  return may && detail != "ok" ? detail : "lost";
}

Result<json> jobs_of_answer(const json& body, std::uint64_t max_bytes, std::uint64_t room) {
  json out = body.value("jobs", json::array());
  if (!out.is_array() || out.size() > kMaxMessageJobs) return fail(Code::invalid, "jobs: is not a valid list of jobs");
  for (json& each : out) {
    const auto files = files_of_job(each);
    const std::uint64_t bytes = files ? bytes_of(files->files) : 0, takes = files ? accounted_bytes(files->files) : 0;
    if (bytes <= max_bytes && takes <= room) {
      room -= takes;
      continue;
    }
    const std::string limit =
        bytes > max_bytes
            ? std::string(kCarriedLimit) + " is " + std::to_string(max_bytes) + " here"
            : std::string("a sender's share of ") + kIncomingLimit + " at the receiver has no space left for them";
    const std::string ended = each.value("status", json()) == json("finished") ? "finished" : "error";
    each = {{"key", each["key"]},
            {"ran_as", each.value("ran_as", json(""))},
            {"status", "error"},
            {"detail", "too_large"},
            {"error",
             "the job ended as " + ended + ", but its artifacts have " + std::to_string(bytes) + " bytes; " + limit}};
  }
  return out;
}

std::optional<JobFileList> files_of_job(const json& answered) {
  if (!answered.is_object() || answered.value("files", json()) != json(true)) return std::nullopt;
  const auto key = answered.find("key"), artifacts = answered.find("artifacts");
  if (key == answered.end() || !key->is_string()) return std::nullopt;
  if (artifacts == answered.end() || !artifacts->is_object()) return std::nullopt;
  return JobFileList{key->get<std::string>(), file_contents(dump_json(*artifacts))};
}

std::vector<JobFileList> files_of_answer(const json& jobs) {
  std::vector<JobFileList> out;
  for (const json& each : jobs) {
    if (auto files = files_of_job(each)) out.push_back(std::move(*files));
  }
  return out;
}

Result<RemoteJobEnd> read_answered_job(const json& object, std::size_t index) {
  const std::string where = "jobs[" + std::to_string(index) + "]";
  if (!object.is_object() || !object.contains("key") || !object["key"].is_string())
    return fail(Code::invalid, where + ".key: is missing");
  RemoteJobEnd out{object["key"].get<std::string>(), {}, {}};
  json fields = object;
  fields.erase("key");
  fields.erase("files");
  auto decoded = decode_json<Job>(fields);
  if (!decoded.ok()) return fail(Code::invalid, where + "." + join(decoded.problems));
  Job& job = decoded.record;
  if (job.status != JobStatus::finished && job.status != JobStatus::error)
    return fail(Code::invalid, where + ".status: is not the status of an ended job");
  out.end.status = job.status;
  out.end.detail = detail_of_peer(job.status, job.detail);
  out.end.error = std::move(job.error);
  out.end.error_info = std::move(job.error_info);
  out.end.result = std::move(job.result);
  out.end.result_json = std::move(job.result_json);
  out.end.usage = std::move(job.usage);
  out.end.layers = std::move(job.layers);
  out.end.receipt = std::move(job.receipt);
  out.end.artifacts = std::move(job.artifacts);
  out.end.artifacts_dropped = std::move(job.artifacts_dropped);
  if (const std::string_view ran_as = field_of(job.unknown, "ran_as"); !ran_as.empty() && ran_as.size() <= 64)
    out.end.ran_as = ran_as;
  if (job.attempt > 0) out.more.emplace_back("attempt", std::to_string(job.attempt));
  if (job.started_ms > 0) out.more.emplace_back("started_ms", std::to_string(job.started_ms));
  return out;
}

Result<AnswerBody> read_answer(const json& body, const json& jobs) {
  AnswerBody out;
  out.is_last = body.value("last", json(true)) != json(false);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    MJ_TRY(job, read_answered_job(jobs[i], i));
    out.jobs.push_back(std::move(job));
  }
  if (body.value("status", json()) != json(to_string(MessageStatus::processed))) {
    const json error = body.value("error", json());
    out.reason = error.is_string() && !error.get<std::string>().empty() ? error.get<std::string>()
                                                                        : "it failed there without a reason";
  }
  if (body.contains("flow")) {
    auto flow = decode_json<Flow>(body["flow"]);
    if (!flow.ok()) return fail(Code::invalid, "flow." + join(flow.problems));
    out.flow = dump_json(to_json(flow.record));
  }
  return out;
}

Result<LogsBody> read_logs(const json& body) {
  const json job = body.value("job", json()), lines = body.value("lines", json());
  if (!job.is_string()) return fail(Code::invalid, "job: is not a job key");
  if (!lines.is_array() || lines.size() > kMaxLines) return fail(Code::invalid, "lines: is not a valid list of lines");
  LogsBody out{job.get<std::string>(), {}};
  for (const json& each : lines) {
    auto line = decode_json<Log>(each);
    if (!line.ok()) return fail(Code::invalid, "lines." + join(line.problems));
    out.lines.push_back(std::move(line.record));
  }
  return out;
}

Result<CancelBody> read_cancel(const json& body) {
  CancelBody out;
  MJ_TRY(name, read_message_name(body.value("of", json())));
  out.of = std::move(name);
  const json by = body.value("by", json()), jobs = body.value("jobs", json());
  if (!by.is_string()) return fail(Code::invalid, "by: is missing");
  out.by = by.get<std::string>();
  if (!jobs.is_array() || jobs.size() > kMaxMessageJobs)
    return fail(Code::invalid, "jobs: is not a valid list of job keys");
  for (const json& each : jobs) {
    if (each.is_string()) out.jobs.insert(each.get<std::string>());
  }
  out.flow = body.value("flow", json()) == json(true);
  return out;
}

}  // namespace mycojobs
