// What an operator can do when a step of the set-up fails, or a layer is missing.
#pragma once

#include <string>
#include <string_view>

namespace mycojobs::sandbox {

std::string remedy_for_step(std::string_view step, int error);
std::string remedy_for_layer(std::string_view layer);  // empty: no such layer
bool is_layer_that_may_miss(std::string_view layer);   // sandbox.allow_missing takes these

}  // namespace mycojobs::sandbox
