#include "executors/python/packages/package_conversation.h"

#include <sys/utsname.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/log.h"
#include "base/sha256.h"
#include "executors/exec/program_conversation.h"
#include "executors/python/packages/environment_cache.h"
#include "executors/python/packages/lock_file.h"
#include "executors/python/packages/script_requirements.h"
#include "executors/script_conversation.h"
#include "net/web_address.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {

extern const char* const kInstallProgram;  // install.py

namespace {

using nlohmann::json;

constexpr std::uint64_t kInstallMemoryBytes = 512ULL << 20, kInstallDiskBytes = 64ULL << 20;
constexpr std::size_t kMaxLockResultBytes = 1U << 20;

std::string get_python_abi(const PackageContext& context) {
  utsname host{};
  ::uname(&host);
  return "cpython-" + context.python_version.substr(0, context.python_version.rfind('.')) + '-' + host.machine;
}

// The key of requirements, which all agents of a context compute in the same way.
std::string make_requirements_key(const ScriptRequirements& requirements, const std::string& index,
                                  const std::string& abi) {
  std::string parts = "1";
  const auto add = [&parts](const std::string& part) { parts += std::to_string(part.size()) + ':' + part; };
  for (const std::string& package : requirements.packages) add(package);
  add(index);
  add(abi);
  return sha256_hex(parts);
}

// The run of pip.
class InstallRun final : public ProgramConversation {
 public:
  using ProgramConversation::ProgramConversation;
  // Returns the lock file. Error unsupported: the output of pip.
  Result<std::string> read_lock() const {
    const ScriptAnswer answer = complete_answer();
    if (const auto error = answer.result.find("error"); error != answer.result.end())
      return fail(Code::unsupported, to_utf8(error->second));
    const auto lock = answer.result.find("lock");
    if (answer.is_complete && answer.problem.empty() && lock != answer.result.end()) return lock->second;
    return fail(Code::unsupported, "the installation has written no lock file");
  }
};

class PackageConversation final : public Conversation {
 public:
  PackageConversation(const JobFacts& facts, const PackageContext& context, ArtifactSink* sink)
      : facts_(facts),
        context_(context),
        cache_(context.state_dir, facts.job.context_id),
        abi_(get_python_abi(context)),
        sink_(sink) {}

  Result<void> begin() {
    MJ_CHECK(read_requirements());
    if (requirements_.packages.empty()) return start_script();
    key_ = make_requirements_key(requirements_, context_.settings.index, abi_);
    MJ_TRY(lock, find_lock());
    if (!lock.empty()) {
      if (auto allowed = check_lock_file(lock, context_.settings, facts_.job.context_id); !allowed)
        return fail(Code::denied, "packages: " + allowed.error().message);
      environment_ = cache_.find(lock, abi_);
      if (environment_) {
        cache_.remove_old_if_due(get_limits());
        return start_script();
      }
    }
    if (const auto failure = cache_.find_failure(key_)) {
      return fail(Code::unsupported, "packages: " + find_pip_error(failure->error) + " (the installation failed " +
                                         std::to_string(failure->seconds_ago) + " s ago; the next attempt is made " +
                                         std::to_string(EnvironmentCache::kFailureSeconds - failure->seconds_ago) +
                                         " s from now)");
    }
    token_ = context_.installations.begin(facts_.job.context_id, key_);
    if (!token_) return fail(Code::unavailable, "packages: they are being installed for another job");
    return start_installation(kInstallStage, std::move(lock));
  }

  std::size_t stage() const override { return stage_; }
  std::string consume_output() override { return current().consume_output(); }
  void feed(std::string_view bytes) override { current().feed(bytes); }
  std::uint64_t frame_count() const override {
    return script_ ? script_->frame_count() : install_ ? install_->frame_count() : 0;
  }
  void on_stdout(std::string_view bytes) override { current().on_stdout(bytes); }
  void on_stderr(std::string_view bytes) override { current().on_stderr(bytes); }
  PackagesFolder packages() const override {
    if (script_) return {environment_ ? environment_->site() : "", false};
    return {installation_->path, true};
  }
  std::vector<std::string> consume_notes() override {
    std::vector<std::string> notes = std::exchange(notes_, {});
    for (std::string& note : current().consume_notes()) notes.push_back(std::move(note));
    return notes;
  }
  // pip sends no calls.
  std::vector<std::string> consume_calls() override {
    return script_ ? script_->consume_calls() : std::vector<std::string>{};
  }
  void answer(std::string_view reply) override { current().answer(reply); }

