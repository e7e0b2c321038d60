#include "executors/v/v_executor.h"

#include <unistd.h>

#include "base/sha256.h"
#include "domain/profiles.h"
#include "executors/v/v_conversation.h"

namespace mycojobs {
namespace {

// Each part with its length, so that no two lists make the same text.
std::string key_of(const std::vector<std::string>& parts) {
  Sha256 hash;
  for (const std::string& part : parts) {
    hash.update(std::to_string(part.size()) + ':');
    hash.update(part);
  }
  return hash.hex();
}

}  // namespace

std::vector<Stage> VExecutor::stages() const {
  Stage compile{.profile = "v.compile", .host = kProgramHost, .policy = profile("v.compile"), .programs = true};
  compile.kept = true;
  if (const auto compiler = find_compiler(compiler_); compiler && !compiler->folder.empty())
    compile.tools = {compiler->folder};
  return {std::move(compile), {.profile = "v.run", .host = kProgramHost, .policy = profile("v.run"), .programs = true}};
}

Result<std::string> VExecutor::version(const Compiler& compiler) const {
  const std::lock_guard lock(mutex_);
  if (const auto known = versions_.find(compiler.identity); known != versions_.end()) return known->second;
  MJ_TRY(line, version_of(compiler));
  versions_[compiler.identity] = line;
  return line;
}

Result<std::string> VExecutor::probe() const {
  MJ_TRY(compiler, find_compiler(compiler_));
  if (::access("/usr/bin/cc", X_OK) != 0)
    return fail(Code::unsupported, "v: " + compiler.path + " needs a C compiler; remedy: apt install gcc libc6-dev");
  MJ_TRY(line, version(compiler));
  return line + " (" + compiler.path + ")";
}

Result<std::unique_ptr<Conversation>> VExecutor::begin(const JobFacts& facts, ArtifactSink* sink) const {
  // It may have gone, or be another one, since the agent began: then it is no fault of the job.
  auto compiler = find_compiler(compiler_);
  if (!compiler) return fail(Code::unavailable, compiler.error().message);
  auto line = version(*compiler);
  if (!line) return fail(Code::unavailable, line.error().message);
  std::vector<std::string> parts{"1", facts.job.script, *line, compiler->identity};
  parts.insert(parts.end(), flags_.begin(), flags_.end());
  return begin_v({.facts = facts,
                  .compiler = std::move(*compiler),
                  .flags = flags_,
                  .cache = BinaryCache(state_dir_, facts.job.context_id),
                  .key = key_of(parts)},
                 sink);
}

}  // namespace mycojobs
