#include "cli/executor_contract.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/sandbox_command.h"
#include "cli/config/config_file.h"
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
    const auto found = end.result.find(key);
    return found == end.result.end() ? "(none)" : found->second;
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

struct ContractTrial {
  JobFacts facts;
  PolicyRequest asked;
  std::uint64_t timeout_ms = 60000;
  LocalRunHooks hooks;
};

// Returns an empty text if the expectation is met.
std::string expect(bool holds, const std::string& otherwise) { return holds ? "" : otherwise; }
std::string differs(const std::string& what, const std::string& is, const std::string& should) {
  return is == should ? "" : what + " is " + is.substr(0, 200) + ", not " + should;
}
std::string finished(const SampleResult& seen) {
  return differs("the end", seen.end.detail + (seen.end.error.empty() ? "" : " (" + seen.end.error + ")"), "ok");
}
template <class... More>
std::string first_of(std::string problem, More... more) {
  if constexpr (sizeof...(more) == 0) {
    return problem;
  } else {
    return problem.empty() ? first_of(std::move(more)...) : problem;
  }
}

std::string verify_order(const SampleResult& seen) {
  std::string wanted;
  for (int i = 1; i <= 200; ++i) wanted += "line " + std::to_string(i) + "\n";
  return first_of(finished(seen), expect(seen.out == wanted, "stdout is not the 200 lines in their order"));
}

std::string verify_result(const SampleResult& seen) {
  const auto list = parse_json(seen.value("list"));
  return first_of(finished(seen), differs("result.text", seen.value("text"), "grüße & more"),
                  differs("result.number", seen.value("number"), "42"),
                  expect(list && *list == nlohmann::json({1, "two", nullptr}),
                         "result.list is " + seen.value("list") + ", not the JSON [1,\"two\",null]"));
}

std::string check_failure(const SampleResult& seen) {
  const bool kind = seen.end.detail == "exit" || seen.end.detail == "exception";
  return first_of(
      expect(seen.end.status == JobStatus::error && kind, "the end is " + seen.end.detail + ", not exit or exception"),
      expect((seen.end.error + seen.end.error_info).find("it broke") != std::string::npos,
             "neither error nor error_info says \"it broke\": " + seen.end.error),
      expect(parse_json(seen.end.error_info).has_value(), "error_info is not JSON"));
}

std::string check_binary(const SampleResult& seen) {
  return first_of(finished(seen), expect(seen.out.find(std::string("\xff\xfe\x00\x01", 4)) != std::string::npos,
                                         "stdout does not hold the bytes ff fe 00 01"));
}

std::string verify_secrets(const SampleResult& seen) {
  return first_of(finished(seen), differs("result.token", seen.value("token"), kToken),
                  expect(seen.all().find(kMarker) == std::string::npos,
                         "the environment of whoever started the sandbox was to be seen"));
}

std::string check_hostile(const SampleResult& seen) {
  const std::size_t got = seen.out.find("GOT ");
  return first_of(
      expect(got == std::string::npos, "the script says: " + seen.out.substr(std::min(got, seen.out.size()), 100)),
      expect(seen.out.find("TRIED") != std::string::npos, "the script did not say TRIED"));
}

struct Row {
  ContractCase about;
  void (*prepare)(ContractTrial&);
  std::string (*judge)(const SampleResult&);
};

void nothing(ContractTrial&) {}

