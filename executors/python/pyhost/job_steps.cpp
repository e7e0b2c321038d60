#include "executors/python/pyhost/job_steps.h"

#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "executors/host_job.h"
#include "executors/python/pyhost/streams.h"
#include "text/utf8_cut.h"

namespace py = pybind11;

namespace mycojobs {
namespace {

constexpr Py_ssize_t kMaxFileName = 200;

struct PythonBindings {
  py::dict host, job_values, modules, environment, lines, main_thread;
  py::object builtins, scan, seed, number_of, compile, set_zone, collect, tracer, profiler, join_threads,
      run_exit_functions, log_handlers, end_logging, quote, result, out, err, report, encode_result, report_warning,
      hooks, begin_run, hide_stdin, renew_stdin, refuse_without_main, refuse_returned, add_packages;
  py::list arguments;
  // Own strings, stored near the other objects: the reference counts of shared strings would dirty other pages.
  py::str main_name, result_name, annotations, main, facts, inputs, file_name, native_id, loading;
  Py_ssize_t own_log_handlers = 0;  // handlers of logging itself, which buffer nothing
};
PythonBindings* bindings = nullptr;  // never destroyed: the process ends with _exit()

py::object take_ownership(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}
void check(int result) {
  if (result < 0) throw py::error_already_set();
}
void set(PyObject* dict, const char* name, const py::object& value) {
  check(PyDict_SetItemString(dict, name, value.ptr()));
}
py::object call(const py::object& function) { return take_ownership(PyObject_CallNoArgs(function.ptr())); }

// Parses JSON from the agent, without the search for blanks that json.loads() does.
py::dict parse_object(const std::string& json) {
  const py::object text =
      take_ownership(PyUnicode_FromStringAndSize(json.data(), static_cast<Py_ssize_t>(json.size())));
  const py::tuple pair = take_ownership(PyObject_CallOneArg(bindings->scan.ptr(), text.ptr()));
  return pair[0];
}

// REQUIRES: the process has no environment. Allocates one block that is never freed, like setenv().
void set_environment(const std::string& json) {
  const py::dict values = parse_object(json);
  auto* const block = new std::pair<std::string, std::vector<char*>>();
  std::vector<std::size_t> starts;
  for (const auto& [name, value] : values) {
    Py_ssize_t name_size = 0, value_size = 0;
    const char* const name_bytes = PyUnicode_AsUTF8AndSize(name.ptr(), &name_size);
    const char* const value_bytes = name_bytes != nullptr ? PyUnicode_AsUTF8AndSize(value.ptr(), &value_size) : nullptr;
    if (value_bytes == nullptr) throw py::error_already_set();
    const py::object key = take_ownership(PyBytes_FromStringAndSize(name_bytes, name_size));
    const py::object entry = take_ownership(PyBytes_FromStringAndSize(value_bytes, value_size));
    check(PyDict_SetItem(bindings->environment.ptr(), key.ptr(), entry.ptr()));
    starts.push_back(block->first.size());
    block->first.append(name_bytes, static_cast<std::size_t>(name_size)) += '=';
    block->first.append(value_bytes, static_cast<std::size_t>(value_size)) += '\0';
  }
  for (const std::size_t start : starts) block->second.push_back(block->first.data() + start);
  block->second.push_back(nullptr);
  ::environ = block->second.data();
  if (values.contains("TZ")) call(bindings->set_zone);
}

// Replaces the environment for a further run of the process.
void replace_environment(const std::string& json) {
  std::map<std::string, std::string> variables;
  PyDict_Clear(bindings->environment.ptr());
  for (const auto& [name, value] : parse_object(json)) {
    const auto key = name.cast<std::string>(), text = value.cast<std::string>();
    check(PyDict_SetItem(bindings->environment.ptr(), py::bytes(key).ptr(), py::bytes(text).ptr()));
    variables.emplace(key, text);
  }
  host_job::replace_environment(variables);
}

// Like random.seed(), but with 256 bits instead of 19,968, which take ten times as long to generate.
void seed_random_numbers() {
  std::array<char, 32> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    call(bindings->seed);
    return;
  }
  const py::object number =
      take_ownership(PyObject_CallOneArg(bindings->number_of.ptr(), py::bytes(bytes.data(), bytes.size()).ptr()));
  take_ownership(PyObject_CallOneArg(bindings->seed.ptr(), number.ptr()));
}

py::object get_file_name(const py::dict& facts) {
  py::object name = facts["name"];
  const Py_ssize_t length = PyUnicode_Check(name.ptr()) ? PyUnicode_GET_LENGTH(name.ptr()) : 0;
  if (length > 0 && length <= kMaxFileName && name.attr("isprintable")().cast<bool>()) return name;
  const py::object caller = facts["caller_id"], id = facts["id"];
  return take_ownership(PyUnicode_FromFormat("<job %S:%S>", caller.ptr(), id.ptr()));
}

void set_job_value(const py::str& name, const py::object& value) {
  check(PyDict_SetItem(bindings->job_values.ptr(), name.ptr(), value.ptr()));
}
py::object get_job_value(const py::str& name) {
  return py::reinterpret_borrow<py::object>(PyDict_GetItem(bindings->job_values.ptr(), name.ptr()));
}

// Sets sys.argv[1:]. Without arguments the list is not accessed: an access would copy its page.
void set_arguments(const py::dict& facts) {
  PyObject* const arguments = PyDict_GetItemString(facts.ptr(), "args");  // borrowed
  if (arguments == nullptr) return;
  check(PyList_SetSlice(bindings->arguments.ptr(), 1, PyList_Size(bindings->arguments.ptr()), arguments));
}

// Replaces sys.argv: the previous run can have changed the list or assigned another.
void renew_arguments() {
  PyObject* const arguments = PyDict_GetItemString(get_job_value(bindings->facts).ptr(), "args");  // borrowed
  py::list list;
  list.append(get_job_value(bindings->file_name));
  if (arguments != nullptr) check(PyList_SetSlice(list.ptr(), 1, 1, arguments));
  check(PySys_SetObject("argv", list.ptr()));
}

// Copies the names of a dict, so that a job does not change the reference counts of the interpreter's strings.
void copy_names(PyObject* names) {
  const py::dict original = take_ownership(PyDict_Copy(names));
  PyDict_Clear(names);
  for (const auto& [name, value] : original) {
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(name.ptr(), &size);
    if (text == nullptr) throw py::error_already_set();
    check(PyDict_SetItem(names, take_ownership(PyUnicode_FromStringAndSize(text, size)).ptr(), value.ptr()));
  }
}

void create_main() {
  const py::object main = take_ownership(PyModule_NewObject(bindings->main_name.ptr()));
  py::dict names = py::reinterpret_borrow<py::dict>(PyModule_GetDict(main.ptr()));
  set(names.ptr(), "__builtins__", bindings->builtins);
  check(PyDict_SetItem(names.ptr(), bindings->annotations.ptr(), py::dict().ptr()));
  check(PyDict_SetItem(names.ptr(), bindings->result_name.ptr(), bindings->result.ptr()));
  copy_names(names.ptr());
  check(PyDict_SetItem(bindings->modules.ptr(), bindings->main_name.ptr(), main.ptr()));
  set_job_value(bindings->main, main);
}

// Returns whether the process has a single thread and no pools. python3 joins threads before it runs exit functions.
// Without threads, the call of threading would have no effect but cost 38 page faults, a fifth of a job
// (docs/performance.md). The listed modules also end their pools in that call.
bool is_single_threaded() {
  if (PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Get())) != nullptr) return false;
  for (const char* const pools : {"concurrent.futures.thread", "concurrent.futures.process"}) {
    if (PyDict_GetItemString(bindings->modules.ptr(), pools) != nullptr) return false;
  }
  return true;
}

