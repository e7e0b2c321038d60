// The event stream of one client for one job: its state after each change, and the lines of its log. Not thread-safe.
//
//   event: log    id: SEQ    data: LogLine, with the job      Last-Event-ID resumes after this line
//   event: job    id: SEQ    data: JobState                   sent after all earlier lines
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "api/events/event_stream.h"

namespace mycojobs::api {

inline constexpr std::uint32_t kJobPollIntervalMs = 200;  // interval of the polls of a job

class JobStream {
 public:
  // All references must outlive the stream.
  JobStream(Services& services, const EventRequest& request, EventSink& sink)
      : services_(services), request_(request), sink_(sink), last_seq_(request.after_seq) {}
  enum class ReadResult { sent, unchanged, ended };
  // Polls the job once and sends the changes. Checks the right to read each time. ReadResult::ended: the stream
  // must end.
  ReadResult poll();

 private:
  struct Page {
    Job job;
    LogPage log;
  };
  Result<Page> read() const;
  ReadResult send_error(const Error&);

  Services& services_;
  const EventRequest& request_;
  EventSink& sink_;
  std::uint64_t last_seq_;  // last log line that was sent
  std::string last_state_;  // last state that was sent
};

}  // namespace mycojobs::api
