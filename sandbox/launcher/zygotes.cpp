#include "sandbox/launcher/zygotes.h"

#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/linked_build.h"
#include "sandbox/launcher/host_folders.h"
#include "sandbox/launcher/layers.h"

namespace mycojobs::sandbox {
namespace {

constexpr std::uint64_t kWarmUpMs = 60000;
// Further runs wait here, so that the zygote's socket never fills up and a waiting run can still be cancelled.
constexpr std::uint32_t kMaxUnansweredForks = 16;

// Returns the problem. There is none if every attack failed, and the last attack was detected and ended the job.
std::optional<SetupError> check_canary(const SandboxRun& canary, const ZygotesSettings& settings) {
  char answer[1024];
  const ssize_t size = ::read(canary.canary_answer.get(), answer, sizeof answer);
  if (canary.outcome.setup_error) return canary.outcome.setup_error;
  if (size > 0) return SetupError{"canary", EPERM, std::string(answer, static_cast<std::size_t>(size) - 1)};
  // A killed canary, or init, proves nothing about the sandbox; handled like a killed zygote (reap()).
  const bool killed = canary.outcome.status == RunStatus::signal && canary.outcome.signal == SIGKILL;
  if (killed || canary.outcome.status == RunStatus::lost)
    return SetupError{"canary", ESRCH, "the test job was killed: " + canary.outcome.reason};
  if (canary.outcome.status != RunStatus::violation)
    return SetupError{"canary", EPERM, "seccomp: " + canary.outcome.reason};
  if (canary.landlock_abi == 0 && !settings.can_landlock_be_missing) {
    return SetupError{"landlock", ENOSYS, remedy_for_layer("landlock")};
  }
  if (settings.has_memory_cgroup && canary.outcome.usage.memory_peak_bytes == 0) {
    return SetupError{"canary", EPERM, "cgroup:memory: the job's memory is not counted"};
  }
  return {};
}

// After a failed start, runs fail immediately with the same reason for this multiple of the duration of the start.
// Otherwise a host that fails slowly would delay each of its runs.
constexpr std::uint64_t kPauseFactor = 4;

constexpr std::uint32_t kMaxUnansweredPrewarmed = 2;
constexpr std::uint64_t kMaintenanceIntervalMs = 5000;

}  // namespace

Zygotes::Zygotes(EventLoop& loop, RunTable& runs, HostChildren& children, RunTable::Warn warn, CanaryFinished on_canary)
    : loop_(loop),
      runs_(runs),
      warn_(std::move(warn)),
      on_canary_finished_(std::move(on_canary)),
      children_(children),
      granted_(loop, children_) {}

void Zygotes::configure(ZygotesSettings settings) {
  settings_ = std::move(settings);
  warm_ = WarmTable(settings_.max_warm_processes);
  maintain();
}

Zygotes::~Zygotes() {
  const auto for_each_process = [this](auto&& action) {
    for (const auto& [id, zygote] : zygotes_) {
      if (zygote->process.pid > 0) action(zygote->process.pid);
    }
  };
  for_each_process([](pid_t pid) { ::kill(pid, SIGKILL); });
  for_each_process([](pid_t pid) { ::waitpid(pid, nullptr, 0); });
}

Zygotes::Zygote* Zygotes::find(std::uint64_t id) {
  const auto found = zygotes_.find(id);
  return found == zygotes_.end() ? nullptr : found->second.get();
}

const ScriptHost* Zygotes::find_host(const Key& key) const {
  auto found = settings_.hosts.find(key);
  if (found == settings_.hosts.end()) found = settings_.hosts.find({key.first, 0});
  return found == settings_.hosts.end() ? nullptr : &found->second;
}

Zygotes::Zygote* Zygotes::start(const Key& key, std::optional<SetupError>& problem) {
  auto owned = std::make_unique<Zygote>();
  Zygote& zygote = *owned;
  zygote.id = next_id_++;
  zygote.key = key;
  zygote.state = find_host(key)->folders.empty() ? State::starting : State::checking;
  zygote.started_boot_ms = boot_ms();
  if (zygote.state == State::checking && !start_folder_child(zygote))
    problem = SetupError{"zygote_folder", errno, remedy_for_step("zygote_folder", errno)};
  else if (zygote.state == State::starting)
    problem = start_process(zygote);
  if (problem) return nullptr;
  if (key.first != kCanaryHost) zygote.pool = SandboxPool(settings_.max_prewarmed, settings_.has_memory_cgroup);
  zygote.warm_up_timer = loop_.add_timer(boot_ms() + kWarmUpMs, [this, &zygote] {
    fail(zygote, {"zygote_warm_up", ETIMEDOUT, failure_reason(zygote)});
  });
  zygotes_[zygote.id] = std::move(owned);
  return &zygote;
}

std::optional<SetupError> Zygotes::start_process(Zygote& zygote) {
  const ScriptHost host = choose_build(*find_host(zygote.key), zygote);
  auto started = start_zygote(
      {host, zygote.folders, settings_.ids, settings_.owners.find_fixed_owner(zygote.key.second), settings_.filters,
       settings_.alive_fd, settings_.fail_step, settings_.disabled_steps, settings_.job_niceness});
  zygote.folders.clear();
  if (!started)
    return SetupError{started.error().step, started.error().error,
                      remedy_for_step(started.error().step, started.error().error)};
  zygote.process = std::move(*started);
  zygote.control_watch =
      loop_.watch(zygote.process.control.get(), [this, &zygote](std::uint32_t) { read_control(zygote); });
  zygote.err_watch = loop_.watch(zygote.process.err.get(), [this, &zygote](std::uint32_t) { read_stderr(zygote); });
  zygote.end_watch = loop_.watch(zygote.process.pidfd.get(), [this, &zygote](std::uint32_t) { reap(zygote); });
  return {};
}

bool Zygotes::start_folder_child(Zygote& zygote) {
  zygote.child = children_.start(
      kFolderChildName, [script_host = find_host(zygote.key)](int socket) { watch_folders(*script_host, socket); },
      [this, &zygote](HostChildren::Child, RawFrame* frame) { on_folders_opened(zygote, frame); });
  return zygote.child != 0;
}

// Handles a frame of the zygote's child, in the order of its steps. A null frame means that the child has ended.
void Zygotes::on_folders_opened(Zygote& zygote, RawFrame* frame) {
  const std::size_t folder_count = find_host(zygote.key)->folders.size();
  FolderOpened folder;
  Ready ready;
  RequestRefused refused;
  LoadedFiles change;
  if (frame == nullptr) {
    zygote.child = 0;
    if (is_starting(zygote)) fail(zygote, {"zygote_folder", ESRCH, "the scanner of its folders has ended"});
    if (zygote.changed_in_folders.empty())
      zygote.changed_in_folders = "the watcher of its folders has ended, or a file";
  } else if (zygote.problem) {
    return;
  } else if (decode(*frame, folder) && frame->fds.size() == 1 && zygote.state == State::checking) {
    zygote.folders.push_back(std::move(frame->fds[0]));
    if (zygote.folders.size() < folder_count) return;
    zygote.state = State::starting;
    if (auto problem = start_process(zygote)) fail(zygote, *problem);
  } else if (decode(*frame, folder) && frame->fds.empty() && zygote.state == State::checking) {
    fail(zygote, {"zygote_folder", EMFILE, remedy_for_step("zygote_folder", EMFILE)});
  } else if (decode(*frame, ready) && zygote.state == State::starting) {
    start_canary(zygote);
  } else if (decode(*frame, refused)) {
    const bool is_checking = zygote.state == State::checking;
    fail(zygote, {is_checking ? "zygote_folder" : "zygote_warm_up", is_checking ? EINVAL : EPERM, refused.reason});
  } else if (decode(*frame, change) && change.files.size() == 1) {
    zygote.changed_in_folders = change.files[0];
  }
}

// Records the loaded files. Only the child may access files in folders.
void Zygotes::record_loaded_files(Zygote& zygote, const std::vector<std::string>& files) {
  const ScriptHost& script_host = *find_host(zygote.key);
  return script_host.folders.empty() ? zygote.loaded_files.add(files, script_host)
                                     : send_to_child(zygote, LoadedFiles{files});
}

template <class Message>
void Zygotes::send_to_child(Zygote& zygote, const Message& message) {
  if (const int error = children_.send_message(zygote.child, message); error != 0)
    fail(zygote, {"zygote_folder", error, "the watcher of its folders accepts no message"});
}

// Files of the system are trusted; files that an operator has configured for a context are checked first.
void Zygotes::on_warmed_up(Zygote& zygote) {
  const ScriptHost& script_host = *find_host(zygote.key);
  if (!script_host.folders.empty()) return send_to_child(zygote, Ready{});
  const std::string problem = script_host.context == 0 ? std::string() : zygote.loaded_files.find_trust_problem();
  if (problem.empty()) return start_canary(zygote);
  fail(zygote, {"zygote_warm_up", EPERM, "loaded files: " + problem});
}

// Evaluated for each zygote, since the system may have been updated.
ScriptHost Zygotes::choose_build(const ScriptHost& script_host, Zygote& zygote) {
  ScriptHost host = script_host;
  ProgramBuild build = select_program_build(script_host.program);
  host.program = build.program;
  zygote.loaded_files = LoadedFileSet();
  record_loaded_files(zygote, build.compared_libraries);
  std::string& reported = other_builds_[script_host.program];
  if (build.reason != reported && !build.reason.empty())
    warn_(fmt::format("{}: {}: {} runs instead, which uses more CPU; remedy: build or install mycojobs again",
                      script_host.program, build.reason, build.program));
  reported = std::move(build.reason);
  return host;
}

bool Zygotes::is_starting(const Zygote& zygote) const {
  return zygote.state == State::checking || zygote.state == State::starting || zygote.state == State::testing;
}

Zygotes::Zygote* Zygotes::get_or_start(const Key& key, std::optional<SetupError>& problem) {
  if (const auto found = current_.find(key); found != current_.end()) return find(found->second);
  if (const auto found = failed_starts_.find(key);
      found != failed_starts_.end() && boot_ms() < found->second.until_boot_ms) {
    problem = found->second.problem;
    return nullptr;
  }
  Zygote* zygote = start(key, problem);
  if (zygote != nullptr) current_[key] = zygote->id;
  end_excess_zygotes();
  return zygote;
}

void Zygotes::start_now(const Key& key) {
  std::optional<SetupError> problem;
  if (get_or_start(key, problem) == nullptr) on_canary_finished_(key.first, key.second, problem);
}

void Zygotes::start_in_background(const std::vector<Key>& keys) {
  background_starts_.assign(keys.begin(), keys.end());
  start_next_in_background();
}

void Zygotes::start_next_in_background() {
  while (!background_starts_.empty() && current_.size() < settings_.max_zygotes &&
         std::none_of(zygotes_.begin(), zygotes_.end(),
                      [&](const auto& row) { return is_starting(*row.second) && !row.second->problem; })) {
    const Key key = std::move(background_starts_.front());
    background_starts_.pop_front();
    start_now(key);
  }
}

// A warm process that waits for its next run is used, too.
bool Zygotes::is_in_use(const Zygote& zygote) {
  return !zygote.waiting.empty() || std::any_of(zygote.running.begin(), zygote.running.end(), [this](std::uint64_t id) {
    const SandboxRun* run = runs_.find(id);
    return run != nullptr && (run->is_warm || !run->is_idle);
  });
}

void Zygotes::end_excess_zygotes() {
  if (current_.size() <= settings_.max_zygotes) return;
  std::vector<Zygote*> unused;
  for (const auto& [key, id] : current_) {
    Zygote* zygote = find(id);
    if (zygote->state == State::serving && !zygote->problem && !successors_.contains(key) && !is_in_use(*zygote))
      unused.push_back(zygote);
  }
  std::sort(unused.begin(), unused.end(),
            [](const Zygote* a, const Zygote* b) { return a->last_run_boot_ms < b->last_run_boot_ms; });
  for (Zygote* zygote : unused) {
    if (current_.size() <= settings_.max_zygotes) return;
    current_.erase(zygote->key);
    retire(*zygote);
  }
}

// Ends the zygote after its active runs. A zygote that has not been tested yet must run nothing: its runs are submitted
// again.
void Zygotes::retire(Zygote& zygote) {
  const bool is_untested = is_starting(zygote);
  zygote.state = State::retired;
  if (is_untested) return fail(zygote, {});
  discard(zygote.pool.clear());
  discard_warm(zygote);
  if (zygote.running.empty() && zygote.waiting.empty()) fail(zygote, {});
}

void Zygotes::submit(SandboxRun& run) {
  std::optional<SetupError> problem;
  Zygote* zygote = get_or_start({run.spec.host, run.spec.context}, problem);
  if (zygote == nullptr) {
    runs_.fail_setup(run, problem->step, problem->error, problem->remedy);
    return runs_.finish_run(run);
  }
  run.zygote_id = zygote->id;
  zygote->waiting.push_back(run.id);
  start_waiting_runs(*zygote);
}

void Zygotes::start_waiting_runs(Zygote& zygote) {
  const bool is_serving = !zygote.problem && (zygote.state == State::serving || zygote.state == State::retired);
  while (is_serving && !zygote.waiting.empty() && zygote.unanswered_forks < kMaxUnansweredForks) {
    SandboxRun* run = runs_.find(zygote.waiting.front());
    zygote.waiting.pop_front();
    if (run == nullptr || adopt(zygote, *run) || open_folders(*run)) continue;
    if (!fork(zygote, *run)) continue;
    if (run->is_warm) {
      discard(warm_.add(run->id, run->spec.warm, run->spec.context));
    } else if (run->max_runs > 1) {
      zygote.pool.mark_in_use(run->id, run->spec);
    }
  }
  if (is_serving) refill(zygote);
}

// Returns false if the run needs no folders or has them. Otherwise opens them and submits the run again.
bool Zygotes::open_folders(SandboxRun& run) {
  if (run.folders.size() == count_folders(run.spec.grants)) return false;
  OpenFolders request{run.spec.grants, run.spec.limits.exec, {}, {}};
  if (needs_file_owner(run.spec.grants)) {
    if (!runs_.assign_uid(run)) {
      runs_.fail_setup(run, "uid", EAGAIN, kNoFreeUid);
      return runs_.finish_run(run), true;
    }
    request.job = runs_.get_job_ids(run);
    // submit() has checked that the context has an owner if the run needs one.
    request.file_owner = settings_.owners.find_owner(run.spec.context).value_or(request.job);
  }
  granted_.open(std::move(request), [this, id = run.id](Result<std::vector<Fd>> opened, bool host_lacks_resource) {
    SandboxRun* waiting = runs_.find(id);
    if (waiting == nullptr) return;
    if (opened) {
      waiting->folders = std::move(*opened);
      return submit(*waiting);
    }
    if (opened.error().code == Code::unavailable) {
      if (host_lacks_resource) {
        set_not_started(*waiting, opened.error().message, {"grants", EMFILE, opened.error().message});
      } else {
        set_not_started(*waiting, opened.error().message);
      }
    } else {
      set_setup_error(*waiting, "grants", EINVAL, opened.error().message);
    }
    runs_.finish_run(*waiting);
  });
  return true;
}

bool Zygotes::fork(Zygote& zygote, SandboxRun& run) {
  const std::uint64_t id = run.id;
  run.zygote_id = zygote.id;
  if (!runs_.fork(run, zygote.process.control.get())) return false;
  zygote.running.insert(id);
  ++zygote.unanswered_forks;
  if (!run.is_idle) count_run(zygote);
  return true;
}

void Zygotes::count_run(Zygote& zygote) {
  zygote.last_run_boot_ms = boot_ms();
  if (++zygote.run_count == settings_.max_zygote_runs && zygote.state == State::serving) start_successor(zygote);
}

// Limits the life of a zygote: its children share its hash seed and memory layout, which a job could learn.
void Zygotes::start_successor(Zygote& zygote) {
  if (successors_.contains(zygote.key)) return;
  zygote.run_count = 0;  // after a failure, the next attempt follows after max_zygote_runs runs
  if (const auto found = failed_starts_.find(zygote.key);
      found != failed_starts_.end() && boot_ms() < found->second.until_boot_ms)
    return;
  std::optional<SetupError> problem;
  if (Zygote* successor = start(zygote.key, problem); successor != nullptr) {
    successors_[zygote.key] = successor->id;
  } else {
    warn_(fmt::format("zygote {}: cannot be replaced: {}: {}", zygote.key.first, problem->step, problem->remedy));
  }
}

void Zygotes::read_control(Zygote& zygote) {
  for (;;) {
    RawFrame frame;
    const ReceiveResult received = receive_raw(zygote.process.control.get(), frame, MSG_DONTWAIT);
    if (received == ReceiveResult::would_block) break;
    if (received != ReceiveResult::frame || !handle_message(zygote, frame)) {
      loop_.unwatch(zygote.control_watch, zygote.process.control.get());
      if (!zygote.problem) read_stderr(zygote);
      return fail(zygote,
                  {"zygote_warm_up", received == ReceiveResult::closed ? ESRCH : EPROTO, failure_reason(zygote)});
    }
  }
  start_waiting_runs(zygote);
}

// Returns false for an invalid message.
bool Zygotes::handle_message(Zygote& zygote, RawFrame& frame) {
  LoadedFiles loaded;
  Ready ready;
  RequestRefused refused;
  SetupStepFailed step;
  RunForked forked;
  InitReaped reaped;
  if (decode(frame, forked)) {
    if (zygote.unanswered_forks > 0) --zygote.unanswered_forks;
    SandboxRun* run = runs_.find(forked.run);
    if (run == nullptr || run->zygote_id != zygote.id) return false;
    if (forked.error != 0) zygote.running.erase(forked.run);
    return runs_.on_forked(*run, forked, frame.fds.empty() ? Fd() : std::move(frame.fds[0]), zygote.process.pid);
  }
  if (decode(frame, reaped)) {
    SandboxRun* run = runs_.find(reaped.run);
    return run == nullptr || run->zygote_id != zygote.id || runs_.on_reaped(*run, reaped);
  }
  if (decode(frame, loaded) && zygote.state == State::starting && !std::exchange(zygote.has_files, true)) {
    record_loaded_files(zygote, loaded.files);
    return true;
  }
  if (decode(frame, ready) && zygote.state == State::starting) {
    on_warmed_up(zygote);
    return true;
  }
  if (decode(frame, refused))
    fail(zygote, {"zygote_warm_up", ENOEXEC, refused.reason.substr(0, kMaxReasonBytes)});
  else if (decode(frame, step))
    fail(zygote, {step.step.substr(0, kMaxStepName), step.error, remedy_for_step(step.step, step.error)});
  else
    return false;
  return true;
}

void Zygotes::start_canary(Zygote& zygote) {
  zygote.state = State::testing;
  fork(zygote, runs_.add_canary(zygote.key.first, zygote.key.second));
}

void Zygotes::finish_canary(Zygote& zygote, SandboxRun& canary) {
  auto problem = check_canary(canary, settings_);
  if (!settings_.disabled_steps.empty()) problem.reset();  // attacks may succeed without these steps
  zygote.is_canary_reported = true;
  if (problem) {
    fail(zygote, *problem);
  } else {
    begin_serving(zygote);
  }
  on_canary_finished_(zygote.key.first, zygote.key.second, problem);
  start_next_in_background();
}

void Zygotes::begin_serving(Zygote& zygote) {
  zygote.state = State::serving;
  zygote.run_count = 0;
  zygote.serving_since_boot_ms = zygote.last_run_boot_ms = boot_ms();
  loop_.cancel(zygote.warm_up_timer);
  if (!zygote.stderr_text.empty()) report_stderr(zygote, std::exchange(zygote.stderr_text, {}));
  const auto successor = successors_.find(zygote.key);
  if (successor == successors_.end() || successor->second != zygote.id)
    return;  // the caller calls start_waiting_runs()
  Zygote* previous = find(current_[zygote.key]);
  current_[zygote.key] = zygote.id;
  successors_.erase(successor);
  if (previous != nullptr) retire(*previous);
}

void Zygotes::on_sandbox_ended(SandboxRun& run) {
  warm_.remove_process(run.id);
  Zygote* zygote = find(run.zygote_id);
  if (zygote == nullptr) return;
  zygote->running.erase(run.id);
  std::erase(zygote->waiting, run.id);
  if (run.is_idle) {
    on_idle_ended(*zygote, run);
  } else {
    zygote->last_run_boot_ms = boot_ms();
    zygote->pool.on_in_use_ended(run.id);
  }
  if (run.is_canary && zygote->state == State::testing) finish_canary(*zygote, run);
  if (zygote->state == State::retired && zygote->running.empty() && zygote->waiting.empty()) fail(*zygote, {});
}

// Returns the reason why the zygote did not start, as far as its stderr output gives one.
std::string Zygotes::failure_reason(const Zygote& zygote) const {
  if (zygote.state == State::checking)
    return "its folders have not been scanned: does their disk or network mount hang?";
  if (const auto end = zygote.stderr_text.find_last_not_of(' '); end != std::string::npos)
    return zygote.stderr_text.substr(0, end + 1);
  const ScriptHost* script_host = find_host(zygote.key);
  std::string command = script_host->program.substr(script_host->program.rfind('/') + 1);
  for (const auto& argument : script_host->arguments) command += ' ' + argument;
  return command.substr(0, kMaxReasonBytes) + ": did not start and reported no reason";
}

// stderr output of a host is for the operator: the reason of a failed start, or a log line once it serves.
void Zygotes::read_stderr(Zygote& zygote) {
  char text[2048];
  const ssize_t size = ::read(zygote.process.err.get(), text, sizeof text);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) return loop_.unwatch(zygote.err_watch, zygote.process.err.get());
  std::string output(text, static_cast<std::size_t>(size));
  std::replace_if(
      output.begin(), output.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  if (is_starting(zygote)) {
    zygote.stderr_text = (zygote.stderr_text + output).substr(0, kMaxReasonBytes);
  } else {
    report_stderr(zygote, std::move(output));
  }
}

void Zygotes::report_stderr(Zygote& zygote, std::string output) {
  warn_(fmt::format("zygote {} of context {}: {}", zygote.key.first, zygote.key.second, output));
  zygote.stderr_text = std::move(output);
}

void Zygotes::end_host(const std::string& host) {
  for (const auto& [id, zygote] : zygotes_) {
    if (zygote->key.first == host) fail(*zygote, {});
  }
}

// Kills the zygote. Its runs end when it is reaped, since the kernel has then emptied all namespaces below.
void Zygotes::fail(Zygote& zygote, SetupError problem) {
  if (!zygote.problem) zygote.problem = std::move(problem);
  loop_.cancel(zygote.warm_up_timer);
  if (zygote.process.pid > 0) {
    ::kill(zygote.process.pid, SIGKILL);
  } else {
    loop_.add_timer(boot_ms(), [this, id = zygote.id] {
      Zygote* failed = find(id);
      if (failed == nullptr) return;
      if (failed->process.pid > 0) return fail(*failed, {});  // the process was just being started
      reap_zygote(*failed, failed->problem->error == ESRCH);
    });
  }
  if (const auto found = current_.find(zygote.key); found != current_.end() && found->second == zygote.id) {
    current_.erase(found);
  }
  if (const auto found = successors_.find(zygote.key); found != successors_.end() && found->second == zygote.id) {
    successors_.erase(found);
  }
}

void Zygotes::fail_unresponsive(const SandboxRun& run) {
  Zygote* zygote = find(run.zygote_id);
  if (zygote == nullptr) return;
  warn_(fmt::format("zygote {}: does not answer: killed", zygote->key.first));
  fail(*zygote, {"fork", ETIMEDOUT, remedy_for_step("fork", ETIMEDOUT)});
}

void Zygotes::reap(Zygote& zygote) {
  if (zygote.control_watch != 0) read_control(zygote);  // messages sent before it died
  fail(zygote, {"zygote_warm_up", ESRCH, failure_reason(zygote)});
  int status = 0;
  ::waitpid(zygote.process.pid, &status, 0);
  // Killed by another process: it ended before this launcher had a reason to kill it, and not by exit.
  reap_zygote(zygote, zygote.problem->error == ESRCH && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

void Zygotes::reap_zygote(Zygote& zygote, bool killed) {
  children_.kill_silently(zygote.child);
  loop_.unwatch(zygote.control_watch, zygote.process.control.get());
  loop_.unwatch(zygote.err_watch, zygote.process.err.get());
  loop_.unwatch(zygote.end_watch, zygote.process.pidfd.get());
  auto owned = std::move(zygotes_.extract(zygote.id).mapped());
  const bool never_served = is_starting(*owned);
  if (never_served && !killed) {
    const std::uint64_t now = boot_ms();
    failed_starts_[owned->key] = {*owned->problem, now + kPauseFactor * (now - owned->started_boot_ms)};
  }
  if (never_served && !owned->is_canary_reported)
    on_canary_finished_(owned->key.first, owned->key.second, owned->problem);
  if (never_served) start_next_in_background();
  if (const auto previous = current_.find(owned->key); never_served && previous != current_.end())
    find(previous->second)->run_count = 0;
  for (std::uint64_t id : owned->running) {
    if (SandboxRun* run = runs_.find(id); run != nullptr) runs_.finish_run(*run);
  }
  for (std::uint64_t id : owned->waiting) {
    SandboxRun* run = runs_.find(id);
    if (run == nullptr) continue;
    if (never_served && killed) {  // not an error of the job
      set_outcome(*run, RunStatus::lost, "its script host ended while it warmed up");
      runs_.finish_run(*run);
    } else if (never_served) {
      runs_.fail_setup(*run, owned->problem->step, owned->problem->error, owned->problem->remedy);
      runs_.finish_run(*run);
    } else {
      submit(*run);
    }
  }
}

// An idle sandbox may have died while it waited; then the next one is tried. If the limits of this run cannot be set in
// one sandbox, they cannot be set in the others, which are kept for other runs.
bool Zygotes::adopt(Zygote& zygote, SandboxRun& run) {
  if (run.spec.warm.runs > 0) return adopt_warm(run);
  while (const auto id = zygote.pool.acquire(run.spec)) {
    SandboxRun* idle = runs_.find(*id);
    if (idle == nullptr) continue;
    if (runs_.adopt(*idle, run)) {
      if (idle->max_runs > 1) zygote.pool.mark_in_use(*id, idle->spec);
      count_run(zygote);
      return true;
    }
    if (idle->is_kill_requested) return false;
  }
  return false;
}

// Skips processes that died while idle. The key implies context and host; the comparison is a second check against
// equal keys.
bool Zygotes::adopt_warm(SandboxRun& run) {
  discard(warm_.discard_outdated(run.spec.warm));
  while (const auto id = warm_.acquire(run.spec.warm)) {
    SandboxRun* idle = runs_.find(*id);
    if (idle == nullptr) continue;
    const RunSpec& idle_spec = idle->spec;
    if (idle_spec.context != run.spec.context || idle_spec.host != run.spec.host ||
        idle_spec.grants != run.spec.grants || !has_network_(*idle)) {
      runs_.discard(*idle);
    } else if (runs_.adopt(*idle, run)) {
      return true;
    }
  }
  return false;
}

bool Zygotes::can_keep_process(const SandboxRun& run) {
  const Zygote* zygote = find(run.zygote_id);
  return zygote != nullptr && !zygote->problem && zygote->state == State::serving && has_network_(run) &&
         warm_.can_become_idle(run.id);
}

void Zygotes::end_expired() {
  discard(warm_.discard_expired(boot_ms()));
  loop_.cancel(expiry_timer_);
  if (const auto next = warm_.next_expiry()) expiry_timer_ = loop_.add_timer(*next, [this] { end_expired(); });
}

// Discards idle warm processes of a zygote that must not serve any more. Active processes end with their run.
void Zygotes::discard_warm(const Zygote& zygote) {
  for (const std::uint64_t id : zygote.running) {
    if (SandboxRun* run = runs_.find(id); run != nullptr && run->is_warm && run->is_idle) {
      warm_.remove_process(id);
      runs_.discard(*run);
    }
  }
}

// Waiting runs are served first, and only few sandboxes are prewarmed at a time, so that new runs are not delayed.
void Zygotes::refill(Zygote& zygote) {
  while (!zygote.problem && zygote.state == State::serving && zygote.waiting.empty() &&
         zygote.unanswered_forks < kMaxUnansweredPrewarmed && zygote.pool.missing_count() > 0 && runs_.can_prewarm()) {
    SandboxRun& prewarmed = runs_.add_prewarmed(zygote.pool.shape());
    zygote.pool.add_starting(prewarmed.id);
    if (!fork(zygote, prewarmed)) return;
  }
}

void Zygotes::on_confined(SandboxRun& run) {
  Zygote* zygote = find(run.zygote_id);
  if (zygote == nullptr || !run.is_idle) return;
  zygote->pool.mark_ready(run.id);
  refill(*zygote);
}

// Waiting runs are started by the caller, which handles a message of the zygote or the sandbox.
bool Zygotes::on_idle(SandboxRun& run) {
  Zygote* zygote = find(run.zygote_id);
  if (zygote == nullptr || zygote->problem || zygote->state != State::serving) return false;
  if (run.is_warm ? !warm_.return_process(run.id, boot_ms()) : !zygote->pool.return_sandbox(run.id, run.spec))
    return false;
  zygote->last_run_boot_ms = boot_ms();
  if (run.is_warm) end_expired();
  start_waiting_runs(*zygote);
  return true;
}

void Zygotes::maintain() {
  maintenance_timer_ = loop_.add_timer(boot_ms() + kMaintenanceIntervalMs, [this] { maintain(); });
  for (const auto& [id, zygote] : zygotes_) {
    discard(zygote->pool.shrink_to_need());
    const bool is_old = zygote->serving_since_boot_ms != 0 && settings_.max_zygote_age_ms != 0 &&
                        boot_ms() - zygote->serving_since_boot_ms > settings_.max_zygote_age_ms;
    if (zygote->state == State::serving && is_outdated(*zygote)) {
      start_successor(*zygote);
    } else if (is_old && zygote->run_count > 0 && zygote->state == State::serving) {
      zygote->serving_since_boot_ms = boot_ms();
      start_successor(*zygote);
    }
  }
  end_excess_zygotes();
  start_next_in_background();
  report_prewarmed_count();
}

void Zygotes::report_prewarmed_count() {
  SandboxCounts counts;
  for (const auto& [id, zygote] : zygotes_) {
    if (zygote->state == State::serving) ++counts.zygotes;
    zygote->pool.add_counts(counts);
  }
  if (on_prewarmed_count_ && counts != reported_counts_) on_prewarmed_count_(counts);
  reported_counts_ = counts;
}

// True if a loaded file has changed: jobs would run code that is no longer installed.
bool Zygotes::is_outdated(Zygote& zygote) {
  std::string changed_file =
      find_host(zygote.key)->folders.empty() ? zygote.loaded_files.find_changed_file() : zygote.changed_in_folders;
  if (changed_file.empty()) return false;
  if (changed_file != zygote.reported_change)
    warn_(fmt::format("zygote {} of context {}: {} has changed since it was loaded: it is replaced", zygote.key.first,
                      zygote.key.second, changed_file));
  zygote.reported_change = std::move(changed_file);
  return true;
}

// A prewarmed sandbox that cannot be set up, or dies (for example of its limits), is not needed. Since the next would
// fail too, prewarming of this shape stops; an actual run reports the reason.
void Zygotes::on_idle_ended(Zygote& zygote, const SandboxRun& run) {
  zygote.pool.on_ended(run.id);
  if (!zygote.pool.has_failed_permanently()) return;
  warn_(fmt::format("zygote {}: no more sandboxes like this are prewarmed: {}", zygote.key.first, run.outcome.reason));
  discard(zygote.pool.reject_shape());
}

void Zygotes::discard(const std::vector<std::uint64_t>& idle) {
  for (const std::uint64_t id : idle) {
    if (SandboxRun* run = runs_.find(id); run != nullptr) runs_.discard(*run);
  }
}

}  // namespace mycojobs::sandbox