  bool next_stage(const Outcome& outcome) override {
    if (script_) return false;
    install_usage_ = outcome.usage;
    if (outcome.status != RunStatus::ok) return false;
    auto continued = continue_after_installation();
    if (!continued) record_failure(continued.error());
    if (!continued || script_) token_.reset();
    return continued.has_value();
  }

  JobEnd finish(const Outcome& outcome) const override {
    JobEnd end = script_ ? script_->finish(outcome) : build_failure_end(outcome);
    json receipt = json::parse(end.receipt);
    json packages = {{"cached", !install_usage_.has_value()}};
    if (environment_) packages["environment"] = environment_->path.substr(environment_->path.rfind('/') + 1);
    if (install_usage_) {
      packages["wall_us"] = install_usage_->wall_us;
      packages["cpu_us"] = install_usage_->user_us + install_usage_->system_us;
    }
    if (environment_ || install_usage_) receipt["packages"] = std::move(packages);
    end.receipt = dump_json(receipt);
    return end;
  }

 private:
  Conversation& current() { return script_ ? *script_ : static_cast<Conversation&>(*install_); }

  Result<void> read_requirements() {
    auto requirements = parse_requirements(facts_.job.script);
    if (!requirements) return fail(Code::invalid, "script: " + requirements.error().message);
    requirements_ = std::move(*requirements);
    auto is_met = meets_python_specifier(context_.python_version, requirements_.python);
    if (!is_met) return fail(Code::invalid, "script: " + is_met.error().message);
    if (*is_met) return {};
    return fail(Code::invalid, "script: requires-python = \"" + requirements_.python + "\", and jobs have Python " +
                                   context_.python_version);
  }

  EnvironmentCache::Limits get_limits() const {
    return {context_.settings.max_bytes, context_.settings.cache_bytes, context_.settings.cache_age_ms};
  }

  Result<std::string> find_lock() const {
    return context_.locks ? context_.locks->find(facts_.job.context_id, key_) : cache_.find_lock(key_);
  }
  Result<std::string> publish_lock(const std::string& lock) const {
    if (context_.locks) return context_.locks->publish(facts_.job.context_id, key_, lock);
    cache_.store_lock(key_, lock);
    return lock;
  }

  Result<void> start_installation(std::size_t stage, std::string lock) {
    MJ_TRY(installation, cache_.begin_installation());
    installation_ = std::move(installation);
    MJ_TRY(request, encode_install_request(lock));
    EndContext end = make_end_context(facts_, kInstallProfile);
    end.max_result_bytes = kMaxLockResultBytes;
    install_ = std::make_unique<InstallRun>(std::move(request), std::move(end), nullptr);
    stage_ = stage;
    return {};
  }

