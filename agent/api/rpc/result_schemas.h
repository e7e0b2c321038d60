// The JSON objects that methods return, as schemas of the OpenRPC document. The type of a result is a name of the table
// in result_schemas.cpp or a type of service/request_params.h. Brackets denote a list: "[JobState]".
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace mycojobs::api {

nlohmann::json get_result_schema(std::string_view type);  // type: "Flow", "[JobState]", "text"
nlohmann::json list_result_schemas();                     // the part components.schemas of the document
bool is_result_type(std::string_view type);

}  // namespace mycojobs::api
