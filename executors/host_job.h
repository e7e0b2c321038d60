// The job of a script host's process: its channel, and whether it has been asked to end.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "executors/channel.h"
#include "sandbox/zygote.h"

namespace mycojobs::host_job {

// Once, before the script starts and from its thread. From then on SIGTERM is handled here: a script that has asked
// cancelled() finds it true and may tidy up; any other is ended, as it would be without a handler.
void begin(JobChannel);

// Of a warm script: before another run of this process. What the script has made of SIGTERM stays.
void begin_next(JobChannel);

// The environment of the process as a whole, for another run of it. What is equal stays where it is, since libraries
// remember what getenv() gave them; what differs, our own variables, is let go of. Not after a thread was started.
void renew_environment(const std::map<std::string, std::string>&);

// Any thread. A process that the script forked is not the job and has nothing to hand back.
bool is_here();
const JobChannel& channel();
bool send(FrameKind, std::string_view payload);  // false: not sent
bool cancelled();                                // the script asks
bool term_seen();                                // we do

}  // namespace mycojobs::host_job
