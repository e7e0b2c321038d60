// What a store must be like: the rules by name, and a finding, which is one of them broken. Which are: of a job
// domain/job_invariants.h, of a flow domain/flow_invariants.h, between jobs inspect/verify_groups.h.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace mycojobs {

struct Finding {
  bool violation = true;  // false: a note: clients may do so, and nothing is lost by it
  std::string rule;       // a row of verify_rules()
  std::string subject;    // a job's key, a queue's, ...
  std::string text;       // one line
};

struct VerifyRule {
  std::string_view name;
  bool violation;
  std::string_view meaning;
};
std::span<const VerifyRule> verify_rules();

Finding finding(std::string_view rule, std::string subject, const std::string& text);

}  // namespace mycojobs
