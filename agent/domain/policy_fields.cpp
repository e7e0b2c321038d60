#include "domain/policy_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace mycojobs {
namespace policies {
namespace {

constexpr std::uint64_t kTebi = 1ULL << 40;
constexpr std::uint64_t kLongestMs = 1ULL << 40;  // about 34 years

// What the sandbox can set up at all (sandbox/launcher.cpp); beyond it lies nothing but mistakes.
constexpr NumberRow kNumbers[] = {
    {PolicyField::cpu, Unit::time, 1, kLongestMs, true, [](const Policy& p) { return p.cpu_ms; },
     [](Policy& p, std::uint64_t n) { p.cpu_ms = n; }},
    {PolicyField::memory, Unit::bytes, 4ULL << 20, kTebi, false, [](const Policy& p) { return p.memory_bytes; },
     [](Policy& p, std::uint64_t n) { p.memory_bytes = n; }},
    {PolicyField::pids, Unit::count, 1, 1U << 20, false, [](const Policy& p) -> std::uint64_t { return p.pids; },
     [](Policy& p, std::uint64_t n) { p.pids = static_cast<std::uint32_t>(n); }},
    {PolicyField::wall, Unit::time, 1, kLongestMs, true, [](const Policy& p) { return p.wall_ms; },
     [](Policy& p, std::uint64_t n) { p.wall_ms = n; }},
    {PolicyField::disk, Unit::bytes, 4096, kTebi, false, [](const Policy& p) { return p.disk_bytes; },
     [](Policy& p, std::uint64_t n) { p.disk_bytes = n; }},
    {PolicyField::file_size, Unit::bytes, 4096, kTebi, false, [](const Policy& p) { return p.file_bytes; },
     [](Policy& p, std::uint64_t n) { p.file_bytes = n; }},
    {PolicyField::open_files, Unit::count, 32, 1U << 20, false,
     [](const Policy& p) -> std::uint64_t { return p.open_files; },
     [](Policy& p, std::uint64_t n) { p.open_files = static_cast<std::uint32_t>(n); }},
    {PolicyField::output_keep, Unit::bytes, 1, kTebi, false, [](const Policy& p) { return p.output_bytes; },
     [](Policy& p, std::uint64_t n) { p.output_bytes = n; }},
};

constexpr ListRow kLists[] = {
    {PolicyField::fs_read, kMaxFolders, "folders", &Policy::fs_read},
    {PolicyField::fs_write, kMaxFolders, "folders", &Policy::fs_write},
    {PolicyField::syscalls, 64, "system calls", &Policy::syscalls},
    {PolicyField::secrets, 16, "secrets", &Policy::secrets},
};

constexpr SwitchRow kSwitches[] = {
    {PolicyField::exec, &Policy::exec},
    {PolicyField::output_kill, &Policy::output_kill},
};

struct Scale {
  std::string_view name;
  std::uint64_t factor;
};
constexpr Scale kSizes[] = {{"TiB", 1ULL << 40}, {"GiB", 1ULL << 30}, {"MiB", 1ULL << 20}, {"KiB", 1ULL << 10}};
constexpr Scale kTimes[] = {{"d", 86'400'000}, {"h", 3'600'000}, {"m", 60'000}, {"s", 1000}, {"ms", 1}};

}  // namespace

std::span<const NumberRow> number_rows() { return kNumbers; }
std::span<const ListRow> list_rows() { return kLists; }
std::span<const SwitchRow> switch_rows() { return kSwitches; }

std::string number_text(Unit unit, std::uint64_t value) {
  const std::string digits = std::to_string(value);
  if (unit == Unit::count) return digits;
  const std::span<const Scale> scales = unit == Unit::bytes ? std::span<const Scale>(kSizes) : kTimes;
  for (const Scale& scale : scales) {
    if (value != 0 && value % scale.factor == 0)
      return std::to_string(value / scale.factor) + ' ' + std::string(scale.name);
  }
  return digits + (unit == Unit::bytes ? " bytes" : " ms");
}

void add_missing(std::vector<std::string>& to, const std::vector<std::string>& items) {
  for (const std::string& item : items) {
    if (std::find(to.begin(), to.end(), item) == to.end()) to.push_back(item);
  }
}

}  // namespace policies

std::string_view word(PolicyField field) {
  static constexpr std::array<std::string_view, kPolicyFields> kWords = {
      "fs.read", "fs.write",  "net",        "exec",        "cpu",         "memory",       "pids",   "wall",
      "disk",    "file_size", "open_files", "output.keep", "output.kill", "syscalls.add", "secrets"};
  return kWords[policies::index(field)];
}

nlohmann::json to_json(const Policy& policy) {
  auto out = nlohmann::json::object();
  for (const auto& row : policies::list_rows()) out[word(row.field)] = policy.*row.member;
  for (const auto& row : policies::switch_rows()) out[word(row.field)] = policy.*row.member;
  for (const auto& row : policies::number_rows()) {
    const std::uint64_t value = row.get(policy);
    out[word(row.field)] = row.may_be_unlimited && value == 0 ? nlohmann::json() : nlohmann::json(value);
  }
  auto& net = out[word(PolicyField::net)];
  if (policy.network == Network::allow_list) {
    net = policy.net_allow;
  } else {
    net = policy.network == Network::none ? "none" : "loopback";
  }
  return out;
}

std::string value_text(PolicyField field, const Policy& policy) {
  for (const auto& row : policies::number_rows()) {
    if (row.field != field) continue;
    const std::uint64_t value = row.get(policy);
    if (row.may_be_unlimited && value == 0) return "\"unlimited\"";
    const std::string text = policies::number_text(row.unit, value);
    return row.unit == policies::Unit::count || text.ends_with("bytes") ? std::to_string(value) : '"' + text + '"';
  }
  return dump_json(to_json(policy).at(word(field)));
}

}  // namespace mycojobs
