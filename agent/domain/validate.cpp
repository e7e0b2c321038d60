#include <algorithm>
#include <string>

#include "domain/codec.h"
#include "domain/notify.h"
#include "domain/policy.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxKeyBytes = 255;
constexpr std::size_t kMaxDependends = 10000;

class Findings {
 public:
  void add(std::string field, const std::string& message) {
    std::string line = field + ": " + message;
    problems_.push_back({std::move(field), std::move(line)});
  }
  void need_id(std::string field, Id id) {
    if (id == 0) add(std::move(field), "is missing or 0: give a whole number from 1 to 4294967295");
  }
  std::vector<FieldProblem> take() { return std::move(problems_); }

 private:
  std::vector<FieldProblem> problems_;
};

void check_env(const TextMap& env, Findings& findings) {
  for (const auto& [name, value] : env) {
    if (name.empty()) {
      findings.add("env_vars", "a name is empty");
    } else if (name.find('=') != std::string::npos || name.find('\0') != std::string::npos) {
      findings.add("env_vars", "the name " + shown(name) + " has '=' or NUL in it: rename the variable");
    } else if (value.find('\0') != std::string::npos) {
      findings.add("env_vars", "the value of " + shown(name) + " has NUL in it: the system cannot pass it on");
    }
  }
}

void check_key(const char* field, const std::string& key, Findings& findings) {
  if (key.size() > kMaxKeyBytes) {
    findings.add(field, "is longer than " + std::to_string(kMaxKeyBytes) + " bytes: give a hash of it");
  }
}

}  // namespace

std::vector<FieldProblem> validate(const Job& job) {
  Findings findings;
  findings.need_id("id", job.id);
  findings.need_id("caller_id", job.caller_id);
  findings.need_id("context_id", job.context_id);
  if (job.script.empty()) findings.add("script", "is missing or empty");
  if (job.script_type.empty()) {
    findings.add("script_type", "is missing: give the kind of script, such as python");
  } else if (!is_script_type(job.script_type)) {
    findings.add("script_type",
                 shown(job.script_type) + " is not a script type: 1 to 32 of a-z, 0-9, '_' and '-', a letter first");
  }
  if (job.timeout == 0U) findings.add("timeout", "0 is not allowed: give 1 to 4294967295 seconds, or leave it out");
  check_env(job.env_vars, findings);
  if (job.dependends.size() > kMaxDependends) {
    findings.add("dependends", std::to_string(job.dependends.size()) + " jobs are more than " +
                                   std::to_string(kMaxDependends) + ": put a joining job in between");
  }
  for (Id id : job.dependends) {
    if (id == 0) findings.add("dependends", "0 is not a job id");
    if (id == job.id && id != 0) findings.add("dependends", std::to_string(id) + " is the job itself");
  }
  if (job.priority < -100 || job.priority > 100) {
    findings.add("priority", std::to_string(job.priority) + " is out of range: give -100 to 100");
  }
  check_key("idempotency_key", job.idempotency_key, findings);
  check_key("concurrency_key", job.concurrency_key, findings);
  if (job.concurrency_limit != 0 && job.concurrency_key.empty()) {
    findings.add("concurrency_limit", "limits nothing without a concurrency_key");
  }
  auto problems = findings.take();
  for (FieldProblem& problem : read_notify(job.notify, "notify").problems) problems.push_back(std::move(problem));
  for (FieldProblem& problem : read_policy(job.policy, "policy").problems) problems.push_back(std::move(problem));
  return problems;
}

std::string join(const std::vector<FieldProblem>& problems) {
  std::string out;
  for (const auto& problem : problems) {
    if (!out.empty()) out += "; ";
    out += problem.message;
  }
  return out;
}

}  // namespace mycojobs
