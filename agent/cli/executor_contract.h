// The contract of executors: test cases that every script type must pass in a real sandbox. The tests run it for the
// built-in executors, users for configured executors and plugins (`mycojobs executor check`, `mycojobs plugin check`).
//
// Each case needs one script in the language, called a sample: a file <case>.<any extension> in a folder.
// contract_cases() and docs/executors/contract.md describe the samples.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "executors/executor.h"
#include "sandbox/sandbox.h"

namespace mycojobs {

// A test case of the contract.
struct ContractCase {
  std::string_view name;
  std::string_view sample;  // required behaviour of the script
};
const std::vector<ContractCase>& contract_cases();

// Result of a test case.
struct ContractResult {
  enum class Verdict { held, failed, no_sample };
  std::string name;
  Verdict verdict = Verdict::no_sample;
  std::string detail;  // reason of a failure
};

// Runs every case that has a sample in the folder `samples`, and calls on_result() after each. Errors: the folder
// cannot be read.
Result<std::vector<ContractResult>> check_contract(const Executor&, const std::string& script_type, Sandbox&,
                                                   const std::string& samples,
                                                   const std::function<void(const ContractResult&)>& on_result);

}  // namespace mycojobs
