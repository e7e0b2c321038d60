// What surrounds the script of each job: its beginning and its end, in calls of Python's C interface. The same in
// Python would read and write objects all over the zygote's memory, and each page that is written is copied: only what
// few jobs need is there (job.py, ending.py). Includes pybind11.
#pragma once

#include <pybind11/embed.h>

#include "executors/host_channel.h"

namespace mycojobs {

// Once, when the module of job.py is loaded: binds what a script must not be able to replace.
void bind_job_steps(const pybind11::dict& host);

struct PreparedScript {
  pybind11::object code;
  pybind11::dict globals;
  bool warm = false;
};
// The script's environment, facts and code; its __main__ is there. Throws what Python raises: a script that is no
// Python.
PreparedScript prepare_job(const HostRequest&);
// Of what the script has set: it would run in our functions.
void end_tracing();
// Reports an exception that left the script; returns python3's exit code.
int report_failure(const pybind11::object& error);
// Does what python3 does at its end, in its order, and hands over the result in between; returns the exit code.
int finish_job(int code);

// Of a warm script, in this order: after prepare_job() its module is run, then load_main(); each run of it, the first
// too, is begin_warm_run(), a call of main with what that gives, end_warm_run(). What is before the next run: the
// facts, inputs and environment of another request.
pybind11::object load_main();  // of the script's globals; null: it has none, which has been reported
pybind11::object begin_warm_run();
int end_warm_run(int code, const pybind11::object& returned);
void prepare_next_run(const HostRequest&);
bool is_exit(const pybind11::object& error);  // SystemExit: the script asks to leave

// A job of ours in the zygote, so that caches and specialised code are as a job needs them.
void rehearse_job(const HostRequest&);
// In the zygote, after the rehearsals: what no job changes before its script is there when it starts.
void make_ready();

}  // namespace mycojobs
