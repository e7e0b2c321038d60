#include "executors/plugin/pluginhost/loaded_plugin.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstring>

namespace mycojobs::plugin {
namespace {

constexpr std::size_t kMaxScriptTypes = 16;
constexpr std::size_t kMaxText = 256;
constexpr std::size_t kMaxProfile = 64U << 10;
constexpr const char* kBuildAgain = ": build it with the plugin.h of this mycojobs";

tl::unexpected<Error> refuse(const std::string& why) { return fail(Code::invalid, why); }

std::string number(std::uint64_t value) { return std::to_string(value); }

// The first two words are at the same place in every version.
Result<void> check_version(const Plugin& plugin) {
  const std::string takes =
      "it is of plugin ABI " + number(plugin.abi) + ", and this agent takes " + number(MYCOJOBS_PLUGIN_ABI);
  if (plugin.abi < MYCOJOBS_PLUGIN_ABI) return refuse(takes + kBuildAgain);
  if (plugin.abi > MYCOJOBS_PLUGIN_ABI)
    return refuse(takes + ": install a newer mycojobs, or a plugin made for this one");
  if (plugin.struct_size != sizeof(Plugin)) {
    return refuse("struct_size: it says " + number(plugin.struct_size) + " bytes, struct mycojobs_plugin has " +
                  number(sizeof(Plugin)) + kBuildAgain);
  }
  return {};
}

Result<void> check_text(const char* name, const char* text, std::size_t most) {
  if (text == nullptr) return refuse(std::string(name) + ": it is NULL, which only profile and interpret may be");
  if (::strnlen(text, most + 1) > most) return refuse(std::string(name) + ": more than " + number(most) + " bytes");
  return {};
}

Result<void> check_members(const Plugin& plugin) {
  MJ_CHECK(check_text("name", plugin.name, kMaxText));
  MJ_CHECK(check_text("version", plugin.version, kMaxText));
  if (plugin.profile != nullptr) MJ_CHECK(check_text("profile", plugin.profile, kMaxProfile));
  if (plugin.script_types == nullptr) return refuse("script_types: it is NULL: name what it serves");
  std::size_t types = 0;
  for (; plugin.script_types[types] != nullptr; ++types) {
    if (types == kMaxScriptTypes) return refuse("script_types: more than 16, or no NULL behind the last");
    MJ_CHECK(check_text("script_types", plugin.script_types[types], kMaxText));
  }
  if (types == 0) return refuse("script_types: it has none: name what it serves");
  const auto missing = [](const char* function) {
    return refuse(std::string(function) + ": it is NULL, and every plugin must have it");
  };
  if (plugin.probe == nullptr) return missing("probe");
  if (plugin.prepare == nullptr) return missing("prepare");
  if (plugin.release == nullptr) return missing("release");
  return {};
}

}  // namespace

Result<const Plugin*> load_plugin(int fd) {
  // By the open file: what was checked is what is loaded, wherever its path leads by now.
  void* object = ::dlopen(("/proc/self/fd/" + number(static_cast<std::uint64_t>(fd))).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) {
    const char* why = ::dlerror();
    return refuse(std::string("it cannot be loaded: ") + (why == nullptr ? "no reason given" : why));
  }
  const void* symbol = ::dlsym(object, MYCOJOBS_PLUGIN_SYMBOL);
  Dl_info info{};
  ElfW(Sym)* entry = nullptr;
  if (symbol == nullptr || ::dladdr1(symbol, &info, reinterpret_cast<void**>(&entry), RTLD_DL_SYMENT) == 0 ||
      entry == nullptr) {
    return refuse("it exports no symbol " MYCOJOBS_PLUGIN_SYMBOL ": define it as plugin.h says");
  }
  if (ELF64_ST_TYPE(entry->st_info) != STT_OBJECT || entry->st_size < 2 * sizeof(std::uint32_t)) {
    return refuse("its symbol " MYCOJOBS_PLUGIN_SYMBOL " is no struct mycojobs_plugin: define it as plugin.h says");
  }
  const auto* plugin = static_cast<const Plugin*>(symbol);
  MJ_CHECK(check_version(*plugin));
  if (entry->st_size < sizeof(Plugin)) {
    return refuse("its symbol " MYCOJOBS_PLUGIN_SYMBOL " has " + number(entry->st_size) +
                  " bytes, struct mycojobs_plugin has " + number(sizeof(Plugin)) + kBuildAgain);
  }
  MJ_CHECK(check_members(*plugin));
  return plugin;
}

std::string describe(const Plugin& plugin) {
  std::string out;
  const auto add = [&out](const std::string& text) { out.append(text).push_back('\0'); };
  add(number(plugin.abi));
  add(plugin.interpret != nullptr ? "1" : "0");
  add(plugin.name);
  add(plugin.version);
  add(plugin.profile != nullptr ? plugin.profile : "");
  for (const char* const* type = plugin.script_types; *type != nullptr; ++type) add(*type);
  return out;
}

}  // namespace mycojobs::plugin
