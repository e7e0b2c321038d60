// Runs a script through the real executor and the real host, without a sandbox: this process is the zygote, each job a
// fork of it. What the sandbox would tell of the process is taken from its wait status.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mycojobs/executor.h"

namespace mycojobs::test {

JobFacts facts_of(std::string script);

struct Ran {
  Outcome outcome;
  JobEnd end;
  std::string out, err;
  std::vector<std::string> notes;
  std::string first_error() const { return err.substr(0, err.find('\n')); }
};

// term_at: SIGTERM is sent once when this text is in stdout; empty: never.
Ran run_python(const JobFacts&, const std::string& term_at = "");
Ran run_python(std::string script);

}  // namespace mycojobs::test
