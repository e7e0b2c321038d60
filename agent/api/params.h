// What a method's parameters may be: checked before it runs, and described to clients, from one table of types.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "api/rpc.h"

namespace mycojobs::api {

struct ParamProblem {
  std::string field, message, remedy;
};
// The first parameter that is unknown, of another type, or missing. One that is null counts as absent.
std::optional<ParamProblem> check_params(const Method&, const nlohmann::json& params);
nlohmann::json schema_of(std::string_view type);  // JSON schema of a type of Param
bool is_type(std::string_view type);

}  // namespace mycojobs::api
