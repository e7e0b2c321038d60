// A secret of a context: its name and its value.
#pragma once

#include <string>

namespace mycojobs {

struct Secret {
  std::string name;
  std::string value;  // any bytes
  bool operator==(const Secret&) const = default;
};

}  // namespace mycojobs
