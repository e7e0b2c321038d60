#include "model/result_references.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::string_view kBegin = "${", kEscape = "$${";

// Calls on_text for each part between references, and on_reference for each reference.
template <class OnText, class OnReference>
Result<void> scan_text(std::string_view text, OnText on_text, OnReference on_reference) {
  while (!text.empty()) {
    const std::size_t begin = text.find('$');
    on_text(text.substr(0, begin));
    if (begin == std::string_view::npos) return {};
    text.remove_prefix(begin);
    if (text.starts_with(kEscape)) {
      on_text(kBegin);
      text.remove_prefix(kEscape.size());
      continue;
    }
    if (!text.starts_with(kBegin)) {
      on_text(text.substr(0, 1));
      text.remove_prefix(1);
      continue;
    }
    const std::size_t end = text.find('}');
    const std::string_view name = text.substr(kBegin.size(), end == std::string_view::npos ? end : end - kBegin.size());
    const std::size_t dot = name.find('.');
    if (end == std::string_view::npos || dot == 0 || dot == std::string_view::npos || dot + 1 == name.size()) {
      return fail(Code::invalid, excerpt(text.substr(0, end == std::string_view::npos ? end : end + 1)) +
                                     " is not ${NODE.KEY}, as in ${build.size}; for the text itself write $${");
    }
    MJ_CHECK(on_reference(ResultReference{std::string(name.substr(0, dot)), std::string(name.substr(dot + 1))}));
    text.remove_prefix(end + 1);
  }
  return {};
}

Result<std::string> expand_text(std::string_view text, const std::string& field, const ReferenceLookup& lookup) {
  std::string out;
  auto scanned = scan_text(
      text, [&](std::string_view part) { out += part; },
      [&](const ResultReference& reference) -> Result<void> {
        auto value = lookup(reference);
        if (!value) return fail(Code::invalid, to_string(reference) + ": " + std::move(value).error().message);
        out += *value;
        return {};
      });
  if (!scanned) return fail(std::move(scanned).error(), field);
  return out;
}

}  // namespace

std::string to_string(const ResultReference& reference) { return "${" + reference.node + '.' + reference.key + '}'; }

bool has_references(std::string_view text) {
  if (text.find(kBegin) == std::string_view::npos) return false;
  const auto references = parse_references(text);
  return !references || !references->empty();
}

Result<std::vector<ResultReference>> parse_references(std::string_view text) {
  std::vector<ResultReference> references;
  MJ_CHECK(scan_text(
      text, [](std::string_view) {},
      [&](ResultReference reference) -> Result<void> {
        references.push_back(std::move(reference));
        return {};
      }));
  return references;
}

std::string escape_references(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with(kBegin)) out += '$';
    out += text[i];
  }
  return out;
}

std::string unescape_references(std::string_view text) {
  if (text.find(kEscape) == std::string_view::npos || has_references(text)) return std::string(text);
  return expand_text(text, "", {}).value_or(std::string(text));
}

Result<void> expand_references(Job& job, const FlowData& flow, const ReferenceLookup& lookup) {
  for (const std::string& name : flow.expanded_variables) {
    const auto variable = job.env_vars.find(name);
    if (variable == job.env_vars.end()) continue;
    MJ_TRY(value, expand_text(variable->second, "env_vars: " + excerpt(name), lookup));
    variable->second = std::move(value);
  }
  for (const std::size_t i : flow.expanded_args) {
    if (i >= job.args.size()) continue;
    MJ_TRY(value, expand_text(job.args[i], "args[" + std::to_string(i) + "]", lookup));
    job.args[i] = std::move(value);
  }
  return {};
}

}  // namespace mycojobs
