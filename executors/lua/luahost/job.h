// The job of this process, as the modules see it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "executors/host_job.h"
#include "executors/lua/luahost/state.h"

namespace mycojobs::lua {

// What outlives the script's start. Written before it, and by the handler of SIGTERM.
void begin_job(JobChannel);
// The last frames: what the job left in that folder, and `done`.
void finish(const std::string& artifacts, std::uint64_t max_bytes);

void write_to(int fd, std::string_view bytes);  // all of it; what cannot be written is lost
inline void write_error(std::string_view text) { write_to(2, text); }

// The end of the script: hands over its result, or reports its failure; lets go of the state, then sends the artifacts
// and `done`. The exit code of the process. Called once, from however deep.
int end_job(lua_State*, int exit_code);

}  // namespace mycojobs::lua
