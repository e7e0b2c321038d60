#include <unistd.h>

#include <string>
#include <utility>

#include "executors/host_channel.h"
#include "executors/host_job.h"
#include "executors/python/pyhost/interpreter.h"
#include "executors/python/pyhost/job_steps.h"
#include "executors/python/pyhost/pyhost.h"

namespace py = pybind11;

namespace mycojobs {
namespace {

constexpr int kRecursionLimit = 1000;  // Python's default

// Returns the current Python exception with its traceback, and clears it.
py::object fetch_exception() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return py::reinterpret_steal<py::object>(value);
}

// Outcome of a call of the script's code: its value or its exception.
struct CallOutcome {
  py::object value, error;
};

// Called from C++, so that no frame of the host is visible below the script's frames, in tracebacks or sys._getframe.
template <class Code>
CallOutcome run_code(Code&& code) {
  CallOutcome outcome;
  try {
    outcome.value = py::reinterpret_steal<py::object>(code());
  } catch (py::error_already_set& error) {
    error.restore();
  }
  // Resets trace functions and the recursion limit, which would affect the host's functions. No Python function may be
  // called while an exception is set.
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  end_tracing();
  Py_SetRecursionLimit(kRecursionLimit);
  if (outcome.value) return outcome;
  PyErr_Restore(type, value, trace);
  outcome.error = fetch_exception();
  return outcome;
}

// `outcome` is destroyed afterwards: objects in its traceback are then finalized at the end of the script, not later.
int report(const CallOutcome& outcome) { return outcome.error ? report_failure(outcome.error) : 0; }

// State of a warm script in this process.
struct WarmScript {
  py::object main;
  int recursion_limit = kRecursionLimit;  // as set by the script
  bool can_run_again = false;
};
WarmScript* warm_script = nullptr;  // never destroyed: the process ends with _exit()

// Runs main(job) once. A script that requests to exit, or a forked process of the script, ends like any other.
int call_main() {
  CallOutcome outcome = run_code([] {
    const py::object job = begin_warm_run();
    Py_SetRecursionLimit(warm_script->recursion_limit);
    PyObject* const value = PyObject_CallOneArg(warm_script->main.ptr(), job.ptr());
    warm_script->recursion_limit = Py_GetRecursionLimit();
    return value;
  });
  const int code = report(outcome);
  const bool should_exit = !host_job::is_job_process() || (outcome.error && is_exit(outcome.error));
  outcome.error = {};
  if (should_exit) return finish_job(code);
  const int exit_code = end_warm_run(code, outcome.value);
  warm_script->can_run_again = true;
  return exit_code;
}

// A failure before main() exists ends the process, since a half-loaded script cannot run.
int run_script(const HostRequest& request) {
  bool is_warm = false;
  const auto load = [&] {
    const PreparedScript script = prepare_job(request);
    is_warm = script.is_warm;
    PyObject* const value = PyEval_EvalCode(script.code.ptr(), script.globals.ptr(), script.globals.ptr());
    if (is_warm) warm_script = new WarmScript{{}, Py_GetRecursionLimit()};
    return value;
  };
  CallOutcome outcome = run_code(load);
  const int code = report(outcome);
  const bool should_exit = std::exchange(outcome, {}).error || !host_job::is_job_process();
  if (!is_warm || should_exit) return finish_job(code);
  warm_script->main = load_main();
  return warm_script->main ? call_main() : finish_job(1);
}

int run_again(JobChannel channel, const HostRequest& request) {
  warm_script->can_run_again = false;
  host_job::start_next_job(channel);
  if (::chdir("/job") != 0) return 1;
  prepare_next_run(request);
  return call_main();
}

}  // namespace

py::dict job_services() {
  py::dict services;
  services["send"] = py::cpp_function([](int kind, const py::bytes& payload) {
    return host_job::send(static_cast<FrameKind>(kind), std::string(payload));
  });
  services["cancelled"] =
      py::cpp_function(&host_job::query_cancelled, py::name("cancelled"),
                       py::doc("True after the job was requested to end. Read it once, early: after that the "
                               "first request does not end the job, which has its grace time to exit."));
  services["ARTIFACTS"] = kArtifactsFolder;
  services["SECRETS"] = kSecretsFolder;
  services["NOTE"] = static_cast<int>(FrameKind::note);
  services["ERROR"] = static_cast<int>(FrameKind::error);
  return services;
}

int run_job(JobChannel channel) {
  const auto request = read_request(channel.from_agent);
  if (!request) return exit_before_start(channel.to_agent, request.error());
  try {
    if (warm_script != nullptr) return run_again(channel, *request);
    install_signals();
    host_job::start_job(channel);
    return run_script(*request);
  } catch (const std::exception&) {
    return 1;  // the script broke the host's functions; without `done`, the agent does not count this as success
  }
}

bool can_run_job_again() { return warm_script != nullptr && warm_script->can_run_again; }

}  // namespace mycojobs
