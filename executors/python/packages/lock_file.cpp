#include "executors/python/packages/lock_file.h"

#include <algorithm>
#include <string_view>

#include "base/parse.h"
#include "executors/python/packages/script_requirements.h"
#include "model/policy_json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxLockFileBytes = 256U << 10;
constexpr std::size_t kHashDigits = 64;
// The line of EMPTY_LOCK_FILE in install.py. All other comments are rejected.
constexpr std::string_view kEmptyLockFileLine = "# no package is needed";

// The name and the hash of a line of a lock file. Both refer to the text of the line.
struct LockedPackage {
  std::string_view name, hash;
};

bool is_version_character(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '+' ||
         c == '!' || c == '-' || c == '_';
}

// A normalized name has no other characters. check_python_requirement() also accepts extras and versions after the
// name.
bool is_lock_name_character(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-'; }

Result<LockedPackage> parse_lock_line(std::string_view line) {
  constexpr std::string_view kHashOption = " --hash=sha256:";
  const std::size_t name_end = line.find("==");
  const std::size_t hash_start = line.find(kHashOption);
  const auto make_error = [line] {
    return fail(Code::invalid, "the lock file has an invalid line: " + to_utf8(line.substr(0, 200)));
  };
  if (name_end == std::string_view::npos || hash_start == std::string_view::npos || hash_start < name_end)
    return make_error();
  const LockedPackage package{line.substr(0, name_end), line.substr(hash_start + kHashOption.size())};
  const std::string_view version = line.substr(name_end + 2, hash_start - name_end - 2);
  const bool is_valid = !package.name.empty() && normalize_package_name(package.name) == package.name &&
                        std::all_of(package.name.begin(), package.name.end(), is_lock_name_character) &&
                        policies::check_python_requirement(package.name).has_value() && !version.empty() &&
                        std::all_of(version.begin(), version.end(), is_version_character) &&
                        is_hex(package.hash, kHashDigits);
  if (!is_valid) return make_error();
  return package;
}

}  // namespace

std::size_t count_locked_packages(const std::string& lock_file) {
  std::size_t count = 0;
  for (std::size_t position = 0; (position = lock_file.find(" --hash=", position)) != std::string::npos; ++position)
    ++count;
  return count;
}

Result<void> check_lock_file(const std::string& lock_file, const PackageSettings& settings, Id context) {
  if (lock_file.size() > kMaxLockFileBytes) return fail(Code::invalid, "the lock file has more than 256 KiB");
  const std::string settings_table = "[contexts." + std::to_string(context) + ".python.packages]";
  for (std::string_view rest = lock_file; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line == kEmptyLockFileLine) continue;
    MJ_TRY(package, parse_lock_line(line));
    const bool is_allowed = std::any_of(
        settings.allow.begin(), settings.allow.end(),
        [&package = package](const std::string& pattern) { return matches_package_pattern(package.name, pattern); });
    if (!is_allowed)
      return fail(Code::denied, "the package " + std::string(package.name) +
                                    " is needed and not allowed: the operator must add it to " + settings_table +
                                    " allow");
    if (!settings.hashes.empty() &&
        std::find(settings.hashes.begin(), settings.hashes.end(), package.hash) == settings.hashes.end())
      return fail(Code::denied, "the package " + std::string(package.name) + " has the hash " +
                                    std::string(package.hash) + ", which " + settings_table + " hashes does not have");
  }
  return {};
}

}  // namespace mycojobs
