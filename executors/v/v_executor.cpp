#include "executors/v/v_executor.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/log.h"
#include "executors/exec/program_conversation.h"
#include "executors/v/binary_cache.h"
#include "executors/v/compiler.h"
#include "executors/v/trusted_build.h"
#include "security/profiles.h"
#include "text/json.h"
#include "text/utf8_cut.h"

namespace mycojobs {
namespace {

// One job of the executor v: its compile run, unless the cache has the program, and its own run.
//
//   compiling --success with a program--> running --> finish
//       \-------- failure -------------------------> finish; the program does not run
struct VJob {
  JobFacts facts;
  VCompiler compiler;
  std::vector<std::string> flags;
  BinaryCache cache;
  std::string key;                       // key in `cache`
  std::function<std::string()> modules;  // objects for the compile run, as frames of its request; called by begin_v()
};

using nlohmann::json;

constexpr std::size_t kMaxCompilerOutput = 32U << 10;
constexpr std::string_view kProgram = "program";  // artifact name of the compile run

// Receives the program from the compile run. The artifact never reaches the sink of the job.
class ProgramSink final : public ArtifactSink {
 public:
  bool open(const std::string& name, bool /*executable*/) override {
    if (name != kProgram || is_open_) return false;
    return is_open_ = true;
  }
  void write(std::string_view bytes) override {
    is_too_large_ = is_too_large_ || bytes_.size() + bytes.size() > kMaxBinaryBytes;
    if (is_too_large_) bytes_.clear();
    if (!is_too_large_) bytes_.append(bytes);
  }
  void close() override { is_complete_ = !is_too_large_ && !bytes_.empty(); }
  bool is_complete() const { return is_complete_; }
  std::string pop_program() { return std::move(bytes_); }

 private:
  bool is_open_ = false, is_too_large_ = false, is_complete_ = false;
  std::string bytes_;
};

class CompileRun final : public ProgramConversation {
 public:
  using ProgramConversation::ProgramConversation;
  // V writes its own errors to stderr, and those of the C compiler to stdout.
  void on_stdout(std::string_view bytes) override { append_output(bytes); }
  void on_stderr(std::string_view bytes) override { append_output(bytes); }
  bool is_success() const {
    const ScriptAnswer answer = complete_answer();
    return answer.is_complete && !answer.error && answer.problem.empty();
  }
  JobEnd build_failure_end(const Outcome& outcome, const std::string& name) const {
    ScriptAnswer answer = complete_answer();
    const bool has_exited = outcome.status == RunStatus::ok || outcome.status == RunStatus::exit;
    const bool could_not_start = answer.error && !answer.error->exit_code;
    if (has_exited && answer.problem.empty() && !could_not_start) {
      const bool has_succeeded = outcome.status == RunStatus::ok && !answer.error;
      answer.error =
          parse_compile_error(has_succeeded ? text_ + "\nerror: the compiler created no program" : text_, name);
      if (is_truncated_) answer.error->traceback += "\n[more was written: it is in the job's log]";
    }
    return build_job_end(context(), outcome, answer);
  }

 private:
  void append_output(std::string_view bytes) {
    if (is_truncated_) return;
    text_.append(bytes.substr(0, kMaxCompilerOutput - text_.size()));
    is_truncated_ = text_.size() == kMaxCompilerOutput;
    if (is_truncated_) text_.resize(complete_characters(text_).size());
  }

  std::string text_;
  bool is_truncated_ = false;
};

class ProgramRun final : public ProgramConversation {
 public:
  using ProgramConversation::ProgramConversation;
  JobEnd finish(const Outcome& outcome) const override {
    ScriptAnswer answer = complete_answer();
    // V prints a stack trace after the panic message.
    const std::string& text = stderr_tail().text();
    const std::size_t panic = text.rfind("V panic: ");
    if (answer.error && answer.error->exit_code && panic != std::string::npos)
      answer.error->message = text.substr(panic, text.find('\n', panic) - panic);
    return build_job_end(context(), outcome, answer);
  }
};

// Usage of both runs of a job. The caller already counts output bytes over both runs.
Usage add_usages(const Usage& first, const Usage& second) {
  return {.wall_us = first.wall_us + second.wall_us,
          .user_us = first.user_us + second.user_us,
          .system_us = first.system_us + second.system_us,
          .memory_peak_bytes = std::max(first.memory_peak_bytes, second.memory_peak_bytes),
          .pids_peak = std::max(first.pids_peak, second.pids_peak),
          .stdout_bytes = second.stdout_bytes,
          .stderr_bytes = second.stderr_bytes};
}

class VConversation final : public Conversation {
 public:
  VConversation(VJob job, ArtifactSink* sink) : job_(std::move(job)), sink_(sink) {}

