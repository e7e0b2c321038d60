#include <string>

#include "executors/host_channel.h"
#include "executors/host_job.h"
#include "executors/python/pyhost/interpreter.h"
#include "executors/python/pyhost/job_steps.h"
#include "executors/python/pyhost/pyhost.h"

namespace py = pybind11;

namespace mycojobs {
namespace {

constexpr int kNoRequest = 125;
constexpr int kRecursionLimit = 1000;  // Python's own

// The exception that is set, with its traceback in it.
py::object take_exception() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return py::reinterpret_steal<py::object>(value);
}

// Called from C++, so that a script finds no frame of ours below its own: neither in tracebacks nor with sys._getframe.
int run_script(const HostRequest& request) {
  py::object ended;
  try {
    const PreparedScript script = prepare_job(request);
    ended = py::reinterpret_steal<py::object>(
        PyEval_EvalCode(script.code.ptr(), script.globals.ptr(), script.globals.ptr()));
  } catch (py::error_already_set& error) {
    error.restore();
  }
  // What a script may have set, and what would run in our functions or stop them. No call is made with an error set.
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  end_tracing();
  Py_SetRecursionLimit(kRecursionLimit);
  if (ended) return 0;
  PyErr_Restore(type, value, trace);
  return report_failure(take_exception());
}

}  // namespace

py::dict job_services() {
  py::dict services;
  services["send"] = py::cpp_function([](int kind, const py::bytes& payload) {
    return host_job::send(static_cast<FrameKind>(kind), std::string(payload));
  });
  services["cancelled"] =
      py::cpp_function(&host_job::cancelled, py::name("cancelled"),
                       py::doc("True once the job has been asked to end. Ask once, early: from then on the "
                               "job is not ended by the first request, but has its grace time to leave."));
  services["ARTIFACTS"] = kArtifactsFolder;
  services["SECRETS"] = kSecretsFolder;
  services["NOTE"] = static_cast<int>(FrameKind::note);
  services["ERROR"] = static_cast<int>(FrameKind::error);
  return services;
}

int run_job(int channel) {
  const auto request = read_request(channel);
  if (!request) return kNoRequest;
  install_signals();
  host_job::begin(channel);
  try {
    return finish_job(run_script(*request));
  } catch (const std::exception&) {
    return 1;  // the script broke what reports its end: without `done` no agent takes this for a success
  }
}

}  // namespace mycojobs