const std::vector<Row>& rows() {  // NOLINT(*-function-size)
  static const std::vector<Row> kRows = {
      {{"environment", "puts the variables GREETING and MYCOJOBS_JOB_ID into result.greeting and result.job"},
       [](ContractTrial& trial) { trial.facts.job.env_vars["GREETING"] = "hellö = world"; },
       [](const SampleResult& seen) {
         return first_of(finished(seen), differs("result.greeting", seen.value("greeting"), "hellö = world"),
                         differs("result.job", seen.value("job"), "2001"));
       }},
      {{"inputs", "puts the value `size` of the input `build` into result.size"},
       [](ContractTrial& trial) {
         trial.facts.inputs["build"] = {.id = 1, .result = {{"size", "42 \"MiB\""}}};
       },
       [](const SampleResult& seen) {
         return first_of(finished(seen), differs("result.size", seen.value("size"), "42 \"MiB\""));
       }},
      {{"result",
        "sets result.text to \"grüße & more\", result.number to 42, result.list to the list 1, \"two\", null"},
       nothing,
       verify_result},
      {{"log_order", "prints \"line 1\" to \"line 200\" on stdout"}, nothing, verify_order},
      {{"failure", "fails as scripts of its language do, saying \"it broke\""}, nothing, check_failure},
      {{"syntax", "is no program of its language at all"},
       nothing,
       [](const SampleResult& seen) {
         return first_of(expect(seen.end.status == JobStatus::error, "it finished"),
                         expect(!seen.end.error.empty(), "the error says nothing"));
       }},
      {{"timeout", "never ends"},
       [](ContractTrial& trial) { trial.timeout_ms = 1500; },
       [](const SampleResult& seen) { return differs("the end", seen.end.detail, "timeout"); }},
      {{"cancel", "prints \"ready\" and never ends"},
       [](ContractTrial& trial) { trial.hooks.cancel_at = "ready"; },
       [](const SampleResult& seen) { return differs("the end", seen.end.detail, "cancelled"); }},
      {{"output", "writes at least 4 MiB to stdout"},
       [](ContractTrial& trial) { trial.hooks.output_bytes = 1U << 20; },
       [](const SampleResult& seen) { return differs("the end", seen.end.detail, "output_limit"); }},
      {{"binary", "writes the bytes ff fe 00 01 to stdout"}, nothing, check_binary},
      {{"oversize", "sets result.big to a text of 100,000 letters"},
       [](ContractTrial& trial) { trial.facts.max_result_bytes = 1000; },
       [](const SampleResult& seen) { return differs("the end", seen.end.detail, "result_too_large"); }},
      {{"wrong_result", "hands back a result of the wrong shape"},
       nothing,
       [](const SampleResult& seen) {
         return first_of(expect(seen.end.status == JobStatus::error, "it finished"),
                         expect(!seen.end.error.empty(), "the error says nothing"));
       }},
      {{"progress", "says that it is at 0.5, with the text \"half\""},
       nothing,
       [](const SampleResult& seen) {
         return first_of(finished(seen), expect(seen.notes.find("progress 50 %: half") != std::string::npos,
                                                "its notes are: " + seen.notes));
       }},
      {{"artifacts", "leaves dir/report.txt in its artifacts, with the text \"a report\\n\""},
       nothing,
       [](const SampleResult& seen) {
         const auto found = seen.artifacts.find("dir/report.txt");
         return first_of(finished(seen), expect(found != seen.artifacts.end(), "there is no artifact dir/report.txt"),
                         expect(found == seen.artifacts.end() || found->second == "a report\n",
                                "the artifact holds something else"));
       }},
      {{"secrets",
        "puts the secret `token` into result.token, and prints what it can see: its environment, /proc/*/environ, "
        "/proc/*/cmdline, the files below /job"},
       [](ContractTrial& trial) {
         trial.facts.secrets = {{"token", kToken}};
         trial.asked.values.secrets = {"token"};
         trial.asked.named.set(static_cast<std::size_t>(PolicyField::secrets));
       },
       verify_secrets},
      {{"hostile",
        "tries to read /etc/shadow, to write below /usr, to signal process 1 and to connect to 1.1.1.1:53; prints "
        "\"GOT "
        "...\" for each that worked, and \"TRIED\" before it ends"},
       nothing,
       check_hostile},
  };
  return kRows;
}

std::string sample_of(const std::string& folder, std::string_view name) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code gone;
    if (entry->path().stem() == name && entry->is_regular_file(gone)) return entry->path().string();
  }
  return {};
}

