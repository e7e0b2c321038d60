// Reads one HTTP request into the form that handlers receive: method, path, query, headers, and the complete body
// within its limits. Not thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "api/http/http_message.h"
#include "net/http_wire.h"

namespace mycojobs::api {

struct RequestLimits {
  std::size_t head_bytes = 0, body_bytes = 0;
};

// Returns whether the memory limits allow a body of this length.
using BodyMemoryCheck = std::function<bool(std::size_t length)>;

class RequestReader {
 public:
  explicit RequestReader(const RequestLimits& limits) : limits_(limits), parser_(limits.head_bytes) {}

  // Returns how many of the bytes were consumed as the head. 0: the head is incomplete; call again with the same bytes
  // and the bytes that follow. Errors: invalid, too_large.
  Result<std::size_t> parse_head(std::string_view bytes);
  bool has_head() const { return parser_.has_head(); }
  void limit_body(std::size_t bytes) { limits_.body_bytes = bytes; }  // REQUIRES: parse_body() was not called
  // Returns how many of the bytes were consumed as part of the body. REQUIRES: has_head(). Errors: invalid, too_large,
  // unavailable (the BodyMemoryCheck has failed).
  Result<std::size_t> parse_body(std::string_view bytes, const BodyMemoryCheck&);
  bool is_complete() const { return parser_.is_complete(); }

  HttpRequest& request() { return request_; }
  const HttpRequest& request() const { return request_; }
  // REQUIRES for the next three functions: has_head().
  bool is_http_1_1() const { return parser_.is_http_1_1(); }
  bool is_keep_alive() const { return parser_.is_keep_alive(); }
  bool expects_continue() const;  // client waits for status 100 before it sends the body

 private:
  Result<void> check_host() const;

  RequestLimits limits_;
  HttpRequestParser parser_;
  HttpRequest request_;
  std::size_t framed_bytes_ = 0;  // bytes of the body including the framing of its chunks
};

}  // namespace mycojobs::api
