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

std::array<char, 300> last_words;

// Uses no Python functions: the import may be inside a C library.
extern "C" void on_alarm(int) {
  (void)!::write(STDERR_FILENO, last_words.data(), std::strlen(last_words.data()));
  ::_exit(1);
}

std::string of_module(const std::string& name) { return "preload = [\"" + name + "\"]: "; }

class ImportTimeout {
 public:
  ImportTimeout(const std::string& name, unsigned seconds) {
    std::snprintf(last_words.data(), last_words.size(), "mycojobs-pyhost: %.200sits import has not ended within %u s\n",
                  of_module(name).c_str(), seconds);
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

std::vector<std::string>& modules() {
  static std::vector<std::string> files;
  return files;
}

}  // namespace

std::vector<std::string> loaded_modules() { return std::exchange(modules(), {}); }

Result<void> preload(const PythonSetUp& set_up, const py::dict& globals) {
  py::dict own;
  run_source(kPreloadSource, own);
  if (!set_up.venv.empty()) {
    const py::object problem = own["check_venv"](kVenvPlace);
    if (!problem.is_none()) return fail(Code::invalid, "venv " + set_up.venv + ": " + problem.cast<std::string>());
  }
  if (!set_up.preload.empty()) own["begin"]();
  for (const std::string& name : set_up.preload) {
    const ImportTimeout watch(name, set_up.import_seconds);
    const py::object problem = own["load"](name);
    if (!problem.is_none()) return fail(Code::invalid, of_module(name) + problem.cast<std::string>());
  }
  if (!set_up.preload.empty()) own["end"]();
  modules() = own["files"]().cast<std::vector<std::string>>();
  globals["before_hooks"] = py::tuple(own["before"]);
  globals["after_hooks"] = py::tuple(own["after"]);
  return {};
}

}  // namespace mycojobs
