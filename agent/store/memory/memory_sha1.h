// redis.sha1hex of the imitation (FIPS 180-4), so that digests are those that a real server makes. Not for secrets.
#pragma once

#include <string>
#include <string_view>

namespace mycojobs::memory {

std::string sha1_hex(std::string_view text);

}  // namespace mycojobs::memory
