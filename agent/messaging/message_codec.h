// Parsers for the bodies of envelopes from remote hosts (messaging/envelope.h). They check the format only; the
// receiver (message_receiver.h) checks the message that a body belongs to and the permissions of its signer. Messages
// are records (model/codec.h); pieces of files are in message_artifacts.h. Pure functions, thread-safe. Error `invalid`
// names the field.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "messaging/message_artifacts.h"
#include "store/store.h"

namespace mycojobs {

inline constexpr std::size_t kMaxMessageJobs = 256;
// Field of the sender's message with the record of the remote flow, a JSON object. The field `flow` holds the flow as
// it was sent and signed.
inline constexpr std::string_view kFlowResultField = "flow_result";

// Returns the `jobs` of an answer. A job whose files exceed max_bytes, or with which all files together exceed `room`,
// ends with an error that names the limit.
Result<nlohmann::json> jobs_of_answer(const nlohmann::json& body, std::uint64_t max_bytes, std::uint64_t room);
// Returns the files of one of these jobs that the sender can transfer, with the local key of the job. Returns no value
// if there are none.
std::optional<JobFileList> files_of_job(const nlohmann::json& answered);
std::vector<JobFileList> files_of_answer(const nlohmann::json& jobs);  // Same, for all jobs.
// Returns the detail of a job that ended at a remote host, restricted to the details that a remote host may report. Any
// other detail becomes `lost`.
std::string detail_of_peer(JobStatus, const std::string& detail);
// Reads one job of an answer: its end and the other fields for its record.
Result<RemoteJobEnd> read_answered_job(const nlohmann::json&, std::size_t index);

struct AnswerBody {
  std::vector<RemoteJobEnd> jobs;
  std::string reason;   // why the message was not processed; empty if it was processed
  std::string flow;     // record of the flow as JSON; empty if there is none
  bool is_last = true;  // false: another answer with further jobs follows
};
// `jobs` is the result of jobs_of_answer().
Result<AnswerBody> read_answer(const nlohmann::json& body, const nlohmann::json& jobs);

struct LogsBody {
  std::string job_key;
  std::vector<Log> lines;
};
Result<LogsBody> read_logs(const nlohmann::json& body);

struct CancelBody {
  MessageName of;
  std::string by;              // key of the signer of the message
  std::set<std::string> jobs;  // keys at the sender of the message
  bool flow = false;
};
Result<CancelBody> read_cancel(const nlohmann::json& body);

}  // namespace mycojobs