Result<SampleResult> run_sample(const Executor& executor, Sandbox& sandbox, ContractTrial& trial) {
  static std::uint64_t next_run = std::uint64_t{1} << 40;  // does not overlap with other runs of the sandbox
  MJ_TRY(staged, stage_runs(executor, {}, trial.asked, nullptr, trial.timeout_ms));
  for (RunSpec& spec : staged.specs) spec.context = 1;
  trial.facts.granted = staged.policy;
  SampleResult seen;
  CollectedArtifacts kept(seen.artifacts);
  MJ_TRY(conversation, executor.begin(trial.facts, &kept));
  trial.hooks.on_output = [&seen](bool is_err, std::string_view bytes) { (is_err ? seen.err : seen.out) += bytes; };
  trial.hooks.on_note = [&seen](const std::string& note) { seen.notes += note + "\n"; };
  MJ_TRY(run, run_locally(sandbox, std::move(staged.specs), *conversation, trial.hooks, next_run));
  next_run += executor.stages().size();
  seen.end = std::move(run.end);
  seen.outcome = std::move(run.outcome);
  return seen;
}

ContractResult try_row(const Row& row, const Executor& executor, const std::string& type, Sandbox& sandbox,
                       const std::string& folder) {
  using Verdict = ContractResult::Verdict;
  ContractResult result{std::string(row.about.name), Verdict::no_sample, {}};
  const std::string path = sample_of(folder, row.about.name);
  if (path.empty()) return result;
  auto script = read_text_file(path);
  ContractTrial trial;
  Job& job = trial.facts.job;
  job.id = 2001;
  job.caller_id = 12;
  job.context_id = 1;
  job.name = result.name;
  job.script_type = type;
  if (script) job.script = std::move(*script);
  trial.facts.deadline_unix_ms = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count() +
      60000);
  row.prepare(trial);
  auto seen = script ? run_sample(executor, sandbox, trial) : Result<SampleResult>(fail(script.error(), path));
  // A script that is rejected before its run is judged by the end that its job would have.
  if (!seen && seen.error().code == Code::invalid) {
    SampleResult refused;
    refused.end.detail = "dead_letter";
    refused.end.error = seen.error().message;
    seen = std::move(refused);
  }
  result.detail = seen ? row.judge(*seen) : seen.error().message;
  result.verdict = result.detail.empty() ? Verdict::held : Verdict::failed;
  if (!result.detail.empty() && seen && !seen->err.empty())
    result.detail +=
        "; stderr ends: " + seen->err.substr(seen->err.size() - std::min<std::size_t>(seen->err.size(), 300));
  return result;
}

}  // namespace

const std::vector<ContractCase>& contract_cases() {
  static const std::vector<ContractCase> kCases = [] {
    std::vector<ContractCase> cases;
    for (const Row& row : rows()) cases.push_back(row.about);
    return cases;
  }();
  return kCases;
}

Result<std::vector<ContractResult>> check_contract(const Executor& executor, const std::string& script_type,
                                                   Sandbox& sandbox, const std::string& samples,
                                                   const std::function<void(const ContractResult&)>& tried) {
  std::error_code unread;
  const std::filesystem::directory_iterator first(samples, unread);
  if (unread == std::errc::no_such_file_or_directory) return fail(Code::not_found, samples + ": no such folder");
  if (unread) {
    return fail(Code::invalid, samples + ": is not a folder of samples that can be read: " + unread.message() +
                                   " (docs/executors/contract.md)");
  }
  ::setenv("MYCOJOBS_CONTRACT_MARKER", kMarker, 1);
  std::vector<ContractResult> results;
  for (const Row& row : rows()) {
    results.push_back(try_row(row, executor, script_type, sandbox, samples));
    tried(results.back());
  }
  ::unsetenv("MYCOJOBS_CONTRACT_MARKER");
  return results;
}

}  // namespace mycojobs
