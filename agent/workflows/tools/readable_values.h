// Values of workflows as JSON for display and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace mycojobs {

// Converts byte strings to base64, as JSON represents values of a schema with format bytes.
nlohmann::json to_readable_json(nlohmann::json value);
// Converts CBOR to JSON. Returns null if the bytes are not CBOR.
nlohmann::json cbor_to_readable_json(std::string_view cbor);

}  // namespace mycojobs
