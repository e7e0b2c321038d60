// Encodes spans as an ExportTraceServiceRequest of opentelemetry-proto in JSON: ids are hexadecimal, 64-bit numbers are
// strings.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/version.h"
#include "telemetry/traces.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

json make_attribute(const std::string& key, const std::string& text) {
  return {{"key", key}, {"value", {{"stringValue", to_utf8(text)}}}};
}

json to_json(const Span& span) {
  constexpr int kErrorStatus = 2;
  json attributes = json::array();
  for (const auto& [key, text] : span.attributes) attributes.push_back(make_attribute(key, text));
  json result{{"traceId", span.trace_id},
              {"spanId", span.span_id},
              {"parentSpanId", span.parent_id},
              {"name", span.name},
              {"kind", static_cast<int>(span.kind)},
              {"startTimeUnixNano", std::to_string(span.start_us) + "000"},
              {"endTimeUnixNano", std::to_string(std::max(span.start_us, span.end_us)) + "000"},
              {"attributes", std::move(attributes)}};
  if (!span.error.empty()) result["status"] = {{"code", kErrorStatus}, {"message", to_utf8(span.error)}};
  return result;
}

}  // namespace

std::string encode_otlp_request(const TraceSource& source, const std::vector<Span>& spans) {
  json encoded_spans = json::array();
  for (const Span& span : spans) encoded_spans.push_back(to_json(span));
  const json resource{{"attributes", json::array({make_attribute("service.name", source.service_name),
                                                  make_attribute("service.version", kVersion),
                                                  make_attribute("host.name", source.host_name)})}};
  const json scope{{"scope", {{"name", "mycojobs"}}}, {"spans", std::move(encoded_spans)}};
  return dump_json({{"resourceSpans", json::array({{{"resource", resource}, {"scopeSpans", json::array({scope})}}})}});
}

}  // namespace mycojobs
