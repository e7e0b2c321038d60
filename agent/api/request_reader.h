// A request as handlers get it: its path and query apart, its body whole and within limits. Of one thread.
#pragma once

#include <cstddef>
#include <string_view>

#include "api/body_share.h"
#include "api/http.h"
#include "domain/http_wire.h"

namespace mycojobs::api {

struct RequestLimits {
  std::size_t head_bytes = 0, body_bytes = 0;
};

class RequestReader {
 public:
  explicit RequestReader(const RequestLimits& limits) : limits_(limits), parser_(limits.head_bytes) {}

  // How many of the bytes are its head; 0: it has not ended yet, give them again with what follows. Errors: invalid,
  // too_large.
  Result<std::size_t> take_head(std::string_view bytes);
  bool has_head() const { return parser_.has_head(); }
  void limit_body(std::size_t bytes) { limits_.body_bytes = bytes; }  // before any of it is taken
  // After the head: how many of the bytes belong to it. Errors: invalid, too_large, unavailable (the share is used up).
  Result<std::size_t> take_body(std::string_view bytes, BodyShare&);
  bool done() const { return parser_.done(); }

  HttpRequest& request() { return request_; }
  const HttpRequest& request() const { return request_; }
  // These need the head.
  bool is_http_1_1() const { return parser_.is_http_1_1(); }
  bool keeps_alive() const { return parser_.keeps_alive(); }
  bool awaits_continue() const;  // the client sends the body when it is asked to

 private:
  Result<void> check_host() const;

  RequestLimits limits_;
  HttpRequestParser parser_;
  HttpRequest request_;
  std::size_t framed_ = 0;  // bytes of the body, with what frames it
};

}  // namespace mycojobs::api
