#include "executors/python/pyhost/own_source.h"

namespace mycojobs {

namespace py = pybind11;

void run_source(const char* source, const py::dict& globals) {
  // A script may change builtins, so the host's files use a copy.
  if (!globals.contains("__builtins__"))
    globals["__builtins__"] = py::module_::import("builtins").attr("__dict__").attr("copy")();
  globals["__name__"] = "mycojobs_host";
  const auto code = py::reinterpret_steal<py::object>(Py_CompileString(source, "<mycojobs>", Py_file_input));
  if (!code || !py::reinterpret_steal<py::object>(PyEval_EvalCode(code.ptr(), globals.ptr(), globals.ptr()))) {
    throw py::error_already_set();
  }
}

}  // namespace mycojobs
