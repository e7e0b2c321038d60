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
  py::dict host, now, modules, environment, lines, main_thread;
  py::object builtins, scan, seed, number_of, compile, set_zone, collect, tracer, profiler, join_threads,
      run_exit_functions, log_handlers, end_logging, quote, result, out, err, report, encode_result, tell, hooks,
      begin_run, refuse_without_main, refuse_returned;
  py::list arguments;
  // Own strings, stored near the other objects: the reference counts of shared strings would dirty other pages.
  py::str main_name, result_name, annotations, main, facts, inputs, file_name, native_id, loading;
  Py_ssize_t own_log_handlers = 0;  // handlers of logging itself, which buffer nothing
};
PythonBindings* bound = nullptr;  // never destroyed: the process ends with _exit()

py::object own(PyObject* made) {
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}
void check(int failed) {
  if (failed < 0) throw py::error_already_set();
}
void set(PyObject* dict, const char* name, const py::object& value) {
  check(PyDict_SetItemString(dict, name, value.ptr()));
}
py::object call(const py::object& function) { return own(PyObject_CallNoArgs(function.ptr())); }

// Parses JSON from the agent, without the search for blanks that json.loads() does.
py::dict object_of(const std::string& json) {
  const py::object text = own(PyUnicode_FromStringAndSize(json.data(), static_cast<Py_ssize_t>(json.size())));
  const py::tuple pair = own(PyObject_CallOneArg(bound->scan.ptr(), text.ptr()));
  return pair[0];
}

// REQUIRES: the process has no environment. Allocates one block that is never freed, like setenv().
void set_environment(const std::string& json) {
  const py::dict values = object_of(json);
  auto* const block = new std::pair<std::string, std::vector<char*>>();
  std::vector<std::size_t> starts;
  for (const auto& [name, value] : values) {
    Py_ssize_t name_size = 0, value_size = 0;
    const char* const name_bytes = PyUnicode_AsUTF8AndSize(name.ptr(), &name_size);
    const char* const value_bytes = name_bytes != nullptr ? PyUnicode_AsUTF8AndSize(value.ptr(), &value_size) : nullptr;
    if (value_bytes == nullptr) throw py::error_already_set();
    const py::object key = own(PyBytes_FromStringAndSize(name_bytes, name_size));
    const py::object entry = own(PyBytes_FromStringAndSize(value_bytes, value_size));
    check(PyDict_SetItem(bound->environment.ptr(), key.ptr(), entry.ptr()));
    starts.push_back(block->first.size());
    block->first.append(name_bytes, static_cast<std::size_t>(name_size)) += '=';
    block->first.append(value_bytes, static_cast<std::size_t>(value_size)) += '\0';
  }
  for (const std::size_t start : starts) block->second.push_back(block->first.data() + start);
  block->second.push_back(nullptr);
  ::environ = block->second.data();
  if (values.contains("TZ")) call(bound->set_zone);
}

// Replaces the environment for a further run of the process.
void renew_environment(const std::string& json) {
  std::map<std::string, std::string> variables;
  PyDict_Clear(bound->environment.ptr());
  for (const auto& [name, value] : object_of(json)) {
    const auto key = name.cast<std::string>(), text = value.cast<std::string>();
    check(PyDict_SetItem(bound->environment.ptr(), py::bytes(key).ptr(), py::bytes(text).ptr()));
    variables.emplace(key, text);
  }
  host_job::renew_environment(variables);
}

// Like random.seed(), but with 256 bits instead of 19,968, which take ten times as long to generate.
void seed_random_numbers() {
  std::array<char, 32> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    call(bound->seed);
    return;
  }
  const py::object number =
      own(PyObject_CallOneArg(bound->number_of.ptr(), py::bytes(bytes.data(), bytes.size()).ptr()));
  own(PyObject_CallOneArg(bound->seed.ptr(), number.ptr()));
}

py::object name_of(const py::dict& facts) {
  py::object name = facts["name"];
  const Py_ssize_t length = PyUnicode_Check(name.ptr()) ? PyUnicode_GET_LENGTH(name.ptr()) : 0;
  if (length > 0 && length <= kMaxFileName && name.attr("isprintable")().cast<bool>()) return name;
  const py::object caller = facts["caller_id"], id = facts["id"];
  return own(PyUnicode_FromFormat("<job %S:%S>", caller.ptr(), id.ptr()));
}

