#include "executors/v/compiler.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <memory>

#include "base/errno_text.h"
#include "executors/probe_program.h"
#include "model/policy_json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr const char* kPaths[] = {"/usr/bin/v", "/usr/local/bin/v", "/opt/v/v"};
constexpr const char* kWhereFrom =
    "; remedy: get V from https://github.com/vlang/v (git clone into /opt/v, then make; it is in no Debian package), "
    "or name it with v.compiler";

Result<Compiler> examine(const std::string& path) {
  const auto refuse = [&](const std::string& why) { return fail(Code::unsupported, "v: " + path + why + kWhereFrom); };
  if (!path.starts_with('/')) return refuse(" is not an absolute path of a program (v.compiler)");
  const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), std::free);
  struct stat info {};
  if (!real || ::stat(real.get(), &info) != 0 || (S_ISREG(info.st_mode) && ::access(real.get(), X_OK) != 0))
    return refuse(": " + errno_text(errno));
  if (!S_ISREG(info.st_mode)) return refuse(" is not a file");
  Compiler found{real.get(), "", ""};
  if (!found.path.starts_with("/usr/")) {
    found.folder = found.path.substr(0, found.path.rfind('/'));
    if (auto fine = policies::check_folder(found.folder); !fine)
      return refuse(": jobs cannot see its folder: " + fine.error().message + ", nor /usr");
  }
  for (const auto part : {static_cast<std::uint64_t>(info.st_dev), static_cast<std::uint64_t>(info.st_ino),
                          static_cast<std::uint64_t>(info.st_size), static_cast<std::uint64_t>(info.st_mtim.tv_sec),
                          static_cast<std::uint64_t>(info.st_mtim.tv_nsec)})
    found.identity += std::to_string(part) + ' ';
  found.identity += found.path;
  return found;
}

constexpr std::size_t kMaxName = 100;

bool is_of_a_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == '/';
}

// The compiler prints either the given path or the absolute path.
std::string renamed(std::string_view text, const std::string& name) {
  std::string out;
  while (!text.empty()) {
    const std::size_t at = text.find(kSourceFile);
    if (at == std::string_view::npos) break;
    std::string_view before = text.substr(0, at);
    for (const std::string_view folder : {"/job/", "./"}) {
      if (before.ends_with(folder)) before.remove_suffix(folder.size());
    }
    const std::size_t end = at + kSourceFile.size();
    const bool ours = (before.empty() || !is_of_a_name(before.back())) &&
                      (end == text.size() || text[end] == ':' || !is_of_a_name(text[end]));
    out += ours ? before : text.substr(0, at);
    out += ours ? std::string_view(name) : kSourceFile;
    text.remove_prefix(end);
  }
  return out.append(text);
}

// Returns the line number of a compiler error: "main.v:3:5: error: text" -> 3. Returns 0 for any other line.
std::uint32_t place_of(std::string_view line, const std::string& name) {
  const std::size_t at = line.find(name + ':');
  std::uint32_t number = 0;
  if (at == std::string_view::npos || line.find(" error: ") == std::string_view::npos) return 0;
  const char* begin = line.data() + at + name.size() + 1;
  const auto [end, error] = std::from_chars(begin, line.data() + line.size(), number);
  return error == std::errc() && end < line.data() + line.size() && *end == ':' ? number : 0;
}

}  // namespace

Result<Compiler> find_compiler(const std::string& configured) {
  if (!configured.empty()) return examine(configured);
  for (const char* place : kPaths) {
    if (::access(place, F_OK) == 0) return examine(place);
  }
  return fail(Code::not_found, std::string("v: no compiler on this host") + kWhereFrom);
}

Result<std::string> version_of(const Compiler& compiler) {
  auto line = probe_program(compiler.path, {"version"});
  if (line && line->starts_with("V ")) return line;
  const std::string why = line ? compiler.path + ": its output of `v version` is not that of V" : line.error().message;
  return fail(Code::unsupported, "v: " + why + kWhereFrom);
}

std::string source_name(std::string_view job_name) {
  const bool plain =
      !job_name.empty() && job_name.size() <= kMaxName && std::all_of(job_name.begin(), job_name.end(), [](char c) {
        return static_cast<unsigned char>(c) > ' ' && c != '\x7f' && c != ':' && c != '/';
      });
  if (!plain) return std::string(kSourceFile);
  return std::string(job_name) + (job_name.ends_with(".v") ? "" : ".v");
}

ScriptError compile_error(std::string_view text, const std::string& name) {
  ScriptError error;
  error.type = "CompileError";
  error.traceback = renamed(to_utf8(text), name);
  error.retry_forbidden = true;
  std::string_view first, last;
  for (std::string_view rest = error.traceback; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r=") == std::string_view::npos) continue;
    last = line;
    if (error.line = place_of(line, name); error.line != 0) {
      first = line;
      break;
    }
    if (first.empty() && line.find("error:") != std::string_view::npos) first = line;
  }
  error.message = std::string(first.empty() ? last : first);
  if (error.message.empty()) error.message = "the compiler wrote nothing";
  return error;
}

}  // namespace mycojobs
