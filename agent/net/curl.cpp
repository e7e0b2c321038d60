#include "net/curl.h"

#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <mutex>

namespace mycojobs {
namespace {

constexpr const char* kLibrary = "libcurl.so.4";  // ABI since 2006

template <class Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

bool find_all_functions(void* library, Curl& curl) {
  return find_function(library, "curl_easy_init", curl.easy_init) &&
         find_function(library, "curl_easy_cleanup", curl.easy_cleanup) &&
         find_function(library, "curl_easy_reset", curl.easy_reset) &&
         find_function(library, "curl_easy_setopt", curl.easy_setopt) &&
         find_function(library, "curl_easy_getinfo", curl.easy_getinfo) &&
         find_function(library, "curl_easy_perform", curl.easy_perform) &&
         find_function(library, "curl_easy_strerror", curl.easy_strerror) &&
         find_function(library, "curl_slist_append", curl.slist_append) &&
         find_function(library, "curl_slist_free_all", curl.slist_free_all) &&
         find_function(library, "curl_multi_init", curl.multi_init) &&
         find_function(library, "curl_multi_cleanup", curl.multi_cleanup) &&
         find_function(library, "curl_multi_add_handle", curl.multi_add_handle) &&
         find_function(library, "curl_multi_remove_handle", curl.multi_remove_handle) &&
         find_function(library, "curl_multi_perform", curl.multi_perform) &&
         find_function(library, "curl_multi_poll", curl.multi_poll) &&
         find_function(library, "curl_multi_info_read", curl.multi_info_read);
}

tl::unexpected<Error> make_load_error() {
  const char* const reason = ::dlerror();
  return fail(Code::io, "libcurl cannot be loaded: " + std::string(reason != nullptr ? reason : kLibrary));
}

}  // namespace

Result<const Curl*> load_curl() {
  static std::mutex mutex;
  static Curl functions;
  static bool is_loaded = false;
  const std::lock_guard lock(mutex);
  if (is_loaded) return &functions;
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  decltype(&::curl_global_init) global_init = nullptr;
  if (library == nullptr || !find_function(library, "curl_global_init", global_init) ||
      !find_all_functions(library, functions))
    return make_load_error();
  if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    return fail(Code::io, "libcurl does not start: out of memory or descriptors");
  is_loaded = true;
  return &functions;
}

Result<std::unique_ptr<CurlHandle>> CurlHandle::open() {
  MJ_TRY(curl, load_curl());
  CURL* const easy = curl->easy_init();
  if (easy == nullptr) return fail(Code::io, "libcurl does not start: out of memory or descriptors");
  return std::make_unique<CurlHandle>(curl, easy);
}

namespace {

int is_stopped(void* stop, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return *static_cast<const std::atomic<bool>*>(stop) ? 1 : 0;
}

}  // namespace

bool set_common_options(CurlHandle& handle, const std::string& url, curl_slist* headers, long connect_timeout_ms,
                        const std::string& ca, const std::atomic<bool>* stop) {
  const Curl& curl = *handle.curl;
  CURL* const easy = handle.easy;
  bool is_set = curl.easy_setopt(easy, CURLOPT_URL, url.c_str()) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_HTTPHEADER, headers) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, connect_timeout_ms) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_USERAGENT, "mycojobs") == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_ERRORBUFFER, handle.error_text.data()) == CURLE_OK;
  if (!ca.empty()) {
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_CAINFO, ca.c_str()) == CURLE_OK;
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_CAPATH, nullptr) == CURLE_OK;
  }
  if (stop != nullptr) {
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L) == CURLE_OK;  // a name server may not answer
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_NOPROGRESS, 0L) == CURLE_OK;
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, is_stopped) == CURLE_OK;
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_XFERINFODATA, stop) == CURLE_OK;
  }
  return is_set;
}

// Converts a sockaddr of this family. Returns no value if the family is not IP.
std::optional<IpAddress> to_ip_address(int family, const void* address_data) {
  IpAddress out;
  if (family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, address_data, sizeof four);
    std::memcpy(out.bytes.data(), &four.sin_addr, sizeof four.sin_addr);
    return out;
  }
  if (family != AF_INET6) return std::nullopt;
  sockaddr_in6 six{};
  std::memcpy(&six, address_data, sizeof six);
  out.is_v6 = true;
  std::memcpy(out.bytes.data(), &six.sin6_addr, sizeof six.sin6_addr);
  return out;
}

namespace {

curl_socket_t open_filtered_socket(void* context, curlsocktype, curl_sockaddr* address_data) {
  auto& filter = *static_cast<AddressFilter*>(context);
  const auto address = to_ip_address(address_data->family, &address_data->addr);
  if (filter.networks != nullptr && !(address && filter.networks->contains(*address))) {
    filter.refused = address ? to_text(*address) : "an address of another family";
    return CURL_SOCKET_BAD;
  }
  return ::socket(address_data->family, address_data->socktype | SOCK_CLOEXEC, address_data->protocol);
}

}  // namespace

bool set_address_filter(CurlHandle& handle, AddressFilter& filter) {
  const Curl& curl = *handle.curl;
  return curl.easy_setopt(handle.easy, CURLOPT_OPENSOCKETFUNCTION, open_filtered_socket) == CURLE_OK &&
         curl.easy_setopt(handle.easy, CURLOPT_OPENSOCKETDATA, &filter) == CURLE_OK;
}

}  // namespace mycojobs