template <class Step>
void try_step(Step&& step) {
  try {
    step();
  } catch (py::error_already_set& error) {
    bindings->report_warning(error.value());
  }
}

// Frees the script's globals, so that objects are finalized: files are written, __del__ is called. Collects garbage
// first, as python3 does, since that finalizes a buffer before its file.
void remove_main() {
  call(bindings->collect);
  if (PyDict_DelItem(bindings->modules.ptr(), bindings->main_name.ptr()) != 0) PyErr_Clear();
  set_job_value(bindings->main, py::none());
  call(bindings->collect);
}

// Encodes a result with only text values, the common case; returns an empty text for any other result.
std::string encode_texts(const py::object& result) {
  std::string json = "{";
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(result.ptr(), &position, &key, &value) != 0;) {
    if (!PyUnicode_CheckExact(key) || !PyUnicode_CheckExact(value)) return {};
    // Key and value may be the same object.
    const char* separator = json.size() > 1 ? "," : "";
    for (PyObject* const text : {key, value}) {
      json += std::exchange(separator, ":");
      const py::object quoted = take_ownership(PyObject_CallOneArg(bindings->quote.ptr(), text));
      Py_ssize_t size = 0;
      const char* const bytes = PyUnicode_AsUTF8AndSize(quoted.ptr(), &size);
      // hand_over() of ending.py, called next, reports the error.
      if (bytes == nullptr) return PyErr_Clear(), std::string();
      json.append(bytes, static_cast<std::size_t>(size));
    }
  }
  return json += '}';
}

