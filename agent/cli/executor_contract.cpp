#include "cli/executor_contract.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/config/config_file.h"
#include "cli/local_run.h"
#include "executors/run_specs.h"
#include "text/json.h"

namespace mycojobs {
namespace {

constexpr const char* kMarker = "agents-own-secret-5b1f";  // in the environment of the process that runs the suite
constexpr const char* kToken = "token-of-the-job-77aa";

// Result of a run of a sample.
struct SampleResult {
  JobEnd end;
  Outcome outcome;
  std::string out, err, notes;
  std::map<std::string, std::string> artifacts;

  std::string value(const std::string& key) const {
    const auto entry = end.result.find(key);
    return entry == end.result.end() ? "(none)" : entry->second;
  }
  std::string all() const {
    std::string text = out + err + notes + end.error + end.error_info;
    for (const auto& [key, value] : end.result) text += key + value;
    return text;
  }
};

class CollectedArtifacts final : public ArtifactSink {
 public:
  explicit CollectedArtifacts(std::map<std::string, std::string>& files) : files_(files) {}
  bool open(const std::string& name, bool /*executable*/) override {
    name_ = name;
    return true;
  }
  void write(std::string_view bytes) override { bytes_ += bytes; }
  void close() override { files_[name_] = std::exchange(bytes_, {}); }

