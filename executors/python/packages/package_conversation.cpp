#include "executors/python/packages/package_conversation.h"

#include <gnu/libc-version.h>
#include <sys/utsname.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/sha256.h"
#include "executors/exec/program_conversation.h"
#include "executors/python/packages/environment_cache.h"
#include "executors/python/packages/lock_file.h"
#include "executors/python/packages/script_requirements.h"
#include "executors/script_conversation.h"
#include "net/tls_files.h"
#include "net/web_address.h"
#include "security/private_file.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {

extern const char* const kInstallProgram;  // text of install.py, which CMake embeds

namespace {

using nlohmann::json;

constexpr std::uint64_t kInstallMemoryBytes = 512ULL << 20, kInstallDiskBytes = 64ULL << 20;
constexpr std::uint64_t kInstallWallMs = 15ULL * 60 * 1000;
constexpr std::size_t kMaxInstallResultBytes = 1U << 20;

// Returns the properties that determine which wheels can be used, such as "cpython-3.11-x86_64-glibc2.36".
std::string get_python_abi(const PackageDependencies& dependencies) {
  return "cpython-" + dependencies.python_version.substr(0, dependencies.python_version.rfind('.')) + '-' +
         dependencies.platform;
}

// Returns the key under which lock files and failures are stored. The algorithm must stay the same: all agents of a
// context use the key to find each other's lock files.
std::string make_requirements_key(const ScriptRequirements& requirements, const PackageSettings& settings,
                                  const std::string& abi) {
  std::string parts = "1";  // version of the algorithm
  const auto add = [&parts](const std::string& part) { parts += std::to_string(part.size()) + ':' + part; };
  for (const std::string& requirement : requirements.requirements) add(requirement);
  add(settings.index);
  add(abi);
  // With a name in `build`, a lock file has the hash of a source distribution and not of a wheel.
  for (const std::string& name : settings.build) add(name);
  return sha256_hex(parts);
}

// Returns whether an installation with this outcome is likely to fail for the next job, too. Returns false for outcomes
// that the job, its limits or the host have caused.
bool is_failure_of_packages(const Outcome& outcome) {
  switch (outcome.status) {
    case RunStatus::exit:
    case RunStatus::signal:
    case RunStatus::timeout_cpu:
    case RunStatus::oom:
    case RunStatus::file_limit:
    case RunStatus::pids_limit:
    case RunStatus::violation:
      return true;
    case RunStatus::timeout_wall:  // the limit is that of the job if it is shorter than that of the installation
      return outcome.usage.wall_us >= kInstallWallMs * 1000;
    case RunStatus::ok:
    case RunStatus::output_limit:
    case RunStatus::cancelled:
    case RunStatus::lost:
    case RunStatus::unkillable:
    case RunStatus::setup_error:
      break;
  }
  return false;
}

// The conversation of a run of pip.
class PipRun final : public ProgramConversation {
 public:
  using ProgramConversation::ProgramConversation;
  // Returns the lock file of the installed packages. Error unsupported: pip failed, and the message is the end of its
  // output; or the run has no result.
  Result<std::string> read_lock_file() const {
    const ScriptAnswer answer = complete_answer();
    if (const auto error = answer.result.find("error"); error != answer.result.end())
      return fail(Code::unsupported, to_utf8(error->second));
    const auto lock_file = answer.result.find("lock");
    if (answer.is_complete && answer.problem.empty() && lock_file != answer.result.end()) return lock_file->second;
    return fail(Code::unsupported, "the installation has written no lock file");
  }
};

class PackageConversation final : public Conversation {
 public:
  PackageConversation(const JobFacts& facts, const PackageDependencies& dependencies, ArtifactSink* sink)
      : facts_(facts),
        dependencies_(dependencies),
        cache_(dependencies.state_dir, facts.job.context_id),
        abi_(get_python_abi(dependencies)),
        sink_(sink) {}

