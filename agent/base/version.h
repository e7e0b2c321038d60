#pragma once

namespace mycojobs {
inline constexpr const char* kVersion = MYCOJOBS_VERSION;
}
