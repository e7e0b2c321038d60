#include "worker/artifact_totals.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>
#include <system_error>

#include "base/ids.h"
#include "worker/artifact_folder.h"

namespace mycojobs {
namespace {

constexpr std::string_view kCountPrefix = "usage-";

// Adds the lines "<caller> <bytes>..." of one count.
void add_counts(const std::filesystem::path& path, std::map<Id, std::uint64_t>& callers) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::string_view text = line;
    const std::size_t blank = text.find(' ');
    if (blank == std::string_view::npos) continue;
    const std::string_view rest = text.substr(blank + 1);
    std::uint64_t caller = 0, bytes = 0;
    if (parse_u64(text.substr(0, blank), caller) && parse_u64(rest.substr(0, rest.find(' ')), bytes) &&
        caller <= UINT32_MAX)
      callers[static_cast<Id>(caller)] += bytes;
  }
}

}  // namespace

ArtifactTotals artifact_totals(const std::string& state_dir, Id context) {
  std::map<Id, std::uint64_t> callers;
  std::error_code gone;
  const std::string folder = ArtifactFolder(state_dir, context).path();
  for (std::filesystem::directory_iterator entry(folder, gone), end; !gone && entry != end; entry.increment(gone)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(kCountPrefix) && name.find('.') == std::string::npos) add_counts(entry->path(), callers);
  }
  ArtifactTotals totals;
  for (const auto& [caller, bytes] : callers) {
    totals.bytes += bytes;
    if (bytes > totals.largest_bytes) totals.largest_caller = caller, totals.largest_bytes = bytes;
  }
  return totals;
}

}  // namespace mycojobs
