// One client's stream of events of one job: its state whenever that changes, and its log, line by line. Of one thread.
//
//   event: log    id: SEQ    data: LogLine, with the job      Last-Event-ID goes on behind that line
//   event: job    id: SEQ    data: JobState                   once all lines before it are sent
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "api/event_stream.h"

namespace mycojobs::api {

inline constexpr std::uint32_t kJobLookMs = 200;  // between looks at a job

class JobStream {
 public:
  JobStream(Services& services, const EventRequest& request, EventSink& sink)
      : services_(services), request_(request), sink_(sink), after_(request.after_seq) {}
  enum class Look { sent, nothing, over };
  Look look();  // rights are asked anew each time

 private:
  struct Page {
    Job job;
    LogPage log;
  };
  Result<Page> read() const;
  Look say_error(const Error&);

  Services& services_;
  const EventRequest& request_;
  EventSink& sink_;
  std::uint64_t after_;
  std::string state_;  // as it was sent last
};

}  // namespace mycojobs::api
