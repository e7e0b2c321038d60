// Functions of the job in this process that the Lua modules use. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "executors/host_job.h"
#include "executors/lua/luahost/state.h"

namespace mycojobs::lua {

// Prepares the process for the script and installs the SIGTERM handler. To be called before the script starts.
void begin_job(JobChannel);
// Sends the last frames: the artifacts in the folder, and `done`.
void send_last_frames(const std::string& artifacts, std::uint64_t max_bytes);

void write_bytes(int fd, std::string_view bytes);  // Writes all bytes. Errors are ignored.
inline void write_error(std::string_view text) { write_bytes(2, text); }

// Ends the script: sends its result or error, closes the Lua state, then sends the artifacts and `done`. Returns the
// exit code of the process. May be called at any call depth; only the first call has an effect.
int end_job(lua_State*, int exit_code);

}  // namespace mycojobs::lua
