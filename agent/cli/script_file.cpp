#include "cli/script_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "cli/opened.h"
#include "cli/policy_file.h"
#include "cli/serve.h"
#include "domain/policy.h"
#include "domain/profiles.h"

namespace mycojobs {
namespace {

constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
    {".py", "python"}, {".v", "v"}, {".lua", "sal"}, {".sal", "sal"}, {".osis", "osis"}};

// All of it, or one byte more than may be.
template <class Read>
std::string read_all(std::size_t max_bytes, const Read& read) {
  std::string bytes, chunk(65536, '\0');
  while (bytes.size() <= max_bytes) {
    const std::size_t count = read(chunk.data(), std::min(chunk.size(), max_bytes + 1 - bytes.size()));
    if (count == 0) break;
    bytes.append(chunk.data(), count);
  }
  return bytes;
}

}  // namespace

Result<std::string> read_script(const std::string& file, std::size_t max_bytes) {
  std::string bytes;
  if (file == "-") {
    leave_at_stop_signals();
    bytes = read_all(max_bytes, [](char* to, std::size_t most) { return std::fread(to, 1, most, stdin); });
    block_stop_signals();
  } else {
    if (std::filesystem::is_directory(file)) return fail(Code::invalid, file + ": is a folder; give one script");
    if (!std::filesystem::exists(file)) return fail(Code::not_found, file + ": no such file");
    std::ifstream in(file, std::ios::binary);
    bytes = read_all(max_bytes, [&in](char* to, std::size_t most) {
      in.read(to, static_cast<std::streamsize>(most));
      return static_cast<std::size_t>(in.gcount());
    });
    if (in.bad() || !in.is_open()) return fail(Code::io, file + ": cannot be read");
  }
  if (bytes.size() > max_bytes) {
    return fail(Code::too_large, fmt::format("{}: has more than the {} bytes that are allowed", file, max_bytes));
  }
  return bytes;
}

std::string script_type_of(const std::string& file) {
  for (const auto& [ending, type] : kTypes) {
    if (file.ends_with(ending)) return std::string(type);
  }
  return "";
}

Result<void> check_ceiling(const Invocation& call, const Job& job) {
  const Policy below = applied(profile(profile_of(job.script_type)), operator_defaults(call.settings));
  MJ_CHECK(combine(below, read_policy(job.policy, "policy").request, call.settings.ceilings.of(job.context_id)));
  return {};
}

}  // namespace mycojobs
