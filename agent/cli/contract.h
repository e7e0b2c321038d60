// The contract of executors: what every script type does alike, tried on a real sandbox with scripts of that language.
// The same suite for our executors (tests), for those of the configuration and for plugins (`mycojobs plugin check`).
//
// For each case there is one script, a sample: a file <case>.<any ending> in a folder. What each has to do stands in
// contract_cases() and in docs/executors/contract.md.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/executor.h"
#include "mycojobs/sandbox.h"

namespace mycojobs {

struct ContractCase {
  std::string_view name;
  std::string_view sample;  // what the script has to do
};
const std::vector<ContractCase>& contract_cases();

struct ContractResult {
  enum class Verdict { held, failed, no_sample };
  std::string name;
  Verdict verdict = Verdict::no_sample;
  std::string detail;  // of a failure: what was wrong
};

// Runs every case that has a sample; tried: called after each. Error: the folder cannot be read, or no sandbox can be
// had.
Result<std::vector<ContractResult>> check_contract(const Executor&, const std::string& script_type, Sandbox&,
                                                   const std::string& samples,
                                                   const std::function<void(const ContractResult&)>& tried);

}  // namespace mycojobs