// Returns the result's JSON, or None if the result is invalid, which has been reported to the agent. returned:
// main(job) of a warm script returned the result.
py::object encode(const py::object& result, bool returned = false) {
  if (PyDict_CheckExact(result.ptr())) {
    if (const std::string json = encode_texts(result); !json.empty()) return py::bytes(json);
  }
  if (returned) return bindings->encode_result(result, true);
  return take_ownership(PyObject_CallOneArg(bindings->encode_result.ptr(), result.ptr()));
}

py::object encode_script_result() {
  PyObject* const names = PyModule_GetDict(get_job_value(bindings->main).ptr());
  PyObject* const value = PyDict_GetItem(names, bindings->result_name.ptr());  // borrowed
  return encode(value != nullptr ? py::reinterpret_borrow<py::object>(value) : bindings->result);
}

// Finishes a run: flushes its output and sends its artifacts and its result, if any.
int send_last_frames(int code, std::string frames) {
  const bool is_flushed = streams::flush("stdout", bindings->out);
  streams::flush("stderr", bindings->err);
  if (!is_flushed && code == 0) {
    code = 120;
    py::object(bindings->host["send_error"])("OSError", "stdout could not be written to the end", "", 0, code);
  }
  if (host_job::is_job_process()) {
    const auto max_bytes = get_job_value(bindings->facts)["max_artifact_bytes"].cast<std::uint64_t>();
    send_artifacts(host_job::channel().to_agent, kArtifactsFolder, max_bytes);
    append_frame(frames, FrameKind::done, "");
    send_frames(host_job::channel().to_agent, frames);
  }
  return code;
}

// Like compile(), without inherited flags. REQUIRES: a NUL follows the last byte of `script`.
py::object compile(std::string_view script, const py::object& text, const py::object& name) {
  // Python's function raises the error.
  if (script.find('\0') != std::string_view::npos) return bindings->compile(text, name, "exec", 0, true);
  PyCompilerFlags flags{PyCF_SOURCE_IS_UTF8 | PyCF_IGNORE_COOKIE, PY_MINOR_VERSION};
  return take_ownership(Py_CompileStringObject(script.data(), name.ptr(), Py_file_input, &flags, -1));
}

}  // namespace