  Result<void> begin() {
    MJ_CHECK(read_requirements());
    if (script_requirements_.requirements.empty()) return start_script();
    key_ = make_requirements_key(script_requirements_, dependencies_.settings, abi_);
    MJ_TRY(lock_file, find_lock_file());
    if (!lock_file.empty()) {
      if (auto allowed = check_lock_file(lock_file, dependencies_.settings, facts_.job.context_id); !allowed)
        return fail(Code::denied, "packages: " + allowed.error().message + describe_lock_file());
      environment_ = cache_.find(lock_file, abi_);
      if (environment_) {
        cache_.clean_up_if_due(get_limits());
        return start_script();
      }
    }
    if (const auto failure = cache_.find_failure(key_)) {
      return fail(Code::unsupported, "packages: " + extract_pip_error(failure->error) + " (the installation failed " +
                                         std::to_string(failure->seconds_ago) + " s ago; the next attempt is made " +
                                         std::to_string(EnvironmentCache::kRetryDelaySeconds - failure->seconds_ago) +
                                         " s from now)");
    }
    installation_token_ = dependencies_.installations.try_begin(facts_.job.context_id, key_);
    if (!installation_token_) return fail(Code::unavailable, "packages: they are being installed for another job");
    cache_.remove_abandoned();
    return start_installation(kInstallStage, lock_file);
  }

  std::size_t stage() const override { return stage_; }
  std::string consume_output() override { return active_conversation().consume_output(); }
  void feed(std::string_view bytes) override { active_conversation().feed(bytes); }
  std::uint64_t frame_count() const override {
    return script_conversation_ ? script_conversation_->frame_count() : pip_run_ ? pip_run_->frame_count() : 0;
  }
  void on_stdout(std::string_view bytes) override { active_conversation().on_stdout(bytes); }
  void on_stderr(std::string_view bytes) override { active_conversation().on_stderr(bytes); }
  PackagesFolder packages() const override {
    if (script_conversation_) return {environment_ ? environment_->site() : "", false};
    return {installation_->path, true};
  }
  std::vector<std::string> consume_notes() override {
    std::vector<std::string> notes = std::exchange(notes_, {});
    for (std::string& note : active_conversation().consume_notes()) notes.push_back(std::move(note));
    return notes;
  }
  // Only the script may call the agent: calls of an installation are ignored.
  std::vector<std::string> consume_calls() override {
    return script_conversation_ ? script_conversation_->consume_calls() : std::vector<std::string>{};
  }
  void answer(std::string_view reply) override { active_conversation().answer(reply); }

  bool next_stage(const Outcome& outcome) override {
    if (script_conversation_) return false;
    pip_usage_ = outcome.usage;
    if (outcome.status != RunStatus::ok) {
      EnvironmentCache::remove_installation(*installation_);
      if (is_failure_of_packages(outcome))
        cache_.store_failure(key_, outcome.reason.empty()
                                       ? "pip has ended with the status " + std::string(to_string(outcome.status))
                                       : outcome.reason);
      installation_token_.reset();
      return false;
    }
    auto continued = continue_after_installation();
    if (!continued) record_failure(continued.error());
    // A second installation of the same requirements keeps the registration.
    if (!continued || script_conversation_) installation_token_.reset();
    return continued.has_value();
  }
  // The end of each installation deletes or moves its folder.
  bool can_block_in_next_stage(const Outcome& /*outcome*/) const override { return !script_conversation_; }

  JobEnd finish(const Outcome& outcome) const override {
    JobEnd end = script_conversation_ ? script_conversation_->finish(outcome) : build_failure_end(outcome);
    json receipt = json::parse(end.receipt);
    json packages = {{"cached", !pip_usage_.has_value()}};
    if (environment_) packages["environment"] = environment_->path.substr(environment_->path.rfind('/') + 1);
    if (pip_usage_) {
      packages["wall_us"] = pip_usage_->wall_us;
      packages["cpu_us"] = pip_usage_->user_us + pip_usage_->system_us;
    }
    if (environment_ || pip_usage_) receipt["packages"] = std::move(packages);
    end.receipt = dump_json(receipt);
    return end;
  }

