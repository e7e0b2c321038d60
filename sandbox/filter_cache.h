// The seccomp programs of runs that are granted more than their profile: compiled when first asked for, then kept.
#pragma once

#include <list>
#include <string>
#include <utility>

#include "base/fd.h"
#include "mycojobs/result.h"
#include "mycojobs/sandbox.h"

namespace mycojobs::sandbox {

class FilterCache {
 public:
  // -1: the zygote's own will do. Else a file for read_filter(), which stays open until the next call.
  // Error: a name that is no system call, or one that can never be granted.
  Result<int> filter_for(const RunSpec&);

 private:
  std::list<std::pair<std::string, Fd>> files_;  // the last used first
};

}  // namespace mycojobs::sandbox
