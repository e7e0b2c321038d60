// The script host's end of the channel (channel.h): blocking, one thread at a time. The same for every host.
//
//   read_request(channel.down)  -->  run the script  -->  send_artifacts(...)  -->  send_frame(... done)
#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"
#include "executors/channel.h"
#include "mycojobs/result.h"
#include "sandbox/zygote.h"

namespace mycojobs {

struct HostRequest {
  std::string facts, environment, inputs, script;  // inputs: "{}" if the job depends on nothing
  Fd attached = Fd();                              // facts.attached
};

// Waits for the job. Makes kArtifactsFolder and writes the files that come along below `folder`. Error: unavailable,
// the other end closed before anything came (no job: leave quietly); invalid, what came is not a request; io. folder:
// /job; another one in tests.
Result<HostRequest> read_request(int down, const std::string& folder = "/job");
// What a host does with such an error, before it leaves with the exit code that this returns: unless nobody sent a job,
// the job's end says why it never began.
int leave_unstarted(int channel, const Error&);
// False: the channel cannot be written any more (closed, by the script perhaps).
bool send_frame(int channel, FrameKind, std::string_view payload);
bool send_frames(int channel, std::string_view frames);  // as append_frame() makes them: in one piece, if it fits

// One question to the agent and its answer: blocks until the reply comes. call: the payload of the frame; its id must
// be new. Error unavailable: the channel has ended. Replies to other calls are passed over.
Result<std::string> ask(const JobChannel&, std::string_view call);

// What the script left in its artifacts folder: regular files with one name each and nothing else, in the order of
// their names. At most kMostArtifacts (domain/artifact_list.h), max_bytes together, a path of kMaxArtifactPath bytes.
// What is not sent is reported with a note. False: the channel cannot be written any more.
inline constexpr std::size_t kMaxArtifactPath = 512;
bool send_artifacts(int channel, const std::string& folder, std::uint64_t max_bytes);

}  // namespace mycojobs
