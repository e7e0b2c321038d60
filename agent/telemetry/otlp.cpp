// The format is the trace service request of opentelemetry-proto in JSON: ids are hex, 64-bit numbers are strings.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/version.h"
#include "telemetry/traces.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

json attribute(const std::string& key, const std::string& text) {
  return {{"key", key}, {"value", {{"stringValue", to_utf8(text)}}}};
}

json span_json(const Span& span) {
  constexpr int kError = 2;
  json attributes = json::array();
  for (const auto& [key, text] : span.attributes) attributes.push_back(attribute(key, text));
  json out{{"traceId", span.trace_id},
           {"spanId", span.span_id},
           {"parentSpanId", span.parent_id},
           {"name", span.name},
           {"kind", static_cast<int>(span.kind)},
           {"startTimeUnixNano", std::to_string(span.start_us) + "000"},
           {"endTimeUnixNano", std::to_string(std::max(span.start_us, span.end_us)) + "000"},
           {"attributes", std::move(attributes)}};
  if (!span.error.empty()) out["status"] = {{"code", kError}, {"message", to_utf8(span.error)}};
  return out;
}

}  // namespace

std::string otlp_json(const TraceSource& source, const std::vector<Span>& spans) {
  json all = json::array();
  for (const Span& span : spans) all.push_back(span_json(span));
  const json resource{
      {"attributes", json::array({attribute("service.name", source.service), attribute("service.version", kVersion),
                                  attribute("host.name", source.host)})}};
  const json scope{{"scope", {{"name", "mycojobs"}}}, {"spans", std::move(all)}};
  return dump_json({{"resourceSpans", json::array({{{"resource", resource}, {"scopeSpans", json::array({scope})}}})}});
}

}  // namespace mycojobs
