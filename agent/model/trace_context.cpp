#include "model/trace_context.h"

#include <algorithm>

#include "base/parse.h"
#include "base/sha256.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kVersionDigits = 2, kTraceOffset = 3, kTraceDigits = 32, kSpanOffset = 36, kSpanDigits = 16,
                      kFlagsOffset = 53, kFlagsDigits = 2, kTraceparentLength = 55;

bool is_zero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view text) {
  if (text.size() < kTraceparentLength) return std::nullopt;
  const std::string_view version = text.substr(0, kVersionDigits), trace = text.substr(kTraceOffset, kTraceDigits),
                         span = text.substr(kSpanOffset, kSpanDigits), flags = text.substr(kFlagsOffset, kFlagsDigits);
  if (text[2] != '-' || text[kSpanOffset - 1] != '-' || text[kFlagsOffset - 1] != '-') return std::nullopt;
  if (!is_hex(version, kVersionDigits) || !is_hex(trace, kTraceDigits) || !is_hex(span, kSpanDigits) ||
      !is_hex(flags, kFlagsDigits))
    return std::nullopt;
  if (version == "ff" || is_zero(trace) || is_zero(span)) return std::nullopt;
  // A version newer than 00 may have further parts after another dash.
  if (text.size() > kTraceparentLength && (version == "00" || text[kTraceparentLength] != '-')) return std::nullopt;
  const char low_flags_digit = flags[1];
  const int flag_bits = low_flags_digit <= '9' ? low_flags_digit - '0' : low_flags_digit - 'a' + 10;
  constexpr int kSampledFlag = 1;
  return TraceContext{std::string(trace), std::string(span), (flag_bits & kSampledFlag) != 0};
}

std::string to_traceparent(const TraceContext& context) {
  return "00-" + context.trace_id + '-' + context.span_id + (context.sampled ? "-01" : "-00");
}

Result<void> check_traceparent(std::string_view text) {
  if (text.empty() || parse_traceparent(text)) return {};
  return fail(Code::invalid,
              excerpt(text, 80) +
                  " is not a valid traceparent: give version, trace, span and flags in lower-case hex, as in "
                  "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
}

std::string append_trace_id(std::string_view name, std::string_view traceparent) {
  const auto context = traceparent.empty() ? std::nullopt : parse_traceparent(traceparent);
  return std::string(name) + (context ? " (trace " + context->trace_id + ')' : "");
}

// Returns the same span id for the same trace, owner and name. Never returns the invalid span id of zeros only.
std::string compute_span_id(std::string_view trace_id, std::string_view owner, std::string_view name) {
  std::string input(trace_id);
  for (const std::string_view field : {owner, name}) {
    input += '\n';
    input += field;
  }
  std::string digits = sha256_hex(input).substr(0, kSpanDigits);
  if (is_zero(digits)) digits.back() = '1';
  return digits;
}

std::string make_child_traceparent(const TraceContext& context, std::string_view owner, std::string_view name) {
  return to_traceparent({context.trace_id, compute_span_id(context.trace_id, owner, name), context.sampled});
}

}  // namespace mycojobs
