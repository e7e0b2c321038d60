// The packages that a Python script states in its comments, as PEP 723 defines them:
//
//   # /// script
//   # requires-python = ">=3.11"
//   # dependencies = ["requests<3", "numpy"]
//   # ///
//
// Pure and thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mycojobs {

inline constexpr std::size_t kMaxRequirements = 100;

struct ScriptRequirements {
  std::vector<std::string> packages;  // as in PEP 508, without blanks at both ends; sorted, each once
  std::string python;                 // specifier of versions, such as ">=3.11,<4"; empty if there is none
};

// Returns whether the text may have a block of metadata. Fast; parse_requirements() decides.
bool may_state_requirements(std::string_view script);

// Returns the requirements of a script; empty without a block. Error invalid: a block that is not closed, more than one
// block, invalid TOML, a field of another type, or a requirement that check_requirement() rejects.
Result<ScriptRequirements> parse_requirements(std::string_view script);

// Accepts a name with optional extras, versions and markers: "requests[socks] >=2.28, <3; python_version >= '3.8'".
// Rejects URLs and paths, since packages come from the index of the operator, and options of pip. Error invalid.
Result<void> check_requirement(std::string_view requirement);

// Returns the normalized name of a package (PEP 503): "Zope.Interface" -> "zope-interface".
std::string normalize_package_name(std::string_view name);

// Returns whether the normalized name matches a pattern, in which each * stands for any characters.
bool matches_package_pattern(std::string_view name, std::string_view pattern);

// Returns whether a version ("3.11.2") meets a specifier: comparisons (== != <= >= < > ~=) separated by commas. Error
// invalid: the specifier cannot be parsed.
Result<bool> meets_python_specifier(std::string_view version, std::string_view specifier);

}  // namespace mycojobs
