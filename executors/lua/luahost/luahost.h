// Lua 5.4 for one job at a time: the zygote is warmed up once, then forked for each job. A process runs one job, except
// for the runs of a warm script (docs/warm.md). Serves the executors sal and osis, which the facts of a job name.
//
//   zygote: warm_lua() --fork--> job: run_lua_job(channel) --> exit code
//
// liblua5.4-c++ raises Lua errors as C++ exceptions, so objects in functions of the host are destroyed on errors.
#pragma once

#include <string>

#include "base/result.h"
#include "sandbox/zygote/zygote.h"

namespace mycojobs {

// Called once per process, before any other function of this header: opens the Lua state, runs the modules and clears
// the environment. Error internal: a module cannot be loaded.
Result<void> warm_lua();
std::string lua_version();  // "5.4.4"

// Called in the job's process: reads the request, runs the script with descriptors 0, 1 and 2 as stdio, and sends the
// result. Returns the exit code, or 125 if there was no valid request or it could not be prepared. The caller must then
// call _exit(). folder: /job except in tests.
int run_lua_job(JobChannel, const std::string& folder = "/job");
// Returns whether the script is warm and run_lua_job() may be called again in this process.
bool can_run_lua_job_again();

}  // namespace mycojobs
