#include "executors/v/compiler.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>

#include "base/errno_text.h"
#include "domain/policy_fields.h"
#include "executors/probe_program.h"

namespace mycojobs {
namespace {

constexpr const char* kPlaces[] = {"/usr/bin/v", "/usr/local/bin/v", "/opt/v/v"};
constexpr const char* kWhereFrom =
    "; remedy: get V from https://github.com/vlang/v (git clone into /opt/v, then make; it is in no Debian package), "
    "or name it with v.compiler";

Result<Compiler> examine(const std::string& path) {
  const auto refuse = [&](const std::string& why) { return fail(Code::unsupported, "v: " + path + why + kWhereFrom); };
  if (!path.starts_with('/')) return refuse(" is not the whole path of a program (v.compiler)");
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

}  // namespace

Result<Compiler> find_compiler(const std::string& configured) {
  if (!configured.empty()) return examine(configured);
  for (const char* place : kPlaces) {
    if (::access(place, F_OK) == 0) return examine(place);
  }
  return fail(Code::not_found, std::string("v: no compiler on this host") + kWhereFrom);
}

Result<std::string> version_of(const Compiler& compiler) {
  auto line = probe_program(compiler.path, {"version"});
  if (line && line->starts_with("V ")) return line;
  const std::string said = line ? compiler.path + ": does not answer `v version` as V does" : line.error().message;
  return fail(Code::unsupported, "v: " + said + kWhereFrom);
}

}  // namespace mycojobs
