// What methods answer with, by name: the schemas of the OpenRPC document, from one table. A type of a result is a name
// of this table, one of params.h, or either in brackets: a list of it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace mycojobs::api {

nlohmann::json result_schema(std::string_view type);  // "Flow", "[JobState]", "text"
nlohmann::json shape_schemas();                       // components.schemas
bool is_result_type(std::string_view type);

}  // namespace mycojobs::api
