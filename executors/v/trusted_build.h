// Builds of sources of ours by the V compiler, on the host and outside of any sandbox: the operator has named the
// compiler, and nothing of a job takes part in them.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "executors/v/compiler.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

// The environment of every compile run of a job. Also the one of trusted builds, but for the folders that lie elsewhere
// there: V makes the names of its cached objects of VMODULES, among others.
const TextMap& compile_environment();
inline constexpr const char* kModuleCacheFolder = ".vcache";  // below /job: VCACHE of a compile run

// Where results of trusted builds are kept, for all contexts.
inline std::string trusted_folder(const std::string& state_dir) { return state_dir + "/v-trusted"; }

// Compiles a program of one line and runs it. A success is kept for this version and file of the compiler, this C
// compiler and these flags, so that not every start of an agent compiles. Error unsupported: says what failed.
Result<void> try_compiler(const Compiler&, const std::string& version, const std::vector<std::string>& flags,
                          const std::string& state_dir);

// Compiles a program that imports net.http, and returns what V then has in its cache of objects, as frames of a request
// (executors/channel.h): files below kModuleCacheFolder. stop: ends the build. Error unsupported, io or too_large.
Result<std::string> build_network_modules(const Compiler&, const std::vector<std::string>& flags,
                                          const std::atomic<bool>& stop);

}  // namespace mycojobs
