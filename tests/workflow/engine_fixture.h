// The engine with one program, and steps as JSON on both sides.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "workflow/engine.h"

namespace mycojobs::workflow {

EngineOptions options();  // of the engine that is tested
// It once more, as it must not make a difference: the program as it was built here, not optimised, and as another
// machine would start it (elsewhere_host.cpp).
std::vector<EngineOptions> all_options();
std::string cbor(const nlohmann::json&);
nlohmann::json value(const std::string& cbor);
Program program(const std::string& source);
// An event {} on no state; ctx is {}.
StepRequest request();

// An answer as one text, to compare: state, events, effects; or kind and message of its failure.
std::string text(const StepAnswer&);
// One step of a new engine.
std::string ran(const std::string& source, const StepRequest& = request(), EngineOptions = options());
// What an expression is: `body` is the function's, and what it returns is the state.
std::string state_of(const std::string& body);

}  // namespace mycojobs::workflow
