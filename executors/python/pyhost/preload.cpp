#include "executors/python/pyhost/preload.h"

#include <pybind11/stl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "executors/python/pyhost/own_source.h"
#include "executors/python/python_executor.h"

namespace py = pybind11;

namespace mycojobs {

extern const char* const kPreloadSource;

namespace {

std::array<char, 300> timeout_message;

// Uses no Python functions: the import may be inside a C library.
extern "C" void on_alarm(int) {
  (void)!::write(STDERR_FILENO, timeout_message.data(), std::strlen(timeout_message.data()));
  ::_exit(1);
}

std::string format_prefix(const std::string& name) { return "preload = [\"" + name + "\"]: "; }

class ImportTimeout {
 public:
  ImportTimeout(const std::string& name, unsigned seconds) {
    std::snprintf(timeout_message.data(), timeout_message.size(),
                  "mycojobs-pyhost: %.200sits import has not ended within %u s\n", format_prefix(name).c_str(),
                  seconds);
    ::signal(SIGALRM, on_alarm);
    ::alarm(seconds);
  }
  ImportTimeout(const ImportTimeout&) = delete;
  ImportTimeout& operator=(const ImportTimeout&) = delete;
  ~ImportTimeout() {
    ::alarm(0);
    ::signal(SIGALRM, SIG_DFL);
  }
};

std::vector<std::string>& stored_module_files() {
  static std::vector<std::string> files;
  return files;
}

}  // namespace

std::vector<std::string> loaded_modules() { return std::exchange(stored_module_files(), {}); }

Result<void> preload(const PythonSetup& setup, const py::dict& globals) {
  py::dict preload_globals;
  run_source(kPreloadSource, preload_globals);
  if (!setup.venv.empty()) {
    const py::object problem = preload_globals["check_venv"](kVenvFolder);
    if (!problem.is_none()) return fail(Code::invalid, "venv " + setup.venv + ": " + problem.cast<std::string>());
  }
  if (!setup.preload.empty()) preload_globals["begin_preload"]();
  for (const std::string& name : setup.preload) {
    const ImportTimeout timeout(name, setup.import_seconds);
    const py::object problem = preload_globals["load_module"](name);
    if (!problem.is_none()) return fail(Code::invalid, format_prefix(name) + problem.cast<std::string>());
  }
  if (!setup.preload.empty()) preload_globals["end_preload"]();
  stored_module_files() = preload_globals["list_module_files"]().cast<std::vector<std::string>>();
  globals["before_hooks"] = py::tuple(preload_globals["before_fork_hooks"]);
  globals["after_hooks"] = py::tuple(preload_globals["after_fork_hooks"]);
  return {};
}

}  // namespace mycojobs