 private:
  std::map<std::string, std::string>& files_;
  std::string name_, bytes_;
};

// Input of a trial: the job, the requested policy and the limits.
struct ContractTrial {
  JobFacts facts;
  PolicyRequest policy_request;
  std::uint64_t timeout_ms = 60000;
  LocalRunHooks hooks;
};

// Checks of a result. Each returns a description of the problem, or an empty text if the expectation is met.
std::string expect(bool holds, const std::string& problem) { return holds ? "" : problem; }
std::string compare(const std::string& subject, const std::string& value, const std::string& expected) {
  return value == expected ? "" : subject + " is " + value.substr(0, 200) + ", not " + expected;
}
std::string check_finished(const SampleResult& result) {
  return compare("the end", result.end.detail + (result.end.error.empty() ? "" : " (" + result.end.error + ")"), "ok");
}
// Returns the first text that is not empty.
template <class... Problems>
std::string first_problem(std::string problem, Problems... problems) {
  if constexpr (sizeof...(problems) == 0) {
    return problem;
  } else {
    return problem.empty() ? first_problem(std::move(problems)...) : problem;
  }
}

std::string verify_order(const SampleResult& result) {
  std::string expected;
  for (int i = 1; i <= 200; ++i) expected += "line " + std::to_string(i) + "\n";
  return first_problem(check_finished(result),
                       expect(result.out == expected, "stdout is not the 200 lines in their order"));
}

std::string verify_result(const SampleResult& result) {
  const auto list = parse_json(result.value("list"));
  return first_problem(check_finished(result), compare("result.text", result.value("text"), "grüße & more"),
                       compare("result.number", result.value("number"), "42"),
                       expect(list && *list == nlohmann::json({1, "two", nullptr}),
                              "result.list is " + result.value("list") + ", not the JSON [1,\"two\",null]"));
}

std::string check_failure(const SampleResult& result) {
  const bool is_expected_kind = result.end.detail == "exit" || result.end.detail == "exception";
  return first_problem(expect(result.end.status == JobStatus::error && is_expected_kind,
                              "the end is " + result.end.detail + ", not exit or exception"),
                       expect((result.end.error + result.end.error_info).find("it broke") != std::string::npos,
                              "neither error nor error_info says \"it broke\": " + result.end.error),
                       expect(parse_json(result.end.error_info).has_value(), "error_info is not JSON"));
}

std::string check_binary(const SampleResult& result) {
  return first_problem(check_finished(result),
                       expect(result.out.find(std::string("\xff\xfe\x00\x01", 4)) != std::string::npos,
                              "stdout does not hold the bytes ff fe 00 01"));
}

std::string verify_secrets(const SampleResult& result) {
  return first_problem(check_finished(result), compare("result.token", result.value("token"), kToken),
                       expect(result.all().find(kMarker) == std::string::npos,
                              "the environment of whoever started the sandbox was to be seen"));
}

std::string check_hostile(const SampleResult& result) {
  const std::size_t position = result.out.find("GOT ");
  return first_problem(expect(position == std::string::npos,
                              "the script says: " + result.out.substr(std::min(position, result.out.size()), 100)),
                       expect(result.out.find("TRIED") != std::string::npos, "the script did not say TRIED"));
}

std::string check_error(const SampleResult& result) {
  return first_problem(expect(result.end.status == JobStatus::error, "it finished"),
                       expect(!result.end.error.empty(), "the error says nothing"));
}

// A case of the contract: prepare() sets up the trial, check() checks the result of the sample.
struct ContractRow {
  ContractCase contract_case;
  void (*prepare)(ContractTrial&);
  std::string (*check)(const SampleResult&);
};

void prepare_nothing(ContractTrial&) {}

const std::vector<ContractRow>& contract_rows() {  // NOLINT(*-function-size)
  static const std::vector<ContractRow> kRows = {
      {{"environment", "puts the variables GREETING and MYCOJOBS_JOB_ID into result.greeting and result.job"},
       [](ContractTrial& trial) { trial.facts.job.env_vars["GREETING"] = "hellö = world"; },
       [](const SampleResult& result) {
         return first_problem(check_finished(result),
                              compare("result.greeting", result.value("greeting"), "hellö = world"),
                              compare("result.job", result.value("job"), "2001"));
       }},
      {{"inputs", "puts the value `size` of the input `build` into result.size"},
       [](ContractTrial& trial) {
         trial.facts.inputs["build"] = {.id = 1, .result = {{"size", "42 \"MiB\""}}};
       },
       [](const SampleResult& result) {
         return first_problem(check_finished(result), compare("result.size", result.value("size"), "42 \"MiB\""));
       }},
      {{"result",
        "sets result.text to \"grüße & more\", result.number to 42, result.list to the list 1, \"two\", null"},
       prepare_nothing,
       verify_result},
      {{"log_order", "prints \"line 1\" to \"line 200\" on stdout"}, prepare_nothing, verify_order},
      {{"failure", "fails as scripts of its language do, saying \"it broke\""}, prepare_nothing, check_failure},
      {{"syntax", "is no program of its language at all"}, prepare_nothing, check_error},
      {{"timeout", "never ends"},
       [](ContractTrial& trial) { trial.timeout_ms = 1500; },
       [](const SampleResult& result) { return compare("the end", result.end.detail, "timeout"); }},
      {{"cancel", "prints \"ready\" and never ends"},
       [](ContractTrial& trial) { trial.hooks.cancel_text = "ready"; },
       [](const SampleResult& result) { return compare("the end", result.end.detail, "cancelled"); }},
      {{"output", "writes at least 4 MiB to stdout"},
       [](ContractTrial& trial) { trial.hooks.max_output_bytes = 1U << 20; },
       [](const SampleResult& result) { return compare("the end", result.end.detail, "output_limit"); }},
      {{"binary", "writes the bytes ff fe 00 01 to stdout"}, prepare_nothing, check_binary},
      {{"oversize", "sets result.big to a text of 100,000 letters"},
       [](ContractTrial& trial) { trial.facts.max_result_bytes = 1000; },
       [](const SampleResult& result) { return compare("the end", result.end.detail, "result_too_large"); }},
      {{"wrong_result", "hands back a result of the wrong shape"}, prepare_nothing, check_error},
      {{"progress", "says that it is at 0.5, with the text \"half\""},
       prepare_nothing,
       [](const SampleResult& result) {
         return first_problem(
             check_finished(result),
             expect(result.notes.find("progress 50 %: half") != std::string::npos, "its notes are: " + result.notes));
       }},
      {{"artifacts", "leaves dir/report.txt in its artifacts, with the text \"a report\\n\""},
       prepare_nothing,
       [](const SampleResult& result) {
         const auto artifact = result.artifacts.find("dir/report.txt");
         return first_problem(check_finished(result),
                              expect(artifact != result.artifacts.end(), "there is no artifact dir/report.txt"),
                              expect(artifact == result.artifacts.end() || artifact->second == "a report\n",
                                     "the artifact holds something else"));
       }},
      {{"secrets",
        "puts the secret `token` into result.token, and prints what it can see: its environment, /proc/*/environ, "
        "/proc/*/cmdline, the files below /job"},
       [](ContractTrial& trial) {
         trial.facts.secrets = {{"token", kToken}};
         trial.policy_request.values.secrets = {"token"};
         trial.policy_request.named_fields.set(static_cast<std::size_t>(PolicyField::secrets));
       },
       verify_secrets},
      {{"hostile",
        "tries to read /etc/shadow, to write below /usr, to signal process 1 and to connect to 1.1.1.1:53; prints "
        "\"GOT "
        "...\" for each that worked, and \"TRIED\" before it ends"},
       prepare_nothing,
       check_hostile},
  };
  return kRows;
}

std::string find_sample(const std::string& folder, std::string_view name) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code file_error;
    if (entry->path().stem() == name && entry->is_regular_file(file_error)) return entry->path().string();
  }
  return {};
}

