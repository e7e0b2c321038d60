// What we could not do: Result<T> and Error. What happened to a job is a value of its own (outcome.h); a bug asserts.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace mycojobs {

// Few codes, each about what the caller can do next.
enum class Code {
  invalid,      // the input is wrong: mend it and try again
  not_found,    // there is no such thing
  conflict,     // somebody else was faster, or the thing exists with other content
  stale_claim,  // the claim is no longer ours: stop, report nothing more
  denied,       // the caller may not, or a credential is wrong
  unavailable,  // a server or helper does not answer now: try again later
  unsupported,  // this host, kernel or server cannot: the message names the remedy
  too_large,    // over a limit that the message names
  io,           // the operating system refused: errno is in the message
  internal,     // a reply that should not exist
};

struct Error {
  Code code = Code::internal;
  std::string message;  // one line; names the field, file or step, and the remedy where there is one
};

template <class T>
using Result = tl::expected<T, Error>;

[[nodiscard]] inline tl::unexpected<Error> fail(Code code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}
// Passes an error on with what was being done in front: "claim: redis: connection refused".
[[nodiscard]] inline tl::unexpected<Error> fail(Error error, std::string_view doing) {
  error.message.insert(0, std::string(doing) + ": ");
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace mycojobs

// MJ_TRY(name, expr): evaluates a Result, returns its error from this function, else binds its value to `name`.
#define MJ_TRY(name, expr)                                                                      \
  auto name##_result = (expr);                                                                  \
  if (!name##_result) return tl::unexpected<mycojobs::Error>(std::move(name##_result).error()); \
  auto& name = *name##_result
// MJ_CHECK(expr): the same for Result<void>.
#define MJ_CHECK(expr)                                                         \
  do {                                                                         \
    if (auto check_result = (expr); !check_result)                             \
      return tl::unexpected<mycojobs::Error>(std::move(check_result).error()); \
  } while (false)
