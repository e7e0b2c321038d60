#include "executors/python/pyhost/interpreter.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <vector>

#include "base/errno_text.h"
#include "base/fd.h"
#include "executors/python/pyhost/job_steps.h"
#include "executors/python/pyhost/own_source.h"
#include "executors/python/pyhost/preload.h"
#include "executors/python/pyhost/pyhost.h"
#include "executors/python/pyhost/python_heap.h"
#include "executors/python/python_executor.h"

namespace py = pybind11;

namespace mycojobs {

extern const char* const kJobSource;
extern const char* const kEndingSource;

namespace {

constexpr int kRehearsals = 20;

// Python's handlers for the signals that python3 handles. They are installed in jobs, not in the zygote.
using SavedSignals = std::array<std::pair<int, struct sigaction>, 3>;
SavedSignals& saved_signals() {
  static SavedSignals saved = {{{SIGINT, {}}, {SIGPIPE, {}}, {SIGXFSZ, {}}}};
  return saved;
}

std::vector<int> list_open_descriptors() {
  std::vector<int> descriptors;
  for (int fd = 0; fd < 1024; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) descriptors.push_back(fd);
  }
  return descriptors;
}

// Python's stdio objects remember the type of their files. Creates them over the types that a job has (pipes for
// output, /dev/null for input), then restores the original descriptors. Text written in between is copied to stderr.
class JobStdio {
 public:
  Result<void> install() {
    Fd null;
    do {  // closed stdio descriptors become /dev/null; otherwise the next opened file would take their place
      null.release();
      null.reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
      if (!null) return fail(Code::io, "/dev/null: " + errno_text(errno));
    } while (null.get() < 3);
    int pipe_ends[2];
    if (::pipe2(pipe_ends, O_CLOEXEC) != 0) return fail(Code::io, "pipe: " + errno_text(errno));
    output_ = Fd(pipe_ends[0]);
    const Fd in(pipe_ends[1]);
    const std::array<int, 3> job_descriptors = {null.get(), in.get(), in.get()};
    for (int fd = 0; fd < 3; ++fd) {
      saved_streams_[fd] = Fd(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
      if (!saved_streams_[fd] || ::dup2(job_descriptors[fd], fd) < 0)
        return fail(Code::io, "stdio: " + errno_text(errno));
    }
    return {};
  }
  ~JobStdio() {
    for (int fd = 0; fd < 3; ++fd) {
      if (saved_streams_[fd]) ::dup2(saved_streams_[fd].get(), fd);
    }
    char text[4096];
    if (!output_ || ::fcntl(output_.get(), F_SETFL, O_NONBLOCK) != 0) return;
    for (ssize_t count = 0; (count = ::read(output_.get(), text, sizeof text)) > 0;) (void)!::write(2, text, count);
  }

 private:
  Fd output_;
  std::array<Fd, 3> saved_streams_;
};

void start_interpreter(const PythonSetup& setup) {
  PyPreConfig preconfig;
  PyPreConfig_InitIsolatedConfig(&preconfig);
  preconfig.utf8_mode = 1;
  if (PyStatus_Exception(Py_PreInitialize(&preconfig)) != 0) throw std::runtime_error("cannot be initialised");
  heap::install();
  PyConfig config;
  PyConfig_InitIsolatedConfig(&config);  // ignores the environment, user packages and the working directory
  config.write_bytecode = 0;
  config.install_signal_handlers = 0;
  config.use_hash_seed = 0;  // random, but the same for all jobs of a zygote
  // Python finds a virtual environment by the path of its program; its standard library is still that of the linked
  // Python.
  const char* program = setup.venv.empty() ? MYCOJOBS_PYTHON : kVenvPython;
  PyConfig_SetBytesString(&config, &config.program_name, program);
  PyConfig_SetBytesString(&config, &config.executable, program);
  if (!setup.venv.empty()) {
    PyConfig_SetBytesString(&config, &config.base_executable, MYCOJOBS_PYTHON);
    PyConfig_SetBytesString(&config, &config.home, MYCOJOBS_PYTHON_HOME);
  }
  PyConfig_SetBytesString(&config, &config.stdio_encoding, "utf-8");
  PyConfig_SetBytesString(&config, &config.stdio_errors, "surrogateescape");
  py::initialize_interpreter(&config, 0, nullptr, false);
  heap::start_object_group();
}

// Loads the module twice: the first time imports other modules, so that in the second the objects that jobs touch are
// adjacent and separate from them.
py::dict load_job_module() {
  {
    const py::dict first_globals = job_services();
    run_source(kJobSource, first_globals);
  }
  heap::start_object_group();
  py::dict globals = job_services();
  run_source(kJobSource, globals);
  run_source(kEndingSource, globals);
  return globals;
}

HostRequest create_rehearsal_request() {
  return {R"({"id":1,"caller_id":1,"name":"","deadline_unix_ms":1,"attempt":1,"max_artifact_bytes":0,"granted":{}})",
          R"({"A":"1","B":"2"})", "{}", "result['x'] = 1\nresult['y'] = 'z'\n"};
}

void warm_job_module(const py::dict& globals) {
  globals["warm"]();
  for (auto& [signal, action] : saved_signals()) {
    ::sigaction(signal, nullptr, &action);
    ::signal(signal, SIG_DFL);
  }
  globals["collect"]();  // also empties Python's lists of free objects
  heap::start_object_group(heap::ObjectGroup::written_by_jobs);
  globals["gather"]();
  heap::start_object_group(heap::ObjectGroup::written_by_jobs);
  bind_job_steps(globals);
  for (int i = 0; i < kRehearsals; ++i) rehearse_job(create_rehearsal_request());
  ::clearenv();
  globals["cool"]();
  heap::start_object_group(heap::ObjectGroup::written_by_jobs);
  create_main_module();
}

}  // namespace

void install_signals() {
  for (const auto& [signal, action] : saved_signals()) ::sigaction(signal, &action, nullptr);
}

Result<void> warm_up(const PythonSetup& setup) {
  ::clearenv();
  const std::vector<int> before = list_open_descriptors();
  try {
    std::optional<JobStdio> stdio(std::in_place);
    MJ_CHECK(stdio->install());
    start_interpreter(setup);
    const py::dict globals = load_job_module();
    stdio.reset();
    MJ_CHECK(preload(setup, globals));
    warm_job_module(globals);
    heap::seal();
  } catch (const std::exception& error) {
    return fail(Code::unsupported, std::string("python: ") + error.what());
  }
  for (int fd : list_open_descriptors()) {
    const bool is_expected = fd < 3 || std::find(before.begin(), before.end(), fd) != before.end();
    if (!is_expected) return fail(Code::internal, "python: warm-up left descriptor " + std::to_string(fd) + " open");
  }
  return {};
}

Result<void> try_python() {
  ::clearenv();
  try {
    start_interpreter({});
    run_source(kJobSource, job_services());
  } catch (const std::exception& error) {
    return fail(Code::unsupported, std::string("python: ") + error.what());
  }
  return {};
}

std::span<const void* const> get_job_written_memory() {
  static const std::array<const void*, 1> pages = {heap::get_job_written_memory()};
  return pages;
}

std::string python_version() { return std::string(PY_VERSION); }

}  // namespace mycojobs
