// The handshake: loads a plugin's file and looks at what it exports, without calling any of its functions.
#pragma once

#include <string>

#include "executors/plugin/wire.h"
#include "mycojobs/result.h"

namespace mycojobs::plugin {

// The plugin's own constructors run here. Error invalid: why it is refused, in one line with the remedy.
Result<const Plugin*> load_plugin(int fd);

// The payload of `loaded` (wire.h).
std::string describe(const Plugin&);

}  // namespace mycojobs::plugin