void set_now(const py::str& name, const py::object& value) {
  check(PyDict_SetItem(bound->now.ptr(), name.ptr(), value.ptr()));
}
py::object of_now(const py::str& name) {
  return py::reinterpret_borrow<py::object>(PyDict_GetItem(bound->now.ptr(), name.ptr()));
}

// Copies the names of a dict, so that a job does not change the reference counts of the interpreter's strings.
void rename_again(PyObject* names) {
  const py::dict as_made = own(PyDict_Copy(names));
  PyDict_Clear(names);
  for (const auto& [name, value] : as_made) {
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(name.ptr(), &size);
    if (text == nullptr) throw py::error_already_set();
    check(PyDict_SetItem(names, own(PyUnicode_FromStringAndSize(text, size)).ptr(), value.ptr()));
  }
}

void make_main() {
  const py::object main = own(PyModule_NewObject(bound->main_name.ptr()));
  py::dict names = py::reinterpret_borrow<py::dict>(PyModule_GetDict(main.ptr()));
  set(names.ptr(), "__builtins__", bound->builtins);
  check(PyDict_SetItem(names.ptr(), bound->annotations.ptr(), py::dict().ptr()));
  check(PyDict_SetItem(names.ptr(), bound->result_name.ptr(), bound->result.ptr()));
  rename_again(names.ptr());
  check(PyDict_SetItem(bound->modules.ptr(), bound->main_name.ptr(), main.ptr()));
  set_now(bound->main, main);
}

// Tells whether the process has a single thread and no pools. python3 joins threads before it runs exit functions.
// Without threads, the call of threading would have no effect but cost 38 page faults, a fifth of a job
// (docs/performance.md). The listed modules also end their pools in that call.
bool is_alone() {
  if (PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Get())) != nullptr) return false;
  for (const char* const pools : {"concurrent.futures.thread", "concurrent.futures.process"}) {
    if (PyDict_GetItemString(bound->modules.ptr(), pools) != nullptr) return false;
  }
  return true;
}

template <class Step>
void try_step(Step&& step) {
  try {
    step();
  } catch (py::error_already_set& error) {
    bound->tell(error.value());
  }
}

// Frees the script's globals, so that objects are finalized: files are written, __del__ is called. Collects garbage
// first, as python3 does, since that finalizes a buffer before its file.
void drop_main() {
  call(bound->collect);
  if (PyDict_DelItem(bound->modules.ptr(), bound->main_name.ptr()) != 0) PyErr_Clear();
  set_now(bound->main, py::none());
  call(bound->collect);
}

// Encodes a result with only text values, the common case; returns an empty text for any other result.
std::string encode_texts(const py::object& result) {
  std::string json = "{";
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(result.ptr(), &at, &key, &value) != 0;) {
    if (!PyUnicode_CheckExact(key) || !PyUnicode_CheckExact(value)) return {};
    // Key and value may be the same object.
    const char* before = json.size() > 1 ? "," : "";
    for (PyObject* const text : {key, value}) {
      json += std::exchange(before, ":");
      const py::object quoted = own(PyObject_CallOneArg(bound->quote.ptr(), text));
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
  if (returned) return bound->encode_result(result, true);
  return own(PyObject_CallOneArg(bound->encode_result.ptr(), result.ptr()));
}

py::object take_result() {
  PyObject* const names = PyModule_GetDict(of_now(bound->main).ptr());
  PyObject* const mine = PyDict_GetItem(names, bound->result_name.ptr());  // borrowed
  return encode(mine != nullptr ? py::reinterpret_borrow<py::object>(mine) : bound->result);
}

// Finishes a run: flushes its output and sends its artifacts and its result, if any.
int hand_back(int code, std::string frames) {
  const bool flushed = streams::flush("stdout", bound->out);
  streams::flush("stderr", bound->err);
  if (!flushed && code == 0) {
    code = 120;
    py::object(bound->host["send_error"])("OSError", "stdout could not be written to the end", "", 0, code);
  }
  if (host_job::is_here()) {
    const auto max = of_now(bound->facts)["max_artifact_bytes"].cast<std::uint64_t>();
    send_artifacts(host_job::channel().up, kArtifactsFolder, max);
    append_frame(frames, FrameKind::done, "");
    send_frames(host_job::channel().up, frames);
  }
  return code;
}

// Like compile(), without inherited flags. REQUIRES: a NUL follows the last byte of `script`.
py::object compile(std::string_view script, const py::object& text, const py::object& name) {
  // raises the error
  if (script.find('\0') != std::string_view::npos) return bound->compile(text, name, "exec", 0, true);
  PyCompilerFlags flags{PyCF_SOURCE_IS_UTF8 | PyCF_IGNORE_COOKIE, PY_MINOR_VERSION};
  return own(Py_CompileStringObject(script.data(), name.ptr(), Py_file_input, &flags, -1));
}

}  // namespace

