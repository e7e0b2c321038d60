// A plugin is code of a stranger that the operator trusts with the making of commands, and with nothing else. Before it
// is loaded, and so before its constructors run, its host gives up, in this order:
//
//   resource limits    512 MiB of addresses, 64 descriptors, no byte in any file, no core; as an ordinary user's, also
//                      no process and no thread
//   ids                as root: user and group 65534, no groups, no capability (sandbox/helper_rights.h)
//   files              reads the system's folders and its own file; writes none; no ptrace, no signal to others
//   seccomp, last      no socket, no process, no exec, no namespace, no tracing
#pragma once

#include "mycojobs/result.h"

namespace mycojobs::plugin {

// plugin_fd: the plugin's file, which stays readable.
Result<void> give_up_rights(int plugin_fd);

}  // namespace mycojobs::plugin
