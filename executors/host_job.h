// State of the job that a script host's process runs: its channel, and whether SIGTERM was received.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "executors/channel.h"
#include "sandbox/zygote/zygote.h"

namespace mycojobs::host_job {

// Called once, before the script starts and from its thread. Installs a handler of SIGTERM: if the script has ever
// called query_cancelled(), the handler only sets a flag, so the script can clean up; otherwise the process ends.
void start_job(JobChannel);

// Warm scripts: called before each further run in this process. Does not restore a SIGTERM handler that the script
// changed.
void start_next_job(JobChannel);

// Replaces the whole environment of the process for a further run. Unchanged entries keep their addresses, since
// libraries store pointers from getenv(); changed entries are freed. REQUIRES: the process has a single thread.
void replace_environment(const std::map<std::string, std::string>&);

// The following functions are thread-safe. is_job_process() is false in a process that the script forked: such a
// process must not use the channel.
bool is_job_process();
const JobChannel& channel();
bool send(FrameKind, std::string_view payload);  // Returns false if the frame was not sent.
bool query_cancelled();                          // for the script; see start_job()
bool has_received_term();                        // for the host

}  // namespace mycojobs::host_job
