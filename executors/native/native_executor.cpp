#include "executors/native/native_executor.h"

#include <dirent.h>
#include <sys/utsname.h>

#include <algorithm>
#include <memory>

#include "domain/profiles.h"
#include "domain/utf8.h"
#include "executors/exec/program_conversation.h"
#include "executors/settings.h"

namespace mycojobs {
namespace {

constexpr std::size_t kLeastDigits = 8, kHashDigits = 64;
constexpr const char* kRemedy = ": `mycojobs program add FILE` puts one there and prints its hash";

std::vector<std::string> lines_of(const std::string& script) {
  std::vector<std::string> lines;
  for (std::size_t from = 0; from < script.size();) {
    const std::size_t end = std::min(script.find('\n', from), script.size());
    std::string line = script.substr(from, end - from);
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(std::move(line));
    from = end + 1;
  }
  return lines;
}

Result<std::string> find_program(const std::string& folder, const std::string& beginning) {
  const bool is_hash = beginning.size() >= kLeastDigits && beginning.size() <= kHashDigits &&
                       beginning.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_hash) {
    return fail(Code::invalid,
                "script: its first line is to be the SHA-256 of a program, 8 to 64 digits in small "
                "letters, not " +
                    shown(beginning, 80) + kRemedy);
  }
  std::string found;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder.c_str()), ::closedir);
  while (const dirent* entry = listing ? ::readdir(listing.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (name.size() != kHashDigits || !name.starts_with(beginning)) continue;
    if (!found.empty())
      return fail(Code::invalid, "script: more than one program begins with " + beginning + ": give more digits");
    found = name;
  }
  if (found.empty())
    return fail(Code::invalid, "script: no program of this context on this host is " + beginning + kRemedy);
  return found;
}

}  // namespace

std::vector<Stage> NativeExecutor::stages() const {
  return {{.profile = "native", .host = kProgramHost, .policy = profile("native"), .programs = true}};
}

Result<std::string> NativeExecutor::probe() const {
  utsname host{};
  ::uname(&host);
  return "programs for Linux " + std::string(host.machine);
}

Result<std::unique_ptr<Conversation>> NativeExecutor::begin(const JobFacts& facts, ArtifactSink* sink) const {
  std::vector<std::string> lines = lines_of(facts.job.script);
  const std::string folder = programs_folder(state_dir_, facts.job.context_id);
  MJ_TRY(hash, find_program(folder, lines.empty() ? "" : lines.front()));
  const std::uint64_t most = std::min({facts.granted.disk_bytes, facts.granted.file_bytes, kMaxProgramBytes});
  MJ_TRY(program, programs_.sealed(folder + '/' + hash, hash, most));
  lines.front() = "/job/program";
  return begin_program(facts,
                       {.executor = name(),
                        .profile = "native",
                        .command = std::move(lines),
                        .attached_as = "program",
                        .attached = std::move(program)},
                       sink);
}

}  // namespace mycojobs
