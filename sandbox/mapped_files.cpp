#include <algorithm>
#include <cstdio>
#include <cstring>

#include "sandbox/loaded.h"

namespace mycojobs::sandbox {

std::vector<std::string> mapped_files() {
  std::vector<std::string> files;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return files;
  char line[4500];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    const char* const path = std::strchr(line, '/');
    if (path == nullptr) continue;
    std::string file(path, std::strcspn(path, "\n"));
    constexpr std::string_view kGone = " (deleted)";  // replaced already: by the one that has its name now
    if (file.ends_with(kGone)) file.resize(file.size() - kGone.size());
    if (std::find(files.begin(), files.end(), file) == files.end()) files.push_back(std::move(file));
  }
  std::fclose(maps);
  return files;
}

}  // namespace mycojobs::sandbox
