// The request and the answer of a workflow step, and their encoding in deterministic CBOR as in
// executors/lua/workflowhost/step_codec.h. No side effects; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mycojobs::workflow {

// The code of a workflow. Two programs are equal if name, entrypoint and source are equal.
class WorkflowProgram {
 public:
  // `context` owns the code; programs of different contexts never share a process. `name` is the name of the file, for
  // messages. Errors: `invalid` (a NUL in a name, or an empty entrypoint), `too_large` (the source).
  static Result<WorkflowProgram> make(std::uint64_t context, std::string name, std::string entrypoint,
                                      std::string source);

  std::uint64_t context() const { return context_; }
  const std::string& name() const { return name_; }
  const std::string& entrypoint() const { return entrypoint_; }
  const std::string& source() const { return source_; }
  const std::string& hash() const { return hash_; }  // 32 bytes

 private:
  WorkflowProgram() = default;
  std::uint64_t context_ = 0;
  std::string name_, entrypoint_, source_, hash_;
};

// Values in these types are encoded as deterministic CBOR.
struct StepEvent {
  std::string schema, value;
  std::optional<std::string> key;
};
struct StepRequest {
  std::optional<std::string> state;  // no value for a new instance
  StepEvent event;
  std::optional<std::string> ctx;
};

struct DomainEvent {
  std::string schema, value;
};
struct StepEffect {
  std::string kind, params;
  std::uint32_t index = 0;  // in the step, from 0
  std::string issuer_ref;   // name that the code gives the effect; may be empty
};

// The reason of a failed step, which would fail again in the same way. The failure belongs to the instance.
enum class StepFailureKind : std::uint8_t {
  script,  // the code raised an error
  limit,   // the instruction limit was exceeded, or the step did not end in two attempts
  memory,  // the memory limit was exceeded
  output,  // too much output, or too many effects or events
  load,    // the code could not be loaded
  value,   // an input or output value cannot be represented in CBOR or Lua, or an answer has the wrong structure
};
std::string_view to_string(StepFailureKind);
struct StepFailure {
  StepFailureKind kind = StepFailureKind::script;
  std::string message;
  std::optional<std::uint32_t> line;  // line of the script's source
};

struct StepAnswer {
  std::optional<std::string> state;  // no value if the instance has ended (a cell is deleted)
  std::vector<DomainEvent> domain_events;
  std::vector<StepEffect> effects;
  std::optional<std::string> annotations;
  std::optional<StepFailure> failure;  // if set, all other fields are empty
};

// Error: `too_large`.
Result<std::string> encode_request(const StepRequest&);
// Decodes the answer of an untrusted process and checks all its properties. Error: `invalid`.
Result<StepAnswer> decode_answer(std::string_view cbor);

}  // namespace mycojobs::workflow
