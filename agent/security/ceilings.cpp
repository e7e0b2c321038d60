#include "security/ceilings.h"

#include <algorithm>
#include <string_view>

#include "text/utf8.h"

namespace mycojobs {
namespace {

using policies::NumberRow;

constexpr std::size_t kMaxShownProblems = 8;     // in one message; `mycojobs policy check` shows all
constexpr std::size_t kMaxShownItemBytes = 200;  // size of a list item in a message

// Returns a number for comparisons, in which "no limit" is higher than every limit.
std::uint64_t to_comparable(const NumberRow& row, std::uint64_t value) {
  return row.can_be_unlimited && value == 0 ? UINT64_MAX : value;
}

bool is_within_any(const std::string& path, const std::vector<std::string>& folders) {
  return std::any_of(folders.begin(), folders.end(),
                     [&](const std::string& folder) { return policies::is_within(path, folder); });
}

bool contains_item(const std::vector<std::string>& items, std::string_view item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

bool allows_read(const Policy& max, const std::string& path) {
  return is_within_any(path, max.fs_read) || is_within_any(path, max.fs_write);  // write access implies read access
}

bool allows_syscall(const Policy& max, const std::string& name) {
  return contains_item(max.syscalls, name) || (contains_item(max.syscalls, "*") && !requires_grant(name));
}

bool allows_connection(const Policy& max, const std::string& entry) {
  return max.network == Network::allow_list &&
         std::any_of(max.net_allow.begin(), max.net_allow.end(),
                     [&](const std::string& granted) { return policies::covers_entry(granted, entry); });
}

// Lowers a policy, which has the request applied, to a ceiling. Each method applies the ceiling to one field or to one
// kind of field. A requested value that is not allowed is reported; a value of the profile is lowered silently.
class CeilingApplier {
 public:
  CeilingApplier(const PolicyRequest& request, const Ceiling& ceiling, GrantedPolicy& out)
      : request_(request), ceiling_(ceiling), max_(ceiling.max), out_(out) {}

  void apply() {
    for (const auto& row : policies::number_rows()) apply_number(row);
    for (const auto& row : policies::switch_rows()) apply_switch(row);
    apply_folders(PolicyField::fs_read, &Policy::fs_read);
    apply_folders(PolicyField::fs_write, &Policy::fs_write);
    apply_network();
    apply_list(PolicyField::syscalls, &Policy::syscalls,
               [this](const std::string& name) { return allows_syscall(max_, name); });
    apply_list(PolicyField::secrets, &Policy::secrets,
               [this](const std::string& name) { return contains_item(max_.secrets, name); });
    apply_volumes();
    check_counts();
  }

 private:
  bool has_written_ceiling(PolicyField field) const { return ceiling_.written_fields[policies::index(field)]; }
  // Returns whether the field is not requested and has no written ceiling, so that the profile's value stays.
  bool is_unrestricted(PolicyField field) const { return !request_.names(field) && !has_written_ceiling(field); }

  // Adds a problem such as: "policy.memory: 2 GiB is more than the ceiling of 512 MiB for context 3: ask for less, or
  // let the operator raise [contexts.3.ceiling] memory".
  void reject(PolicyField field, const std::string& problem, std::string_view remedy, std::string_view operator_verb,
              std::string_view value = "") {
    const std::string name = "policy." + std::string(to_string(field));
    const std::string context = std::to_string(ceiling_.context);
    out_.problems.push_back({name, name + ": " + problem + " for context " + context + ": " + std::string(remedy) +
                                       ", or let the operator " + std::string(operator_verb) + " [contexts." + context +
                                       ".ceiling] " + std::string(to_string(field)) + std::string(value)});
  }

  void apply_number(const NumberRow& row) {
    const std::uint64_t value = row.get(out_.policy);
    const std::uint64_t max = row.get(max_);
    if (to_comparable(row, value) <= to_comparable(row, max) || is_unrestricted(row.field)) return;
    if (row.field == PolicyField::warm_runs && max == 0) {
      if (request_.names(row.field)) reject(row.field, "warm scripts are not allowed", "leave it out", "set");
    } else if (request_.names(row.field)) {
      reject(row.field,
             policies::format_number(row.unit, value) + " is more than the ceiling of " +
                 policies::format_number(row.unit, max),
             "ask for less", "raise");
    }
    row.set(out_.policy, max);
  }

  void apply_switch(const policies::SwitchRow& row) {
    bool& value = out_.policy.*row.member;
    if (!value || max_.*row.member || is_unrestricted(row.field) || !has_ceiling(row.field)) return;
    if (request_.names(row.field)) reject(row.field, "is not allowed", "leave it out", "set", " = true");
    value = false;
  }

  // Items that were not requested come from the profile and are dropped if they are not allowed.
  template <class IsAllowed>
  void apply_list(PolicyField field, std::vector<std::string> Policy::*member, IsAllowed is_allowed) {
    std::vector<std::string> granted;
    for (const std::string& item : out_.policy.*member) {
      const bool is_requested = requests_item(field, member, item);
      if (is_allowed(item) || (!is_requested && !has_written_ceiling(field))) {
        granted.push_back(item);
      } else if (is_requested) {
        reject(field, excerpt(item, kMaxShownItemBytes) + " is not allowed", "leave it out", "name it in");
      }
    }
    out_.policy.*member = std::move(granted);
  }
  bool requests_item(PolicyField field, std::vector<std::string> Policy::*member, const std::string& item) const {
    return request_.names(field) && contains_item(request_.values.*member, item);
  }

  void apply_folders(PolicyField field, std::vector<std::string> Policy::*member) {
    const bool is_read_access = field == PolicyField::fs_read;
    std::vector<std::string> granted;
    for (const std::string& path : out_.policy.*member) {
      const bool is_requested = requests_item(field, member, path);
      const auto& agent_folders = ceiling_.agent_folders;
      const auto conflict = std::find_if(agent_folders.begin(), agent_folders.end(),
                                         [&](const std::string& folder) { return policies::overlaps(path, folder); });
      if (conflict != agent_folders.end()) {
        const std::string name = "policy." + std::string(to_string(field));
        if (is_requested) {
          out_.problems.push_back({name, name + ": " + excerpt(path, kMaxShownItemBytes) +
                                             " leads to the agent's own folder " + *conflict +
                                             ", which no job may have: name another one"});
        }
      } else if (!is_requested && !has_written_ceiling(field)) {
        granted.push_back(path);
      } else if (is_read_access ? allows_read(max_, path) : is_within_any(path, max_.fs_write)) {
        granted.push_back(path);
      } else if (is_requested) {
        reject(field, excerpt(path, kMaxShownItemBytes) + " is not allowed", "leave it out", "name it in");
      } else {
        add_allowed_subfolders(path, max_.*member, granted);
      }
    }
    out_.policy.*member = std::move(granted);
  }
  // Adds the allowed folders below `path`, for a profile that grants a whole folder of which the ceiling allows parts.
  void add_allowed_subfolders(const std::string& path, const std::vector<std::string>& allowed,
                              std::vector<std::string>& granted) const {
    for (const std::string& subfolder : allowed) {
      const bool is_agent_folder =
          std::any_of(ceiling_.agent_folders.begin(), ceiling_.agent_folders.end(),
                      [&](const std::string& folder) { return policies::overlaps(subfolder, folder); });
      if (policies::is_within(subfolder, path) && !is_agent_folder) policies::add_missing(granted, {subfolder});
    }
  }

  // A ceiling has no list of volumes of its own: the volumes of the context are the ceiling.
  void apply_volumes() {
    std::vector<std::string> granted;
    for (const std::string& name : out_.policy.volumes) {
      if (contains_item(max_.volumes, name)) {
        granted.push_back(name);
        continue;
      }
      if (!requests_item(PolicyField::volumes, &Policy::volumes, name)) continue;
      const std::string context = std::to_string(ceiling_.context);
      out_.problems.push_back({"policy.volumes", "policy.volumes: context " + context + " has no volume " + name +
                                                     ": leave it out, or let the operator add [contexts." + context +
                                                     ".volumes." + name + "]"});
    }
    out_.policy.volumes = std::move(granted);
  }

  void apply_network() {
    Policy& policy = out_.policy;
    if (policy.network != Network::none && max_.network == Network::none && !is_unrestricted(PolicyField::net)) {
      if (request_.names(PolicyField::net) && request_.values.network != Network::none) {
        reject(PolicyField::net, "network is not allowed", "leave it out", "set", " to what it may reach");
      }
      policy.network = Network::none;
    }
    if (policy.network == Network::allow_list) {
      apply_list(PolicyField::net, &Policy::net_allow,
                 [this](const std::string& entry) { return allows_connection(max_, entry); });
      if (policy.net_allow.empty()) policy.network = Network::loopback;
    }
    if (policy.network != Network::allow_list) policy.net_allow.clear();
  }

  // Profile and request together may exceed a limit that neither exceeds alone.
  void check_counts() {
    const Policy& policy = out_.policy;
    const bool requests_read = request_.names(PolicyField::fs_read);
    check_count(requests_read ? PolicyField::fs_read : PolicyField::fs_write, count_folders(policy), kMaxFolders,
                "folders");
    check_count(PolicyField::net, policy.net_allow.size(), policies::kMaxNetEntries, "entries");
    for (const auto& row : policies::list_rows()) {
      if (row.field == PolicyField::syscalls || row.field == PolicyField::secrets)
        check_count(row.field, (policy.*row.member).size(), row.max, row.noun);
    }
  }
  void check_count(PolicyField field, std::size_t count, std::size_t max, std::string_view noun) {
    if (count <= max || !request_.names(field)) return;
    const std::string name = "policy." + std::string(to_string(field));
    out_.problems.push_back({name, name + ": " + std::to_string(count) + ' ' + std::string(noun) +
                                       " together with those of the profile are more than " + std::to_string(max)});
  }

  const PolicyRequest& request_;
  const Ceiling& ceiling_;
  const Policy& max_;
  GrantedPolicy& out_;
};

}  // namespace

Policy default_ceiling() {
  constexpr std::uint64_t kMebibyte = 1ULL << 20;
  Policy max;
  max.cpu_ms = max.wall_ms = 0;
  max.memory_bytes = 1024 * kMebibyte;
  max.pids = 256;
  max.disk_bytes = 1024 * kMebibyte;
  max.file_bytes = 1024 * kMebibyte;
  max.open_files = 1024;
  max.output_bytes = kMebibyte;
  max.log_bytes = 64 * kMebibyte;
  max.warm_idle_ms = 600'000;
  return max;
}

Ceiling Ceilings::get(Id context) const {
  const auto specific = contexts.find(context);
  std::bitset<kPolicyFields> fields;
  for (const Id id : {Id{0}, context}) {
    if (const auto it = written_fields.find(id); it != written_fields.end()) fields |= it->second;
  }
  Ceiling ceiling{specific == contexts.end() ? standard : specific->second, context, agent_folders, fields, {}};
  if (const auto found = volumes.find(context); found != volumes.end()) ceiling.volumes = found->second;
  for (const Volume& volume : ceiling.volumes) ceiling.max.volumes.push_back(volume.name);
  return ceiling;
}

Policy apply_request(const Policy& profile, const PolicyRequest& request) {
  Policy out = profile;
  const Policy& values = request.values;
  for (const auto& row : policies::number_rows()) {
    if (request.names(row.field)) row.set(out, row.get(values));
  }
  for (const auto& row : policies::switch_rows()) {
    if (request.names(row.field)) out.*row.member = values.*row.member;
  }
  for (const auto& row : policies::list_rows()) {
    if (request.replaces(row.field)) (out.*row.member).clear();
    if (request.names(row.field)) policies::add_missing(out.*row.member, values.*row.member);
  }
  if (request.names(PolicyField::net)) {
    const bool extends_profile = values.network == Network::allow_list && !request.replaces(PolicyField::net);
    out.network = values.network;
    if (!extends_profile) out.net_allow.clear();
    policies::add_missing(out.net_allow, values.net_allow);
  }
  return out;
}

GrantedPolicy apply_ceiling(const Policy& profile, const PolicyRequest& request, const Ceiling& ceiling) {
  GrantedPolicy out{apply_request(profile, request), {}};
  CeilingApplier(request, ceiling, out).apply();
  return out;
}

Result<Policy> apply_ceiling_or_fail(const Policy& profile, const PolicyRequest& request, const Ceiling& ceiling) {
  GrantedPolicy granted = apply_ceiling(profile, request, ceiling);
  auto& problems = granted.problems;
  if (problems.empty()) return std::move(granted.policy);
  const std::size_t omitted_count = problems.size() - std::min(problems.size(), kMaxShownProblems);
  problems.resize(problems.size() - omitted_count);
  return fail(Code::invalid,
              join(problems) + (omitted_count > 0 ? "; and " + std::to_string(omitted_count) + " more" : ""));
}

std::vector<PolicyDifference> diff(const Policy& before, const Policy& after) {
  std::vector<PolicyDifference> out;
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    const auto field = static_cast<PolicyField>(i);
    std::string old_text = format_policy_value(field, before);
    std::string new_text = format_policy_value(field, after);
    if (old_text != new_text) out.push_back({field, std::move(old_text), std::move(new_text)});
  }
  return out;
}

}  // namespace mycojobs
