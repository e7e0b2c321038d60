// Flushes stdout and stderr at the end of a job. Includes pybind11.
#pragma once

#include <pybind11/embed.h>

namespace mycojobs::streams {

// Called in the zygote when both streams are flushed: stores their state for the comparison in flush().
void snapshot_streams(const pybind11::object& out, const pybind11::object& err);

// Flushes the current sys.<name> and the original stream, which the script may have replaced. Returns false after a
// write error. An original stream that is unchanged is not accessed: an access would copy its pages and cost 12 page
// faults, 2 to 5 % of a job (docs/performance.md).
bool flush(const char* name, const pybind11::object& original);

}  // namespace mycojobs::streams
