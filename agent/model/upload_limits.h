// Limits of uploaded files that do not depend on settings.
#pragma once

#include <cstdint>

namespace mycojobs {

// Maximum size of an uploaded file, and of the uploads and inputs of a job together, since the agent reads them into
// memory.
inline constexpr std::uint64_t kMaxUploadedBytes = 256ULL << 20;

}  // namespace mycojobs
