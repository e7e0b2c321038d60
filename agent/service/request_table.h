// The table of requests: name, parameters and result of everything that a client can request. The RPC methods, the
// OpenRPC document, and the flags, help, completion and man pages of commands are made from the rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace mycojobs::service {

// A parameter of a request.
struct Param {
  std::string_view name;  // "caller_id"
  std::string_view type;  // a type of service/request_params.h
  std::string_view help;
  bool required = false;
  std::string_view choices = {};  // allowed values, separated by spaces; empty: any value
  std::optional<std::uint64_t> default_value = {};
  std::optional<std::int64_t> min = {}, max = {};  // limits of a number, or of the length of a list
  // A server reduces a larger number to this value, because its clients share the server. A command does not.
  std::optional<std::uint64_t> server_max = {};
  bool allows_empty = false;  // an empty text is valid besides `choices`, and removes the field of the record
};

struct Request {
  std::string_view name;  // "flow.start"
  std::string_view help;
  std::vector<Param> params;
  std::string_view result;  // type and description: "Flow: the flow"; type: see api/rpc/result_schemas.h
};

const std::vector<Request>& requests();
// Returns null if the table has no request of this name.
const Request* find_request(std::string_view name);
// Returns null if the request has no parameter of this name.
const Param* find_param(const Request&, std::string_view name);

}  // namespace mycojobs::service
