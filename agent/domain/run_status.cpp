#include <cstddef>
#include <iterator>

#include "mycojobs/outcome.h"

namespace mycojobs {
namespace {

constexpr std::string_view kWords[] = {
    "ok",         "exit",       "signal",    "timeout_wall", "timeout_cpu", "oom",        "output_limit",
    "file_limit", "pids_limit", "violation", "cancelled",    "lost",        "unkillable", "setup_error",
};
static_assert(std::size(kWords) == static_cast<std::size_t>(RunStatus::setup_error) + 1);

}  // namespace

std::string_view word(RunStatus status) { return kWords[static_cast<std::size_t>(status)]; }

}  // namespace mycojobs
