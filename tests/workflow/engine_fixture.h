// Runs programs on the engine, with JSON input and output.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "workflows/engine/engine.h"

namespace mycojobs::workflow {

EngineOptions options();  // options of the tested engine
// Options of engines that must give the same answers: the normal build, the build without optimization, and the engine
// as started on another machine (elsewhere_host.cpp).
std::vector<EngineOptions> all_options();
std::string cbor(const nlohmann::json&);
nlohmann::json value(const std::string& cbor);
WorkflowProgram program(const std::string& source);
// A request with the event {}, without state; ctx is {}.
StepRequest request();

// Formats an answer for comparison: state, events and effects, or kind and message of the failure.
std::string text(const StepAnswer&);
// Returns the state of an answer, or no value for an error.
std::optional<std::string> get_state(const Result<StepAnswer>&);
// Runs one step on a new engine.
std::string ran(const std::string& source, const StepRequest& = request(), EngineOptions = options());
// Returns the value of an expression: `body` is the body of the step function, whose result becomes the state.
std::string make_state(const std::string& body);

}  // namespace mycojobs::workflow
