// What the bodies of envelopes from elsewhere say (domain/envelope.h), as far as their form goes: which message they
// are of, and who may say it, is the receiver's to ask (message_receiver.h). Messages are records (domain/codec.h),
// pieces of files stand in message_files.h. Pure; any thread. Error invalid: names the field.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/message_files.h"
#include "mycojobs/store.h"

namespace mycojobs {

inline constexpr std::size_t kMaxMessageJobs = 256;
// Field of the sender's message with the record of the remote flow, a JSON object. The field `flow` holds the flow as
// it was sent and signed.
inline constexpr std::string_view kFlowResultField = "flow_result";

// `jobs` of an answer. Those that left files of more than max_bytes end as that says, and so do those with which all
// of them take more room than there is.
Result<nlohmann::json> jobs_of_answer(const nlohmann::json& body, std::uint64_t max_bytes, std::uint64_t room);
// Files of one of these jobs that whoever sends them can give, with the job's key here. Nothing: it has none to give.
std::optional<FilesOf> files_of_job(const nlohmann::json& answered);
std::vector<FilesOf> files_of_answer(const nlohmann::json& jobs);  // of all of them
// How a job has ended at another host, in the words that such a host may use: of the others lost.
std::string detail_of_peer(JobStatus, const std::string& detail);
// What an answer says of a job: its end, and what stands beside it on the record.
Result<AnsweredJob> read_answered_job(const nlohmann::json&, std::size_t index);

struct AnswerBody {
  std::vector<AnsweredJob> jobs;
  std::string reason;   // empty: it was processed
  std::string flow;     // its record, as JSON; empty: there is none
  bool is_last = true;  // false: more of its jobs follow
};
// jobs: jobs_of_answer().
Result<AnswerBody> read_answer(const nlohmann::json& body, const nlohmann::json& jobs);

struct LogsBody {
  std::string job_key;
  std::vector<Log> lines;
};
Result<LogsBody> read_logs(const nlohmann::json& body);

struct CancelBody {
  MessageName of;
  std::string by;              // key of the message's signer
  std::set<std::string> jobs;  // as the message's sender names them
  bool flow = false;
};
Result<CancelBody> read_cancel(const nlohmann::json& body);

}  // namespace mycojobs
