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
#include "store/message_store.h"

namespace mycojobs {

inline constexpr std::size_t kMaxMessageJobs = 256;
// Field of the sender's message with the record of the remote flow, a JSON object. The field `flow` holds the flow as
// it was sent and signed.
inline constexpr std::string_view kFlowResultField = "flow_result";

// Returns the `jobs` of an answer. A job whose files exceed max_bytes, or with which all files together exceed
// free_bytes, ends with an error that names the limit.
Result<nlohmann::json> parse_answer_jobs(const nlohmann::json& body, std::uint64_t max_bytes, std::uint64_t free_bytes);
// Returns the files of one job of an answer that the sender can transfer, with the local key of the job. Returns no
// value if there are none.
std::optional<JobFiles> find_job_files(const nlohmann::json& job);
// Returns the results of find_job_files() for all jobs.
std::vector<JobFiles> find_answer_files(const nlohmann::json& jobs);
// Returns the detail of a job that ended at a remote host, restricted to the details that a remote host may report. Any
// other detail becomes `lost`.
std::string filter_peer_detail(JobStatus, const std::string& detail);
// Parses one job of an answer. `index` is the position of the job in `jobs`, for error messages.
Result<RemoteJobEnd> parse_answer_job(const nlohmann::json&, std::size_t index);

struct AnswerBody {
  std::vector<RemoteJobEnd> jobs;
  std::string reason;   // the reason why the message was not processed; empty if it was processed
  std::string flow;     // record of the flow as JSON; empty if there is none
  bool is_last = true;  // if false, another answer with further jobs follows
};
// `jobs` is the result of parse_answer_jobs().
Result<AnswerBody> parse_answer(const nlohmann::json& body, const nlohmann::json& jobs);

struct LogsBody {
  std::string job_key;
  std::vector<Log> lines;
};
Result<LogsBody> parse_logs(const nlohmann::json& body);

struct CancelBody {
  MessageRef message;
  std::string signer_key;      // key of the signer of the message
  std::set<std::string> jobs;  // job keys at the sender of the message
  bool includes_flow = false;  // whether the flow of the message is to be cancelled
};
Result<CancelBody> parse_cancel(const nlohmann::json& body);

}  // namespace mycojobs
