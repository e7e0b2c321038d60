// Profile, request and ceiling come together here.
#include <algorithm>

#include "domain/policy_fields.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

using policies::NumberRow;
using policies::Unit;

constexpr std::size_t kToldAtOnce = 8;  // in one line; `mycojobs policy check` tells all

// As an order of numbers, in which no limit is above every limit.
std::uint64_t rank(const NumberRow& row, std::uint64_t value) {
  return row.may_be_unlimited && value == 0 ? UINT64_MAX : value;
}

bool is_within_any(const std::string& path, const std::vector<std::string>& folders) {
  return std::any_of(folders.begin(), folders.end(),
                     [&](const std::string& folder) { return policies::is_within(path, folder); });
}

bool may_read(const Policy& most, const std::string& path) {
  return is_within_any(path, most.fs_read) || is_within_any(path, most.fs_write);  // who may write may read
}

bool has(const std::vector<std::string>& items, std::string_view item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

bool may_call(const Policy& most, const std::string& name) {
  return has(most.syscalls, name) || (has(most.syscalls, "*") && !must_be_named(name));
}

bool may_reach(const Policy& most, const std::string& entry) {
  return most.network == Network::allow_list &&
         std::any_of(most.net_allow.begin(), most.net_allow.end(),
                     [&](const std::string& granted) { return policies::covers_entry(granted, entry); });
}

bool touches(const std::string& path, const std::string& folder) {
  return policies::is_within(path, folder) || policies::is_within(folder, path);
}

class Weighing {
 public:
  Weighing(const PolicyRequest& asked, const Ceiling& ceiling, Combined& out)
      : asked_(asked), ceiling_(ceiling), most_(ceiling.most), out_(out) {}

  void weigh() {
    for (const auto& row : policies::number_rows()) number(row);
    for (const auto& row : policies::switch_rows()) {
      bool& value = out_.policy.*row.member;
      if (!value || most_.*row.member || keeps(row.field)) continue;
      // Being killed for too much output is no grant: a job may ask for it wherever it runs.
      if (row.field == PolicyField::output_kill) continue;
      if (asked_.names(row.field)) refuse(row.field, "is not allowed", "leave it out", "set", " = true");
      value = false;
    }
    folders(PolicyField::fs_read, &Policy::fs_read);
    folders(PolicyField::fs_write, &Policy::fs_write);
    network();
    list(PolicyField::syscalls, &Policy::syscalls, [this](const std::string& name) { return may_call(most_, name); });
    list(PolicyField::secrets, &Policy::secrets, [this](const std::string& name) { return has(most_.secrets, name); });
    counts();
  }

 private:
  bool is_written(PolicyField field) const { return ceiling_.written[static_cast<std::size_t>(field)]; }
  // From the profile alone, and nobody has written a ceiling.
  bool keeps(PolicyField field) const { return !asked_.names(field) && !is_written(field); }

  // "policy.memory: 2 GiB is more than the ceiling of 512 MiB for context 3: ask for less, or let the operator raise
  // [contexts.3.ceiling] memory"
  void refuse(PolicyField field, const std::string& what, std::string_view remedy, std::string_view operator_does,
              std::string_view value = "") {
    const std::string name = "policy." + std::string(word(field));
    const std::string context = std::to_string(ceiling_.context);
    out_.problems.push_back({name, name + ": " + what + " for context " + context + ": " + std::string(remedy) +
                                       ", or let the operator " + std::string(operator_does) + " [contexts." + context +
                                       ".ceiling] " + std::string(word(field)) + std::string(value)});
  }

  void number(const NumberRow& row) {
    const std::uint64_t value = row.get(out_.policy);
    const std::uint64_t most = row.get(most_);
    if (rank(row, value) <= rank(row, most) || keeps(row.field)) return;
    if (asked_.names(row.field)) {
      refuse(row.field,
             policies::number_text(row.unit, value) + " is more than the ceiling of " +
                 policies::number_text(row.unit, most),
             "ask for less", "raise");
    }
    row.set(out_.policy, most);
  }

  // Items that were not asked for are from the profile: what is not allowed of them is left out.
  template <class May>
  void list(PolicyField field, std::vector<std::string> Policy::*member, May may) {
    std::vector<std::string> kept;
    for (const std::string& item : out_.policy.*member) {
      const bool asked = was_asked(field, member, item);
      if (may(item) || (!asked && !is_written(field))) {
        kept.push_back(item);
      } else if (asked) {
        refuse(field, shown(item, 200) + " is not allowed", "leave it out", "name it in");
      }
    }
    out_.policy.*member = std::move(kept);
  }
  bool was_asked(PolicyField field, std::vector<std::string> Policy::*member, const std::string& item) const {
    return asked_.names(field) && has(asked_.values.*member, item);
  }

  void folders(PolicyField field, std::vector<std::string> Policy::*member) {
    const bool reading = field == PolicyField::fs_read;
    std::vector<std::string> kept;
    for (const std::string& path : out_.policy.*member) {
      const bool asked = was_asked(field, member, path);
      const auto& own = ceiling_.own_folders;
      const auto touched =
          std::find_if(own.begin(), own.end(), [&](const std::string& folder) { return touches(path, folder); });
      if (touched != own.end()) {
        const std::string name = "policy." + std::string(word(field));
        if (asked) {
          out_.problems.push_back({name, name + ": " + shown(path, 200) + " leads to the agent's own folder " +
                                             *touched + ", which no job may have: name another one"});
        }
      } else if (!asked && !is_written(field)) {
        kept.push_back(path);
      } else if (reading ? may_read(most_, path) : is_within_any(path, most_.fs_write)) {
        kept.push_back(path);
      } else if (asked) {
        refuse(field, shown(path, 200) + " is not allowed", "leave it out", "name it in");
      } else {
        narrow(path, most_.*member, kept);
      }
    }
    out_.policy.*member = std::move(kept);
  }
  // The profile has a whole folder, the ceiling only parts of it.
  void narrow(const std::string& path, const std::vector<std::string>& allowed, std::vector<std::string>& kept) const {
    for (const std::string& part : allowed) {
      const bool own = std::any_of(ceiling_.own_folders.begin(), ceiling_.own_folders.end(),
                                   [&](const std::string& folder) { return touches(part, folder); });
      if (policies::is_within(part, path) && !own) policies::add_missing(kept, {part});
    }
  }

  void network() {
    Policy& policy = out_.policy;
    if (policy.network != Network::none && most_.network == Network::none && !keeps(PolicyField::net)) {
      if (asked_.names(PolicyField::net) && asked_.values.network != Network::none) {
        refuse(PolicyField::net, "network is not allowed", "leave it out", "set", " to what it may reach");
      }
      policy.network = Network::none;
    }
    if (policy.network == Network::allow_list) {
      list(PolicyField::net, &Policy::net_allow, [this](const std::string& entry) { return may_reach(most_, entry); });
      if (policy.net_allow.empty()) policy.network = Network::loopback;
    }
    if (policy.network != Network::allow_list) policy.net_allow.clear();
  }

  // What profile and request name together may be too much, although neither is.
  void counts() {
    const Policy& policy = out_.policy;
    const std::size_t all_folders = policy.fs_read.size() + policy.fs_write.size();
    const bool reading = asked_.names(PolicyField::fs_read);
    too_many(reading ? PolicyField::fs_read : PolicyField::fs_write, all_folders, kMaxFolders, "folders");
    too_many(PolicyField::net, policy.net_allow.size(), policies::kMaxNetEntries, "entries");
    for (const auto& row : policies::list_rows()) {
      if (row.field == PolicyField::syscalls || row.field == PolicyField::secrets)
        too_many(row.field, (policy.*row.member).size(), row.most, row.noun);
    }
  }
  void too_many(PolicyField field, std::size_t count, std::size_t most, std::string_view noun) {
    if (count <= most || !asked_.names(field)) return;
    const std::string name = "policy." + std::string(word(field));
    out_.problems.push_back({name, name + ": " + std::to_string(count) + ' ' + std::string(noun) +
                                       " together with those of the profile are more than " + std::to_string(most)});
  }

  const PolicyRequest& asked_;
  const Ceiling& ceiling_;
  const Policy& most_;
  Combined& out_;
};

}  // namespace