void bind_job_steps(const py::dict& host) {
  bound = new PythonBindings();
  bound->main_name = py::str("__main__");
  bound->result_name = py::str("result");
  bound->annotations = py::str("__annotations__");
  bound->main = py::str("main");
  bound->facts = py::str("facts");
  bound->inputs = py::str("inputs");
  bound->file_name = py::str("file_name");
  bound->native_id = py::str("_native_id");
  bound->loading = py::str("loading");
  bound->host = host;
  bound->now = host["now"];
  bound->modules = host["modules"];
  bound->environment = host["environment_data"];
  bound->lines = host["lines"];
  bound->main_thread = host["main_thread"].attr("__dict__");
  const std::pair<const char*, py::object*> names[] = {{"builtins_module", &bound->builtins},
                                                       {"scan_json", &bound->scan},
                                                       {"reseed", &bound->seed},
                                                       {"number_of", &bound->number_of},
                                                       {"compile_script", &bound->compile},
                                                       {"set_zone", &bound->set_zone},
                                                       {"collect", &bound->collect},
                                                       {"tracer", &bound->tracer},
                                                       {"profiler", &bound->profiler},
                                                       {"join_threads", &bound->join_threads},
                                                       {"flush_exit", &bound->run_exit_functions},
                                                       {"log_handlers", &bound->log_handlers},
                                                       {"end_logging", &bound->end_logging},
                                                       {"result", &bound->result},
                                                       {"stdout", &bound->out},
                                                       {"stderr", &bound->err},
                                                       {"report", &bound->report},
                                                       {"hand_over", &bound->encode_result},
                                                       {"encode_basestring", &bound->quote},
                                                       {"tell", &bound->tell},
                                                       {"begin_run", &bound->begin_run},
                                                       {"refuse_without_main", &bound->refuse_without_main},
                                                       {"refuse_returned", &bound->refuse_returned}};
  for (const auto& [name, place] : names) *place = host[name];
  bound->hooks = py::tuple(host["before_hooks"]) + py::tuple(host["after_hooks"]);
  bound->arguments = py::module_::import("sys").attr("argv");
  bound->own_log_handlers = PyList_Size(bound->log_handlers.ptr());
}

PreparedScript prepare_job(const HostRequest& request) {
  PreparedScript prepared;
  prepared.globals = py::reinterpret_borrow<py::dict>(PyModule_GetDict(of_now(bound->main).ptr()));
  const py::dict facts = object_of(request.facts);
  set_now(bound->facts, facts);
  set_now(bound->inputs, py::bytes(request.inputs));
  set_environment(request.environment);
  seed_random_numbers();
  for (const py::handle hook : py::reinterpret_borrow<py::tuple>(bound->hooks)) hook();
  check(PyDict_SetItem(bound->main_thread.ptr(), bound->native_id.ptr(), py::int_(::gettid()).ptr()));
  prepared.warm = PyDict_GetItemString(facts.ptr(), "warm") != nullptr;
  // The process of a warm script outlives its first job, so the name must not be that job's.
  const py::object name = prepared.warm ? py::object(py::str("<script>")) : name_of(facts);
  if (prepared.warm) set_now(bound->loading, py::bool_(true));
  set_now(bound->file_name, name);
  check(PyList_SetItem(bound->arguments.ptr(), 0, py::object(name).release().ptr()));
  const std::string_view script = without_byte_order_mark(request.script);  // as python3 reads a file
  const py::object source = own(PyUnicode_FromStringAndSize(script.data(), static_cast<Py_ssize_t>(script.size())));
  const py::object lines = own(PyUnicode_Splitlines(source.ptr(), 1));
  const py::object entry = own(PyTuple_Pack(4, py::int_(script.size()).ptr(), Py_None, lines.ptr(), name.ptr()));
  check(PyDict_SetItem(bound->lines.ptr(), name.ptr(), entry.ptr()));
  prepared.code = compile(script, source, name);
  return prepared;
}