  Result<std::string> encode_install_request(const std::string& lock) const {
    JobFacts facts;
    facts.job.id = facts_.job.id;
    facts.job.caller_id = facts_.job.caller_id;
    facts.job.context_id = facts_.job.context_id;
    facts.job.script_type = facts_.job.script_type;
    facts.job.script = kInstallProgram;
    facts.max_artifact_bytes = 0;
    const json order = {{"folder", kPackagesFolder},
                        {"index", context_.settings.index},
                        {"requirements", requirements_.packages},
                        {"lock", lock},
                        {"max_bytes", context_.settings.max_bytes}};
    TextMap environment = {{"HOME", "/job"}, {"LANG", "C.UTF-8"}, {"PATH", "/usr/bin:/bin"}};
    for (const char* name : {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"}) environment[name] = kProxyUrl;
    return encode_script_request(facts, {.executor = "python",
                                         .profile = kInstallProfile,
                                         .command = {kPythonProgram, "-I", "/job/install.py"},
                                         .script_file = "install.py",
                                         .environment = std::move(environment),
                                         .replaces_environment = true,
                                         .files = {{"order.json", dump_json(order), 0444}}});
  }

  // Starts the script, or a second installation from the lock file of another agent. Errors: the reason why the
  // packages cannot be used.
  Result<void> continue_after_installation() {
    MJ_TRY(lock, install_->read_lock());
    MJ_CHECK(check_lock_file(lock, context_.settings, facts_.job.context_id));
    MJ_TRY(shared_lock, publish_lock(lock));
    if (shared_lock != lock) {
      EnvironmentCache::remove_installation(*installation_);
      MJ_CHECK(check_lock_file(shared_lock, context_.settings, facts_.job.context_id));
      environment_ = cache_.find(shared_lock, abi_);
      if (environment_) return start_script();
      if (stage_ != kInstallStage) return fail(Code::unavailable, "the lock file was replaced twice: repeat the job");
      return start_installation(kRepeatedInstallStage, std::move(shared_lock));
    }
    MJ_TRY(environment, cache_.finish_installation(*installation_, lock, abi_, get_limits()));
    environment_ = std::move(environment);
    notes_.push_back("packages: " + std::to_string(count_locked_packages(lock)) + " installed in " +
                     std::to_string(install_usage_->wall_us / 1000) + " ms");
    return start_script();
  }

  Result<void> start_script() {
    ScriptExtras extras{.executor = "python", .profile = "python"};
    extras.packages = environment_ ? kPackagesFolder : "";
    if (environment_) extras.environment["PYTHONPATH"] = kPackagesFolder;
    MJ_TRY(script, begin_script(facts_, extras, sink_));
    script_ = std::move(script);
    stage_ = kScriptStage;
    return {};
  }

  // The store being away is not a failure of the installation.
  void record_failure(const Error& error) {
    problem_ = error;
    if (installation_) EnvironmentCache::remove_installation(*installation_);
    if (error.code != Code::unavailable) cache_.store_failure(key_, error.message);
    log(LogLevel::warn, "packages", "context {}: an installation has failed: {}", facts_.job.context_id,
        find_pip_error(error.message));
  }

  JobEnd build_failure_end(const Outcome& outcome) const {
    Outcome install_outcome = outcome;
    ScriptAnswer answer;
    if (problem_) {
      install_outcome.status = RunStatus::exit;
      install_outcome.exit_code = 1;
      answer.is_complete = true;
      answer.error = ScriptError{"PackageError", find_pip_error(problem_->message), problem_->message, 0, {}};
      answer.error->retry_forbidden = problem_->code == Code::denied;
    }
    JobEnd end = build_job_end(make_end_context(facts_, kInstallProfile), install_outcome, answer);
    end.error.insert(0, "packages: ");
    json info = json::parse(end.error_info);
    info["stage"] = "packages";
    end.error_info = dump_json(info);
    return end;
  }

  const JobFacts facts_;
  const PackageContext context_;
  const EnvironmentCache cache_;
  const std::string abi_;
  ArtifactSink* const sink_;
  ScriptRequirements requirements_;
  std::string key_;  // of the requirements
  std::size_t stage_ = kScriptStage;
  std::unique_ptr<RunningInstallations::Token> token_;
  std::optional<EnvironmentFolder> installation_;
  std::optional<EnvironmentFolder> environment_;  // in use until the job has ended
  std::unique_ptr<InstallRun> install_;
  std::unique_ptr<Conversation> script_;
  std::optional<Usage> install_usage_;  // of the latest installation
  std::optional<Error> problem_;
  std::vector<std::string> notes_;
};

}  // namespace

Policy make_install_policy(const PackageSettings& settings) {
  Policy policy;
  policy.exec = true;
  policy.network = Network::allow_list;
  policy.net_allow = settings.hosts;
  if (const auto index = parse_web_address(settings.index))
    policy.net_allow.insert(policy.net_allow.begin(), to_text(index->host_port));
  policy.memory_bytes = kInstallMemoryBytes;
  policy.disk_bytes = kInstallDiskBytes;
  policy.file_bytes = settings.max_bytes;
  return policy;
}

std::unique_ptr<RunningInstallations::Token> RunningInstallations::begin(Id context, const std::string& key) {
  const std::lock_guard lock(mutex_);
  if (!keys_[context].insert(key).second) return nullptr;
  return std::make_unique<Token>(*this, context, key);
}

bool RunningInstallations::has_any(Id context) const {
  const std::lock_guard lock(mutex_);
  const auto keys = keys_.find(context);
  return keys != keys_.end() && !keys->second.empty();
}

void RunningInstallations::remove(Id context, const std::string& key) {
  const std::lock_guard lock(mutex_);
  keys_[context].erase(key);
}

Result<std::unique_ptr<Conversation>> begin_with_packages(const JobFacts& facts, const PackageContext& context,
                                                          ArtifactSink* sink) {
  auto conversation = std::make_unique<PackageConversation>(facts, context, sink);
  MJ_CHECK(conversation->begin());
  return conversation;
}

}  // namespace mycojobs
