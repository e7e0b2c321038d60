// Values of workflows for people and programs that read JSON. Only workflow_*.cpp and who shows them need it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace mycojobs {

// Byte strings become base64, as JSON gives them to a schema with format bytes.
nlohmann::json readable(nlohmann::json value);
// Of CBOR; null if it is none.
nlohmann::json readable_cbor(std::string_view cbor);

}  // namespace mycojobs
