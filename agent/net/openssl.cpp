#include "net/openssl.h"

#include <dlfcn.h>

#include <mutex>
#include <string>

namespace mycojobs {
namespace {

constexpr const char* kOpenSslLibrary = "libssl.so.3";  // depends on libcrypto.so.3, in which dlsym() searches, too

// Returns the name of a function that the library does not have, or null.
const char* find_openssl_functions(void* library, OpenSsl& functions) {
#define MJ_FIND_FUNCTION(name)                                                          \
  functions.name = reinterpret_cast<decltype(functions.name)>(::dlsym(library, #name)); \
  if (functions.name == nullptr) return #name;
  MJ_OPENSSL_FUNCTIONS(MJ_FIND_FUNCTION)
#undef MJ_FIND_FUNCTION
  return nullptr;
}

}  // namespace

Result<const OpenSsl*> load_openssl() {
  static std::mutex mutex;
  static OpenSsl functions;
  static bool is_loaded = false;
  const std::lock_guard lock(mutex);
  if (is_loaded) return &functions;
  void* const library = ::dlopen(kOpenSslLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    return fail(Code::io, "OpenSSL cannot be loaded: " + std::string(reason != nullptr ? reason : kOpenSslLibrary) +
                              "; remedy: apt install libssl3");
  }
  if (const char* const missing = find_openssl_functions(library, functions)) {
    return fail(Code::io, "OpenSSL cannot be loaded: " + std::string(kOpenSslLibrary) + " has no " + missing);
  }
  // Other threads may still use connections while the process exits, so the library must not clean up at exit.
  if (functions.OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr) != 1)
    return fail(Code::io, "OpenSSL does not start: check openssl.cnf");
  is_loaded = true;
  return &functions;
}

}  // namespace mycojobs
