// Prebuilt programs of a context, by what they are: <state_dir>/contexts/<context>/programs/<sha256>, put there with
// `mycojobs program add`. The script of such a job is
//
//   <sha256, or the beginning of one, at least 8 digits>
//   an argument
//   another argument
//
// Script types native and rust. What is run is what has that hash (program_cache.h).
#pragma once

#include <string>

#include "executors/native/program_cache.h"
#include "mycojobs/executor.h"

namespace mycojobs {

class NativeExecutor final : public Executor {
 public:
  explicit NativeExecutor(std::string state_dir) : state_dir_(std::move(state_dir)) {}

  std::string_view name() const override { return "native"; }
  std::vector<std::string> script_types() const override { return {"native", "rust"}; }
  std::vector<Stage> stages() const override;
  Result<std::string> probe() const override;
  Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const override;

 private:
  std::string state_dir_;
  mutable ProgramCache programs_;
};

}  // namespace mycojobs