Policy applied(const Policy& profile, const PolicyRequest& request) {
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
    const bool adds = values.network == Network::allow_list && !request.replaces(PolicyField::net);
    out.network = values.network;
    if (!adds) out.net_allow.clear();
    policies::add_missing(out.net_allow, values.net_allow);
  }
  return out;
}

Combined weigh(const Policy& profile, const PolicyRequest& request, const Ceiling& ceiling) {
  Combined out{applied(profile, request), {}};
  Weighing(request, ceiling, out).weigh();
  return out;
}

Result<Policy> combine(const Policy& profile, const PolicyRequest& request, const Ceiling& ceiling) {
  Combined combined = weigh(profile, request, ceiling);
  auto& problems = combined.problems;
  if (problems.empty()) return std::move(combined.policy);
  const std::size_t more = problems.size() - std::min(problems.size(), kToldAtOnce);
  problems.resize(problems.size() - more);
  return fail(Code::invalid, join(problems) + (more > 0 ? "; and " + std::to_string(more) + " more" : ""));
}

std::vector<PolicyDifference> diff(const Policy& before, const Policy& after) {
  std::vector<PolicyDifference> out;
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    const auto field = static_cast<PolicyField>(i);
    std::string was = value_text(field, before);
    std::string is = value_text(field, after);
    if (was != is) out.push_back({field, std::move(was), std::move(is)});
  }
  return out;
}

}  // namespace mycojobs
