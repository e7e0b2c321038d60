// Reads JSON documents that people write (definitions of flows, manifests of workflows, scenarios): typed reads of
// values that know their path. A rejected value is a problem with its path; reading continues, so that all problems are
// reported together. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mycojobs {

struct YamlText;  // text/yaml.h

// A problem of a document: the path (jobs.build.when[0].key), the problem with its remedy, and the position if the
// text is known.
struct DocumentProblem {
  std::string path, message;
  std::size_t line = 0, column = 0;  // from 1; 0 if unknown
};
// Returns a line for each problem: "line 3, column 5: jobs.b.needs[0]: ..."
std::string join(const std::vector<DocumentProblem>&);
// Returns a syntax error of yaml_to_json() or parse_exact_json() as a problem of the whole document, with the position
// from its text. A position at the start of a text of YAML is not repeated in the message.
DocumentProblem parse_syntax_error(std::string message);
// Sets line and column of the value at the problem's path, or of the closest enclosing value with a known position; the
// outermost is the document itself. Does not change a known position.
void set_position(const YamlText&, DocumentProblem&);

// The problems of a document. Problems after the first kMaxCount are dropped.
class DocumentProblems {
 public:
  static constexpr std::size_t kMaxCount = 50;

  void add(std::string path, std::string message) {
    if (!is_full()) list_.push_back({std::move(path), std::move(message)});
  }
  bool is_full() const { return list_.size() >= kMaxCount; }
  bool empty() const { return list_.empty(); }
  std::vector<DocumentProblem> release_problems() { return std::move(list_); }

 private:
  std::vector<DocumentProblem> list_;
};

// A JSON value and its path: "jobs.build.needs[0]".
struct DocumentValue {
  const nlohmann::json& value;
  std::string path;
  DocumentProblems& problems;

  void report_problem(std::string message) const { problems.add(path, std::move(message)); }
  bool report_wrong_type(std::string_view expected) const;  // reports the actual type; returns false
  DocumentValue at(const nlohmann::json& item, std::string_view key) const;
  DocumentValue at(const nlohmann::json& item, std::size_t index) const;
};

// Typed reads. They return false if the value was rejected; `out` is then unchanged.
bool read_text(const DocumentValue&, std::string& out);    // not empty
bool read_scalar(const DocumentValue&, std::string& out);  // text, number or boolean, as text
bool read_switch(const DocumentValue&, bool& out);
bool read_duration(const DocumentValue&, std::uint64_t& out_ms);  // above 0, at most 10 years
bool read_integer(const DocumentValue&, std::int64_t min, std::int64_t max, std::int64_t& out);
bool read_map(const DocumentValue&, std::map<std::string, std::string>& out);
// Calls visit(DocumentValue of the item) for each item of a list. A value that is not a list counts as a list with one
// item.
void for_each_item(const DocumentValue&, const std::function<void(const DocumentValue&)>& visit);

}  // namespace mycojobs
