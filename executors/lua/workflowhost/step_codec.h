// The request and the answer of one step of a workflow's code, as exchanged with the engine: each is one deterministic
// CBOR map (text/cbor.h). Values of the workflow (state, event, context, parameters) are byte strings with their own
// CBOR, so that hashes and the journal cover exactly the bytes that the code received or returned. Pure and
// thread-safe. Source: seed 003, 7.2.
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
// Version of the engine's counting of work. Another way of counting reaches a limit at another place, so a replay also
// tries the earlier ways (docs/decisions/0024). 1: instructions and some library functions. 2: instructions and all
// library functions.
inline constexpr std::uint32_t kStepCounting = 2;
inline constexpr std::size_t kMaxStepEffects = 64, kMaxStepEvents = 256;
inline constexpr std::size_t kMaxStepBytes = 1U << 20;    // limit of an encoded answer without the state
inline constexpr std::size_t kMaxStateBytes = 10U << 20;  // limit of a state

struct StepEvent {
  std::string schema;              // ns/Name@version
  std::string value;               // CBOR
  std::optional<std::string> key;  // CBOR; only for a keyed workflow
  bool operator==(const StepEvent&) const = default;
};
struct StepRequest {
  std::optional<std::string> state;  // CBOR; no value: the instance starts
  StepEvent event;
  std::optional<std::string> ctx;  // CBOR of sys/WorkflowContext@1; no value: the workflow does not request it
  // Used by the engine only; not part of the encoded request.
  std::uint64_t owner = 0;  // the owner of the code: code of different owners never shares a process; 0: unknown
  std::uint32_t counting = kStepCounting;
  bool operator==(const StepRequest&) const = default;
};

struct StepEffect {
  std::string kind;         // name of an effect: ns/name@version
  std::string params;       // CBOR
  std::uint64_t index = 0;  // index among the effects of the step, from 0
  std::string issuer_ref;   // reference that the code chose; returned with the receipt; empty: none
  bool operator==(const StepEffect&) const = default;
};
struct StepOutput {
  std::optional<std::string> state;  // CBOR; no value: the instance is deleted
  std::vector<StepEvent> domain_events;
  std::vector<StepEffect> effects;
  std::optional<std::string> ann;  // CBOR
  bool operator==(const StepOutput&) const = default;
};
// The code failed. The same request gives the same error.
struct StepError {
  std::string kind;        // a word of the engine: script, instructions, memory, output, entrypoint
  std::string message;     // for people
  std::uint64_t line = 0;  // line of the code; 0: none
  bool operator==(const StepError&) const = default;
};
using StepAnswer = std::variant<StepOutput, StepError>;

// Error invalid: a text is not UTF-8.
Result<std::string> encode(const StepRequest&);
Result<std::string> encode(const StepAnswer&);
// Errors: invalid (not the deterministic encoding, another version, or a field that is missing, unknown or of another
// type; names the field), too_large (an answer over kMaxStateBytes, kMaxStepBytes, kMaxStepEffects or kMaxStepEvents).
Result<StepRequest> decode_step_request(std::string_view bytes);
Result<StepAnswer> decode_step_answer(std::string_view bytes);

}  // namespace mycojobs
