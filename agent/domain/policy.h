// Policies: read from JSON, combined, compared. The shape is in include/mycojobs/policy.h; who has which is in
// profiles.h. Nothing here looks at the host: names, numbers and shapes are checked, files are not.
//
//   read_policy(text)               --> PolicyRequest: what the text names
//   combine(profile, asked, most)   --> Policy: never above `most` in any field
//
// As JSON. A name may be a path of objects or one word with dots: {"fs": {"read": []}} is {"fs.read": []}.
//
//   fs.read, fs.write, secrets, syscalls.add    lists; what is named is added to what the profile has
//   net                                         "none", "loopback" or a list of entries, which are added
//   exec, output.kill, artifacts.optional       true or false
//   memory, disk, file_size, output.keep        bytes, or text such as "64 MiB"
//   cpu, wall                                   milliseconds, or text such as "30 s"
//   pids, open_files                            whole numbers
//   warm.runs                                   a whole number, 0: not warm
//   warm.idle                                   as cpu and wall
//   replace.<a list or net>                     stands instead of what the profile has
#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "domain/codec.h"
#include "mycojobs/policy.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

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
};
inline constexpr std::size_t kPolicyFields = 18;
// What a job may ask for wherever it runs: no ceiling forbids it.
inline constexpr bool has_ceiling(PolicyField field) {
  return field != PolicyField::output_kill && field != PolicyField::artifacts_optional;
}
inline constexpr std::size_t kMaxPolicyBytes = 64U << 10;  // of a policy as text
inline constexpr std::size_t kMaxFolders = 16;             // of fs.read and fs.write together

// "fs.read", "output.keep": the name in a policy's text.
std::string_view word(PolicyField);
// The value as a policy's text has it, in JSON, which is TOML's too: "64 MiB", 16, true, ["/srv/a"], "unlimited".
std::string value_text(PolicyField, const Policy&);

struct PolicyRequest {
  Policy values;                       // of the fields that are named
  std::bitset<kPolicyFields> named;    //
  std::bitset<kPolicyFields> replace;  // of these: instead of what the profile has, not beside it
  bool names(PolicyField field) const { return named[static_cast<std::size_t>(field)]; }
  bool replaces(PolicyField field) const { return replace[static_cast<std::size_t>(field)]; }
  bool operator==(const PolicyRequest&) const = default;
};

enum class PolicyKind {
  request,  // what a job asks for
  // What an operator allows: lists state all there is, so there is no `replace`; cpu and wall may be "unlimited", and
  // "*" in syscalls.add stands for every call that is not never-innocent.
  ceiling,
};

struct PolicyRead {
  PolicyRequest request;
  std::vector<FieldProblem> problems;  // "policy.memory: -1 is not ..."; field is "policy.memory"
  bool ok() const { return problems.empty(); }
};
// prefix: in front of the names in problems ("policy"; "" for none). Empty text asks for nothing.
PolicyRead read_policy(std::string_view json_text, std::string_view prefix, PolicyKind = PolicyKind::request);
// JSON text of one line that reads back alike.
std::string write_policy(const PolicyRequest&);
// All fields, by name. Sizes and times as plain numbers; no limit is null.
nlohmann::json to_json(const Policy&);

// What of it a job had, for its receipt: members of a JSON object. "granted" has the fields that give something: a list
// that is empty, a switch that is off and a number without a limit are left out. "lowered", if it is not empty: fields
// in which a ceiling has left less than there was without it.
std::string grant_members(const Policy&, const std::vector<std::string>& lowered);

// The most that jobs of a context may have.
struct Ceiling {
  Policy most;
  Id context = 0;                        // for messages
  std::vector<std::string> own_folders;  // the agent's: nothing above or below them is ever granted
  // Fields that an operator has written a ceiling for. In any other a profile keeps what it has, also above `most`,
  // which is then the ceiling of requests alone.
  std::bitset<kPolicyFields> written = std::bitset<kPolicyFields>().set();
};

struct Combined {
  Policy policy;                       // with all that was not refused
  std::vector<FieldProblem> problems;  // every refusal; names field, value, ceiling and remedy
};
// What was asked for and is above the ceiling is refused; what only the profile has is lowered to a written ceiling.
Combined weigh(const Policy& profile, const PolicyRequest&, const Ceiling&);
// The same; error invalid with the first eight refusals and how many more there are. An empty request is never refused.
Result<Policy> combine(const Policy& profile, const PolicyRequest&, const Ceiling&);
// Without a ceiling: what the request makes of the profile.
Policy applied(const Policy& profile, const PolicyRequest&);

struct PolicyDifference {
  PolicyField field;
  std::string before, after;  // as value_text() has them
  bool operator==(const PolicyDifference&) const = default;
};
std::vector<PolicyDifference> diff(const Policy& before, const Policy& after);

// Calls that no script needs that means well: a ceiling allows them by name alone, never by "*".
bool is_never_innocent(std::string_view syscall);
// These, and calls that another field grants or whose arguments the sandbox judges (fork, socket, ioctl, prlimit64,
// ...):
// "*" does not mean them.
bool must_be_named(std::string_view syscall);
bool is_known_syscall(std::string_view name);

}  // namespace mycojobs

namespace mycojobs::policies {

// The tables behind all of it: one row a field.

enum class Unit { bytes, time, count };

struct NumberRow {
  PolicyField field;
  Unit unit;
  std::uint64_t least, most;
  bool may_be_unlimited;  // 0 in a Policy means no limit
  std::uint64_t (*get)(const Policy&);
  void (*set)(Policy&, std::uint64_t);
};
std::span<const NumberRow> number_rows();

struct ListRow {
  PolicyField field;
  std::size_t most;  // items
  std::string_view noun;
  std::vector<std::string> Policy::*member;
};
std::span<const ListRow> list_rows();  // net is none of them

struct SwitchRow {
  PolicyField field;
  bool Policy::*member;
};
std::span<const SwitchRow> switch_rows();

inline constexpr std::size_t kMaxNetEntries = 64;

// "64 MiB", "30 s", "16"; in whole units, or in the smallest one.
std::string number_text(Unit, std::uint64_t value);
inline std::size_t index(PolicyField field) { return static_cast<std::size_t>(field); }
void add_missing(std::vector<std::string>& to, const std::vector<std::string>& items);

// Checks of one item; each returns the item in its normal form. Error invalid says what is wrong with it, without
// saying where it stood.
Result<std::string> check_folder(std::string_view path);
Result<std::string> check_allow_entry(std::string_view entry);  // host:port
Result<std::string> check_syscall(std::string_view name, PolicyKind);
Result<std::string> check_secret(std::string_view name);

// path is folder, or below it. Both in normal form.
bool is_within(std::string_view path, std::string_view folder);
// Everything that `asked` leads to, `granted` leads to as well.
bool covers_entry(std::string_view granted, std::string_view asked);

}  // namespace mycojobs::policies
