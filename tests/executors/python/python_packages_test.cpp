// Packages that a script states: the metadata of the script, lock files, the cache, and jobs with an index of wheels, a
// real pip and the real sandbox.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "cli/local_run.h"
#include "executors/python/packages/environment_cache.h"
#include "executors/python/packages/lock_file.h"
#include "executors/python/packages/lock_file_registry.h"
#include "executors/python/packages/package_conversation.h"
#include "executors/python/packages/script_requirements.h"
#include "executors/python/python_executor.h"
#include "executors/run_specs.h"
#include "executors/shared_sandbox.h"
#include "model/policy_json.h"
#include "python_driver.h"
#include "support/build_paths.h"
#include "support/package_index.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;

std::string make_script(const std::string& dependencies, const std::string& code) {
  return "# /// script\n# dependencies = " + dependencies + "\n# ///\n" + code;
}

TEST(ScriptRequirements, BlockIsReadAsPep723Defines) {
  EXPECT_THAT(parse_requirements("import numpy\n")->requirements, IsEmpty());
  const auto read = parse_requirements(
      "#!/usr/bin/env python3\n\n# /// script\n# requires-python = \">=3.11\"\n#\n# dependencies = [\n"
      "#   \"requests<3\",\n#   \" numpy \",\n#   \"requests<3\",\n# ]\n# [tool.other]\n# key = 1\n# ///\nprint(1)\n");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_THAT(read->requirements, ElementsAre("numpy", "requests<3"));
  EXPECT_EQ(read->python_specifier, ">=3.11");
  EXPECT_THAT(parse_requirements("x = '''\n # /// script\n'''\n")->requirements, IsEmpty());
  EXPECT_THAT(parse_requirements("# /// script\r\n# dependencies = [\"a\"]\r\n# ///\r\n")->requirements,
              ElementsAre("a"));
}

