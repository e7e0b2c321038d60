// Random bytes and identifiers from the kernel's generator. Thread-safe.
#pragma once

#include <cstddef>
#include <string>

namespace mycojobs {

std::string random_hex(std::size_t bytes);  // 2 characters for each byte
std::string random_bytes(std::size_t);

}  // namespace mycojobs