void bind_job_steps(const py::dict& host) {
  bindings = new PythonBindings();
  bindings->main_name = py::str("__main__");
  bindings->result_name = py::str("result");
  bindings->annotations = py::str("__annotations__");
  bindings->main = py::str("main");
  bindings->facts = py::str("facts");
  bindings->inputs = py::str("inputs");
  bindings->file_name = py::str("file_name");
  bindings->native_id = py::str("_native_id");
  bindings->loading = py::str("loading");
  bindings->host = host;
  bindings->job_values = host["now"];
  bindings->modules = host["modules"];
  bindings->environment = host["environment_data"];
  bindings->lines = host["lines"];
  bindings->main_thread = host["main_thread"].attr("__dict__");
  const std::pair<const char*, py::object*> names[] = {{"builtins_module", &bindings->builtins},
                                                       {"scan_json", &bindings->scan},
                                                       {"reseed", &bindings->seed},
                                                       {"number_of", &bindings->number_of},
                                                       {"compile_script", &bindings->compile},
                                                       {"set_zone", &bindings->set_zone},
                                                       {"collect", &bindings->collect},
                                                       {"tracer", &bindings->tracer},
                                                       {"profiler", &bindings->profiler},
                                                       {"join_threads", &bindings->join_threads},
                                                       {"flush_exit", &bindings->run_exit_functions},
                                                       {"log_handlers", &bindings->log_handlers},
                                                       {"end_logging", &bindings->end_logging},
                                                       {"result", &bindings->result},
                                                       {"stdout", &bindings->out},
                                                       {"stderr", &bindings->err},
                                                       {"report", &bindings->report},
                                                       {"hand_over", &bindings->encode_result},
                                                       {"encode_basestring", &bindings->quote},
                                                       {"tell", &bindings->report_warning},
                                                       {"begin_run", &bindings->begin_run},
                                                       {"hide_stdin", &bindings->hide_stdin},
                                                       {"renew_stdin", &bindings->renew_stdin},
                                                       {"refuse_without_main", &bindings->refuse_without_main},
                                                       {"refuse_returned", &bindings->refuse_returned},
                                                       {"add_packages", &bindings->add_packages}};
  for (const auto& [name, binding] : names) *binding = host[name];
  bindings->hooks = py::tuple(host["before_hooks"]) + py::tuple(host["after_hooks"]);
  bindings->arguments = py::module_::import("sys").attr("argv");
  bindings->own_log_handlers = PyList_Size(bindings->log_handlers.ptr());
}

PreparedScript prepare_job(const HostRequest& request) {
  PreparedScript prepared;
  prepared.globals = py::reinterpret_borrow<py::dict>(PyModule_GetDict(get_job_value(bindings->main).ptr()));
  const py::dict facts = parse_object(request.facts);
  set_job_value(bindings->facts, facts);
  set_job_value(bindings->inputs, py::bytes(request.inputs));
  set_environment(request.environment);
  seed_random_numbers();
  for (const py::handle hook : py::reinterpret_borrow<py::tuple>(bindings->hooks)) hook();
  check(PyDict_SetItem(bindings->main_thread.ptr(), bindings->native_id.ptr(), py::int_(::gettid()).ptr()));
  if (PyObject* const folder = PyDict_GetItemString(facts.ptr(), "packages");
      folder != nullptr && PyUnicode_GetLength(folder) > 0)
    take_ownership(PyObject_CallOneArg(bindings->add_packages.ptr(), folder));
  prepared.is_warm = PyDict_GetItemString(facts.ptr(), "warm") != nullptr;
  // The process of a warm script outlives its first job, so the name must not be that job's.
  const py::object name = prepared.is_warm ? py::object(py::str("<script>")) : get_file_name(facts);
  if (prepared.is_warm) {
    set_job_value(bindings->loading, py::bool_(true));
    call(bindings->hide_stdin);
  }
  set_job_value(bindings->file_name, name);
  check(PyList_SetItem(bindings->arguments.ptr(), 0, py::object(name).release().ptr()));
  if (!prepared.is_warm) set_arguments(facts);
  const std::string_view script = without_byte_order_mark(request.script);  // as python3 reads a file
  const py::object source =
      take_ownership(PyUnicode_FromStringAndSize(script.data(), static_cast<Py_ssize_t>(script.size())));
  const py::object lines = take_ownership(PyUnicode_Splitlines(source.ptr(), 1));
  const py::object entry =
      take_ownership(PyTuple_Pack(4, py::int_(script.size()).ptr(), Py_None, lines.ptr(), name.ptr()));
  check(PyDict_SetItem(bindings->lines.ptr(), name.ptr(), entry.ptr()));
  prepared.code = compile(script, source, name);
  return prepared;
}

