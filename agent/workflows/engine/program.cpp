#include "workflows/engine/program.h"

#include <utility>

#include "base/parse.h"
#include "base/sha256.h"
#include "executors/lua/workflowhost/step_protocol.h"

namespace mycojobs::workflow {

Result<WorkflowProgram> WorkflowProgram::make(std::uint64_t context, std::string name, std::string entrypoint,
                                              std::string source) {
  if (entrypoint.empty() || name.find('\0') != name.npos || entrypoint.find('\0') != entrypoint.npos)
    return fail(Code::invalid, "a program has a name and an entrypoint, without NUL");
  if (source.size() + name.size() + entrypoint.size() > kMaxSourceBytes)
    return fail(Code::too_large, name + ": " + std::to_string(source.size()) + " bytes; at most " +
                                     std::to_string(kMaxSourceBytes >> 20) + " MiB");
  WorkflowProgram out;
  out.context_ = context;
  out.name_ = std::move(name);
  out.entrypoint_ = std::move(entrypoint);
  out.source_ = std::move(source);
  out.hash_ = from_hex(sha256_hex(out.entrypoint_ + '\0' + out.name_ + '\0' + out.source_));
  return out;
}

}  // namespace mycojobs::workflow
