#include "v_driver.h"
#include "support/build_paths.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/local_run.h"
#include "executors/run_specs.h"
#include "executors/shared_sandbox.h"
#include "executors/v/v_executor.h"
#include "model/policy_json.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

// Returns complete files; the names of incomplete files start with a dot.
std::vector<std::string> list_complete_files(const fs::path& folder) {
  std::vector<std::string> files;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (!entry.path().filename().string().starts_with('.')) files.push_back(entry.path());
  }
  return files;
}

}  // namespace

CompilerFolder::CompilerFolder() {
  std::string name = "/var/tmp/mycojobs-v-XXXXXX";  // folders below /var can be granted to jobs
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
  path_ = name;
  fs::permissions(path_, static_cast<fs::perms>(0755));
  fs::copy_file(mj::test::source_path("tests/executors/vstandin/v"), program());
}

CompilerFolder::~CompilerFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string VResult::info(const std::string& name) const {
  const auto info = nlohmann::json::parse(end.error_info, nullptr, false);
  if (!info.is_object() || !info.contains(name)) return "";
  return info[name].is_string() ? info[name].get<std::string>() : info[name].dump();
}

VResult VHost::run(const VJobSpec& job) const {
  const char* configured_compiler = std::getenv("V_COMPILER");
  auto& executor_slot = executors_[flags_];
  if (!executor_slot) {
    executor_slot = std::make_unique<VExecutor>(
        configured_compiler == nullptr ? compiler_.program() : configured_compiler, flags_, state_.path().string());
  }
  const VExecutor& executor = *executor_slot;
  auto staged = stage_runs(executor, {}, read_policy(job.policy, "policy").request, nullptr, job.timeout_ms);
  if (!staged) throw std::runtime_error(staged.error().message);
  for (RunSpec& spec : staged->specs) spec.context = job.context;
  JobFacts facts;
  facts.job.id = 2001;
  facts.job.caller_id = 12;
  facts.job.context_id = job.context;
  facts.job.name = job.name;
  facts.job.script_type = "v";
  facts.job.script = job.script;
  facts.job.env_vars = job.environment;
  facts.granted_policy = staged->policy;
  facts.secrets = job.secrets;
  auto conversation = executor.begin(facts, nullptr);
  if (!conversation) throw std::runtime_error(conversation.error().message);
  VResult result;
  const auto append_output = [&result](bool is_err, std::string_view bytes) {
    (is_err ? result.err : result.out) += bytes;
  };
  static std::uint64_t next_run = 1;
  auto local_result =
      run_locally(shared_sandbox(), std::move(staged->specs), **conversation, {.on_output = append_output}, next_run);
  next_run += 2;
  if (!local_result) throw std::runtime_error(local_result.error().message);
  result.outcome = std::move(local_result->outcome);
  result.end = std::move(local_result->end);
  result.cached = nlohmann::json::parse(result.end.receipt)["compile"]["cached"].get<bool>();
  return result;
}

std::vector<std::string> VHost::list_cached_files(Id context) const {
  return list_complete_files(state_ / ("contexts/" + std::to_string(context) + "/v-cache"));
}

std::vector<std::string> VHost::list_trusted_files() const { return list_complete_files(state_ / "v-trusted"); }

}  // namespace mycojobs::test
