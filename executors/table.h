// The one table of executors: a new one is a row here and a folder beside python/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executors/settings.h"
#include "mycojobs/executor.h"

namespace mycojobs {

// All that this build has, whether they work on this host or not: ask probe(). Names and script types are unique.
std::vector<std::unique_ptr<Executor>> make_executors(const ExecutorSettings&);

}  // namespace mycojobs
