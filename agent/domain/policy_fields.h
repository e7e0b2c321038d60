// The tables behind policy.h: one row a field. Only the files of policies need them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "domain/policy.h"

namespace mycojobs::policies {

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
