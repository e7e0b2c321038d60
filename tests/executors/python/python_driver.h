// Runs a script with the real executor and the real host, without a sandbox: this process is the zygote, and each job
// is a fork of it. The outcome is derived from the wait status of the process.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "executors/executor.h"

namespace mycojobs::test {

JobFacts make_facts(std::string script);

struct RunResult {
  Outcome outcome;
  JobEnd end;
  std::string out, err;
  std::vector<std::string> notes;
  std::string first_error() const { return err.substr(0, err.find('\n')); }
};

// Sends SIGTERM once when stdout contains `term_trigger`, unless that is empty.
RunResult run_python(const JobFacts&, const std::string& term_trigger = "");
RunResult run_python(std::string script);

}  // namespace mycojobs::test
