// Runs the V compiler on trusted sources, on the host and outside of any sandbox: the operator configured the compiler,
// and no data of a job is used.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "base/result.h"
#include "executors/v/compiler.h"
#include "model/records.h"

namespace mycojobs {

// The environment of every compile run of a job. Trusted builds use it too, except for the folders: V derives the names
// of its cached objects from VMODULES, among others.
const TextMap& compile_environment();
inline constexpr const char* kModuleCacheFolder = ".vcache";  // below /job: VCACHE of a compile run

// Folder of the results of trusted builds, shared by all contexts.
inline std::string trusted_folder(const std::string& state_dir) { return state_dir + "/v-trusted"; }

// Compiles and runs a program of one line. Success is cached for this version and file of the compiler, this C compiler
// and these flags, so that not every start of an agent compiles. Error unsupported: names the failed step.
Result<void> try_compiler(const VCompiler&, const std::string& version, const std::vector<std::string>& flags,
                          const std::string& state_dir);

// Compiles a program that imports net.http, and returns V's cached objects as frames of a request
// (executors/channel.h): files below kModuleCacheFolder. Setting `stop` ends the build. Errors: unsupported, io,
// too_large.
Result<std::string> build_network_modules(const VCompiler&, const std::vector<std::string>& flags,
                                          const std::atomic<bool>& stop);

}  // namespace mycojobs
