#include "executors/python/pyhost/streams.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace py = pybind11;

namespace mycojobs::streams {
namespace {

// Snapshot of a C object without its reference count. The bytes include the amount of buffered text, so the names of
// members are not needed.
class ObjectSnapshot {
 public:
  explicit ObjectSnapshot(const py::object& object) : object_(object), bytes_(body()) {}
  bool is_unchanged() const { return body() == bytes_; }

 private:
  std::string_view body() const {
    const auto size = static_cast<std::size_t>(Py_TYPE(object_.ptr())->tp_basicsize);
    return {reinterpret_cast<const char*>(object_.ptr()) + sizeof(PyObject), size - sizeof(PyObject)};
  }
  py::object object_;
  std::string bytes_;
};

struct Stream {
  PyObject* original;
  ObjectSnapshot text, buffer;
};
std::vector<Stream>* snapshots = nullptr;  // never destroyed: the process ends with _exit()

bool is_unchanged(PyObject* stream) {
  if (snapshots == nullptr) return false;
  for (const Stream& snapshot : *snapshots) {
    if (snapshot.original == stream) return snapshot.text.is_unchanged() && snapshot.buffer.is_unchanged();
  }
  return false;
}

bool flush_stream(PyObject* stream) {
  if (stream == nullptr || stream == Py_None || is_unchanged(stream)) return true;
  const auto file = py::reinterpret_borrow<py::object>(stream);
  try {
    file.attr("flush")();
    return true;
  } catch (py::error_already_set&) {
  }
  try {
    return file.attr("closed").cast<bool>();  // a closed file has nothing to flush
  } catch (py::error_already_set&) {
    return false;
  }
}

}  // namespace

void snapshot_streams(const py::object& out, const py::object& err) {
  snapshots = new std::vector<Stream>();
  for (const py::object& stream : {out, err}) {
    const py::object buffer = stream.attr("buffer");
    snapshots->push_back({stream.ptr(), ObjectSnapshot(stream), ObjectSnapshot(buffer)});
  }
}

bool flush(const char* name, const py::object& original) {
  PyObject* const current = PySys_GetObject(name);  // borrowed
  const bool is_flushed = current == original.ptr() || flush_stream(current);
  return flush_stream(original.ptr()) && is_flushed;
}

}  // namespace mycojobs::streams
