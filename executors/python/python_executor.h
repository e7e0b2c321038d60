// Python scripts, run by mycojobs-pyhost: CPython in a program of its own, never in the agent.
#pragma once

#include <string>

#include "domain/profiles.h"
#include "mycojobs/executor.h"

namespace mycojobs {

class PythonExecutor final : public Executor {
 public:
  explicit PythonExecutor(std::string pyhost) : pyhost_(std::move(pyhost)) {}  // path of the program

  std::string_view name() const override { return "python"; }
  std::vector<std::string> script_types() const override { return {"python"}; }
  std::vector<Stage> stages() const override { return {{"python", "python", profile("python")}}; }
  // Starts the host that jobs would have (base/linked_build.h) with --version, which imports what a job would: "CPython
  // 3.11.2", whether it is linked in, and why not. Takes about 0.1 s, 30 s at most.
  Result<std::string> probe() const override;
  Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const override;

 private:
  std::string pyhost_;
};

}  // namespace mycojobs
