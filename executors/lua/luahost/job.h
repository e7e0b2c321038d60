// The job of this process, for the Lua modules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "executors/host_job.h"
#include "executors/lua/luahost/state.h"

namespace mycojobs::lua {

// Initializes the state that outlives the start of the script. Must be called before the script; installs the SIGTERM
// handler.
void begin_job(JobChannel);
// Sends the last frames: the artifacts in the folder, and `done`.
void finish(const std::string& artifacts, std::uint64_t max_bytes);

void write_to(int fd, std::string_view bytes);  // writes all bytes; write errors are ignored
inline void write_error(std::string_view text) { write_to(2, text); }

// Ends the script: sends its result or error, closes the Lua state, then sends the artifacts and `done`. Returns the
// exit code of the process. May be called at any call depth; only the first call has an effect.
int end_job(lua_State*, int exit_code);

}  // namespace mycojobs::lua
