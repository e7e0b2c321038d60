#include "workflows/tools/readable_values.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "text/base64.h"
#include "text/cbor.h"
#include "text/cbor_map_reader.h"

namespace mycojobs {

using nlohmann::json;

json to_readable_json(json value) {
  if (value.is_binary()) return encode_base64(workflows::to_bytes(value));
  if (value.is_structured())
    for (auto& child : value) child = to_readable_json(std::move(child));
  return value;
}

json cbor_to_readable_json(std::string_view cbor) {
  auto value = decode_cbor(cbor);
  return value ? to_readable_json(std::move(*value)) : json(nullptr);
}

}  // namespace mycojobs
