// What a script hands back, and what was made of it, without secrets.
#include <nlohmann/json.hpp>
#include <set>

#include "domain/codec.h"
#include "worker/redactor.h"

namespace mycojobs {
namespace {

constexpr std::string_view kCutMark = "…";  // at the end of an `error` that was too long

class Cleaner {
 public:
  explicit Cleaner(const Redactor& redactor) : redaction_(redactor) {}

  std::string clean(std::string_view text, bool cut = false) {
    std::string out(redaction_.feed(text));
    out += redaction_.finish(cut);
    return out;
  }
  void clean_texts(nlohmann::json& value) {
    if (value.is_string()) value = clean(value.get_ref<const std::string&>());
    if (!value.is_structured()) return;
    for (nlohmann::json& item : value) clean_texts(item);
  }
  // Keys that become the same are told apart: nothing of a result is dropped. JSON that has become none is a text.
  void clean_result(JobEnd& end) {
    const TextMap& map = end.result;
    const std::set<std::string_view> typed(end.result_json.begin(), end.result_json.end());
    TextMap out;
    std::vector<std::string> json_keys;
    for (const auto& [key, value] : map) {
      const std::string name = clean(key);
      std::string free = name;
      for (unsigned number = 2; out.contains(free) || (free != key && map.contains(free)); ++number) {
        free = name + " " + std::to_string(number);
      }
      std::string text = clean(value);
      if (typed.contains(key) && is_json(text)) json_keys.push_back(free);
      out.emplace(std::move(free), std::move(text));
    }
    end.result = std::move(out);
    end.result_json = std::move(json_keys);
  }

 private:
  Redaction redaction_;
};

}  // namespace

void redact(const Redactor& redactor, JobEnd& end) {
  if (redactor.finds_nothing()) return;
  Cleaner cleaner(redactor);
  cleaner.clean_result(end);
  const bool cut = end.error.ends_with(kCutMark);
  if (cut) end.error.resize(end.error.size() - kCutMark.size());
  end.error = cleaner.clean(end.error, cut);
  if (cut) end.error += kCutMark;
  if (end.error_info.empty()) return;
  auto info = parse_json(end.error_info);
  if (info) cleaner.clean_texts(*info);
  end.error_info = info ? dump_json(*info) : "{}";  // unreadable: we did not write it, and nobody could use it
}

}  // namespace mycojobs
