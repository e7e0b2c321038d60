// Parses the packages that a Python script declares in a block of comments, which PEP 723 defines:
//
//   # /// script
//   # requires-python = ">=3.11"
//   # dependencies = ["requests<3", "numpy"]
//   # ///
//
// The functions are pure and thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mycojobs {

struct ScriptRequirements {
  std::vector<std::string> requirements;  // requirements in the syntax of PEP 508, sorted and without duplicates
  std::string python_specifier;           // allowed versions of Python, such as ">=3.11,<4"; empty if all are allowed
};

// Returns false if the script has no block of metadata. The function is faster than parse_requirements(), but can also
// return true for a script without a block.
bool may_have_requirements(std::string_view script);

// Returns the requirements of a script. They are empty if the script has no block of metadata. Error invalid: a block
// is not closed or longer than 64 KiB, the script has more than one block, the text is not UTF-8 or not TOML, a field
// has the wrong type, there are more than kMaxPythonRequirements, or check_python_requirement() rejects a requirement
// (model/policy_json.h).
Result<ScriptRequirements> parse_requirements(std::string_view script);

// Adds requirements to those of a script.
void add_requirements(const std::vector<std::string>& added, ScriptRequirements&);

// Returns the name of a package as PEP 503 normalizes it: "Zope.Interface" becomes "zope-interface".
std::string normalize_package_name(std::string_view name);

// Returns whether the normalized name matches a pattern, in which each * matches any number of characters.
bool matches_package_pattern(std::string_view name, std::string_view pattern);

// Returns whether a version, such as "3.11.2", meets all comparisons of a specifier. The comparisons are separated by
// commas; their operators are == != <= >= < > ~= and ===. An empty specifier is met. Error invalid: the specifier or
// the version cannot be parsed.
Result<bool> meets_python_specifier(std::string_view version, std::string_view specifier);

}  // namespace mycojobs
