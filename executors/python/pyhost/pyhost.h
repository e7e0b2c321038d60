// CPython for one job at a time: the zygote is warmed up once, then forked for each job. A process runs one job, except
// for the runs of a warm script (docs/warm.md).
//
//   zygote: warm_up() --fork--> job: run_job(channel) --> exit code
//
// The zygote is single-threaded and never runs code of a job. Therefore all locks of the interpreter are free in a
// child, and a child does not need CPython's fork hooks, which cost more than a small job (they rebuild locks and write
// to shared pages). Their necessary effects are in prepare_job(): a new random seed and the thread id. The process must
// be created by fork(), or its thread id must be updated as glibc does.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "sandbox/zygote/zygote.h"

namespace mycojobs {

// Python settings of a context.
struct PythonSetup {
  std::string venv;                  // host path of /venv (executors/python/python_executor.h); empty if there is none
  std::vector<std::string> preload;  // names of modules
  unsigned import_seconds = 30;      // time-out per module; must be less than the launcher's time-out for a zygote
};

// Called once per process, before any other function of this header. Clears the environment, imports frequently used
// modules, and leaves the interpreter with a frozen heap. stdin, stdout and stderr are restored. Errors: unsupported
// if Python's own modules are missing; internal if a module of the host left a descriptor open; invalid if the virtual
// environment or a module is unusable (named in the message). If an import exceeds its time-out, the process prints a
// message on stderr and exits.
Result<void> warm_up(const PythonSetup& = {});
// Checks that jobs can run: starts the interpreter and imports the modules of job.py.
Result<void> try_python();
// Returns an address in each of the large pages that every job writes to. REQUIRES: warm_up() succeeded.
std::span<const void* const> get_job_written_memory();
// Returns the files of all imported modules. May be called once, after warm_up(); the list is then released.
std::vector<std::string> loaded_modules();
std::string python_version();  // "3.11.2"

// Called in the job's process: reads the request, runs the script with descriptors 0, 1 and 2 as stdio, and sends the
// result. Returns python3's exit code, or 125 if there was no valid request or it could not be prepared. The caller
// must then call _exit().
int run_job(JobChannel);
// Returns whether the script is warm and run_job() may be called again in this process.
bool can_run_job_again();

}  // namespace mycojobs
