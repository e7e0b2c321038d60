#include "cli/script_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/errno_text.h"
#include "cli/opened.h"
#include "cli/policy_file.h"
#include "cli/serve.h"
#include "domain/policy.h"
#include "domain/profiles.h"
#include "domain/utf8.h"

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

// Where the first byte stands that belongs to no character.
std::size_t first_not_utf8(std::string_view bytes) {
  constexpr std::size_t kLongest = 4;
  std::size_t at = 0;
  while (at < bytes.size()) {
    std::size_t length = 1;
    while (length <= kLongest && !is_utf8(bytes.substr(at, length))) ++length;
    if (length > kLongest) break;
    at += length;
  }
  return at;
}

}  // namespace

Result<std::string> read_script(const std::string& file, std::size_t max_bytes) {
  std::string bytes;
  if (file == "-") {
    leave_at_stop_signals();
    bytes = read_all(max_bytes, [](char* to, std::size_t most) { return std::fread(to, 1, most, stdin); });
    block_stop_signals();
  } else {
    std::error_code unseen;
    const auto status = std::filesystem::status(file, unseen);
    if (status.type() == std::filesystem::file_type::not_found) return fail(Code::not_found, file + ": no such file");
    if (unseen) return fail(Code::io, file + ": cannot be seen: " + unseen.message());
    if (std::filesystem::is_directory(status)) return fail(Code::invalid, file + ": is a folder; give one script");
    std::ifstream in(file, std::ios::binary);
    bytes = read_all(max_bytes, [&in](char* to, std::size_t most) {
      in.read(to, static_cast<std::streamsize>(most));
      return static_cast<std::size_t>(in.gcount());
    });
    if (!in.is_open()) return fail(Code::io, file + ": cannot be read: " + errno_text(errno));
    if (in.bad()) return fail(Code::io, file + ": cannot be read");
  }
  if (bytes.size() > max_bytes) {
    return fail(Code::too_large, fmt::format("{}: has more than the {} bytes that are allowed", file, max_bytes));
  }
  return bytes;
}

Result<void> check_script(const std::string& file, std::string_view script) {
  const std::string name = file == "-" ? "standard input" : file;
  if (script.empty()) return fail(Code::invalid, name + ": is empty: there is nothing to run");
  if (is_utf8(script)) return {};
  const std::size_t at = first_not_utf8(script);
  const auto line = 1 + std::count(script.begin(), script.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  return fail(
      Code::invalid,
      fmt::format("{}: byte {} (0x{:02x}, in line {}) is no UTF-8: save the script as UTF-8; a program is a job's "
                  "artifact or `mycojobs program add`",
                  name, at, static_cast<unsigned char>(script[at]), line));
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