  Result<void> begin() {
    if (auto program = job_.cache.find(job_.key)) return start_program(std::move(*program));
    MJ_TRY(request, encode_compile_request());
    compile_ = std::make_unique<CompileRun>(std::move(request), make_end_context(job_.facts, "v.compile"), &program_);
    return {};
  }

  std::size_t stage() const override { return run_ ? 1 : 0; }
  std::string consume_output() override { return current().consume_output(); }
  void feed(std::string_view bytes) override { current().feed(bytes); }
  std::uint64_t frame_count() const override { return run_ ? run_->frame_count() : compile_->frame_count(); }
  void on_stdout(std::string_view bytes) override { current().on_stdout(bytes); }
  void on_stderr(std::string_view bytes) override { current().on_stderr(bytes); }
  std::vector<std::string> consume_notes() override { return current().consume_notes(); }
  // A compiler sends no calls. Another process that does so receives no reply and ends at its time limit.
  std::vector<std::string> consume_calls() override {
    return run_ ? run_->consume_calls() : std::vector<std::string>{};
  }
  void answer(std::string_view reply) override { current().answer(reply); }

  bool next_stage(const Outcome& outcome) override {
    if (run_ || outcome.status != RunStatus::ok || !program_.is_complete() || !compile_->is_success()) return false;
    compile_usage_ = outcome.usage;
    std::string program = program_.pop_program();
    if (auto stored = job_.cache.store(job_.key, program); !stored)
      log(LogLevel::warn, "v", "a compiled program is not cached: {}", stored.error().message);
    const auto started = start_program(std::move(program));
    if (!started) problem_ = started.error();
    return started.has_value();
  }

  JobEnd finish(const Outcome& outcome) const override {
    Outcome total = outcome;
    if (run_ && compile_usage_) total.usage = add_usages(*compile_usage_, outcome.usage);
    JobEnd end = run_       ? run_->finish(total)
                 : problem_ ? build_start_failure_end(outcome)
                            : compile_->build_failure_end(outcome, get_source_name(job_.facts.job.name));
    add_stage(end, outcome);
    return end;
  }

 private:
  Conversation& current() { return run_ ? static_cast<Conversation&>(*run_) : *compile_; }

  Result<std::string> encode_compile_request() const {
    JobFacts facts = job_.facts;
    facts.secrets.clear();
    facts.inputs.clear();
    facts.job.unknown.clear();  // the data of the job's flow
    facts.job.args.clear();
    facts.job.submitted_files = nullptr;
    facts.files.clear();
    facts.uploads.clear();
    facts.granted_policy = Policy{};
    facts.max_artifact_bytes = kMaxBinaryBytes;
    std::vector<std::string> command{job_.compiler.path};
    command.insert(command.end(), job_.flags.begin(), job_.flags.end());
    command.insert(command.end(), {"-o", "/job/artifacts/" + std::string(kProgram), std::string(kSourceFile)});
    return encode_script_request(facts, {.executor = "v",
                                         .profile = "v.compile",
                                         .command = std::move(command),
                                         .script_file = std::string(kSourceFile),
                                         .environment = compile_environment(),
                                         .replaces_environment = true,
                                         .encoded_files = job_.modules()});
  }

  Result<void> start_program(std::string program) {
    // Without GC_NPROCS, V's collector reads /proc/stat, which a job does not have, and prints a warning on stderr.
    ScriptExtras extras{.executor = "v",
                        .profile = "v.run",
                        .command = {"/job/program"},
                        .script_file = std::string(kSourceFile),
                        .environment = {{"GC_NPROCS", "1"}}};
    extras.files.push_back({"program", std::move(program)});
    MJ_TRY(request, encode_script_request(job_.facts, extras));
    run_ = std::make_unique<ProgramRun>(std::move(request), make_end_context(job_.facts, "v.run"), sink_);
    return {};
  }

