#include "cli/config/executors.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "domain/codec.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

// One [executors.<name>], from JSON; what is wrong is told with its place in the file.
class Reader {
 public:
  Reader(std::string name, const PolicyText& text) : text_(text) { out_.name = std::move(name); }

  Result<CommandSettings> read() {
    const std::string name = "executors." + out_.name;
    if (!is_script_type(out_.name)) return refuse("", "a script type is a-z, 0-9, _ and -, at most 32, a letter first");
    const auto table = parse_json(text_.json);
    if (!table) return refuse("", "is not understood");
    for (const auto& [key, value] : table->items()) {
      if (key == "command") {
        MJ_CHECK(words(key, value, out_.command));
      } else if (key == "version") {
        MJ_CHECK(words(key, value, out_.version));
      } else if (key == "file") {
        if (!value.is_string() || !is_file_name(value.get_ref<const std::string&>()))
          return refuse(key, "is not a file name such as \"script.js\"");
        out_.file = value.get<std::string>();
      } else if (key == "environment") {
        MJ_CHECK(variables(key, value));
      } else if (key == "policy") {
        MJ_CHECK(policy(key, value));
      } else {
        return refuse(key, "is unknown: there are command, file, version, environment, policy");
      }
    }
    if (out_.command.empty()) return refuse("", "has no command: as in command = [\"/bin/bash\", \"{script}\"]");
    if (!out_.command.front().starts_with('/'))
      return refuse("command[0]", "is not the whole path of a program, as /usr/bin/perl");
    return std::move(out_);
  }

 private:
  tl::unexpected<Error> refuse(const std::string& field, const std::string& what) const {
    return fail(Code::invalid, place_of(text_, field) + ": executors." + shown(out_.name, 60) +
                                   (field.empty() ? "" : "." + field) + ": " + what);
  }
  static bool is_file_name(const std::string& name) {
    return !name.empty() && name.size() <= 100 && name.front() != '.' && name.find('/') == std::string::npos &&
           name.find('\0') == std::string::npos && name != "artifacts" && name != "secrets" && name != "inputs" &&
           name != "inputs.json";
  }
  Result<void> words(const std::string& key, const json& value, std::vector<std::string>& out) const {
    if (!value.is_array() || value.size() > 100) return refuse(key, "is not a list of texts");
    out.clear();
    for (const auto& word : value) {
      if (!word.is_string() || word.get_ref<const std::string&>().find('\0') != std::string::npos)
        return refuse(key, "is not a list of texts");
      out.push_back(word.get<std::string>());
    }
    return {};
  }
  Result<void> variables(const std::string& key, const json& value) {
    if (!value.is_object()) return refuse(key, "is not a table of texts");
    for (const auto& [name, text] : value.items()) {
      const bool fine = text.is_string() && !name.empty() &&
                        name.find_first_of(std::string("=\0", 2)) == std::string::npos &&
                        text.get_ref<const std::string&>().find('\0') == std::string::npos;
      if (!fine) return refuse(key + '.' + name, "is not text, or its name has = or NUL in it");
      out_.environment[name] = text.get<std::string>();
    }
    return {};
  }
  Result<void> policy(const std::string& key, const json& value) {
    PolicyRead read = read_policy(dump_json(value), "policy");
    if (read.ok()) return out_.policy = std::move(read.request), Result<void>();
    const FieldProblem& first = read.problems.front();
    return refuse(first.field.starts_with(key) ? first.field : key, first.message);
  }

  const PolicyText& text_;
  CommandSettings out_;
};

}  // namespace

Result<void> set_executors(const FileValues& file, Config& config) {
  for (const auto& [name, text] : file.executors) {
    MJ_TRY(settings, Reader(name, text).read());
    config.values.push_back(
        {"executors." + name + ".command", dump_json(json(settings.command)), place_of(text, "command"), true});
    config.settings.executors.push_back(std::move(settings));
  }
  return {};
}

}  // namespace mycojobs
