#include "net/curl.h"

#include <dlfcn.h>

#include <mutex>

namespace mycojobs {
namespace {

constexpr const char* kLibrary = "libcurl.so.4";  // ABI since 2006

template <class Function>
bool find(void* library, const char* name, Function& into) {
  into = reinterpret_cast<Function>(::dlsym(library, name));
  return into != nullptr;
}

bool find_all(void* library, Curl& curl) {
  return find(library, "curl_easy_init", curl.easy_init) && find(library, "curl_easy_cleanup", curl.easy_cleanup) &&
         find(library, "curl_easy_reset", curl.easy_reset) && find(library, "curl_easy_setopt", curl.easy_setopt) &&
         find(library, "curl_easy_getinfo", curl.easy_getinfo) &&
         find(library, "curl_easy_perform", curl.easy_perform) &&
         find(library, "curl_easy_strerror", curl.easy_strerror) &&
         find(library, "curl_slist_append", curl.slist_append) &&
         find(library, "curl_slist_free_all", curl.slist_free_all) &&
         find(library, "curl_multi_init", curl.multi_init) && find(library, "curl_multi_cleanup", curl.multi_cleanup) &&
         find(library, "curl_multi_add_handle", curl.multi_add_handle) &&
         find(library, "curl_multi_remove_handle", curl.multi_remove_handle) &&
         find(library, "curl_multi_perform", curl.multi_perform) && find(library, "curl_multi_poll", curl.multi_poll) &&
         find(library, "curl_multi_info_read", curl.multi_info_read);
}

tl::unexpected<Error> load_error() {
  const char* const reason = ::dlerror();
  return fail(Code::io, "libcurl cannot be loaded: " + std::string(reason != nullptr ? reason : kLibrary));
}

}  // namespace

Result<const Curl*> load_curl() {
  static std::mutex mutex;
  static Curl functions;
  static bool ready = false;
  const std::lock_guard lock(mutex);
  if (ready) return &functions;
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  decltype(&::curl_global_init) start = nullptr;
  if (library == nullptr || !find(library, "curl_global_init", start) || !find_all(library, functions))
    return load_error();
  if (start(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    return fail(Code::io, "libcurl does not start: out of memory or descriptors");
  ready = true;
  return &functions;
}

}  // namespace mycojobs