  // The program exists but its run cannot start, for example because an input of the job is no longer readable.
  JobEnd build_start_failure_end(const Outcome& outcome) const {
    ScriptAnswer answer;
    answer.error = ScriptError{"SetupError", problem_->message, "", 0, {}};
    return build_job_end(make_end_context(job_.facts, "v.run"), outcome, answer);
  }

  void add_stage(JobEnd& end, const Outcome& outcome) const {
    json receipt = json::parse(end.receipt);
    receipt["compile"] = {{"cached", compile_ == nullptr}};
    if (compile_) {
      const Usage& usage = compile_usage_ ? *compile_usage_ : outcome.usage;
      receipt["compile"]["wall_us"] = usage.wall_us;
      receipt["compile"]["cpu_us"] = usage.user_us + usage.system_us;
    }
    end.receipt = dump_json(receipt);
    if (end.status == JobStatus::finished) return;
    json info = json::parse(end.error_info);
    info["stage"] = run_ ? "run" : "compile";
    end.error_info = dump_json(info);
    // Errors of the program or the compiler need no prefix.
    const std::string_view detail = end.detail;
    constexpr std::array<std::string_view, 2> kOwnWords = {"exit", "exception"};
    if (std::find(kOwnWords.begin(), kOwnWords.end(), detail) == kOwnWords.end())
      end.error.insert(0, run_ ? "running: " : "compiling: ");
  }

  VJob job_;
  ArtifactSink* sink_;
  ProgramSink program_;  // before the run that writes into it
  std::unique_ptr<CompileRun> compile_;
  std::unique_ptr<ProgramRun> run_;
  std::optional<Usage> compile_usage_;
  std::optional<Error> problem_;
};

// Errors invalid, too_large, unavailable: see begin_program().
Result<std::unique_ptr<Conversation>> begin_v(VJob job, ArtifactSink* sink) {
  auto conversation = std::make_unique<VConversation>(std::move(job), sink);
  MJ_CHECK(conversation->begin());
  return conversation;
}

}  // namespace

std::vector<Stage> VExecutor::stages() const {
  Stage compile{.profile = "v.compile", .host = kProgramHost, .policy = profile("v.compile"), .needs_exec = true};
  compile.is_cached = true;
  if (const auto compiler = find_compiler(compiler_); compiler && !compiler->folder.empty())
    compile.tool_folders = {compiler->folder};
  return {std::move(compile),
          {.profile = "v.run", .host = kProgramHost, .policy = profile("v.run"), .needs_exec = true}};
}

Result<std::string> VExecutor::get_version(const VCompiler& compiler) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto cached = versions_.find(compiler.identity); cached != versions_.end()) return cached->second;
  }
  MJ_TRY(version, query_version(compiler));  // runs unlocked: a hanging compiler must not block other threads
  const std::lock_guard lock(mutex_);
  versions_[compiler.identity] = version;
  return version;
}

Result<std::string> VExecutor::probe() const {
  MJ_TRY(compiler, find_compiler(compiler_));
  if (::access("/usr/bin/cc", X_OK) != 0)
    return fail(Code::unsupported, "v: " + compiler.path + " needs a C compiler; remedy: apt install gcc libc6-dev");
  MJ_TRY(version, get_version(compiler));
  if (auto trial = try_compiler(compiler, version, flags_, state_dir_); !trial)
    return fail(Code::unsupported, "v: " + trial.error().message + "; remedy: compile a program with it by hand");
  return version + " (" + compiler.path + ")";
}

Result<std::unique_ptr<Conversation>> VExecutor::begin(const JobFacts& facts, ArtifactSink* sink) const {
  // The compiler may have been removed or replaced since the agent started, which is not an error of the job.
  auto compiler = find_compiler(compiler_);
  if (!compiler) return fail(Code::unavailable, compiler.error().message);
  auto version = get_version(*compiler);
  if (!version) return fail(Code::unavailable, version.error().message);
  std::vector<std::string> parts{"1", facts.job.script, *version, compiler->identity};
  parts.insert(parts.end(), flags_.begin(), flags_.end());
  const auto modules = [&]() -> std::string {
    if (!imports_network(facts.job.script)) return {};
    return modules_.find(*compiler, *version, flags_).value_or("");
  };
  return begin_v({.facts = facts,
                  .compiler = *compiler,
                  .flags = flags_,
                  .cache = BinaryCache(state_dir_, facts.job.context_id),
                  .key = hash_parts(parts),
                  .modules = modules},
                 sink);
}

}  // namespace mycojobs
