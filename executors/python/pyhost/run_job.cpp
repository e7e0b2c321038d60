#include <unistd.h>

#include <csignal>
#include <string>

#include "executors/host_channel.h"
#include "executors/python/pyhost/interpreter.h"
#include "executors/python/pyhost/pyhost.h"

namespace py = pybind11;

namespace mycojobs {
namespace {

constexpr int kNoRequest = 125;
constexpr int kRecursionLimit = 1000;  // Python's own

// The job of this process. Written before the script starts, and by the handler of SIGTERM.
struct ThisJob {
  int channel = -1;
  pid_t pid = 0;
  volatile std::sig_atomic_t term_seen = 0;
  volatile std::sig_atomic_t script_asks = 0;
};
ThisJob this_job;

// A script that asks mycojobs.cancelled() is told and may tidy up; any other ends here, as it would without a handler.
// Process 1 of a namespace is not ended by a signal of its own: it leaves with the code that a shell would show.
extern "C" void on_term(int signal) {
  this_job.term_seen = 1;
  if (this_job.script_asks != 0) return;
  if (::getpid() == 1) ::_exit(128 + signal);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void handle_term() {
  struct sigaction action {};
  action.sa_handler = on_term;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
}

// False: not sent. A process that the script forked is not the job and has nothing to hand back.
bool send(int kind, const std::string& payload) {
  return ::getpid() == this_job.pid && send_frame(this_job.channel, static_cast<FrameKind>(kind), payload);
}

bool cancelled() {
  this_job.script_asks = 1;
  return this_job.term_seen != 0;
}

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
  const JobFunctions& job = job_functions();
  const py::bytes facts(request.facts), environment(request.environment), inputs(request.inputs),
      script(request.script);
  auto prepared = py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(
      job.prepare.ptr(), facts.ptr(), environment.ptr(), inputs.ptr(), script.ptr(), nullptr));
  py::object ended;
  if (prepared) {
    const py::tuple pair = std::move(prepared);
    ended = py::reinterpret_steal<py::object>(PyEval_EvalCode(pair[0].ptr(), pair[1].ptr(), pair[1].ptr()));
  }
  // What a script may have set, and what would run in our functions or stop them.
  PyEval_SetTrace(nullptr, nullptr);
  PyEval_SetProfile(nullptr, nullptr);
  Py_SetRecursionLimit(kRecursionLimit);
  if (ended) return 0;
  return job.report(take_exception()).cast<int>();
}

}  // namespace

py::dict job_services() {
  py::dict services;
  services["send"] =
      py::cpp_function([](int kind, const py::bytes& payload) { return send(kind, std::string(payload)); });
  services["cancelled"] =
      py::cpp_function(&cancelled, py::name("cancelled"),
                       py::doc("True once the job has been asked to end. Ask once, early: from then on the "
                               "job is not ended by the first request, but has its grace time to leave."));
  services["send_artifacts"] = py::cpp_function([](const std::string& folder, std::uint64_t max_bytes) {
    return ::getpid() == this_job.pid && send_artifacts(this_job.channel, folder, max_bytes);
  });
  services["ARTIFACTS"] = kArtifactsFolder;
  services["SECRETS"] = kSecretsFolder;
  services["NOTE"] = static_cast<int>(FrameKind::note);
  services["RESULT"] = static_cast<int>(FrameKind::result);
  services["ERROR"] = static_cast<int>(FrameKind::error);
  services["DONE"] = static_cast<int>(FrameKind::done);
  return services;
}

int run_job(int channel) {
  const auto request = read_request(channel);
  if (!request) return kNoRequest;
  this_job.channel = channel;
  this_job.pid = ::getpid();
  install_signals();
  handle_term();
  try {
    return job_functions().finish(run_script(*request)).cast<int>();
  } catch (const std::exception&) {
    return 1;  // the script broke what tells its end: without `done` no agent takes this for a success
  }
}

}  // namespace mycojobs
