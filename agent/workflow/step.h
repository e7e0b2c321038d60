// One step of a workflow as values: what is asked, what is answered, and both in deterministic CBOR, as
// executors/lua/workflowhost/wire.h has them. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/result.h"

namespace mycojobs::workflow {

// The code of a workflow. Two programs are the same if name, entrypoint and source are.
class Program {
 public:
  // context: whose it is; programs of several contexts never share a process. name: of its file, for messages. Error
  // invalid: a NUL in a name, no entrypoint; too_large: the source.
  static Result<Program> make(std::uint64_t context, std::string name, std::string entrypoint, std::string source);

  std::uint64_t context() const { return context_; }
  const std::string& name() const { return name_; }
  const std::string& entrypoint() const { return entrypoint_; }
  const std::string& source() const { return source_; }
  const std::string& hash() const { return hash_; }  // 32 bytes

 private:
  Program() = default;
  std::uint64_t context_ = 0;
  std::string name_, entrypoint_, source_, hash_;
};

// What is a value here is its deterministic CBOR.
struct StepEvent {
  std::string schema, value;
  std::optional<std::string> key;
};
struct StepRequest {
  std::optional<std::string> state;  // none: a new instance
  StepEvent event;
  std::optional<std::string> ctx;
};

struct DomainEvent {
  std::string schema, value;
};
struct StepEffect {
  std::string kind, params;
  std::uint32_t index = 0;  // in the step, from 0
  std::string issuer_ref;   // what the code calls it; empty: nothing
};

// The step failed, and will fail in the same way again: that is the instance's affair.
enum class StepFailureKind : std::uint8_t {
  script,  // its code raised an error
  limit,   // more instructions than a step may take, or no end after two attempts
  memory,  // more memory
  output,  // too much was returned, or too many effects or events
  load,    // its code could not be loaded
  value,   // what came or was returned has no place in CBOR or in Lua, or has not the shape of an answer
};
std::string_view to_string(StepFailureKind);
struct StepFailure {
  StepFailureKind kind = StepFailureKind::script;
  std::string message;
  std::optional<std::uint32_t> line;  // of its source
};

struct StepAnswer {
  std::optional<std::string> state;  // none: it has ended (a cell is deleted)
  std::vector<DomainEvent> domain_events;
  std::vector<StepEffect> effects;
  std::optional<std::string> annotations;
  std::optional<StepFailure> failure;  // if it is there, nothing else is
};

// Error too_large.
Result<std::string> encode_request(const StepRequest&);
// Of a process that nobody trusts: all that an answer promises is looked at. Error invalid.
Result<StepAnswer> decode_answer(std::string_view cbor);

}  // namespace mycojobs::workflow
