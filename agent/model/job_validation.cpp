#include "model/job_validation.h"

#include <algorithm>
#include <string>
#include <utility>

#include "model/notify_targets.h"
#include "model/policy_json.h"
#include "model/submitted_files.h"
#include "model/trace_context.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxKeyBytes = 255;
constexpr std::size_t kMaxDependencies = 10000;

class FieldProblemList {
 public:
  void add(std::string field, const std::string& message) {
    std::string line = field + ": " + message;
    add({std::move(field), std::move(line)});
  }
  void add(FieldProblem problem) {
    if (problems_.size() < kMaxFieldProblems) problems_.push_back(std::move(problem));
  }
  void require_id(std::string field, Id id) {
    if (id == 0) add(std::move(field), "is missing or 0: give a whole number from 1 to 4294967295");
  }
  std::vector<FieldProblem> release() { return std::move(problems_); }

 private:
  std::vector<FieldProblem> problems_;
};

void check_env_vars(const TextMap& env, FieldProblemList& problems) {
  for (const auto& [name, value] : env) {
    if (name.empty()) {
      problems.add("env_vars", "a name is empty");
    } else if (name.find('=') != std::string::npos || name.find('\0') != std::string::npos) {
      problems.add("env_vars", "the name " + excerpt(name) + " has '=' or NUL in it: rename the variable");
    } else if (value.find('\0') != std::string::npos) {
      problems.add("env_vars", "the value of " + excerpt(name) + " contains NUL: the system cannot pass it on");
    }
  }
}

void check_args(const std::vector<std::string>& args, FieldProblemList& problems) {
  if (args.size() > kMaxArgs) {
    problems.add("args", std::to_string(args.size()) + " arguments are more than " + std::to_string(kMaxArgs) +
                             ": pass them in a file (files) or on the standard input (stdin)");
  }
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < args.size(); ++i) {
    bytes += args[i].size();
    if (args[i].find('\0') == std::string::npos) continue;
    problems.add("args", "[" + std::to_string(i) + "] contains NUL: the system cannot pass it on");
    return;
  }
  if (bytes > kMaxArgsBytes) {
    problems.add("args", std::to_string(bytes) + " bytes are more than the " + std::to_string(kMaxArgsBytes) +
                             " of all arguments: pass them in a file (files) or on the standard input (stdin)");
  }
}

void check_key(const char* field, const std::string& key, FieldProblemList& problems) {
  if (key.size() > kMaxKeyBytes) {
    problems.add(field, "is longer than " + std::to_string(kMaxKeyBytes) + " bytes: give a hash of it");
  }
}

void check_script_fields(const Job& job, FieldProblemList& problems) {
  problems.require_id("id", job.id);
  problems.require_id("caller_id", job.caller_id);
  problems.require_id("context_id", job.context_id);
  if (job.script.empty()) problems.add("script", "is missing or empty");
  if (job.script_type.empty()) {
    problems.add("script_type", "is missing: give the kind of script, such as python");
  } else if (!is_script_type(job.script_type)) {
    problems.add("script_type",
                 excerpt(job.script_type) + " is not a script type: 1 to 32 of a-z, 0-9, '_' and '-', a letter first");
  }
  if (job.timeout == 0U) problems.add("timeout", "0 is not allowed: give 1 to 4294967295 seconds, or leave it out");
  if (job.name.find('\0') != std::string::npos) problems.add("name", "contains NUL: rename the job");
  check_env_vars(job.env_vars, problems);
  check_args(job.args, problems);
}

}  // namespace

std::vector<FieldProblem> validate_script(const Job& job) {
  FieldProblemList problems;
  check_script_fields(job, problems);
  return problems.release();
}

std::vector<FieldProblem> validate(const Job& job) {
  FieldProblemList problems;
  check_script_fields(job, problems);
  if (job.dependends.size() > kMaxDependencies) {
    problems.add("dependends", std::to_string(job.dependends.size()) + " jobs are more than " +
                                   std::to_string(kMaxDependencies) + ": add a job in between that joins them");
  }
  // Reports only the first invalid id.
  const auto invalid_id =
      std::find_if(job.dependends.begin(), job.dependends.end(), [&](Id id) { return id == 0 || id == job.id; });
  if (invalid_id != job.dependends.end() && *invalid_id == 0) {
    problems.add("dependends", "0 is not a job id");
  } else if (invalid_id != job.dependends.end()) {
    problems.add("dependends", std::to_string(*invalid_id) + " is the job itself");
  }
  if (job.priority < -kMaxPriority || job.priority > kMaxPriority) {
    problems.add("priority", std::to_string(job.priority) + " is out of range: give " + std::to_string(-kMaxPriority) +
                                 " to " + std::to_string(kMaxPriority));
  }
  check_key("idempotency_key", job.idempotency_key, problems);
  check_key("concurrency_key", job.concurrency_key, problems);
  if (job.concurrency_limit != 0 && job.concurrency_key.empty()) {
    problems.add("concurrency_limit", "has no effect without a concurrency_key");
  }
  if (auto context = check_traceparent(job.traceparent); !context) problems.add("traceparent", context.error().message);
  if (auto problem = check_file_descriptions(job)) problems.add(std::move(*problem));
  auto out = problems.release();
  for (FieldProblem& problem : parse_notify(job.notify, "notify").problems) out.push_back(std::move(problem));
  for (FieldProblem& problem : read_policy(job.policy, "policy").problems) out.push_back(std::move(problem));
  if (out.size() > kMaxFieldProblems) out.resize(kMaxFieldProblems);
  return out;
}

}  // namespace mycojobs
