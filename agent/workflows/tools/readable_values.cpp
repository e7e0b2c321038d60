#include "workflows/tools/readable_values.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "text/base64.h"
#include "text/cbor.h"
#include "text/cbor_map_reader.h"

namespace mycojobs {

using nlohmann::json;

json readable(json value) {
  if (value.is_binary()) return encode_base64(workflows::bytes_of(value));
  if (value.is_structured())
    for (auto& each : value) each = readable(std::move(each));
  return value;
}

json readable_cbor(std::string_view cbor) {
  auto value = decode_cbor(cbor);
  return value ? readable(std::move(*value)) : json(nullptr);
}

}  // namespace mycojobs
