// CPython for one job at a time: warmed once in the zygote, then one fork a job, never reused but by
// the runs of a warm script (docs/warm.md).
//
//   zygote: warm_up() --fork--> job: run_job(channel) --> exit code
//
// The zygote stays single-threaded and never runs a line of a job. So a child finds every lock of the interpreter free
// and needs none of CPython's fork hooks, which cost more than a small job (they rebuild locks, and write to pages that
// are shared until then); what they would do that matters is done in prepare_job(): fresh random numbers, thread
// id. The process must have been forked with fork(), or with its thread id mended as glibc does.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "mycojobs/result.h"
#include "sandbox/zygote.h"

namespace mycojobs {

// What an operator gives the Python of a context.
struct PythonSetUp {
  std::string venv;  // the path on the host of what is at /venv (executors/python/python_executor.h); empty: none
  std::vector<std::string> preload;  // modules
  unsigned import_seconds = 30;      // for each; less than the launcher waits for a zygote
};

// Once in a process, before anything else of this header. Clears the environment of the process; imports what jobs use
// most; leaves the interpreter with its heap frozen. stdin, stdout and stderr are as before.
// Error unsupported: Python's own modules are missing; internal: a module of ours left a descriptor open; invalid: the
// virtual environment or a module is not fit, by name. A module that does not come back in time: the process says
// so on stderr and exits.
Result<void> warm_up(const PythonSetUp& = {});
// As much of it as shows that jobs can run: the interpreter starts, and what they import is there.
Result<void> try_python();
// An address in each of the large pages that every job writes to; after warm_up().
std::span<const void* const> written_by_jobs();
// The files of the modules that are imported; once, after warm_up(): then they are forgotten.
std::vector<std::string> loaded_modules();
std::string python_version();  // "3.11.2"

// In the job's process: reads the request, runs the script with descriptors 0, 1, 2 as its stdio, hands its result
// back. Returns the exit code as python3 would, 125 if there was none to read or it could not be laid out. The caller
// leaves with _exit().
int run_job(JobChannel);
// After run_job(): its script is warm, and another run_job() may be called in this process.
bool job_stays();

}  // namespace mycojobs
