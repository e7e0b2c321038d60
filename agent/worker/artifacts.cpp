#include "worker/artifacts.h"

#include <algorithm>

#include "domain/utf8.h"

namespace mycojobs {

bool is_artifact_name(std::string_view name) {
  constexpr std::size_t kLongest = 512;
  if (name.empty() || name.size() > kLongest || !is_utf8(name)) return false;
  for (std::size_t from = 0; from <= name.size();) {
    const std::size_t end = std::min(name.find('/', from), name.size());
    const std::string_view part = name.substr(from, end - from);
    if (part.empty() || part == "." || part == "..") return false;
    from = end + 1;
  }
  return std::none_of(name.begin(), name.end(),
                      [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; });
}

std::string object_path(const std::string& state_dir, Id context, const std::string& sha256) {
  return state_dir + "/contexts/" + std::to_string(context) + "/objects/" + sha256;
}

Result<std::unique_ptr<RunArtifacts>> make_run_artifacts(const std::string&, Id, const std::string&, std::uint64_t,
                                                         std::uint64_t) {
  return nullptr;
}

}  // namespace mycojobs
