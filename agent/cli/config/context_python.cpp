#include "cli/config/context_python.h"

#include <nlohmann/json.hpp>

#include "domain/codec.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kMostModules = 32, kMostBytes = 64U << 10;

// "numpy", "scipy.linalg"
bool is_module(const std::string& name) {
  bool begins = true;  // a part of the name
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    const bool digit = c >= '0' && c <= '9';
    if (!(letter || (!begins && (digit || c == '.')))) return false;
    begins = c == '.';
  }
  return !begins && name.size() <= 100;
}

// Spelt in the one way that says where it is.
bool is_place(const std::string& path) {
  if (path.size() < 2 || path.size() >= 4096 || path.front() != '/' || path.back() == '/') return false;
  if (path.find('\0') != std::string::npos) return false;
  for (const char* part : {"//", "/./", "/../"}) {
    if ((path + "/").find(part) != std::string::npos) return false;
  }
  return true;
}

class PythonReader {
 public:
  PythonReader(Id context, const PolicyText& text)
      : name_("contexts." + std::to_string(context) + ".python"), text_(text) {}

  Result<PythonSettings> read() {
    const auto table = parse_json(text_.json);
    if (!table) return refuse("", "is not understood");
    for (const auto& [key, value] : table->items()) {
      if (key == "venv") {
        if (!value.is_string() || !is_place(value.get_ref<const std::string&>()))
          return refuse(key, "is not the whole path of a virtual environment, as \"/srv/venvs/seven\"");
        out_.venv = value.get<std::string>();
      } else if (key == "preload") {
        MJ_CHECK(modules(value));
      } else {
        return fail(Code::invalid, place_of(text_, key) + ": unknown key " + shown(name_ + "." + key, 80) +
                                       ": there are venv and preload");
      }
    }
    return std::move(out_);
  }

 private:
  tl::unexpected<Error> refuse(const std::string& field, const std::string& what) const {
    return fail(Code::invalid,
                place_of(text_, field) + ": " + name_ + (field.empty() ? "" : "." + field) + ": " + what);
  }
  Result<void> modules(const json& value) {
    if (!value.is_array()) return refuse("preload", "is not a list of modules, as [\"numpy\"]");
    if (value.size() > kMostModules) return refuse("preload", "has more than 32 modules");
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::string field = "preload[" + std::to_string(i) + "]";
      if (!value[i].is_string() || !is_module(value[i].get_ref<const std::string&>()))
        return refuse(field, "is not the name of a module, as \"numpy\" or \"scipy.linalg\"");
      out_.preload.push_back(value[i].get<std::string>());
    }
    return {};
  }

  std::string name_;
  const PolicyText& text_;
  PythonSettings out_;
};

}  // namespace

Result<void> set_context_python(const FileValues& file, Config& config) {
  std::size_t bytes = 0;
  for (const auto& [id, text] : file.context_python) {
    bytes += 200 + text.json.size();
    if (bytes > kMostBytes)
      return fail(Code::invalid, place_of(text, "") + ": contexts.*.python: all of them hold more than 64 KiB");
    MJ_TRY(settings, PythonReader(id, text).read());
    const std::string name = "contexts." + std::to_string(id) + ".python";
    if (!settings.venv.empty())
      config.values.push_back({name + ".venv", dump_json(json(settings.venv)), place_of(text, "venv"), true});
    if (!settings.preload.empty())
      config.values.push_back({name + ".preload", dump_json(json(settings.preload)), place_of(text, "preload"), true});
    config.settings.context_python[id] = std::move(settings);
  }
  return {};
}

}  // namespace mycojobs
