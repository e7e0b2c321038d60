// What an error reply of Redis means for the caller.
#pragma once

#include <string>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs {

// One line: the server's text, and the remedy where there is one.
Error redis_error(std::string_view server_text);

}  // namespace mycojobs
