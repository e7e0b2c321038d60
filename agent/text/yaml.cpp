// Only this file uses yaml-cpp and handles its exceptions.
#include "text/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "text/json.h"
#include "text/utf8.h"
#include "text/yaml_scanner.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxNesting = 64;
constexpr std::size_t kMaxValuePathBytes = 4096;  // limit for one value
// Positions that are kept for messages; the same limit applies to spellings.
constexpr std::size_t kMaxAllPathsBytes = 8U << 20;

// Returns whether the text is a number as JSON writes numbers. Other YAML numbers are texts: 0x1f, 007, .5, 1_000,
// .inf.
bool is_plain_number(std::string_view text) {
  const auto digits = [&text] {
    const std::size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(count);
    return count;
  };
  if (text.starts_with('-')) text.remove_prefix(1);
  const bool zero = text.starts_with('0');
  const std::size_t integer_digits = digits();
  if (integer_digits == 0 || (zero && integer_digits > 1)) return false;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (digits() == 0) return false;
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
    if (digits() == 0) return false;
  }
  return text.empty();
}

json plain_value(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  if (!is_plain_number(text) || text.size() > 40) return text;
  auto number = parse_exact_json(text);  // an integer beyond 64 bits stays text, with all its digits
  return number ? std::move(*number) : json(text);
}

// Returns a hint if a line near the error is indented by a tab, which the parser's message does not mention.
std::string tab_near(std::string_view text, int broken) {
  for (int line = 0; line <= broken && !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view blanks = text.substr(0, std::min(text.find_first_not_of(" \t"), end));
    if (line + 1 >= broken && blanks.find('\t') != std::string_view::npos)
      return "; line " + std::to_string(line + 1) + " is indented by a tab: YAML allows only spaces";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return "";
}

std::string describe_position(const YAML::Mark& mark) {
  return "line " + std::to_string(mark.line + 1) + ", column " + std::to_string(mark.column + 1) + ": ";
}

// Input that this reader rejects. Thrown to leave the parser, and caught in this file.
struct RejectedYaml {
  std::string message;
};

class YamlToJsonBuilder : public YAML::EventHandler {
 public:
  explicit YamlToJsonBuilder(YamlText& positions) : positions_(positions) {}
  json take() { return std::move(root_); }
  bool ended_quoted() const { return ended_quoted_; }  // the last text was quoted or a block scalar

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) refuse(mark, "a second document begins: give one");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    add_value(mark, nullptr, "");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark, "aliases (*name) are not supported: repeat the value");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_anchor(mark, anchor);
    // yaml-cpp gives the tag "?" to a plain scalar, and "!" to a quoted or block scalar.
    if (!tag.empty() && tag != "?" && tag != "!") refuse_tag(mark, tag);
    ended_quoted_ = tag == "!";
    if (wants_key()) return key(mark, value);
    json read = tag == "!" ? json(value) : plain_value(value);
    if ((read.is_number() || read.is_boolean()) && dump_json(read) != value) record_spelling(mark, value);
    add_value(mark, std::move(read), value);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, json::array());
  }
  void OnSequenceEnd() override { open_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, json::object());
  }
  void OnMapEnd() override { open_.pop_back(); }

 private:
  struct Level {
    json* value;
    std::string path;
    std::string key;  // for a map: the key of the next value
    bool has_key = false;
  };

  [[noreturn]] static void refuse(const YAML::Mark& mark, const std::string& reason) {
    throw RejectedYaml{describe_position(mark) + reason};
  }
  static void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != 0) refuse(mark, "anchors (&name) are not supported: repeat the value where it is used");
  }
  static void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    refuse(mark, "tags (" + excerpt(tag) + ") are not supported: quote text, and write other values plainly");
  }

  bool wants_key() const { return !open_.empty() && open_.back().value->is_object() && !open_.back().has_key; }

  void key(const YAML::Mark& mark, const std::string& text) {
    Level& level = open_.back();
    if (level.value->contains(text)) refuse(mark, "the key " + excerpt(text) + " is a duplicate key of this map");
    level.key = text;
    level.has_key = true;
    if (path_bytes() > kMaxValuePathBytes)
      refuse(mark, "the path of this value is longer than " + std::to_string(kMaxValuePathBytes) +
                       " bytes: use shorter keys");
    record_position(mark);
  }

  // Positions are used only in messages, so they are omitted for a text with very many long paths.
  void record_position(const YAML::Mark& mark) {
    if ((place_bytes_ += path_bytes()) <= kMaxAllPathsBytes) positions_.positions.emplace(path(), position(mark));
  }
  void record_spelling(const YAML::Mark& mark, const std::string& value) {
    if ((spelling_bytes_ += path_bytes() + value.size()) > kMaxAllPathsBytes)
      refuse(mark, "numbers with a spelling of their own (1.50, 1e3) have paths of more than " +
                       std::to_string(kMaxAllPathsBytes) + " bytes together: use shorter keys, or quotes");
    positions_.spellings.emplace(path(), value);
  }
  std::size_t path_bytes() const { return open_.empty() ? 0 : open_.back().path.size() + open_.back().key.size() + 1; }

  static std::pair<std::size_t, std::size_t> position(const YAML::Mark& mark) {
    return {static_cast<std::size_t>(mark.line) + 1, static_cast<std::size_t>(mark.column) + 1};
  }
  // Returns the path of the next value.
  std::string path() const {
    if (open_.empty()) return "";
    const Level& level = open_.back();
    if (level.value->is_array()) return level.path + '[' + std::to_string(level.value->size()) + ']';
    return level.path.empty() ? level.key : level.path + '.' + level.key;
  }

  json* add_value(const YAML::Mark& mark, json value, const std::string& text) {
    if (wants_key()) {
      key(mark, text);
      return nullptr;
    }
    record_position(mark);
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = open_.back();
    if (level.value->is_array()) {
      level.value->push_back(std::move(value));
      return &level.value->back();
    }
    level.has_key = false;
    return &((*level.value)[level.key] = std::move(value));
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, json empty) {
    refuse_anchor(mark, anchor);
    if (!tag.empty() && tag != "?" && tag != "!") refuse_tag(mark, tag);
    ended_quoted_ = tag == "!";
    if (wants_key()) refuse(mark, "a key is a text, not a list or a map");
    if (open_.size() >= kMaxNesting) refuse(mark, "nests deeper than " + std::to_string(kMaxNesting) + " levels");
    std::string at = path();
    // While an item of a list is open, no other item is added to the list, so pointers to the item remain valid.
    json* value = add_value(mark, std::move(empty), "");
    open_.push_back({value, std::move(at), {}, false});
  }

  YamlText& positions_;
  json root_;
  std::vector<Level> open_;
  std::size_t place_bytes_ = 0, spelling_bytes_ = 0;
  int documents_ = 0;
  bool ended_quoted_ = false;
};

