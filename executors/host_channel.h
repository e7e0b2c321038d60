// The script host's end of the channel (channel.h): blocking, one thread at a time.
#pragma once

#include <string>
#include <string_view>

#include "executors/channel.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct HostRequest {
  std::string facts, environment, script;
};

// Waits for the job. Error: unavailable, the other end closed before anything came (no job: leave quietly);
// invalid, what came is not a request; io.
Result<HostRequest> read_request(int channel);
// False: the channel cannot be written any more (closed, by the script perhaps).
bool send_frame(int channel, FrameKind, std::string_view payload);

}  // namespace mycojobs
