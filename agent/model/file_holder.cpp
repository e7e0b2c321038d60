#include "model/file_holder.h"

#include <algorithm>
#include <cctype>

#include "base/parse.h"

namespace mycojobs {
namespace {

constexpr std::size_t kFolderDigits = 24, kMaxHostBytes = 64;

bool is_host_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.'; }

}  // namespace

std::string to_string(const FileHolder& holder) {
  return holder.coordinator.empty() ? std::to_string(holder.runner) : holder.coordinator;
}

FileHolder parse_file_holder(std::string_view name) {
  FileHolder holder;
  std::uint64_t runner = 0;
  if (is_coordinator_name(name)) {
    holder.coordinator = name;
  } else if (parse_u64(name, runner) && runner <= UINT32_MAX) {
    holder.runner = static_cast<Id>(runner);
  }
  return holder;
}

std::string describe(const FileHolder& holder) {
  return (holder.coordinator.empty() ? "runner " : "coordinator ") + to_string(holder);
}

std::string make_coordinator_name(std::string_view hex_digits, std::string_view host) {
  std::string name(hex_digits);
  name += '@';
  std::copy_if(host.begin(), host.begin() + static_cast<std::ptrdiff_t>(std::min(host.size(), kMaxHostBytes)),
               std::back_inserter(name), is_host_character);
  return name;
}

bool is_coordinator_name(std::string_view name) {
  if (name.size() <= kFolderDigits || name.size() > kFolderDigits + 1 + kMaxHostBytes || name[kFolderDigits] != '@')
    return false;
  const std::string_view host = name.substr(kFolderDigits + 1);
  return is_hex(name.substr(0, kFolderDigits), kFolderDigits) &&
         std::all_of(host.begin(), host.end(), is_host_character);
}

}  // namespace mycojobs
