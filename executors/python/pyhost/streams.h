// stdout and stderr at the end of a job. Includes pybind11.
#pragma once

#include <pybind11/embed.h>

namespace mycojobs::streams {

// In the zygote, when nothing is left to flush in the two that Python has made: what a job's end compares with.
void remember(const pybind11::object& out, const pybind11::object& err);

// Flushes what sys.<name> is by now and ours, which the script may have replaced. False: something could not be
// written. One of ours in which nothing has changed has nothing to flush, and is not touched: it lies in memory that is
// copied for whoever does: 12 page faults, 2 to 5 % of a job (docs/performance.md).
bool flush(const char* name, const pybind11::object& ours);

}  // namespace mycojobs::streams
