// The steps before and after the script of each job, implemented with Python's C API. The same steps in Python would
// read and write objects in many pages of the zygote, and each written page is copied. Steps that few jobs need are in
// job.py and ending.py. All functions require the GIL. Includes pybind11.
#pragma once

#include <pybind11/embed.h>

#include "executors/host_channel.h"

namespace mycojobs {

// Called once, after job.py is loaded: binds the objects that a script must not be able to replace.
void bind_job_steps(const pybind11::dict& host);

struct PreparedScript {
  pybind11::object code;
  pybind11::dict globals;
  bool is_warm = false;
};
// Prepares the environment, facts and code of a job; REQUIRES: __main__ exists (create_main_module()). Throws Python
// exceptions, for example for a syntax error.
PreparedScript prepare_job(const HostRequest&);
// Removes trace and profile functions of the script, which would run in the host's functions.
void end_tracing();
// Reports an uncaught exception of the script; returns python3's exit code.
int report_failure(const pybind11::object& error);
// Does the steps of python3's exit in the same order, and sends the result in between; returns the exit code.
int finish_job(int code);

// Steps of a warm script: prepare_job(), running its module, load_main(). Each run, including the first, consists of
// begin_warm_run(), a call of main with the returned object, and end_warm_run(). prepare_next_run() sets the facts,
// inputs and environment of the next request.
pybind11::object load_main();  // Returns the script's function main, or null if it is missing, which has been reported.
pybind11::object begin_warm_run();
int end_warm_run(int code, const pybind11::object& returned);
void prepare_next_run(const HostRequest&);
bool is_exit(const pybind11::object& error);  // Returns whether it is SystemExit, so that the script requested to exit.

// Runs a test job in the zygote, so that caches and specialized bytecode are as a job needs them.
void rehearse_job(const HostRequest&);
// Called in the zygote after the rehearsals: creates objects that no job changes before its script.
void create_main_module();

}  // namespace mycojobs
