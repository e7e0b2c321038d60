#include "cli/contract_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/terminal.h"
#include "domain/codec.h"

namespace mycojobs {
namespace {

using ContractVerdict = ContractResult::Verdict;

std::string_view word(ContractVerdict verdict) {
  return verdict == ContractVerdict::held ? "held" : verdict == ContractVerdict::failed ? "failed" : "no sample";
}

}  // namespace

int report_cases(const Invocation& call) {
  auto cases = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{{"CASE", "ITS SAMPLE"}};
  for (const auto& each : contract_cases()) {
    cases.push_back({{"case", each.name}, {"sample", each.sample}});
    rows.push_back({std::string(each.name), std::string(each.sample)});
  }
  if (call.json) {
    print(dump_json(cases, 2) + "\n");
  } else {
    print_table(rows);
    say("give --samples FOLDER: one script for each case, named after it");
  }
  return 0;
}

Result<int> report_contract(const Invocation& call, const Executor& executor, const std::string& script_type,
                            Sandbox& sandbox, const std::string& samples) {
  const auto tell = [&call](const ContractResult& result) {
    if (call.json) return;
    const Tone tone = result.verdict == ContractVerdict::held     ? Tone::good
                      : result.verdict == ContractVerdict::failed ? Tone::bad
                                                                  : Tone::faint;
    print(paint(tone, std::string(word(result.verdict)), false) + "  " + result.name +
          (result.detail.empty() ? "" : ": " + printable(result.detail)) + "\n");
  };
  MJ_TRY(results, check_contract(executor, script_type, sandbox, samples, tell));
  if (call.json) {
    auto rows = nlohmann::json::array();
    for (const auto& each : results)
      rows.push_back({{"case", each.name}, {"verdict", word(each.verdict)}, {"detail", each.detail}});
    print(dump_json(rows, 2) + "\n");
  }
  const auto count = [&results](ContractVerdict verdict) {
    return std::count_if(results.begin(), results.end(), [&](const auto& each) { return each.verdict == verdict; });
  };
  say(std::to_string(count(ContractVerdict::held)) + " held, " + std::to_string(count(ContractVerdict::failed)) +
      " failed, " + std::to_string(count(ContractVerdict::no_sample)) + " without a sample");
  return count(ContractVerdict::failed) > 0 ? 1 : 0;
}

}  // namespace mycojobs