void end_tracing() {
  if (!call(bindings->tracer).is_none()) PyEval_SetTrace(nullptr, nullptr);
  if (!call(bindings->profiler).is_none()) PyEval_SetProfile(nullptr, nullptr);
}

int report_failure(const py::object& error) { return bindings->report(error).cast<int>(); }

int finish_job(int code) {
  try_step([] {
    if (host_job::is_job_process() && !is_single_threaded()) call(bindings->join_threads);
  });
  try_step([] { call(bindings->run_exit_functions); });
  try_step([] {  // logging registers itself before the script can register functions
    if (PyList_Size(bindings->log_handlers.ptr()) != bindings->own_log_handlers) call(bindings->end_logging);
  });
  std::string frames;
  if (code == 0 && host_job::is_job_process()) {
    const py::object payload = encode_script_result();
    if (payload.is_none()) {
      code = 1;
    } else {
      append_frame(frames, FrameKind::result, payload.cast<std::string_view>());
    }
  }
  remove_main();
  return send_last_frames(code, std::move(frames));
}

py::object load_main() {
  set_job_value(bindings->loading, py::none());
  PyObject* const names = PyModule_GetDict(get_job_value(bindings->main).ptr());
  auto main = py::reinterpret_borrow<py::object>(PyDict_GetItemString(names, "main"));
  call(bindings->renew_stdin);
  if (main && PyCallable_Check(main.ptr()) != 0) return main;
  call(bindings->refuse_without_main);
  return {};
}

py::object begin_warm_run() {
  PyObject* const names = PyModule_GetDict(get_job_value(bindings->main).ptr());
  check(PyDict_SetItem(names, bindings->result_name.ptr(), bindings->result.ptr()));
  renew_arguments();
  return call(bindings->begin_run);
}

bool is_exit(const py::object& error) { return PyErr_GivenExceptionMatches(error.ptr(), PyExc_SystemExit) != 0; }

int end_warm_run(int code, const py::object& returned) {
  std::string frames;
  if (code == 0) {
    py::object payload = py::none();
    if (!returned || returned.is_none()) {
      payload = encode_script_result();
    } else if (PyDict_Check(returned.ptr())) {
      payload = encode(returned, true);
    } else {
      take_ownership(PyObject_CallOneArg(bindings->refuse_returned.ptr(), returned.ptr()));
    }
    if (payload.is_none()) {
      code = 1;
    } else {
      append_frame(frames, FrameKind::result, payload.cast<std::string_view>());
    }
  }
  return send_last_frames(code, std::move(frames));
}

void prepare_next_run(const HostRequest& request) {
  set_job_value(bindings->facts, parse_object(request.facts));
  set_job_value(bindings->inputs, py::bytes(request.inputs));
  replace_environment(request.environment);
  if (request.has_replaced_stdin) call(bindings->renew_stdin);
}

void rehearse_job(const HostRequest& request) {
  create_main();
  const PreparedScript prepared = prepare_job(request);
  take_ownership(PyEval_EvalCode(prepared.code.ptr(), prepared.globals.ptr(), prepared.globals.ptr()));
  encode_script_result();
  take_ownership(PyObject_CallOneArg(bindings->encode_result.ptr(), bindings->result.ptr()));
  finish_job(0);
}

void create_main_module() {
  // Runs after the collector's last freeze; otherwise remove_main() could not collect the module.
  create_main();
  check(PyDict_SetItem(bindings->main_thread.ptr(), bindings->native_id.ptr(), Py_None));
  streams::snapshot_streams(bindings->out, bindings->err);
}

}  // namespace mycojobs