TEST(ScriptRequirements, LargeScriptWithManyEndLinesIsRead) {
  std::string lines;
  for (int i = 0; i < 500'000; ++i) lines += "# ///\n";
  EXPECT_THAT(parse_requirements("# /// script\n" + lines).error().message, HasSubstr("more than 64 KiB"));
  std::string comments;
  for (int i = 0; i < 100'000; ++i) comments += "# a comment after the block\n";
  EXPECT_THAT(parse_requirements(make_script("[\"a\"]", comments))->requirements, ElementsAre("a"));
}

TEST(ScriptRequirements, InvalidBlockIsRejectedWithItsProblem) {
  const std::pair<std::string, std::string> rows[] = {
      {"# /// script\n# dependencies = []\nprint()\n", "without a line \"# ///\""},
      {make_script("[]", "pass\n") + make_script("[]", ""), "more than one block"},
      {make_script("[", ""), "is not valid TOML"},
      {make_script("\"numpy\"", ""), "is not a list of texts"},
      {make_script("[1]", ""), "is not a list of texts"},
      {make_script("[\"a @ https://example.org/a.whl\"]", ""), "names a URL"},
      {make_script("[\"./here\"]", ""), "does not begin with the name of a package"},
      {make_script("[\"-r /etc/passwd\"]", ""), "does not begin with the name of a package"},
      {make_script("[\"a --index-url=http://x\"]", ""), "is not a requirement"},
      {make_script("[\"a b\"]", ""), "is not a requirement"},
      {make_script("[\"a\\nb\"]", ""), "has a control character"},
      {make_script("[\"a/b\"]", ""), "is not a requirement"},
  };
  for (const auto& [script, problem] : rows) {
    const auto read = parse_requirements(script);
    ASSERT_FALSE(read) << script;
    EXPECT_THAT(read.error().message, HasSubstr(problem)) << script;
  }
  for (const char* valid : {"requests", "requests[socks, security] >= 2.8.1, == 2.8.* ; python_version < \"3.12\"",
                            "zope.interface!=1", "a~=1.0"})
    EXPECT_TRUE(policies::check_python_requirement(valid)) << valid;
}

TEST(ScriptRequirements, PythonVersionIsCompared) {
  const std::tuple<const char*, const char*, bool> rows[] = {
      {"3.11.2", "", true},          {"3.11.2", ">=3.11", true},   {"3.11.2", ">=3.11, <4", true},
      {"3.11.2", ">=3.12", false},   {"3.11.2", "==3.11.*", true}, {"3.11.2", "==3.11", false},
      {"3.11.0", "==3.11", true},    {"3.11.2", "~=3.8", true},    {"3.11.2", "~=3.11.3", false},
      {"3.11.2", "!=3.11.2", false}, {"3.11.2", ">3.9", true},     {"3.11.2", "<3.11", false},
  };
  for (const auto& [version, specifier, expected] : rows)
    EXPECT_EQ(meets_python_specifier(version, specifier), expected) << version << ' ' << specifier;
  for (const char* invalid : {"3.11", ">=three", "~=3", ">=3.*"})
    EXPECT_FALSE(meets_python_specifier("3.11.2", invalid)) << invalid;
}

TEST(PackageNames, PatternMatchesTheNormalizedName) {
  EXPECT_EQ(normalize_package_name("Zope.Interface__x"), "zope-interface-x");
  EXPECT_TRUE(matches_package_pattern("numpy", "numpy"));
  EXPECT_TRUE(matches_package_pattern("acme-tools", "acme-*"));
  EXPECT_TRUE(matches_package_pattern("acme-tools", "*"));
  EXPECT_TRUE(matches_package_pattern("a-b-c-b", "a*b"));
  EXPECT_FALSE(matches_package_pattern("numpy2", "numpy"));
  EXPECT_FALSE(matches_package_pattern("acme", "acme-*"));
}

const std::string kHash(64, 'a');

TEST(LockFile, OnlyAllowedPackagesWithAllowedHashesAreAccepted) {
  PackageSettings settings;
  settings.allow = {"alpha", "b*"};
  const std::string lock = "alpha==1.0 --hash=sha256:" + kHash + "\nbeta==1.1 --hash=sha256:" + kHash + "\n";
  EXPECT_TRUE(check_lock_file(lock, settings, 7));
  EXPECT_TRUE(check_lock_file("", settings, 7));
  for (const char* name : {"b[alpha]", "b>1,", "b (alpha)", "b;alpha"})
    EXPECT_THAT(check_lock_file(std::string(name) + "==1.0 --hash=sha256:" + kHash, settings, 7).error().message,
                HasSubstr("invalid line"))
        << name;
  EXPECT_THAT(check_lock_file(lock + "gamma==1 --hash=sha256:" + kHash + "\n", settings, 7).error().message,
              HasSubstr("the package gamma is needed and not allowed: the operator must add it to "
                        "[contexts.7.python.packages] allow"));
  settings.hashes = {std::string(64, 'b')};
  EXPECT_THAT(check_lock_file(lock, settings, 7).error().message, HasSubstr("the package alpha has the hash"));
  for (const std::string& line :
       {std::string("alpha"), std::string("alpha==1.0 --hash=md5:1\n"), std::string("# x\r-r x\n"),
        "-r x==1 --hash=sha256:" + kHash, "alpha==1 -r x --hash=sha256:" + kHash})
    EXPECT_FALSE(check_lock_file(line, settings, 7)) << line;
}

constexpr EnvironmentCache::Limits kNoLimits{UINT64_MAX, UINT64_MAX, 1000ULL * 3600 * 24};

EnvironmentFolder add_environment(const EnvironmentCache& cache, const std::string& lock,
                                  const EnvironmentCache::Limits& limits = kNoLimits) {
  auto installation = cache.begin_installation().value();
  fs::create_directories(installation.site());
  std::ofstream(installation.site() + "/module.py") << std::string(10000, '#');
  return cache.commit_installation(std::move(installation), lock, "abi", limits).value();
}

TEST(EnvironmentCache, EnvironmentIsFoundByItsLockFileAndAbi) {
  const TempDir state;
  const EnvironmentCache cache(state.path(), 7);
  EXPECT_FALSE(cache.find("lock", "abi"));
  const auto added = add_environment(cache, "lock");
  EXPECT_EQ(cache.find("lock", "abi")->path, added.path);
  EXPECT_FALSE(cache.find("lock", "other"));
  EXPECT_FALSE(cache.find("other", "abi"));
  EXPECT_FALSE(EnvironmentCache(state.path(), 8).find("lock", "abi")) << "contexts share no environments";
  EXPECT_EQ(fs::status(added.site() + "/module.py").permissions(), static_cast<fs::perms>(0644));
  EXPECT_EQ(cache.list_sizes().size(), 1U);
}

TEST(EnvironmentCache, LeastRecentlyUsedEnvironmentLeavesFirstAndOneInUseStays) {
  const TempDir state;
  const EnvironmentCache cache(state.path(), 7);
  for (const char* lock : {"first", "second", "third"}) {
    const auto added = add_environment(cache, lock);
    const int age = lock[0] == 'f' ? 300 : lock[0] == 's' ? 200 : 100;
    fs::last_write_time(added.path, fs::file_time_type::clock::now() - std::chrono::seconds(age));
  }
  const std::uint64_t bytes = cache.list_sizes().front();
  {
    const auto in_use = cache.find("third", "abi");
    fs::last_write_time(in_use->path, fs::file_time_type::clock::now() - std::chrono::seconds(400));
    cache.clean_up({UINT64_MAX, 2 * bytes, kNoLimits.age_ms});
  }
  EXPECT_TRUE(cache.find("third", "abi"));
  EXPECT_FALSE(cache.find("first", "abi"));
  EXPECT_TRUE(cache.find("second", "abi"));
  fs::last_write_time(cache.find("second", "abi")->path, fs::file_time_type::clock::now() - std::chrono::hours(25));
  cache.clean_up(kNoLimits);
  EXPECT_FALSE(cache.find("second", "abi")) << "not used for a day";
}

TEST(EnvironmentCache, LinksAndTooLargeInstallationsAreRejected) {
  const TempDir state;
  const EnvironmentCache cache(state.path(), 7);
  auto linked = cache.begin_installation().value();
  fs::create_directories(linked.site());
  fs::create_symlink("/etc/shadow", linked.site() + "/secrets");
  EXPECT_THAT(cache.commit_installation(linked, "lock", "abi", kNoLimits).error().message,
              HasSubstr("only files and folders"));
  auto large = cache.begin_installation().value();
  fs::create_directories(large.site());
  std::ofstream(large.site() + "/x") << std::string(100000, 'x');
  EXPECT_THAT(cache.commit_installation(large, "lock", "abi", {50000, UINT64_MAX, UINT64_MAX}).error().message,
              HasSubstr("max_bytes is 50000"));
  EXPECT_FALSE(cache.find("lock", "abi"));
}

TEST(EnvironmentCache, EmptyFilesCount) {
  const TempDir state;
  const EnvironmentCache cache(state.path(), 7);
  auto installation = cache.begin_installation().value();
  fs::create_directories(installation.site());
  for (int i = 0; i < 20; ++i) std::ofstream(installation.site() + "/empty" + std::to_string(i));
  EXPECT_THAT(cache.commit_installation(installation, "lock", "abi", {50000, UINT64_MAX, UINT64_MAX}).error().message,
              HasSubstr("max_bytes is 50000"));
}

TEST(EnvironmentCache, AbandonedInstallationIsDeletedAndARunningOneCounts) {
  const TempDir state;
  const EnvironmentCache cache(state.path(), 7);
  const std::string added = add_environment(cache, "lock").path;
  const auto running = cache.begin_installation().value();
  const std::string abandoned = cache.begin_installation().value().path;
  EXPECT_TRUE(fs::exists(abandoned));
  cache.remove_abandoned();
  EXPECT_FALSE(fs::exists(abandoned));
  EXPECT_TRUE(fs::exists(running.path));
  std::ofstream(running.path + "/x") << std::string(200000, 'x');
  cache.clean_up({UINT64_MAX, 150000, kNoLimits.age_ms});
  EXPECT_TRUE(fs::exists(running.path));
  EXPECT_FALSE(fs::exists(added));
}

TEST(PipError, IsTheCauseAndNotItsConsequence) {
  EXPECT_EQ(extract_pip_error("WARNING: x\nERROR: no version of a\nERROR: no match\n"), "no version of a");
  EXPECT_EQ(extract_pip_error("the disk is full"), "the disk is full");
  EXPECT_EQ(
      extract_pip_error("WARNING: Retrying (...) after connection broken by 'ProxyError('a', OSError('b'))': /simple/\n"
                        "ERROR: no version\n"),
      "the package index cannot be reached: ProxyError('a', OSError('b'))");
}

// Runs jobs of a context with packages: the whole path of a job except for the store.
class PackageHost {
 public:
  explicit PackageHost(const std::function<void(PackageSettings&)>& change = nullptr,
                       const std::string& credentials = "", const std::string& certificates = "")
      : index_(credentials, certificates) {
    PackageSettings packages;
    packages.index = index_.url();
    packages.allow = {"*"};
    if (change) change(packages);
    settings_.packages = packages;
    executor_ = std::make_unique<PythonExecutor>("", std::map<Id, PythonSettings>{{7, settings_}}, state_.path());
  }
  RunResult run(const std::string& script, const std::string& policy = "{}") const {
    static std::uint64_t next_run = std::uint64_t{1} << 41;
    auto staged = stage_runs(*executor_, {}, read_policy(policy, "policy").request, nullptr, 60000, 7);
    if (!staged) throw std::runtime_error(staged.error().message);
    for (RunSpec& spec : staged->specs) spec.context = 7;
    JobFacts facts = make_facts(script);
    facts.job.context_id = 7;
    facts.granted_policy = staged->policy;
    RunResult result;
    auto conversation = executor_->begin(facts, nullptr);
    if (!conversation) {
      result.end.status = JobStatus::error;
      result.end.error = conversation.error().message;
      return result;
    }
    LocalRunHooks hooks;
    hooks.on_output = [&result](bool is_err, std::string_view bytes) { (is_err ? result.err : result.out) += bytes; };
    hooks.on_note = [&result](const std::string& note) { result.notes.push_back(note); };
    auto local = run_locally(shared_sandbox(), std::move(staged->specs), **conversation, hooks, next_run);
    next_run += 3;
    if (!local) throw std::runtime_error(local.error().message);
    result.outcome = std::move(local->outcome);
    result.end = std::move(local->end);
    return result;
  }
  Result<std::unique_ptr<Conversation>> begin(const std::string& script) const {
    JobFacts facts = make_facts(script);
    facts.job.context_id = 7;
    return executor_->begin(facts, nullptr);
  }
  void set_lock_file_registry(std::shared_ptr<LockFileRegistry> registry) const {
    executor_->set_lock_file_registry(std::move(registry));
  }
  void delete_environments() const { fs::remove_all(state_ / "contexts"); }
  const PackageIndex& index() const { return index_; }
  EnvironmentCache cache() const { return {state_.path(), 7}; }

 private:
  PackageIndex index_;
  TempDir state_;
  PythonSettings settings_;
  std::unique_ptr<PythonExecutor> executor_;
};

bool was_cached(const RunResult& result) {
  return nlohmann::json::parse(result.end.receipt)["packages"]["cached"].get<bool>();
}

TEST(PythonPackages, SetIsInstalledOnceAndTransitivePackagesWork) {
  const PackageHost host;
  const std::string script = make_script("[\"alpha>=1\"]",
                                         "import alpha, beta, gamma, delta, sys\n"
                                         "print(alpha.VERSION, beta.VERSION, delta.VERSION)\n"
                                         "result['file'] = alpha.__file__\n");
  const RunResult first = host.run(script);
  ASSERT_EQ(first.end.status, JobStatus::finished) << first.end.error << first.err;
  EXPECT_EQ(first.out, "1.0 1.1 0.1\n");
  EXPECT_EQ(first.end.result.at("file"), "/packages/python/alpha.py");
  EXPECT_FALSE(was_cached(first));
  EXPECT_THAT(first.notes, ElementsAre(HasSubstr("packages: 4 installed in")));
  const RunResult second = host.run(script);
  ASSERT_EQ(second.end.status, JobStatus::finished) << second.end.error;
  EXPECT_EQ(second.out, first.out);
  EXPECT_TRUE(was_cached(second));
  EXPECT_EQ(host.cache().list_sizes().size(), 1U);
  const RunResult without = host.run("try:\n  import alpha\nexcept ImportError as e: print(e)\n");
  EXPECT_EQ(without.out, "No module named 'alpha'\n");
}

TEST(PythonPackages, EnvironmentIsReadOnlyAndRunsNoStartFiles) {
  const PackageHost host;
  const RunResult result = host.run(make_script(
      "[\"starter\", \"json\", \"native\"]",
      "import starter, json, native._bz2, os\nprint(native._bz2.__file__.startswith('/packages'), json.loads('1'))\n"
      "for path in ('/packages/python/x', '/packages/x', starter.__file__):\n"
      "  try:\n    open(path, 'w')\n  except OSError as e: print(e.errno)\n"));
  EXPECT_EQ(result.end.status, JobStatus::finished) << result.end.error << result.err;
  EXPECT_EQ(result.out, "True 1\n30\n30\n30\n");
  EXPECT_EQ(result.err, "") << "no .pth file runs";
}

TEST(PythonPackages, ProgramsOfTheJobSeeThePackages) {
  const PackageHost host;
  const RunResult result =
      host.run(make_script("[\"tool\"]",
                           "import subprocess, sys\nsubprocess.run(['/usr/bin/python3', '-m', 'tool'], check=True)\n"),
               R"({"exec": true})");
  EXPECT_EQ(result.out, "the tool runs\n") << result.end.error << result.err;
}

TEST(PythonPackages, FailureNamesThePackageAndIsNotRepeatedForAWhile) {
  const PackageHost host;
  const std::string script = make_script("[\"absent-package\"]", "pass\n");
  const RunResult first = host.run(script);
  EXPECT_EQ(first.end.status, JobStatus::error);
  EXPECT_THAT(first.end.error, HasSubstr("packages: PackageError: Could not find a version that satisfies the "
                                         "requirement absent-package"));
  EXPECT_THAT(first.end.error_info, HasSubstr("No matching distribution found for absent-package"));
  EXPECT_THAT(first.err + first.out, HasSubstr("No matching distribution"));
  const auto count_requests = [&] {
    const std::string log = host.index().requests();
    return std::count(log.begin(), log.end(), '\n');
  };
  const auto requests = count_requests();
  const RunResult second = host.run(script);
  EXPECT_THAT(second.end.error, HasSubstr("packages: Could not find a version that satisfies the requirement "
                                          "absent-package"));
  EXPECT_THAT(second.end.error, HasSubstr("the next attempt is made"));
  EXPECT_EQ(count_requests(), requests) << "the second job has not asked the index";
}

// A registry in which another agent has stored a lock file between the search and add_lock_file().
struct OtherAgentRegistry final : LockFileRegistry {
  Result<std::string> find_lock_file(Id, const std::string& key) override {
    searched.push_back(key);
    added.clear();
    return found;
  }
  Result<std::string> add_lock_file(Id, const std::string&, const std::string& lock_file) override {
    added = lock_file;
    if (is_away) return fail(Code::unavailable, "the store is away");
    return stored.empty() ? lock_file : stored;
  }
  std::string get_stored_name(const std::string& key) const override { return "lock:" + key; }
  std::string added, stored, found;
  std::vector<std::string> searched;  // keys
  bool is_away = false;
};

TEST(PythonPackages, LockFileOfAnotherAgentIsInstalledInstead) {
  const PackageHost host;
  const auto registry = std::make_shared<OtherAgentRegistry>();
  host.set_lock_file_registry(registry);
  const std::string code = "import beta\nprint(beta.VERSION)\n";
  EXPECT_EQ(host.run(make_script("[\"beta==1.0\"]", code)).out, "1.0\n");
  registry->stored = registry->added;
  const std::string script = make_script("[\"beta\"]", code);
  EXPECT_EQ(host.run(script).out, "1.0\n") << "the environment exists";
  EXPECT_THAT(registry->added, HasSubstr("beta==1.1"));
  host.delete_environments();
  const RunResult again = host.run(script);
  EXPECT_EQ(again.out, "1.0\n") << again.end.error << again.err;
  EXPECT_EQ(host.cache().list_sizes().size(), 1U);
  registry->stored = "evil==1.0 -r /etc/passwd\n";
  host.delete_environments();
  EXPECT_THAT(host.run(script).end.error,
              AllOf(HasSubstr("the lock file has an invalid line"), HasSubstr("the lock file is stored as lock:")));
}

TEST(PythonPackages, InstallationIsUsedAlthoughItsLockFileCannotBeStored) {
  const PackageHost host;
  const auto registry = std::make_shared<OtherAgentRegistry>();
  registry->is_away = true;
  host.set_lock_file_registry(registry);
  EXPECT_EQ(host.run(make_script("[\"beta==1.0\"]", "import beta\nprint(beta.VERSION)\n")).out, "1.0\n");
}

// Ends of a run of pip that install.py does not report: its folder is deleted, and the failure is recorded if it is not
// one of the job.
TEST(PythonPackages, KilledInstallationLeavesNoFolder) {
  const std::tuple<RunStatus, std::uint64_t, std::size_t> rows[] = {
      {RunStatus::oom, 0, 1},          {RunStatus::exit, 0, 1},
      {RunStatus::cancelled, 0, 0},    {RunStatus::timeout_wall, 1'000'000, 0},
      {RunStatus::output_limit, 0, 0}, {RunStatus::timeout_wall, 15ULL * 60 * 1'000'000, 1},
  };
  for (const auto& [status, wall_us, failures] : rows) {
    const PackageHost host;
    const auto conversation = host.begin(make_script("[\"beta\"]", "pass\n"));
    ASSERT_TRUE(conversation) << conversation.error().message;
    EXPECT_EQ((*conversation)->stage(), kInstallStage);
    const std::string folder = (*conversation)->packages().path;
    EXPECT_TRUE(fs::exists(folder));
    Outcome outcome;
    outcome.status = status;
    outcome.usage.wall_us = wall_us;
    EXPECT_TRUE((*conversation)->can_block_in_next_stage(outcome));
    EXPECT_FALSE((*conversation)->next_stage(outcome));
    EXPECT_FALSE(fs::exists(folder));
    EXPECT_EQ(host.cache().list_failures().size(), failures) << to_string(status) << ' ' << wall_us;
  }
}

TEST(PythonPackages, ScriptWithoutACommentNeedsNoFolder) {
  PythonSettings settings;
  settings.packages = PackageSettings{};
  const PythonExecutor executor("", {{7, settings}}, "");
  JobFacts facts = make_facts("pass\n");
  facts.job.context_id = 7;
  const auto conversation = executor.begin(facts, nullptr);
  ASSERT_TRUE(conversation) << conversation.error().message;
  EXPECT_EQ((*conversation)->stage(), kScriptStage);
  facts.job.script = make_script("[\"a\"]", "pass\n");
  EXPECT_THAT(executor.begin(facts, nullptr).error().message, HasSubstr("set state_dir"));
}

TEST(PythonPackages, SetWithoutPackagesForThisPythonIsInstalledOnceToo) {
  const PackageHost host;
  const std::string script = make_script("[\"absent; python_version < '3'\"]", "print('ran')\n");
  EXPECT_EQ(host.run(script).out, "ran\n");
  const RunResult second = host.run(script);
  EXPECT_EQ(second.out, "ran\n");
  EXPECT_TRUE(was_cached(second));
}

TEST(PythonPackages, OnlyWheelsAreInstalledUnlessTheOperatorNamesThePackage) {
  const std::string script = make_script("[\"source\"]", "import source\nprint(source.VERSION, source.BUILT_IN)\n");
  const PackageHost host;
  EXPECT_THAT(host.run(script).end.error,
              AllOf(HasSubstr("source has no wheel for this Python, only source distributions"),
                    HasSubstr("[contexts.7.python.packages] build = [\"source\"]")));
  const PackageHost building([](PackageSettings& settings) { settings.build = {"source"}; });
  const RunResult built = building.run(script);
  ASSERT_EQ(built.end.status, JobStatus::finished) << built.end.error << built.err;
  EXPECT_THAT(built.out, HasSubstr("1.0 /packages/python/tmp/")) << "the code runs in the sandbox of the installation";
  EXPECT_TRUE(was_cached(building.run(script)));
  // Other hosts install the source distribution with the same hash.
  const auto registry = std::make_shared<OtherAgentRegistry>();
  building.set_lock_file_registry(registry);
  building.delete_environments();
  EXPECT_EQ(building.run(script).end.status, JobStatus::finished);
  registry->found = registry->added;
  EXPECT_THAT(registry->found, HasSubstr("source==1.0 --hash=sha256:"));
  building.delete_environments();
  const RunResult again = building.run(script);
  EXPECT_EQ(again.end.status, JobStatus::finished) << again.end.error << again.err;
  EXPECT_THAT(host.run(make_script("[\"absent\"]", "")).end.error, Not(HasSubstr("source distributions")));
}

// Hosts with different C libraries have lock files of their own, since a wheel of one may not run on the other.
TEST(PythonPackages, LockFileBelongsToOnePlatform) {
  EXPECT_THAT(get_wheel_platform(), MatchesRegex("[a-z0-9_]+-glibc[0-9.]+"));
  const PackageIndex index;
  const TempDir state;
  PackageSettings settings;
  settings.index = index.url();
  settings.allow = {"*"};
  const auto registry = std::make_shared<OtherAgentRegistry>();
  RunningInstallations installations;
  JobFacts facts = make_facts(make_script("[\"beta\"]", "pass\n"));
  facts.job.context_id = 7;
  for (const char* platform : {"x86_64-glibc2.36", "x86_64-glibc2.41", "aarch64-glibc2.36", "x86_64-glibc2.36"}) {
    const auto conversation =
        begin_with_packages(facts, {settings, state.path(), "3.11.2", platform, registry, installations}, nullptr);
    EXPECT_TRUE(conversation) << conversation.error().message;
  }
  ASSERT_EQ(registry->searched.size(), 4U);
  EXPECT_EQ(registry->searched[0], registry->searched[3]);
  EXPECT_EQ(std::set<std::string>(registry->searched.begin(), registry->searched.end()).size(), 3U);
}

std::string make_certificates(const TempDir& folder, const std::string& name) {
  const std::string path = folder / name;
  const ProcessResult made =
      run(folder, {mj::test::source_path("examples/tenants/certificates.sh"), path, "tls=127.0.0.1"});
  EXPECT_EQ(made.code, 0) << made.err;
  return path;
}

// An index with a certificate of the operator's own CA, and credentials.
TEST(PythonPackages, IndexIsVerifiedWithTheCaOfTheOperator) {
  const TempDir folder;
  const std::string certificates = make_certificates(folder, "good"), other = make_certificates(folder, "other");
  const std::string netrc = folder.write("netrc", "machine 127.0.0.1 login bob password hunter2\n");
  fs::permissions(netrc, fs::perms::owner_read);
  const auto run_with = [&](const std::string& ca) {
    const PackageHost host(
        [&](PackageSettings& settings) {
          settings.netrc = netrc;
          settings.ca = ca;
          settings.build = {"source"};
        },
        "bob:hunter2", certificates);
    EXPECT_TRUE(host.index().url().starts_with("https://"));
    return host.run(
        make_script("[\"source\"]", "import os, source\nprint(source.VERSION, os.path.exists('/job/ca.pem'))\n"));
  };
  const RunResult result = run_with(certificates + "/ca.crt");
  EXPECT_THAT(result.out, ::testing::EndsWith("1.0 False\n")) << result.end.error << result.err;  // pip may warn before
  for (const std::string& ca : {other + "/ca.crt", std::string()})
    EXPECT_THAT(run_with(ca).end.error, HasSubstr("CERTIFICATE_VERIFY_FAILED")) << ca;
  EXPECT_THAT(run_with(folder / "absent").end.error, HasSubstr("packages.ca: " + (folder / "absent")));
}

TEST(PythonPackages, TransitivePackageMustBeAllowed) {
  const PackageHost host([](PackageSettings& settings) { settings.allow = {"alpha", "beta", "gamma"}; });
  const RunResult result = host.run(make_script("[\"alpha\"]", "pass\n"));
  EXPECT_THAT(result.end.error, HasSubstr("the package delta is needed and not allowed"));
  EXPECT_TRUE(result.end.retry_forbidden);
  EXPECT_THAT(host.cache().list_sizes(), IsEmpty());
}

TEST(PythonPackages, SizeIsLimited) {
  const PackageHost host([](PackageSettings& settings) { settings.max_bytes = 4U << 20; });
  const RunResult result = host.run(make_script("[\"huge\"]", "pass\n"));
  EXPECT_EQ(result.end.status, JobStatus::error);
  EXPECT_THAT(result.end.error + result.end.error_info, HasSubstr("packages"));
  EXPECT_THAT(host.cache().list_sizes(), IsEmpty());
}

TEST(PythonPackages, WrongPythonVersionAndInvalidBlockAreNamed) {
  const PackageHost host;
  EXPECT_THAT(host.run("# /// script\n# requires-python = \">=4\"\n# ///\n").end.error,
              HasSubstr("script: requires-python = \">=4\", and jobs have Python 3."));
  EXPECT_THAT(host.run(make_script("[\"a @ file:///x\"]", "")).end.error, HasSubstr("names a URL"));
}

TEST(PythonPackages, CredentialsOfTheIndexAreForPipAlone) {
  const TempDir folder;
  const std::string netrc = folder.write("netrc", "machine 127.0.0.1 login bob password hunter2\n");
  fs::permissions(netrc, fs::perms::owner_read);
  const PackageHost host([&](PackageSettings& settings) { settings.netrc = netrc; }, "bob:hunter2");
  const RunResult result = host.run(make_script("[\"beta\"]",
                                                "import beta, os\nprint(beta.VERSION, os.environ.get('NETRC'), "
                                                "os.path.exists('/job/netrc'))\n"));
  EXPECT_EQ(result.out, "1.1 None False\n") << result.end.error;
  folder.write("netrc2", "machine 127.0.0.1 login bob password hunter3\n");
  fs::permissions(folder / "netrc2", fs::perms::owner_read);
  const PackageHost rejected([&](PackageSettings& settings) { settings.netrc = folder / "netrc2"; }, "bob:hunter2");
  const RunResult failure = rejected.run(make_script("[\"beta\"]", ""));
  EXPECT_EQ(failure.end.status, JobStatus::error);
  EXPECT_THAT(failure.end.error + failure.end.error_info, AllOf(HasSubstr("beta"), Not(HasSubstr("hunter3"))));
}

TEST(PythonPackages, ReadableCredentialsAreRefusedWithTheRemedy) {
  const TempDir folder;
  const std::string netrc = folder.write("netrc", "machine 127.0.0.1 login bob password hunter2\n");
  fs::permissions(netrc, fs::perms::owner_read | fs::perms::others_read);
  const PackageHost host([&](PackageSettings& settings) { settings.netrc = netrc; });
  EXPECT_THAT(host.run(make_script("[\"beta\"]", "")).end.error, HasSubstr("chmod 600"));
}

TEST(PythonPackages, PolicyAddsPackagesToThoseOfTheScript) {
  const PackageHost host;
  const std::string policy = R"({"python": {"requirements": ["beta==1.0"]}})";
  EXPECT_EQ(host.run("import beta\nprint(beta.VERSION)\n", policy).out, "1.0\n");
  EXPECT_EQ(host.run(make_script("[\"beta\"]", "import beta\nprint(beta.VERSION)\n"), policy).out, "1.0\n");
}

TEST(PythonPackages, MissingModuleNamesTheLineToAdd) {
  const PackageHost host;
  EXPECT_THAT(host.run("import colors\n").end.error,
              HasSubstr("name its package in the comment of the script (PEP 723): # dependencies = [\"colors\"]"));
  const RunResult outside = run_python(make_script("[\"colors\"]", "import colors\n"));
  EXPECT_THAT(outside.end.error, HasSubstr("the operator must set [contexts."));
  EXPECT_THAT(run_python("import colors\n").end.error, Not(HasSubstr("packages")));
}

}  // namespace
}  // namespace mycojobs::test
