#include "sandbox/launcher/launcher.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/errno_text.h"
#include "base/shortage.h"
#include "sandbox/egress/egress_messages.h"
#include "sandbox/launcher/layers.h"
#include "sandbox/seccomp/filter.h"

namespace mycojobs::sandbox {
namespace {

std::string read_executable_path() {
  char path[4096];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  return {path, static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

constexpr std::uint8_t kWarnLevel = 2;  // LogLevel::warn

// Returns the problem of limits with which no run can start, or that would overflow. Returns an empty text if the
// limits are valid.
std::string find_problem(const Limits& limits) {
  struct LimitRow {
    const char* name;
    std::uint64_t value, min, max;
  };
  constexpr std::uint64_t kTebibyte = 1ULL << 40;
  const LimitRow rows[] = {
      {"memory_bytes", limits.memory_bytes, 4ULL << 20, kTebibyte},
      {"pids", limits.pids, 1, 1U << 20},
      {"wall_ms", limits.wall_ms, 1, 1ULL << 40},
      {"cpu_ms", limits.cpu_ms, 0, 1ULL << 40},
      {"open_files", limits.open_files, 32, 1U << 20},
      {"file_bytes", limits.file_bytes, 4096, kTebibyte},
      {"tmp_bytes", limits.tmp_bytes, 4096, kTebibyte},
  };
  for (const auto& row : rows) {
    if (row.value < row.min || row.value > row.max) {
      return fmt::format("{} is {}, outside of {} to {}", row.name, row.value, row.min, row.max);
    }
  }
  return {};
}

bool is_normalized(const std::string& path) {
  if (path.empty() || path.front() != '/' || path.size() >= 4096 || path.find('\0') != std::string::npos) return false;
  for (const char* segment : {"//", "/./", "/../"}) {
    if ((path + "/").find(segment) != std::string::npos) return false;
  }
  return true;
}

// A granted folder must be a mount point of its own (sandbox/zygote/confine.cpp), and its path must be normalized.
bool can_be_granted(const std::string& path) {
  static constexpr std::string_view kParentFolders[] = {"/srv/", "/opt/",   "/home/", "/var/",
                                                        "/mnt/", "/media/", "/data/"};
  const auto is_inside = [&](std::string_view top) { return path.starts_with(top) && path.size() > top.size(); };
  return is_normalized(path) && std::any_of(std::begin(kParentFolders), std::end(kParentFolders), is_inside);
}

// The agent has checked the name and the path of a volume; a mount point outside of kVolumesFolder is prevented again.
std::string find_problem(const Volume& volume, const FileOwners& owners) {
  if (volume.name.empty() || volume.name.find('/') != std::string::npos || volume.name.front() == '.')
    return "a volume without a valid name";
  if (!is_normalized(volume.path))
    return fmt::format("volume {}: its path is not absolute and normalized", volume.name);
  const auto checked = owners.check_volume(volume);
  return checked ? "" : checked.error().message;
}

std::string find_problem(const RunSpec& spec, const FileOwners& owners) {
  constexpr std::size_t kMaxFolders = 16;
  const Grants& grants = spec.grants;
  if (count_folders(grants) > kMaxFolders) return "more than 16 folders are granted";
  for (const auto* paths : {&grants.fs_read, &grants.fs_write}) {
    for (const auto& path : *paths) {
      if (!can_be_granted(path)) {
        return fmt::format("{} cannot be granted: only what is below /srv /opt /home /var /mnt /media /data can", path);
      }
    }
  }
  for (const Volume& volume : grants.volumes) {
    if (std::string problem = find_problem(volume, owners); !problem.empty()) return problem;
  }
  if (!grants.packages.path.empty() && !is_normalized(grants.packages.path))
    return fmt::format("packages: the path {} is not absolute and normalized", grants.packages.path);
  if (grants.fs_write.empty()) return {};
  const auto owner = owners.find_owner(spec.context);
  return owner ? "" : owner.error().message;
}

// Returns the problem of a warm run whose keys are missing or too short. Without a key, any caller could use the warm
// process.
std::string find_problem(const WarmReuse& warm) {
  constexpr std::size_t kMinKeyBytes = 32, kMaxKeyBytes = 256;
  if (warm.runs == 0) return {};
  for (const std::string* key : {&warm.key, &warm.family}) {
    if (key->size() < kMinKeyBytes || key->size() > kMaxKeyBytes) return "a warm run without the key of its process";
  }
  return {};
}

}  // namespace

Launcher::Launcher(Fd agent, IdRegistry ids, int job_niceness)
    : agent_(std::move(agent)),
      agent_writable_(::fcntl(agent_.get(), F_DUPFD_CLOEXEC, 0)),
      children_(loop_),
      runs_(
          loop_, cgroups_, children_, [this](SandboxRun& run) { on_run_ended(run); },
          [this](const SandboxRun& run, Outcome outcome) { on_unkillable(run, std::move(outcome)); }),
      egress_(loop_, [this](const std::string& text) { warn(text); }),
      zygotes_(
          loop_, runs_, children_, [this](const std::string& text) { warn(text); },
          [this](const std::string& host, ContextId context, const std::optional<SetupError>& problem) {
            on_canary_finished(host, context, problem);
          }),
      volume_checks_(loop_, children_),
      registry_(std::move(ids)),
      job_niceness_(job_niceness) {
  runs_.on_zygote_unresponsive([this](const SandboxRun& run) { zygotes_.fail_unresponsive(run); });
  runs_.on_listening([this](const SandboxRun& run, const Fd& listener) -> std::string {
    const auto result = egress_.serve(run.id, run.spec.grants.net_allow, listener);
    return result ? "" : result.error().message;
  });
  runs_.on_confined([this](SandboxRun& run) { zygotes_.on_confined(run); });
  runs_.on_sandbox_ended([this](SandboxRun& run) { zygotes_.on_sandbox_ended(run); });
  zygotes_.on_prewarmed_count([this](const SandboxCounts& counts) {
    if (is_ready_sent_ && !is_probe_) send(PrewarmedCount{counts});
  });
  runs_.on_idle([this](SandboxRun& run) { return zygotes_.on_idle(run); });
  runs_.on_keep_process([this](const SandboxRun& run) { return zygotes_.can_keep_process(run); });
  zygotes_.set_network_check([this](const SandboxRun& run) {
    return run.spec.grants.network != Network::allow_list || egress_.serves(run.id);
  });
  agent_watch_ = loop_.watch(agent_.get(), [this](std::uint32_t) { read_agent(); });
}

int Launcher::run() {
  loop_.run();
  return 0;
}

void Launcher::read_agent() {
  for (int i = 0; i < 64; ++i) {  // bounded, so that other events are served too
    RawFrame frame;
    const ReceiveResult received = receive_raw(agent_.get(), frame, MSG_DONTWAIT);
    if (received == ReceiveResult::would_block) return;
    if (received == ReceiveResult::frame && handle_message(frame)) continue;
    if (received == ReceiveResult::descriptors_lost && refuse_without_descriptors(frame)) continue;
    return loop_.stop();  // the agent has ended or sent invalid data
  }
}

bool Launcher::handle_message(RawFrame& frame) {
  Configure configuration;
  Launch launch_message;
  Kill kill;
  Fence fence;
  RetireWarmKey retirement;
  if (!is_configured_) {
    if (!decode(frame, configuration) || frame.fds.size() > 1) return false;
    is_configured_ = true;
    if (!frame.fds.empty()) alive_fd_ = std::move(frame.fds[0]);
    configure(configuration);
  } else if (decode(frame, launch_message) && frame.fds.size() == 4) {
    launch(launch_message, std::move(frame.fds));
  } else if (decode(frame, kill)) {
    if (SandboxRun* run = runs_.find_by_run(kill.run)) runs_.kill(*run, kill.reason, kill.grace_ms);
  } else if (decode(frame, fence)) {
    if (SandboxRun* run = runs_.find_by_run(fence.run)) runs_.fence(*run, fence.boot_ms);
  } else if (decode(frame, retirement)) {
    zygotes_.retire_warm_key(retirement.key);
  } else {
    return false;
  }
  return true;
}

// Handles a message whose descriptors exceeded this process's limit. Returns false for other messages.
bool Launcher::refuse_without_descriptors(const RawFrame& frame) {
  Configure configuration;
  Launch message;
  const std::string shortage = describe_shortage(*find_shortage(EMFILE));
  if (!is_configured_ && decode(frame, configuration)) {
    is_configured_ = true;
    send(LauncherStarted{false, shortage});
    return true;
  }
  if (!is_configured_ || !decode(frame, message)) return false;
  if (runs_.find_by_run(message.spec.run) != nullptr) return false;
  Outcome outcome;
  outcome.status = RunStatus::lost;
  outcome.never_started = true;
  outcome.setup_error = SetupError{"descriptors", EMFILE, shortage};
  outcome.reason = "the sandbox's launcher is " + shortage;
  send(LauncherRunEnded{message.spec.run, outcome});
  return true;
}

void Launcher::configure(const Configure& configuration) {
  is_probe_ = configuration.probe;
  const auto problem = prepare(configuration);
  if (problem) return send(LauncherStarted{false, *problem});
  zygotes_.start_now({kCanaryHost, 0});
  for (const auto& [context, volume] : configuration.volumes)
    unchecked_folders_.push_back({context, volume, fmt::format("contexts.{}.volumes.{}", context, volume.name), true});
  for (const auto& [context, path] : configuration.written_folders) add_written_folder(context, path);
  constexpr std::uint64_t kMaxStartMs = 5000;
  checks_end_boot_ms_ = boot_ms() + kMaxStartMs;
  check_next_folders();
  std::vector<Zygotes::Key> initial = configuration.initial_zygotes;
  std::erase_if(initial, [this](const auto& key) { return !zygotes_.has_host(key.first, key.second); });
  zygotes_.start_in_background(initial);
}

std::optional<std::string> Launcher::prepare(const Configure& configuration) {
  allow_missing_ = configuration.allow_missing;
  const auto may_be_missing = [&](const char* layer) {
    return is_probe_ || std::find(allow_missing_.begin(), allow_missing_.end(), layer) != allow_missing_.end();
  };
  for (const auto& layer : allow_missing_) {
    if (!can_layer_be_missing(layer))
      return fmt::format("sandbox.allow_missing: {} is not a layer that can be missing", layer);
  }
  auto filters = compile_filters();
  if (!filters) return filters.error().message;
  filters_.reset(::memfd_create("filters", MFD_CLOEXEC));
  if (int error = write_filters(filters_.get(), *filters); error != 0) return "seccomp: " + errno_text(error);
  auto ids = choose_ids(configuration.uid_base, configuration.uid_count, registry_);
  // The canary job does not need ids of its own.
  if (!ids && is_probe_) ids = choose_ids(configuration.uid_base, configuration.uid_count, registry_ = {});
  if (!ids) return ids.error().message;
  ids_ = ids->range;
  if (ids_.has_id_per_job() && !registry_.problem().empty()) warn("sandbox.uid_range: " + registry_.problem());
  auto owners = FileOwners::make(configuration.files, ids_, std::move(ids->used));
  if (!owners && !is_probe_) return owners.error().message;
  if (owners) owners_ = std::move(*owners);
  if (!owners) {
    send(Layer{"files", false, "", owners.error().message});
    owners_ = *FileOwners::make({}, ids_);
  }
  cgroups_.open();
  if (cgroups_.must_sample()) sample_periodically();
  if (!is_probe_) schedule_leftover_removal(1000);
  if (!cgroups_.has_memory() && !may_be_missing("cgroup:memory"))
    return "cgroup:memory: missing: " + remedy_for_layer("cgroup:memory");
  if (!cgroups_.has_pids() && !may_be_missing("cgroup:pids"))
    return "cgroup:pids: missing: " + remedy_for_layer("cgroup:pids");
  runs_.configure({ids_, owners_, cgroups_.has_memory(), cgroups_.has_pids(), std::max(configuration.unkillable_ms, 1U),
                   configuration.max_prewarmed == 0 ? 1 : std::max(configuration.max_sandbox_runs, 1U),
                   configuration.disabled_steps});
  ZygotesSettings settings;
  for (const auto& host : configuration.hosts) settings.hosts[{host.name, host.context}] = host;
  const std::string executable = read_executable_path();
  settings.hosts[{kCanaryHost, 0}] = {.name = kCanaryHost, .program = executable, .arguments = {kCanaryArgument}};
  egress_.configure(executable.substr(0, executable.rfind('/') + 1) + egress::kEgressProgram);
  settings.ids = ids_;
  settings.owners = owners_;
  settings.filters = filters_.get();
  settings.alive_fd = alive_fd_.get();
  settings.max_zygote_runs = configuration.max_zygote_runs;
  settings.max_zygote_age_ms = configuration.max_zygote_age_ms;
  settings.max_prewarmed = configuration.max_prewarmed;
  settings.max_warm_processes = configuration.max_warm_processes;
  settings.max_zygotes = configuration.max_zygotes;
  settings.can_landlock_be_missing = may_be_missing("landlock");
  settings.has_memory_cgroup = cgroups_.has_memory();
  settings.fail_step = configuration.fail_step;
  settings.disabled_steps = configuration.disabled_steps;
  settings.job_niceness = job_niceness_;
  for (const auto& step : settings.disabled_steps) warn("disabled, to measure the other layers: " + step);
  zygotes_.configure(std::move(settings));
  return {};
}

void Launcher::sample_periodically() {
  constexpr std::uint64_t kSampleIntervalMs = 50;
  cgroups_.sample();
  loop_.add_timer(boot_ms() + kSampleIntervalMs, [this] { sample_periodically(); });
}

// Removes the cgroups of earlier launchers. The removal is repeated at growing intervals, because the processes of a
// launcher that has just died may still be ending, and a cgroup with processes cannot be removed.
void Launcher::schedule_leftover_removal(std::uint64_t delay_ms) {
  constexpr std::uint64_t kMaxDelayMs = 64'000;
  loop_.add_timer(boot_ms() + delay_ms, [this, delay_ms] {
    cgroups_.remove_leftovers();
    if (delay_ms < kMaxDelayMs) schedule_leftover_removal(2 * delay_ms);
  });
}

void Launcher::on_canary_finished(const std::string& host, ContextId context,
                                  const std::optional<SetupError>& problem) {
  if (host != kCanaryHost || is_canary_finished_) {
    std::string text;
    if (problem)
      text = fmt::format("zygote {} of context {}: {}: {}: {}", host, context, problem->step,
                         errno_text(problem->error), problem->remedy);
    // Each run tries again; the log contains the reason only once.
    if (std::exchange(reported_problems_[{host, context}], text) != text && problem) warn(text);
    return;
  }
  is_canary_finished_ = true;
  zygotes_.end_host(kCanaryHost);
  if (is_probe_) {
    for (const auto& layer : probe_layers_separately(ids_, cgroups_, problem)) send(layer);
  }
  if (problem) {
    start_problem_ = fmt::format("{}: {}: {}", problem->step, errno_text(problem->error), problem->remedy);
  }
  report_start_if_ready();
}

// A folder of fs.write is checked as a volume of the owner of the context's files.
void Launcher::add_written_folder(ContextId context, const std::string& path) {
  const std::string name = fmt::format("contexts.{}.ceiling.fs.write {}", context, path);
  const auto owner = owners_.find_owner(context);
  if (!owner) return report_folder({context, {}, name, false}, owner.error());
  unchecked_folders_.push_back({context, Volume{"folder", path, true, *owner}, name, false});
}

// Each check that runs needs a child, so only a few run at the same time. Disks that hang must not add up their
// time-outs, so no check begins after checks_end_boot_ms_.
void Launcher::check_next_folders() {
  constexpr std::size_t kMaxRunningChecks = 4;
  while (running_checks_ < kMaxRunningChecks && !unchecked_folders_.empty()) {
    const UncheckedFolder folder = std::move(unchecked_folders_.front());
    unchecked_folders_.pop_front();
    if (boot_ms() < checks_end_boot_ms_) {
      check_folder(folder);
    } else {
      report_folder(folder, Error{Code::unavailable, "was not checked, since other folders answer too slowly"});
    }
  }
  report_start_if_ready();
}

// Mounts the folder as for a run. A disk that hangs delays the answer by the time-out of GrantedFolders.
void Launcher::check_folder(const UncheckedFolder& folder) {
  if (std::string problem = find_problem(folder.volume, owners_); !problem.empty())
    return report_folder(folder, Error{Code::unsupported, std::move(problem)});
  OpenFolders request;
  request.grants.volumes = {folder.volume};
  request.job = owners_.get_job_ids(folder.context, owners_.find_fixed_owner(folder.context) ? ids_.fixed_uid() : 0);
  ++running_checks_;
  volume_checks_.open(std::move(request), [this, folder](Result<std::vector<Fd>> opened, bool) {
    --running_checks_;
    report_folder(folder, opened ? std::nullopt : std::optional(std::move(opened).error()));
    check_next_folders();
  });
}

// A volume whose owner cannot be mapped prevents the start. A missing folder or a hanging disk does not, since only the
// runs that need it fail; nor does a folder of fs.write, since a job may never ask for it.
void Launcher::report_folder(const UncheckedFolder& folder, const std::optional<Error>& problem) {
  if (is_probe_) {
    const Volume& volume = folder.volume;
    send(Layer{folder.name, !problem, problem ? "" : fmt::format("{} of user {}", volume.path, volume.owner.uid),
               problem ? problem->message : "", !folder.is_volume});
  } else if (!problem) {
    return;
  } else if (!folder.is_volume || problem->code != Code::unsupported) {
    warn(fmt::format("{}: {}", folder.name, problem->message));
  } else if (start_problem_.empty()) {
    start_problem_ = fmt::format("{}: {}", folder.name, problem->message);
  }
}

void Launcher::report_start_if_ready() {
  const bool is_checking = running_checks_ > 0 || !unchecked_folders_.empty();
  if (!is_canary_finished_ || is_ready_sent_ || (is_checking && (is_probe_ || start_problem_.empty()))) return;
  is_ready_sent_ = true;
  send(LauncherStarted{start_problem_.empty(), start_problem_});
}

void Launcher::launch(const Launch& message, std::vector<Fd> fds) {
  const RunSpec& spec = message.spec;
  if (runs_.find_by_run(spec.run) != nullptr) {
    return warn(fmt::format("launch of run {}: the number is in use", spec.run));
  }
  SandboxRun& run = runs_.add(spec, {std::move(fds[0]), std::move(fds[1]), std::move(fds[2]), std::move(fds[3])});
  if (const std::string problem = find_problem(spec.limits); !problem.empty()) {
    set_setup_error(run, "limits", EINVAL, problem);
  } else if (const std::string grants_problem = find_problem(spec, owners_); !grants_problem.empty()) {
    set_setup_error(run, "grants", EINVAL, grants_problem);
  } else if (const std::string warm_problem = find_problem(spec.warm); !warm_problem.empty()) {
    set_setup_error(run, "warm", EINVAL, warm_problem);
  } else if (!zygotes_.has_host(spec.host, spec.context) || spec.host == kCanaryHost) {
    set_setup_error(run, "host", ENOENT, "unknown script host " + spec.host);
  }
  if (run.has_outcome) return runs_.finish_run(run);
  zygotes_.submit(run);
}

void Launcher::on_run_ended(SandboxRun& run) {
  for (auto& line : run.keeps_process ? egress_.consume_refused(run.id) : egress_.close(run.id))
    run.outcome.notes.push_back(std::move(line));
  if (!run.is_canary && !run.is_idle) send(LauncherRunEnded{run.spec.run, run.outcome});
}

// Reports that the processes of a run cannot be killed. The run is still stored, and its end is reported later.
void Launcher::on_unkillable(const SandboxRun& run, Outcome outcome) {
  if (run.is_canary || run.is_idle) {
    return warn(fmt::format("a {} of host {}: {}", run.is_canary ? "test job" : "prewarmed sandbox", run.spec.host,
                            outcome.reason));
  }
  send(LauncherRunEnded{run.spec.run, std::move(outcome)});
}

void Launcher::warn(const std::string& text) {
  std::string printable = text.substr(0, 4096);
  std::replace_if(
      printable.begin(), printable.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; },
      '?');
  send(LogText{kWarnLevel, std::move(printable)});
}

template <class Message>
void Launcher::send(const Message& message) {
  unsent_.push_back(encode(message));
  flush();
}

// Messages that do not fit are queued, so that a slow agent does not delay the deadlines of this process.
void Launcher::flush() {
  while (!unsent_.empty()) {
    const int error = send_raw(agent_.get(), unsent_.front(), std::vector<int>(), MSG_DONTWAIT);
    if (error == EAGAIN) {
      if (writable_watch_ == 0) {
        writable_watch_ = loop_.watch_writable(agent_writable_.get(), [this](std::uint32_t) { flush(); });
      }
      return;
    }
    unsent_.pop_front();  // sent, or the agent has gone, which read_agent() detects
  }
  loop_.unwatch(writable_watch_, agent_writable_.get());
}

}  // namespace mycojobs::sandbox