 private:
  Conversation& active_conversation() {
    return script_conversation_ ? *script_conversation_ : static_cast<Conversation&>(*pip_run_);
  }

  Result<void> read_requirements() {
    auto requirements = parse_requirements(facts_.job.script);
    if (!requirements) return fail(Code::invalid, "script: " + requirements.error().message);
    add_requirements(facts_.granted_policy.python_requirements, *requirements);
    if (requirements->requirements.size() > policies::kMaxPythonRequirements)
      return fail(Code::invalid, "packages: script and policy name more than " +
                                     std::to_string(policies::kMaxPythonRequirements) + " together");
    script_requirements_ = std::move(*requirements);
    auto is_met = meets_python_specifier(dependencies_.python_version, script_requirements_.python_specifier);
    if (!is_met) return fail(Code::invalid, "script: " + is_met.error().message);
    if (*is_met) return {};
    return fail(Code::invalid, "script: requires-python = \"" + script_requirements_.python_specifier +
                                   "\", and jobs have Python " + dependencies_.python_version);
  }

  EnvironmentCache::Limits get_limits() const {
    return {dependencies_.settings.max_bytes, dependencies_.settings.cache_bytes, dependencies_.settings.cache_age_ms};
  }

  // Returns the stored lock file for the requirements, or an empty text.
  Result<std::string> find_lock_file() const {
    return dependencies_.lock_file_registry
               ? dependencies_.lock_file_registry->find_lock_file(facts_.job.context_id, key_)
               : cache_.find_lock_file(key_);
  }
  // Returns the lock file that is stored for the requirements after the call: the argument or that of another agent. If
  // the store is unavailable, returns the argument: the packages are installed, and a later job stores its lock file.
  Result<std::string> add_lock_file(const std::string& lock_file) const {
    if (!dependencies_.lock_file_registry) {
      cache_.store_lock_file(key_, lock_file);
      return lock_file;
    }
    auto stored = dependencies_.lock_file_registry->add_lock_file(facts_.job.context_id, key_, lock_file);
    if (stored || stored.error().code != Code::unavailable) return stored;
    log(LogLevel::warn, "packages", "context {}: a lock file is not stored: {}", facts_.job.context_id,
        stored.error().message);
    return lock_file;
  }
  // Returns the last part of a message about a rejected lock file: the name of the stored lock file, and the remedy.
  std::string describe_lock_file() const {
    const std::string name = dependencies_.lock_file_registry ? dependencies_.lock_file_registry->get_stored_name(key_)
                                                              : cache_.get_lock_file_path(key_);
    return "; the lock file is stored as " + name + ": delete it to have the packages resolved again";
  }

  // Starts pip. If the lock file is empty, pip resolves the requirements.
  Result<void> start_installation(std::size_t stage, const std::string& lock_file) {
    MJ_TRY(installation, cache_.begin_installation());
    installation_ = std::move(installation);
    MJ_TRY(request, encode_install_request(lock_file));
    EndContext end = make_end_context(facts_, kInstallProfile);
    end.max_result_bytes = kMaxInstallResultBytes;
    pip_run_ = std::make_unique<PipRun>(std::move(request), std::move(end), nullptr);
    stage_ = stage;
    return {};
  }