void end_tracing() {
  if (!call(bound->tracer).is_none()) PyEval_SetTrace(nullptr, nullptr);
  if (!call(bound->profiler).is_none()) PyEval_SetProfile(nullptr, nullptr);
}

int report_failure(const py::object& error) { return bound->report(error).cast<int>(); }

int finish_job(int code) {
  try_step([] {
    if (host_job::is_here() && !is_alone()) call(bound->join_threads);
  });
  try_step([] { call(bound->run_exit_functions); });
  try_step([] {  // logging registers itself before the script can register functions
    if (PyList_Size(bound->log_handlers.ptr()) != bound->own_log_handlers) call(bound->end_logging);
  });
  std::string frames;
  if (code == 0 && host_job::is_here()) {
    const py::object payload = take_result();
    if (payload.is_none()) {
      code = 1;
    } else {
      append_frame(frames, FrameKind::result, payload.cast<std::string_view>());
    }
  }
  drop_main();
  return hand_back(code, std::move(frames));
}

py::object load_main() {
  set_now(bound->loading, py::none());
  PyObject* const names = PyModule_GetDict(of_now(bound->main).ptr());
  auto main = py::reinterpret_borrow<py::object>(PyDict_GetItemString(names, "main"));
  if (main && PyCallable_Check(main.ptr()) != 0) return main;
  call(bound->refuse_without_main);
  return {};
}

py::object begin_warm_run() {
  PyObject* const names = PyModule_GetDict(of_now(bound->main).ptr());
  check(PyDict_SetItem(names, bound->result_name.ptr(), bound->result.ptr()));
  return call(bound->begin_run);
}

bool is_exit(const py::object& error) { return PyErr_GivenExceptionMatches(error.ptr(), PyExc_SystemExit) != 0; }

int end_warm_run(int code, const py::object& returned) {
  std::string frames;
  if (code == 0) {
    py::object payload = py::none();
    if (!returned || returned.is_none()) {
      payload = take_result();
    } else if (PyDict_Check(returned.ptr())) {
      payload = encode(returned, true);
    } else {
      own(PyObject_CallOneArg(bound->refuse_returned.ptr(), returned.ptr()));
    }
    if (payload.is_none()) {
      code = 1;
    } else {
      append_frame(frames, FrameKind::result, payload.cast<std::string_view>());
    }
  }
  return hand_back(code, std::move(frames));
}

void prepare_next_run(const HostRequest& request) {
  set_now(bound->facts, object_of(request.facts));
  set_now(bound->inputs, py::bytes(request.inputs));
  renew_environment(request.environment);
}

void rehearse_job(const HostRequest& request) {
  make_main();
  const PreparedScript prepared = prepare_job(request);
  own(PyEval_EvalCode(prepared.code.ptr(), prepared.globals.ptr(), prepared.globals.ptr()));
  take_result();
  own(PyObject_CallOneArg(bound->encode_result.ptr(), bound->result.ptr()));
  finish_job(0);
}

void make_ready() {
  // Runs after the collector's last freeze; otherwise drop_main() could not collect the module.
  make_main();
  check(PyDict_SetItem(bound->main_thread.ptr(), bound->native_id.ptr(), Py_None));
  streams::snapshot_streams(bound->out, bound->err);
}

}  // namespace mycojobs
