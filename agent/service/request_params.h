// Parameters of a request as JSON: their types, their validation against the row of the request, and typed access.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "model/records.h"
#include "service/request_table.h"

namespace mycojobs::service {

struct ParamProblem {
  std::string field, message, remedy;
};
// Returns the first problem: a parameter that is unknown, has a wrong type, is outside of its limits, or is missing. A
// null value counts as missing.
std::optional<ParamProblem> validate_params(const Request&, const nlohmann::json& params);
// Describes the values of a parameter: "a whole number, 1 or more".
std::string describe_values(const Param&);
// Returns the help of a parameter with its limits and default: "maximum number of entries (1 to 1000, default 100)".
std::string describe_param(const Param&);

nlohmann::json get_type_schema(std::string_view type);  // JSON schema of a type
nlohmann::json get_param_schema(const Param&);          // the same, with allowed values, limits and default
bool is_param_type(std::string_view type);

// The validated parameters of a request. The row and the values must outlive the object.
class RequestParams {
 public:
  // REQUIRES: validate_params() has found no problem.
  RequestParams(const Request& request, const nlohmann::json& values) : request_(&request), values_(&values) {}
  // Parameters that belong to no request of the table, and have no defaults there.
  explicit RequestParams(const nlohmann::json& values) : values_(&values) {}

  const nlohmann::json& params() const { return *values_; }
  bool has_param(std::string_view name) const;  // the request has the parameter, and it is not null
  // The next four functions return a parameter. If the request does not have it, they return its default in the table,
  // or otherwise 0, false or an empty text.
  Id id(std::string_view name) const;
  std::uint64_t number(std::string_view name) const;
  std::string text(std::string_view name) const;
  bool flag(std::string_view name) const;
  // The next two functions return no value if the request does not have the parameter.
  std::optional<Id> optional_id(std::string_view name) const;
  std::optional<std::string> optional_text(std::string_view name) const;

 private:
  const Request* request_ = nullptr;
  const nlohmann::json* values_;
};

}  // namespace mycojobs::service
