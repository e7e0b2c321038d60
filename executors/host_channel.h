// The script host's end of the channel (channel.h), for all hosts. Calls block; only one thread may use a channel at a
// time.
//
//   read_request(channel.from_agent)  -->  run the script  -->  send_artifacts(...)  -->  send_frame(... done)
#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"
#include "executors/channel.h"
#include "sandbox/zygote/zygote.h"

namespace mycojobs {

struct HostRequest {
  std::string facts, environment, inputs, script;  // inputs: "{}" if the job has no dependencies
  Fd attached = Fd();                              // descriptor of facts.attached
  bool has_replaced_stdin = false;                 // descriptor 0 is another file than before the request
};

// Waits for a job. Creates kArtifactsFolder and writes the received files below `folder` (/job except in tests). The
// file kStdinName becomes the standard input of the process; without it, the standard input is empty.
// Errors: unavailable if the peer closed the channel before it sent a request; invalid if the request is malformed; io.
Result<HostRequest> read_request(int down, const std::string& folder = "/job");
// Handles an error of read_request() and returns the host's exit code. Except for `unavailable`, the error is sent to
// the agent and becomes the error of the job.
int exit_before_start(int channel, const Error&);
// Returns false if the channel is closed, for example by the script.
bool send_frame(int channel, FrameKind, std::string_view payload);
bool send_frames(int channel, std::string_view frames);  // from append_frame(); in one write(2) if possible

// Sends one call to the agent and blocks until its reply arrives. call: the payload of the frame; its id must be
// unused. Error unavailable: the channel was closed. Replies to other calls are skipped.
Result<std::string> call_agent(const JobChannel&, std::string_view call);

// Sends the files of the artifacts folder in the order of their names. Only regular files with one link are sent: at
// most kMaxArtifacts (model/artifact.h), max_bytes in total, with paths of at most kMaxArtifactPath bytes. Each
// omitted file is reported with a note. Returns false if the channel is closed.
inline constexpr std::size_t kMaxArtifactPath = 512;
bool send_artifacts(int channel, const std::string& folder, std::uint64_t max_bytes);

}  // namespace mycojobs