  Result<std::string> encode_install_request(const std::string& lock_file) const {
    JobFacts facts;
    facts.job.id = facts_.job.id;
    facts.job.caller_id = facts_.job.caller_id;
    facts.job.context_id = facts_.job.context_id;
    facts.job.script_type = facts_.job.script_type;
    facts.job.script = kInstallProgram;
    facts.max_artifact_bytes = 0;
    const json request = {{"folder", kPackagesFolder},
                          {"index", dependencies_.settings.index},
                          {"requirements", script_requirements_.requirements},
                          {"lock", lock_file},
                          {"build", dependencies_.settings.build},
                          {"context", facts_.job.context_id},
                          {"ca", dependencies_.settings.ca.empty() ? "" : "/job/ca.pem"},
                          {"max_bytes", dependencies_.settings.max_bytes}};
    TextMap environment = {{"HOME", "/job"}, {"LANG", "C.UTF-8"}, {"PATH", "/usr/bin:/bin"}};
    for (const char* name : {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"}) environment[name] = kProxyUrl;
    std::vector<ScriptFile> files{{"request.json", dump_json(request), 0444}};
    if (const std::string& netrc = dependencies_.settings.netrc; !netrc.empty()) {
      auto credentials = read_private_file(netrc);
      if (!credentials) return fail(Code::unsupported, "packages.netrc: " + credentials.error().message);
      // Only pip can read the file. pip does not print the credentials, since they are not part of a URL.
      files.push_back({"netrc", std::move(*credentials), 0444});
      environment["NETRC"] = "/job/netrc";
    }
    if (const std::string& ca = dependencies_.settings.ca; !ca.empty()) {
      auto certificates = read_pem_file(ca);
      if (!certificates) return fail(Code::unsupported, "packages.ca: " + certificates.error().message);
      files.push_back({"ca.pem", std::move(certificates->text), 0444});
      // pip does not pass --cert to the pip that it starts for the requirements of a build.
      environment["PIP_CERT"] = environment["REQUESTS_CA_BUNDLE"] = "/job/ca.pem";
    }
    return encode_script_request(facts, {.executor = "python",
                                         .profile = kInstallProfile,
                                         .command = {kPythonProgram, "-I", "/job/install.py"},
                                         .script_file = "install.py",
                                         .environment = std::move(environment),
                                         .replaces_environment = true,
                                         .files = std::move(files)});
  }

  // Stores the lock file of the completed run of pip, and starts the script. If another agent has stored a different
  // lock file, discards the installed files and uses the stored lock file: starts the script if its environment exists,
  // else a second installation. An error means that the packages cannot be used.
  Result<void> continue_after_installation() {
    MJ_TRY(lock_file, pip_run_->read_lock_file());
    MJ_CHECK(check_lock_file(lock_file, dependencies_.settings, facts_.job.context_id));
    MJ_TRY(stored_lock_file, add_lock_file(lock_file));
    if (stored_lock_file != lock_file) {
      EnvironmentCache::remove_installation(*installation_);
      if (auto allowed = check_lock_file(stored_lock_file, dependencies_.settings, facts_.job.context_id); !allowed)
        return fail(allowed.error().code, allowed.error().message + describe_lock_file());
      environment_ = cache_.find(stored_lock_file, abi_);
      if (environment_) return start_script();
      if (stage_ != kInstallStage) return fail(Code::unavailable, "the lock file was replaced twice: repeat the job");
      return start_installation(kSecondInstallStage, stored_lock_file);
    }
    MJ_TRY(environment, cache_.commit_installation(*installation_, lock_file, abi_, get_limits()));
    environment_ = std::move(environment);
    notes_.push_back("packages: " + std::to_string(count_locked_packages(lock_file)) + " installed in " +
                     std::to_string(pip_usage_->wall_us / 1000) + " ms");
    return start_script();
  }

  Result<void> start_script() {
    ScriptExtras extras{.executor = "python", .profile = "python"};
    extras.packages = environment_ ? kPackagesFolder : "";
    if (environment_) extras.environment["PYTHONPATH"] = kPackagesFolder;
    MJ_TRY(script, begin_script(facts_, extras, sink_));
    script_conversation_ = std::move(script);
    stage_ = kScriptStage;
    return {};
  }

  // Deletes the installation and records the failure, which delays the next attempt. `unavailable` is not recorded,
  // since it is an error of the store and not of the packages: the next job may install them at once.
  void record_failure(const Error& error) {
    install_error_ = error;
    if (installation_) EnvironmentCache::remove_installation(*installation_);
    if (error.code != Code::unavailable) cache_.store_failure(key_, error.message);
    log(LogLevel::warn, "packages", "context {}: an installation has failed: {}", facts_.job.context_id,
        extract_pip_error(error.message));
  }

  // Builds the end of a job after a failed installation.
  JobEnd build_failure_end(const Outcome& outcome) const {
    Outcome install_outcome = outcome;
    ScriptAnswer answer;
    if (install_error_) {
      install_outcome.status = RunStatus::exit;
      install_outcome.exit_code = 1;
      answer.is_complete = true;
      answer.error =
          ScriptError{"PackageError", extract_pip_error(install_error_->message), install_error_->message, 0, {}};
      answer.error->retry_forbidden = install_error_->code == Code::denied;
    }
    JobEnd end = build_job_end(make_end_context(facts_, kInstallProfile), install_outcome, answer);
    end.error.insert(0, "packages: ");
    json info = json::parse(end.error_info);
    info["stage"] = "packages";
    end.error_info = dump_json(info);
    return end;
  }

  const JobFacts facts_;
  const PackageDependencies dependencies_;
  const EnvironmentCache cache_;
  const std::string abi_;
  ArtifactSink* const sink_;
  ScriptRequirements script_requirements_;
  std::string key_;  // result of make_requirements_key()
  std::size_t stage_ = kScriptStage;
  std::unique_ptr<RunningInstallations::Token> installation_token_;
  std::optional<EnvironmentFolder> installation_;
  std::optional<EnvironmentFolder> environment_;       // protected from deletion while this object exists
  std::unique_ptr<PipRun> pip_run_;                    // null until an installation starts
  std::unique_ptr<Conversation> script_conversation_;  // null until the script starts
  std::optional<Usage> pip_usage_;      // resources that the latest run of pip used; empty if pip did not run
  std::optional<Error> install_error_;  // set if install.py has ended normally, but the packages cannot be used
  std::vector<std::string> notes_;
};

}  // namespace

std::string get_wheel_platform() {
  utsname host{};
  ::uname(&host);
  return std::string(host.machine) + "-glibc" + ::gnu_get_libc_version();
}

Policy make_install_policy(const PackageSettings& settings) {
  Policy policy;
  policy.exec = true;
  policy.network = Network::allow_list;
  policy.net_allow = settings.hosts;
  if (const auto index = parse_web_address(settings.index))
    policy.net_allow.insert(policy.net_allow.begin(), to_text(index->host_port));
  policy.memory_bytes = kInstallMemoryBytes;
  policy.wall_ms = kInstallWallMs;
  policy.disk_bytes = kInstallDiskBytes;
  policy.file_bytes = settings.max_bytes;
  return policy;
}

std::unique_ptr<RunningInstallations::Token> RunningInstallations::try_begin(Id context, const std::string& key) {
  const std::lock_guard guard(mutex_);
  if (!keys_[context].insert(key).second) return nullptr;
  return std::make_unique<Token>(*this, context, key);
}

bool RunningInstallations::has_any(Id context) const {
  const std::lock_guard guard(mutex_);
  const auto keys = keys_.find(context);
  return keys != keys_.end() && !keys->second.empty();
}

void RunningInstallations::remove(Id context, const std::string& key) {
  const std::lock_guard guard(mutex_);
  keys_[context].erase(key);
}

Result<std::unique_ptr<Conversation>> begin_with_packages(const JobFacts& facts,
                                                          const PackageDependencies& dependencies, ArtifactSink* sink) {
  auto conversation = std::make_unique<PackageConversation>(facts, dependencies, sink);
  MJ_CHECK(conversation->begin());
  return conversation;
}

}  // namespace mycojobs
