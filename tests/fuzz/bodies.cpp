// Fuzz targets for the bodies of envelopes: answers of remote supervisors to messages, and pieces of files.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "fuzz/targets.h"
#include "messaging/message_codec.h"
#include "model/codec.h"
#include "text/json.h"

namespace mycojobs::fuzz {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxFiles = 64U << 20, kMaxRoom = 2 * kMaxFiles;

// Returns an object, as parse_envelope() does.
std::optional<json> parse_body(std::string_view text) {
  auto body = parse_json(text);
  if (!body || !body->is_object()) return std::nullopt;
  return std::move(*body);
}

void check_job(const RemoteJobEnd& job) {
  const bool is_finished = job.end.status == JobStatus::finished;
  must(is_finished || job.end.status == JobStatus::error, "an answered job has not ended");
  must(!job.end.detail.empty() && is_finished == (job.end.detail == "ok"), "a detail that does not go with its status");
  must(job.end.ran_as.size() <= 64, "it has run as a long text");
}

// A router reads the jobs again from the mark of the message.
void check_carried(const json& jobs) {
  const auto again = parse_json(dump_json(jobs));
  must(again && *again == jobs, "jobs of an answer read otherwise in a mark");
  for (std::size_t i = 0; i < again->size(); ++i) {
    const auto job = parse_answer_job((*again)[i], i);
    must(job.has_value(), "a job of an answer is none in a mark");
  }
}

}  // namespace

int fuzz_answer_body(std::string_view text) {
  const auto body = parse_body(text);
  if (!body) return 0;
  const auto jobs = parse_answer_jobs(*body, kMaxFiles, kMaxRoom);
  if (!jobs) return 0;
  must(jobs->size() <= kMaxMessageJobs, "an answer has more jobs than a message");
  std::uint64_t room = 0;
  for (const JobFiles& each : find_answer_files(*jobs)) {
    must(sum_bytes(each.files) <= kMaxFiles, "a job leaves more than it may");
    room += accounted_bytes(each.files);
  }
  must(room <= kMaxRoom, "jobs leave more than one sender may bring");
  must(parse_answer_jobs({{"jobs", *jobs}}, kMaxFiles, kMaxRoom).value() == *jobs,
       "jobs that leave no more are changed");
  const auto answer = parse_answer(*body, *jobs);
  if (!answer) return 0;
  must(answer->jobs.size() == jobs->size(), "a job is passed over");
  for (const RemoteJobEnd& each : answer->jobs) check_job(each);
  for (const JobFiles& each : find_answer_files(*jobs)) {
    const bool any = std::any_of(answer->jobs.begin(), answer->jobs.end(),
                                 [&](const RemoteJobEnd& job) { return job.job_key == each.job_key; });
    must(any, "files are of a job that the answer does not name");
  }
  check_carried(*jobs);
  if (answer->flow.empty()) return 1;
  const auto flow = parse_json(answer->flow);
  must(flow && decode_json<Flow>(*flow).ok(), "the record of a flow is not read again");
  return 1;
}

int fuzz_logs_body(std::string_view text) {
  const auto body = parse_body(text);
  if (!body) return 0;
  const auto logs = parse_logs(*body);
  if (!logs) return 0;
  json lines = json::array();
  for (const Log& each : logs->lines) lines.push_back(to_json(each));
  const auto again = parse_logs({{"job", logs->job_key}, {"lines", lines}});
  must(again && again->job_key == logs->job_key && again->lines.size() == logs->lines.size(),
       "lines that were written are not read");
  for (std::size_t i = 0; i < lines.size(); ++i)
    must(to_json(again->lines[i]) == lines[i], "a line reads otherwise than it was written");
  return 1;
}

int fuzz_cancel_body(std::string_view text) {
  const auto body = parse_body(text);
  if (!body) return 0;
  const auto cancel = parse_cancel(*body);
  if (!cancel) return 0;
  must(cancel->jobs.size() <= kMaxMessageJobs, "it names more jobs than a message has");
  const auto again = parse_cancel({{"of", to_json(cancel->message)},
                                   {"by", cancel->signer_key},
                                   {"jobs", json(cancel->jobs)},
                                   {"flow", cancel->includes_flow}});
  must(again && to_json(again->message) == to_json(cancel->message) && again->signer_key == cancel->signer_key &&
           again->jobs == cancel->jobs && again->includes_flow == cancel->includes_flow,
       "a request to cancel reads otherwise than it was written");
  return 1;
}

int fuzz_file_body(std::string_view text) {
  const auto body = parse_body(text);
  if (!body) return 0;
  const auto wanted = parse_requested_file(*body);
  if (wanted) {
    const auto again = parse_requested_file(to_json(*wanted)),
               of_mark = parse_requested_file_text(format_requested_file(*wanted));
    must(again && format_requested_file(*again) == format_requested_file(*wanted),
         "what is missing reads otherwise than it was written");
    must(of_mark && format_requested_file(*of_mark) == format_requested_file(*wanted),
         "what is missing reads otherwise in a mark");
  }
  const auto name = parse_message_ref(body->value("of", json()));
  const auto piece = parse_piece(*body);
  if (!name || !piece) return wanted ? 1 : 0;
  must(piece->offset <= piece->file.bytes, "a piece begins behind its file");
  const auto again = parse_piece(make_piece_body(*name, piece->file, piece->offset, piece->bytes));
  must(again && again->file.sha256 == piece->file.sha256 && again->file.bytes == piece->file.bytes &&
           again->offset == piece->offset && again->bytes == piece->bytes,
       "a piece reads otherwise than it was written");
  const std::string parcel = message_bundle_id(*name, "").name;
  must(parcel.find('/') == std::string::npos && parcel.size() + 65 < 255, "a parcel's name is no name of a file");
  return 1;
}

}  // namespace mycojobs::fuzz
