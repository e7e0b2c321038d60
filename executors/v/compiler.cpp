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

constexpr const char* kDefaultPaths[] = {"/usr/bin/v", "/usr/local/bin/v", "/opt/v/v"};
constexpr const char* kRemedy =
    "; remedy: get V from https://github.com/vlang/v (git clone into /opt/v, then make; it is in no Debian package), "
    "or name it with v.compiler";

Result<VCompiler> inspect_compiler(const std::string& path) {
  const auto make_error = [&](const std::string& problem) {
    return fail(Code::unsupported, "v: " + path + problem + kRemedy);
  };
  if (!path.starts_with('/')) return make_error(" is not an absolute path of a program (v.compiler)");
  const std::unique_ptr<char, void (*)(void*)> real_path(::realpath(path.c_str(), nullptr), std::free);
  struct stat status {};
  if (!real_path || ::stat(real_path.get(), &status) != 0 ||
      (S_ISREG(status.st_mode) && ::access(real_path.get(), X_OK) != 0))
    return make_error(": " + errno_text(errno));
  if (!S_ISREG(status.st_mode)) return make_error(" is not a file");
  VCompiler compiler{real_path.get(), "", ""};
  if (!compiler.path.starts_with("/usr/")) {
    compiler.folder = compiler.path.substr(0, compiler.path.rfind('/'));
    if (auto permission = policies::check_folder(compiler.folder); !permission)
      return make_error(": jobs cannot see its folder: " + permission.error().message + ", nor /usr");
  }
  for (const auto part : {static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino),
                          static_cast<std::uint64_t>(status.st_size), static_cast<std::uint64_t>(status.st_mtim.tv_sec),
                          static_cast<std::uint64_t>(status.st_mtim.tv_nsec)})
    compiler.identity += std::to_string(part) + ' ';
  compiler.identity += compiler.path;
  return compiler;
}

constexpr std::size_t kMaxNameBytes = 100;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == '/';
}

// The compiler prints either the given path or the absolute path.
std::string replace_source_name(std::string_view text, const std::string& name) {
  std::string out;
  while (!text.empty()) {
    const std::size_t position = text.find(kSourceFile);
    if (position == std::string_view::npos) break;
    std::string_view prefix = text.substr(0, position);
    for (const std::string_view folder : {"/job/", "./"}) {
      if (prefix.ends_with(folder)) prefix.remove_suffix(folder.size());
    }
    const std::size_t end = position + kSourceFile.size();
    const bool is_source_name = (prefix.empty() || !is_name_character(prefix.back())) &&
                                (end == text.size() || text[end] == ':' || !is_name_character(text[end]));
    out += is_source_name ? prefix : text.substr(0, position);
    out += is_source_name ? std::string_view(name) : kSourceFile;
    text.remove_prefix(end);
  }
  return out.append(text);
}

// Returns the line number of a compiler error: "main.v:3:5: error: text" -> 3. Returns 0 for any other line.
std::uint32_t parse_line_number(std::string_view line, const std::string& name) {
  const std::size_t position = line.find(name + ':');
  std::uint32_t number = 0;
  if (position == std::string_view::npos || line.find(" error: ") == std::string_view::npos) return 0;
  const char* begin = line.data() + position + name.size() + 1;
  const auto [end, error] = std::from_chars(begin, line.data() + line.size(), number);
  return error == std::errc() && end < line.data() + line.size() && *end == ':' ? number : 0;
}

}  // namespace

Result<VCompiler> find_compiler(const std::string& setting) {
  if (!setting.empty()) return inspect_compiler(setting);
  for (const char* path : kDefaultPaths) {
    if (::access(path, F_OK) == 0) return inspect_compiler(path);
  }
  return fail(Code::not_found, std::string("v: no compiler on this host") + kRemedy);
}

Result<std::string> query_version(const VCompiler& compiler) {
  auto line = probe_program(compiler.path, {"version"});
  if (line && line->starts_with("V ")) return line;
  const std::string problem =
      line ? compiler.path + ": its output of `v version` is not that of V" : line.error().message;
  return fail(Code::unsupported, "v: " + problem + kRemedy);
}

std::string get_source_name(std::string_view job_name) {
  const bool is_valid = !job_name.empty() && job_name.size() <= kMaxNameBytes &&
                        std::all_of(job_name.begin(), job_name.end(), [](char c) {
                          return static_cast<unsigned char>(c) > ' ' && c != '\x7f' && c != ':' && c != '/';
                        });
  if (!is_valid) return std::string(kSourceFile);
  return std::string(job_name) + (job_name.ends_with(".v") ? "" : ".v");
}

ScriptError parse_compile_error(std::string_view text, const std::string& name) {
  ScriptError error;
  error.type = "CompileError";
  error.traceback = replace_source_name(to_utf8(text), name);
  error.retry_forbidden = true;
  std::string_view error_line, last_line;
  for (std::string_view remainder = error.traceback; !remainder.empty();) {
    const std::size_t end = std::min(remainder.find('\n'), remainder.size());
    const std::string_view line = remainder.substr(0, end);
    remainder.remove_prefix(std::min(end + 1, remainder.size()));
    if (line.find_first_not_of(" \t\r=") == std::string_view::npos) continue;
    last_line = line;
    if (error.line = parse_line_number(line, name); error.line != 0) {
      error_line = line;
      break;
    }
    if (error_line.empty() && line.find("error:") != std::string_view::npos) error_line = line;
  }
  error.message = std::string(error_line.empty() ? last_line : error_line);
  if (error.message.empty()) error.message = "the compiler wrote nothing";
  return error;
}

}  // namespace mycojobs
