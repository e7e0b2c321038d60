// Result<T> and Error for operations that can fail. The result of a job's run is a separate value (sandbox/outcome.h).
// Bugs assert.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace mycojobs {

// Error codes, distinguished by the reaction of the caller.
enum class Code {
  invalid,      // the input is wrong: correct it and try again
  not_found,    // the requested object does not exist
  conflict,     // another client was faster, or the object exists with other content
  stale_claim,  // the claim is no longer valid: stop and report nothing more
  denied,       // the caller lacks a permission, or a credential is wrong
  unavailable,  // a server or helper does not answer: try again later
  unsupported,  // this host, kernel or server lacks a feature; the message names the remedy
  too_large,    // exceeds a limit that the message names
  io,           // the operating system returned an error; errno is in the message
  internal,     // unexpected reply
};

std::string_view to_string(Code);  // "not_found"

struct Error {
  Code code = Code::internal;
  std::string message;  // one line that names the field, file or step, and the remedy if there is one
};

template <class T>
using Result = tl::expected<T, Error>;

[[nodiscard]] inline tl::unexpected<Error> fail(Code code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}
// Returns the error with the failed operation as a prefix: "claim: redis: connection refused".
[[nodiscard]] inline tl::unexpected<Error> fail(Error error, std::string_view operation) {
  error.message.insert(0, std::string(operation) + ": ");
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace mycojobs

// MJ_TRY(name, expr): evaluates a Result. Returns its error from this function, or binds its value to `name`.
#define MJ_TRY(name, expr)                                                                      \
  auto name##_result = (expr);                                                                  \
  if (!name##_result) return tl::unexpected<mycojobs::Error>(std::move(name##_result).error()); \
  auto& name = *name##_result
// MJ_CHECK(expr): as MJ_TRY, for Result<void>.
#define MJ_CHECK(expr)                                                         \
  do {                                                                         \
    if (auto check_result = (expr); !check_result)                             \
      return tl::unexpected<mycojobs::Error>(std::move(check_result).error()); \
  } while (false)
