// One step of a workflow's code, as it crosses to the engine and back: request and answer, each one deterministic CBOR
// map (domain/cbor.h). Values that belong to the workflow (state, event, context, parameters) travel as byte strings of
// their own CBOR, so that what is hashed and journaled is what the code saw. Pure; any thread. Source: seed 003, 7.2.
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

#include "mycojobs/result.h"

namespace mycojobs {

inline constexpr std::uint64_t kStepVersion = 1;
// How the engine counts the work of a step. A limit is reached at another place in another way, so a replay of a
// journal takes a step again in the earlier ways, too (docs/decisions/0024). 1: instructions and some functions of the
// library. 2: all of them.
inline constexpr std::uint32_t kStepCounting = 2;
inline constexpr std::size_t kMaxStepEffects = 64, kMaxStepEvents = 256;
inline constexpr std::size_t kMaxStepBytes = 1U << 20;    // of an encoded answer, beside the state
inline constexpr std::size_t kMaxStateBytes = 10U << 20;  // of a state

struct StepEvent {
  std::string schema;              // ns/Name@version
  std::string value;               // CBOR
  std::optional<std::string> key;  // CBOR; of a keyed workflow alone
  bool operator==(const StepEvent&) const = default;
};
struct StepRequest {
  std::optional<std::string> state;  // CBOR; nothing: the instance begins
  StepEvent event;
  std::optional<std::string> ctx;  // CBOR of sys/WorkflowContext@1; nothing: the workflow asks for none
  // For the engine alone, no part of the encoded request.
  std::uint64_t owner = 0;  // in whose name the code runs: owners share no process; 0: unknown
  std::uint32_t counting = kStepCounting;
  bool operator==(const StepRequest&) const = default;
};

struct StepEffect {
  std::string kind;         // name of an effect: ns/name@version
  std::string params;       // CBOR
  std::uint64_t index = 0;  // its place among the effects of the step, from 0
  std::string issuer_ref;   // what the code calls it; comes back with its receipt; empty: none
  bool operator==(const StepEffect&) const = default;
};
struct StepOutput {
  std::optional<std::string> state;  // CBOR; nothing: the instance is deleted
  std::vector<StepEvent> domain_events;
  std::vector<StepEffect> effects;
  std::optional<std::string> ann;  // CBOR
  bool operator==(const StepOutput&) const = default;
};
// The code could not end its step. The same request brings the same error.
struct StepError {
  std::string kind;        // a word of the engine: script, instructions, memory, output, entrypoint
  std::string message;     // for people
  std::uint64_t line = 0;  // of the code; 0: none
  bool operator==(const StepError&) const = default;
};
using StepAnswer = std::variant<StepOutput, StepError>;

// Error invalid: a text that is not UTF-8.
Result<std::string> encode(const StepRequest&);
Result<std::string> encode(const StepAnswer&);
// Errors: invalid (not the one encoding, another version, a field that is missing, unknown or of another type: named),
// too_large (an answer over kMaxStateBytes, kMaxStepBytes, kMaxStepEffects or kMaxStepEvents).
Result<StepRequest> decode_step_request(std::string_view bytes);
Result<StepAnswer> decode_step_answer(std::string_view bytes);

}  // namespace mycojobs
