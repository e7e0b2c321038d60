// Files of signing keys, which `mycojobs key new` creates in the folder of the setting keys_dir.
#pragma once

#include <memory>
#include <string>

#include "base/ed25519.h"
#include "cli/invocation.h"

namespace mycojobs {

// Returns the path of a signing key. A name stands for NAME.key in keys_dir; a text with '/' is the path itself. Error
// invalid: the name is malformed, or keys_dir is not set.
Result<std::string> key_file_path(const Settings&, const std::string& name);
// Parses the value of --key: a public key in hex digits, or the name or path of a key file. Errors begin with "--key".
Result<std::string> parse_public_key(const Invocation&, const std::string& text);

// Loads a key by its name or path. Returns null if `name` is empty. Errors: those of key_file_path() and of
// SigningKey::load().
Result<std::shared_ptr<const SigningKey>> load_named_key(const Settings&, const std::string& name);
// Like load_named_key(), with errors that begin with the name of the setting.
Result<std::shared_ptr<const SigningKey>> load_configured_key(const Settings&, const char* setting,
                                                              const std::string& name);
// Loads the key that identifies this coordinator to supervisors on other hosts. Returns null if the setting is empty.
Result<std::shared_ptr<const SigningKey>> load_coordinator_key(const Settings&);

}  // namespace mycojobs
