// The contract of executors: each script type has a sample for every case.
#include "base/clock.h"
#include "cli/executor_contract.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/sha256.h"
#include "cli/config/config.h"
#include "cli/config/config_file.h"
#include "executors/executor_settings.h"
#include "executors/executor_table.h"
#include "executors/native/native_executor.h"
#include "executors/python/python_sandbox.h"
#include "executors/v/v_driver.h"
#include "store/redis/store_metrics.h"
#include "support/build_paths.h"
#include "support/process.h"

namespace mycojobs {
namespace {

std::string find_samples(const std::string& type) { return mj::test::source_path("examples/contract/") + type; }

// Returns the executors of this build. The command executors are configured as in the manual's example file.
std::vector<std::unique_ptr<Executor>> make_executors(const std::string& state_dir = "/nonexistent",
                                                      const std::string& v_compiler = "") {
  HostFacts host;
  host.environment["HOME"] = "/nonexistent";
  const auto config = check_config_file(mj::test::source_path("examples/command/config.toml"), host);
  if (!config) throw std::runtime_error(config.error().message);
  static const SystemClock kClock;
  return create_executors(
      {mj::test::programs_folder(), state_dir, config->settings.executors, "", v_compiler, {}, {}, kClock});
}

void expect_contract(const std::string& type, const std::string& samples, const std::string& state_dir,
                     const std::string& v_compiler = "") {
  for (const auto& executor : make_executors(state_dir, v_compiler)) {
    const auto types = executor->script_types();
    if (std::find(types.begin(), types.end(), type) == types.end()) continue;
    const auto version = executor->probe();
    ASSERT_TRUE(version) << version.error().message;
    const auto results = check_contract(*executor, type, test::shared_sandbox(), samples, [](const auto&) {});
    ASSERT_TRUE(results) << results.error().message;
    for (const auto& result : *results)
      EXPECT_EQ(result.verdict, ContractResult::Verdict::held) << result.name << ": " << result.detail;
    return;
  }
  FAIL() << "no executor runs " << type;
}

// The table also contains the executor of programs. An operator names its script types.
TEST(ExecutorTable, TypesMatchTheLabelsOfMetrics) {
  static const SystemClock kClock;
  TypeNames types{"command"};
  for (const auto& executor :
       create_executors({mj::test::programs_folder(), "/nonexistent", {}, "/nonexistent", "", {}, {}, kClock})) {
    for (std::string& type : executor->script_types()) types.insert(std::move(type));
  }
  EXPECT_EQ(types, built_in_types());
}

class Contract : public ::testing::TestWithParam<std::string> {};

TEST_P(Contract, HoldsInEveryCase) { expect_contract(GetParam(), find_samples(GetParam()), "/nonexistent"); }

// The shell is used as a prebuilt program that receives the samples of bash as its argument.
TEST(NativeContract, HoldsInEveryCase) {
  const test::TempDir state, samples;
  const std::string folder = programs_folder(state.path().string(), 1);
  std::filesystem::create_directories(folder);
  const std::string shell = test::read_file("/bin/bash");
  const std::string hash = sha256_hex(shell);
  std::ofstream(folder + "/" + hash, std::ios::binary) << shell;
  for (const auto& entry : std::filesystem::directory_iterator(find_samples("bash"))) {
    std::string script = test::read_file(entry.path());
    for (std::size_t position = 0; (position = script.find('\\', position)) != std::string::npos; position += 2)
      script.insert(position, "\\");
    for (std::size_t position = 0; (position = script.find('\n', position)) != std::string::npos;)
      script.replace(position, 1, "\\n");
    for (std::size_t position = 0; (position = script.find('\'', position)) != std::string::npos; position += 4)
      script.replace(position, 1, "\\x27");
    samples.write(entry.path().stem(), hash + "\n-c\neval $'" + script + "'\n");
  }
  expect_contract("native", samples.path().string(), state.path().string());
}

// Each sample of bash is embedded in a V program that pipes it to bash. The syntax error is one of V.
TEST(VContract, HoldsInEveryCase) {
  const test::CompilerFolder compiler;
  const test::TempDir state, samples;
  for (const auto& entry : std::filesystem::directory_iterator(find_samples("bash"))) {
    const std::string name = entry.path().stem();
    std::string octal;  // octal escapes for printf; V and the shell do not interpret them
    for (const char c : test::read_file(entry.path()))
      octal += fmt::format("\\\\{:03o}", static_cast<unsigned char>(c));
    std::string script = "import os\n\nfn main() {\n\tif os.system('printf \"" + octal +
                         "\" | /bin/bash') != 0 {\n\t\tpanic('it broke')\n\t}\n}\n";
    if (name == "syntax") script = "fn broken(";
    samples.write(name + ".v", script);
  }
  expect_contract("v", samples.path().string(), state.path().string(), compiler.program());
}

std::vector<std::string> list_sample_types() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(find_samples(""))) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Types, Contract, ::testing::ValuesIn(list_sample_types()),
                         [](const auto& type) { return type.param; });

TEST(ContractCases, EveryExecutorHasItsSamples) {
  for (const auto& executor : make_executors()) {
    const std::string type = executor->script_types().front();
    if (type == "native" || type == "v") continue;  // tested above
    EXPECT_TRUE(std::filesystem::is_directory(find_samples(type))) << type;
  }
}

}  // namespace
}  // namespace mycojobs