Result<SampleResult> run_sample(const Executor& executor, Sandbox& sandbox, ContractTrial& trial) {
  static std::uint64_t next_run_id = std::uint64_t{1} << 40;  // does not overlap with other runs of the sandbox
  MJ_TRY(stages, stage_runs(executor, {}, trial.policy_request, nullptr, trial.timeout_ms, trial.facts.job.context_id));
  for (RunSpec& spec : stages.specs) spec.context = 1;
  trial.facts.granted_policy = stages.policy;
  SampleResult result;
  CollectedArtifacts artifacts(result.artifacts);
  MJ_TRY(conversation, executor.begin(trial.facts, &artifacts));
  trial.hooks.on_output = [&result](bool is_err, std::string_view bytes) {
    (is_err ? result.err : result.out) += bytes;
  };
  const std::size_t run_count = stages.specs.size();
  trial.hooks.on_note = [&result](const std::string& note) { result.notes += note + "\n"; };
  MJ_TRY(run, run_locally(sandbox, std::move(stages.specs), *conversation, trial.hooks, next_run_id));
  next_run_id += run_count;
  result.end = std::move(run.end);
  result.outcome = std::move(run.outcome);
  return result;
}

ContractResult run_case(const ContractRow& row, const Executor& executor, const std::string& type, Sandbox& sandbox,
                        const std::string& folder) {
  using Verdict = ContractResult::Verdict;
  ContractResult contract_result{std::string(row.contract_case.name), Verdict::no_sample, {}};
  const std::string path = find_sample(folder, row.contract_case.name);
  if (path.empty()) return contract_result;
  auto script = read_text_file(path);
  ContractTrial trial;
  Job& job = trial.facts.job;
  job.id = 2001;
  job.caller_id = 12;
  job.context_id = 1;
  job.name = contract_result.name;
  job.script_type = type;
  if (script) job.script = std::move(*script);
  trial.facts.deadline_unix_ms = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count() +
      60000);
  row.prepare(trial);
  auto sample_result = script ? run_sample(executor, sandbox, trial) : Result<SampleResult>(fail(script.error(), path));
  // A script that is rejected before its run is checked by the end that its job would have.
  if (!sample_result && sample_result.error().code == Code::invalid) {
    SampleResult rejection;
    rejection.end.detail = "dead_letter";
    rejection.end.error = sample_result.error().message;
    sample_result = std::move(rejection);
  }
  contract_result.detail = sample_result ? row.check(*sample_result) : sample_result.error().message;
  contract_result.verdict = contract_result.detail.empty() ? Verdict::held : Verdict::failed;
  if (!contract_result.detail.empty() && sample_result && !sample_result->err.empty())
    contract_result.detail +=
        "; stderr ends: " +
        sample_result->err.substr(sample_result->err.size() - std::min<std::size_t>(sample_result->err.size(), 300));
  return contract_result;
}

}  // namespace

const std::vector<ContractCase>& contract_cases() {
  static const std::vector<ContractCase> kCases = [] {
    std::vector<ContractCase> cases;
    for (const ContractRow& row : contract_rows()) cases.push_back(row.contract_case);
    return cases;
  }();
  return kCases;
}

Result<std::vector<ContractResult>> check_contract(const Executor& executor, const std::string& script_type,
                                                   Sandbox& sandbox, const std::string& samples,
                                                   const std::function<void(const ContractResult&)>& on_result) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(samples, error);
  if (error == std::errc::no_such_file_or_directory) return fail(Code::not_found, samples + ": no such folder");
  if (error) {
    return fail(Code::invalid, samples + ": is not a folder of samples that can be read: " + error.message() +
                                   " (docs/executors/contract.md)");
  }
  ::setenv("MYCOJOBS_CONTRACT_MARKER", kMarker, 1);
  std::vector<ContractResult> results;
  for (const ContractRow& row : contract_rows()) {
    results.push_back(run_case(row, executor, script_type, sandbox, samples));
    on_result(results.back());
  }
  ::unsetenv("MYCOJOBS_CONTRACT_MARKER");
  return results;
}

}  // namespace mycojobs
