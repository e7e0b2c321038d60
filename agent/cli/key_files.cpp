#include "cli/key_files.h"

#include "model/prerequisite.h"
#include "text/utf8.h"

namespace mycojobs {

Result<std::string> key_file_path(const Settings& settings, const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  if (!is_approval_name(name)) {
    return fail(
        Code::invalid,
        excerpt(name) +
            ": is not a valid name of a key: use 1 to 64 letters, digits, '.', '_' and '-', or a path with a '/'");
  }
  if (settings.keys_dir.empty()) return fail(Code::invalid, "keys_dir: names no folder: give --keys-dir");
  return settings.keys_dir + '/' + name + ".key";
}

Result<std::string> parse_public_key(const Invocation& call, const std::string& text) {
  if (is_public_key(text)) return text;
  const bool is_hex = text.size() == 64 && text.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  if (is_hex)
    return fail(
        Code::invalid,
        "--key: " + text + " is not a public key: 64 characters of lower-case hex, as `mycojobs key show` prints them");
  auto file = key_file_path(call.settings, text);
  if (!file) return fail(file.error(), "--key");
  auto key = SigningKey::load(*file);
  if (!key) return fail(key.error(), "--key");
  return key->public_key();
}

Result<std::shared_ptr<const SigningKey>> load_named_key(const Settings& settings, const std::string& name) {
  if (name.empty()) return nullptr;
  MJ_TRY(file, key_file_path(settings, name));
  MJ_TRY(key, SigningKey::load(file));
  return std::make_shared<const SigningKey>(std::move(key));
}

Result<std::shared_ptr<const SigningKey>> load_configured_key(const Settings& settings, const char* setting,
                                                              const std::string& name) {
  auto key = load_named_key(settings, name);
  if (!key) return fail(key.error(), setting);
  return key;
}

Result<std::shared_ptr<const SigningKey>> load_coordinator_key(const Settings& settings) {
  return load_configured_key(settings, "coordinator.key", settings.coordinator_key);
}

}  // namespace mycojobs
