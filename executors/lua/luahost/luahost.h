// Lua 5.4 for one job at a time: warmed once in the zygote, then one fork a job, never reused but by the
// runs of a warm script (docs/warm.md). Serves the executors sal
// and osis: the facts of a job say which.
//
//   zygote: warm_lua() --fork--> job: run_lua_job(channel) --> exit code
//
// liblua5.4-c++ is Lua compiled so that its errors are C++ exceptions: what a function of the host holds is let go of
// whatever happens in it.
#pragma once

#include <string>

#include "mycojobs/result.h"
#include "sandbox/zygote.h"

namespace mycojobs {

// Once in a process, before anything else of this header: opens the state, runs the modules that jobs meet, clears the
// environment of the process. Error internal: one of the modules cannot be loaded.
Result<void> warm_lua();
std::string lua_version();  // "5.4.4"

// In the job's process: reads the request, runs the script with descriptors 0, 1, 2 as its stdio, hands its result
// back. Returns the exit code, 125 if there was none to read or it could not be laid out. The caller leaves with
// _exit(). folder: /job, and another one in tests.
int run_lua_job(JobChannel, const std::string& folder = "/job");
// After run_lua_job(): its script is warm, and another one may be called in this process.
bool lua_job_stays();

}  // namespace mycojobs
