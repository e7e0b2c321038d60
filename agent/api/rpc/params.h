// Types of the parameters of methods. One table of types is used to check parameters before a method runs, and to
// describe them to clients.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "api/rpc/json_rpc.h"

namespace mycojobs::api {

struct ParamProblem {
  std::string field, message, remedy;
};
// Returns the first problem: a parameter that is unknown, has a wrong type, or is missing. A null value counts as
// missing.
std::optional<ParamProblem> validate_params(const Method&, const nlohmann::json& params);
nlohmann::json get_type_schema(std::string_view type);  // JSON schema of a Param::type
bool is_param_type(std::string_view type);

}  // namespace mycojobs::api