class IgnoringEventHandler : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// yaml-cpp accepts an open quote at the end of the text if a line end precedes the end, so a truncated text would pass.
// Without the line end it reports the error.
void check_last_quote(std::string_view text) {
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  std::istringstream in{std::string(text)};
  YAML::Parser parser(in);
  IgnoringEventHandler nothing;
  (void)parser.HandleNextDocument(nothing);
}

}  // namespace

Result<json> yaml_to_json(std::string_view text, std::size_t max_bytes, YamlText& positions) {
  if (text.size() > max_bytes) {
    return fail(Code::too_large, "YAML of " + std::to_string(text.size()) + " bytes is over the limit of " +
                                     std::to_string(max_bytes) + " bytes");
  }
  if (!is_utf8(text) || text.find('\0') != std::string_view::npos) {
    return fail(Code::invalid, "is not text in UTF-8: save it as UTF-8");
  }
  positions = {};
  MJ_TRY(readable, scan_yaml(text));
  try {
    std::istringstream in{std::string(text.substr(0, readable))};
    YAML::Parser parser(in);
    YamlToJsonBuilder builder(positions);
    if (!parser.HandleNextDocument(builder)) return fail(Code::invalid, "line 1, column 1: is empty");
    (void)parser.HandleNextDocument(builder);  // rejects a second document at its beginning
    if (builder.ended_quoted()) check_last_quote(text);
    if (readable < text.size()) return fail(Code::invalid, "line 1, column 1: is not YAML that can be read as a whole");
    return builder.take();
  } catch (const RejectedYaml& refused) {
    return fail(Code::invalid, refused.message);
  } catch (const YAML::Exception& error) {
    return fail(Code::invalid, describe_position(error.mark) + error.msg + tab_near(text, error.mark.line));
  } catch (const std::bad_alloc&) {
    return fail(Code::too_large, "YAML needs more memory than there is");
  }
}

}  // namespace mycojobs
