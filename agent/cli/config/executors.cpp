#include "cli/config/executors.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "domain/codec.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

// One [executors.<name>], from JSON; what is wrong is told with its place in the file.
class ExecutorReader {
 public:
  ExecutorReader(std::string name, const PolicyText& text) : text_(text) { out_.name = std::move(name); }

  Result<CommandSettings> read() {
    if (!is_script_type(out_.name)) return refuse("", "a script type is a-z, 0-9, _ and -, at most 32, a letter first");
    if (out_.name == "rust") return refuse("", "is a script type of the executor native: choose another name");
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
    const bool is_told = std::any_of(out_.command.begin(), out_.command.end(), [](const std::string& word) {
      return word.find("{script}") != std::string::npos;
    });
    if (!is_told) return refuse("command", "has no {script}, so that the program would not find the script");
    return std::move(out_);
  }

 private:
  tl::unexpected<Error> refuse(const std::string& field, const std::string& what) const {
    return fail(Code::invalid, place_of(text_, field) + ": executors." +
                                   (is_script_type(out_.name) ? out_.name : shown(out_.name, 60)) +
                                   (field.empty() ? "" : "." + field) + ": " + what);
  }
  static bool is_file_name(const std::string& name) {
    return !name.empty() && name.size() <= 100 && name.front() != '.' && name.find('/') == std::string::npos &&
           name.find('\0') == std::string::npos && name != "artifacts" && name != "secrets" && name != "inputs" &&
           name != "inputs.json" && name != "flow.json";
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
      if (name.starts_with("MYCOJOBS_"))
        return refuse(key + '.' + name, "is set for each job by mycojobs itself: choose another name");
      out_.environment[name] = text.get<std::string>();
    }
    return {};
  }
  Result<void> policy(const std::string& key, const json& value) {
    PolicyRead read = read_policy(dump_json(value), "policy");
    if (!read.ok()) {
      const FieldProblem& first = read.problems.front();
      const std::string_view message = first.message;
      const bool named = message.starts_with(first.field + ": ");  // which refuse() does too
      return refuse(first.field.starts_with(key) ? first.field : key,
                    std::string(named ? message.substr(first.field.size() + 2) : message));
    }
    if (read.request.names(PolicyField::exec) && !read.request.values.exec)
      return refuse("policy.exec", "is false, but its jobs are programs: leave it out");
    out_.policy = std::move(read.request);
    return {};
  }

  const PolicyText& text_;
  CommandSettings out_;
};

}  // namespace

Result<void> set_executors(const FileValues& file, Config& config) {
  for (const auto& [name, text] : file.executors) {
    MJ_TRY(settings, ExecutorReader(name, text).read());
    config.values.push_back(
        {"executors." + name + ".command", dump_json(json(settings.command)), place_of(text, "command"), true});
    config.settings.executors.push_back(std::move(settings));
  }
  return {};
}

}  // namespace mycojobs
