// The request and the answer of a workflow step. The encoding of each is one deterministic CBOR map (text/cbor.h).
// Values of the workflow (state, event, context, parameters) are byte strings that contain CBOR, so that hashes and the
// journal cover exactly the bytes that the code received or returned. No side effects; thread-safe.
//
//   request  {version: 1, state: bytes|null, event: {schema, value: bytes, key?: bytes}, ctx: bytes|null}
//   answer   {state: bytes|null, domain_events: [{schema, value: bytes}],
//             effects: [{kind, params: bytes, index, issuer_ref?}], ann?: bytes}
//         or {error: {kind, message, line?}}
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

namespace mycojobs {

inline constexpr std::uint64_t kStepVersion = 1;
// Version in which the engine counts work. Another version reaches the instruction limit at another instruction, so a
// replay also tries earlier versions (docs/decisions/0024). Version 1 counts instructions and some library functions;
// version 2 counts instructions and all library functions.
inline constexpr std::uint32_t kStepCounting = 2;
inline constexpr std::size_t kMaxStepEffects = 64, kMaxStepEvents = 256;
inline constexpr std::size_t kMaxStepBytes = 1U << 20;                            // encoded answer without the state
inline constexpr std::size_t kMaxStateBytes = 10U << 20;                          // encoded state
inline constexpr std::size_t kMaxStepRequestBytes = kMaxStateBytes + (4U << 20);  // encoded request with the state
inline constexpr std::size_t kMaxStepMessageBytes = 1024;                         // message of an error

struct StepEvent {
  std::string schema;              // ns/Name@version
  std::string value;               // CBOR
  std::optional<std::string> key;  // CBOR; only for a keyed workflow
  bool operator==(const StepEvent&) const = default;
};
struct StepRequest {
  std::optional<std::string> state;  // CBOR; no value if the instance starts
  StepEvent event;
  std::optional<std::string> ctx;  // CBOR of sys/WorkflowContext@1; no value if the workflow declares no context
  // Parameters of the engine that are not part of the encoded request. Code of different owners never shares a process;
  // owner 0 means that the owner is unknown.
  std::uint64_t owner = 0;
  std::uint32_t counting = kStepCounting;
  bool operator==(const StepRequest&) const = default;
};

struct StepEffect {
  std::string kind;         // name of an effect: ns/name@version
  std::string params;       // CBOR
  std::uint64_t index = 0;  // index among the effects of the step, from 0
  std::string issuer_ref;   // reference chosen by the code and returned with the receipt; may be empty
  bool operator==(const StepEffect&) const = default;
};
struct StepOutput {
  std::optional<std::string> state;  // CBOR; no value if the instance has ended (a cell is deleted)
  std::vector<StepEvent> domain_events;
  std::vector<StepEffect> effects;
  std::optional<std::string> annotations;  // CBOR
  bool operator==(const StepOutput&) const = default;
};
// Kinds of errors of a step.
inline constexpr char kStepErrorScript[] = "script";  // the code raised an error
inline constexpr char kStepErrorLimit[] = "limit";    // the instruction limit was exceeded
inline constexpr char kStepErrorMemory[] = "memory";  // the memory limit was exceeded
inline constexpr char kStepErrorOutput[] = "output";  // too much output, or too many effects or events
inline constexpr char kStepErrorLoad[] = "load";      // the code could not be loaded
// An input or output value cannot be represented in CBOR or Lua, or an answer has the wrong structure.
inline constexpr char kStepErrorValue[] = "value";
// Kinds that users of the engine add, which are never decoded.
inline constexpr char kStepErrorEngine[] = "engine";      // there is no answer
inline constexpr char kStepErrorContract[] = "contract";  // the answer does not fit the manifest

// A failure of the step, which belongs to the instance. The same request gives the same error.
struct StepError {
  std::string kind;        // one of the constants kStepError...
  std::string message;     // for display
  std::uint32_t line = 0;  // line of the source; 0 if unknown
  bool operator==(const StepError&) const = default;
};
using StepAnswer = std::variant<StepOutput, StepError>;

// Errors: `invalid` (a text is not UTF-8), `too_large` (a request exceeds kMaxStepRequestBytes).
Result<std::string> encode(const StepRequest&);
Result<std::string> encode(const StepAnswer&);
// Decodes the answer of an untrusted process and checks all its properties, including the encoding of its values.
// Errors: `invalid` (the encoding is not deterministic, or a field, which the message names, is missing, unknown or has
// another type or value than those above); `too_large` (the answer exceeds kMaxStateBytes, kMaxStepBytes,
// kMaxStepEffects, kMaxStepEvents or kMaxStepMessageBytes).
Result<StepAnswer> decode_step_answer(std::string_view bytes);

}  // namespace mycojobs
