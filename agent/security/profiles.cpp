#include "security/profiles.h"

#include <algorithm>
#include <cassert>
#include <vector>

namespace mycojobs {
namespace {

constexpr std::uint64_t kMebi = 1ULL << 20;

// The table of defaults. Fields that are not set here have the defaults of Policy.
std::vector<Profile> make_profiles() {
  Policy compile;
  compile.exec = true;
  compile.memory_bytes = 1024 * kMebi;
  Policy run;
  run.exec = true;  // to start the program
  Policy small;
  small.memory_bytes = 64 * kMebi;
  small.pids = 4;
  small.open_files = 32;
  small.output_bytes = 256ULL << 10;
  Policy programs;
  programs.exec = true;
  return {{"python", {}, true},  {"v.compile", compile}, {"v.run", run},      {"sal", small, true},
          {"osis", small, true}, {"command", programs},  {"native", programs}};
}

}  // namespace

std::span<const Profile> profiles() {
  static const std::vector<Profile> kProfiles = make_profiles();
  return kProfiles;
}

const Policy& profile(std::string_view name) {
  const auto rows = profiles();
  const auto match = std::find_if(rows.begin(), rows.end(), [&](const Profile& row) { return row.name == name; });
  assert(match != rows.end());
  return match->policy;
}

std::string_view get_profile_name(std::string_view script_type) {
  if (script_type == "v") return "v.run";
  if (script_type == "rust") return "native";
  for (const Profile& row : profiles()) {
    if (row.name == script_type && script_type != "command") return row.name;
  }
  return "command";
}

Result<void> check_warm(std::string_view name, const Policy& policy) {
  if (policy.warm_runs == 0) return {};
  std::string names;
  for (const Profile& row : profiles()) {
    if (row.supports_warm && row.name == name) return {};
    if (row.supports_warm) names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return fail(Code::invalid,
              "policy.warm.runs: " + std::string(name) + " has no warm processes (" + names + " have): omit it");
}

void apply_policy(RunSpec& spec, const Policy& policy, std::uint64_t timeout_ms) {
  Limits& limits = spec.limits;
  limits.memory_bytes = policy.memory_bytes;
  limits.pids = policy.pids;
  limits.wall_ms = policy.wall_ms == 0 ? timeout_ms : std::min(policy.wall_ms, timeout_ms);
  limits.cpu_ms = policy.cpu_ms;
  limits.open_files = policy.open_files;
  limits.file_bytes = policy.file_bytes;
  limits.tmp_bytes = policy.disk_bytes;
  limits.exec = policy.exec;
  spec.merge_output = policy.output_merge;
  spec.warm.runs = policy.warm_runs;
  spec.warm.idle_ms = policy.warm_idle_ms;
  spec.grants = {policy.fs_read, policy.fs_write, policy.network, policy.net_allow, policy.syscalls, {}};
}

}  // namespace mycojobs
