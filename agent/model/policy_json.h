// The text form of policies: names of fields, reading and writing. The type Policy is in sandbox/sandbox_policy.h, the
// defaults of each kind of run in security/profiles.h, and the combination with the operator's ceiling in
// security/ceilings.h. Checks names, numbers and structure; never accesses files of the host. Thread-safe.
//
//   read_policy(text) --> PolicyRequest: the fields that the text names
//
// The JSON form. A name may be a path of objects or one text with dots: {"fs": {"read": []}} is {"fs.read": []}.
//
//   fs.read, fs.write, volumes, secrets, syscalls.add, python.requirements
//                                               lists; the items are added to those of the profile
//   net                                         "none", "loopback" or a list of entries, which are added
//   exec, output.kill, output.merge, log.full, artifacts.optional  true or false; "log": "full" is "log.full": true
//   memory, disk, file_size, output.keep, log.keep      bytes, or text such as "64 MiB"
//   cpu, wall                                   milliseconds, or text such as "30 s"
//   pids, open_files                            whole numbers
//   warm.runs                                   a whole number; 0 for no warm process
//   warm.idle                                   as cpu and wall
//   replace.<a list or net>                     replaces the items of the profile
#pragma once

#include <bitset>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/field_problem.h"
#include "model/records.h"
#include "sandbox/sandbox_policy.h"

namespace mycojobs {

enum class PolicyField : std::size_t {
  fs_read,
  fs_write,
  net,
  exec,
  cpu,
  memory,
  pids,
  wall,
  disk,
  file_size,
  open_files,
  output_keep,
  output_kill,
  syscalls,
  secrets,
  warm_runs,
  warm_idle,
  artifacts_optional,
  volumes,
  output_merge,
  python_requirements,
  log_keep,
  log_full,
};
inline constexpr std::size_t kPolicyFields = 23;
// Returns whether a ceiling can restrict the field. Jobs may request the other fields everywhere.
inline constexpr bool has_ceiling(PolicyField field) {
  return field != PolicyField::output_kill && field != PolicyField::output_merge && field != PolicyField::log_full &&
         field != PolicyField::artifacts_optional && field != PolicyField::python_requirements;
}
inline constexpr std::size_t kMaxPolicyBytes = 64U << 10;  // size of a policy as text
inline constexpr std::size_t kMaxFolders = 16;             // fs.read, fs.write and volumes together

// Returns the name in a policy's text: "fs.read", "output.keep".
std::string_view to_string(PolicyField);
// Returns the value as it is written in a policy, as JSON that is also valid TOML: "64 MiB", 16, true, ["/srv/a"],
// "unlimited".
std::string format_policy_value(PolicyField, const Policy&);

struct PolicyRequest {
  Policy values;  // values of the named fields
  std::bitset<kPolicyFields> named_fields;
  std::bitset<kPolicyFields> replaced_fields;  // fields that replace the value of the profile instead of adding to it
  bool names(PolicyField field) const { return named_fields[static_cast<std::size_t>(field)]; }
  bool replaces(PolicyField field) const { return replaced_fields[static_cast<std::size_t>(field)]; }
  bool operator==(const PolicyRequest&) const = default;
};

enum class PolicyKind {
  request,  // requested by a job
  // The maximum that an operator allows. Lists are complete, so there is no `replace`. cpu and wall may be "unlimited".
  // "*" in syscalls.add allows every call for which requires_grant() is false.
  ceiling,
};

struct ParsedPolicy {
  PolicyRequest request;
  std::vector<FieldProblem> problems;  // for example field "policy.memory", message "policy.memory: -1 is not ..."
  bool ok() const { return problems.empty(); }
};
// `prefix` precedes the names of fields in problems, for example "policy"; it may be empty. An empty text requests
// nothing.
ParsedPolicy read_policy(std::string_view json_text, std::string_view prefix, PolicyKind = PolicyKind::request);
// Returns one line of JSON that read_policy() parses to the same request.
std::string write_policy(const PolicyRequest&);
// Returns all fields by name. Sizes and times are plain numbers; null means no limit.
nlohmann::json to_json(const Policy&);

// Returns the part of a receipt that shows a job's policy, as members of a JSON object. "granted" has the fields that
// grant something: empty lists, flags that are false, and numbers without a limit are omitted. "lowered", if not empty,
// has the fields that a ceiling has lowered.
std::string format_grant_members(const Policy&, const std::vector<std::string>& lowered);

// Returns whether the call is one that no legitimate script needs. A ceiling allows such a call only by name, never by
// "*".
bool is_forbidden_syscall(std::string_view syscall);
// Returns whether "*" excludes the call: calls of is_forbidden_syscall(), and calls that another field grants or whose
// arguments the sandbox checks (fork, socket, ioctl, prlimit64, ...).
bool requires_grant(std::string_view syscall);
bool is_known_syscall(std::string_view name);

}  // namespace mycojobs

namespace mycojobs::policies {

// The tables that define the fields: one row per field.

enum class Unit { bytes, time, count };

struct NumberRow {
  PolicyField field;
  Unit unit;
  std::uint64_t min, max;
  bool can_be_unlimited;  // 0 in a Policy means no limit
  std::uint64_t (*get)(const Policy&);
  void (*set)(Policy&, std::uint64_t);
};
std::span<const NumberRow> number_rows();

struct ListRow {
  PolicyField field;
  std::size_t max;  // maximum number of items
  std::string_view noun;
  std::vector<std::string> Policy::*member;
};
std::span<const ListRow> list_rows();  // without net

struct SwitchRow {
  PolicyField field;
  bool Policy::*member;
};
std::span<const SwitchRow> switch_rows();

inline constexpr std::size_t kMaxNetEntries = 64;

// Returns "64 MiB", "30 s" or "16": in the largest unit that gives a whole number.
std::string format_number(Unit, std::uint64_t value);
inline std::size_t index(PolicyField field) { return static_cast<std::size_t>(field); }
// Appends the items that the list does not have.
void add_missing(std::vector<std::string>& list, const std::vector<std::string>& items);

// Check one item and return it in its normal form. Error invalid: describes the problem without the position of the
// item.
Result<std::string> check_folder(std::string_view path);
Result<std::string> check_allow_entry(std::string_view entry);  // host:port
Result<std::string> check_syscall(std::string_view name, PolicyKind);
Result<std::string> check_secret(std::string_view name);
Result<std::string> check_volume(std::string_view name);
// Accepts a package with optional extras, versions and markers: "requests[socks] >=2.28, <3; python_version >= '3.8'".
// Rejects URLs and paths, since packages come only from the index of the operator, and options of pip.
Result<std::string> check_python_requirement(std::string_view requirement);
inline constexpr std::size_t kMaxPythonRequirements = 100;

// Returns whether path is folder or is below it. REQUIRES: both are in normal form.
bool is_within(std::string_view path, std::string_view folder);
// Returns whether one of the two folders contains the other. REQUIRES: as is_within().
bool overlaps(std::string_view a, std::string_view b);
// Returns whether `granted` covers every destination of `requested`.
bool covers_entry(std::string_view granted, std::string_view requested);

}  // namespace mycojobs::policies
