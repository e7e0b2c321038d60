// Loads libcurl on first use. libcurl depends on thirty libraries (LDAP, Kerberos, two of TLS). If they were linked to
// the program, half of the start time of each command would be spent on loading them.
#pragma once

#include <curl/curl.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "net/networks.h"

namespace mycojobs {

// The functions as declared by curl.h.
struct Curl {
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_easy_reset) easy_reset;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_perform) easy_perform;
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_slist_append) slist_append;
  decltype(&::curl_slist_free_all) slist_free_all;
  decltype(&::curl_multi_init) multi_init;
  decltype(&::curl_multi_cleanup) multi_cleanup;
  decltype(&::curl_multi_add_handle) multi_add_handle;
  decltype(&::curl_multi_remove_handle) multi_remove_handle;
  decltype(&::curl_multi_perform) multi_perform;
  decltype(&::curl_multi_poll) multi_poll;
  decltype(&::curl_multi_info_read) multi_info_read;
};

// Returns the functions; the library stays loaded. Error `io`: the library is missing or cannot be loaded; the next
// call tries again. Thread-safe.
Result<const Curl*> load_curl();

// A handle of libcurl. Its connections stay open between requests. Not thread-safe.
struct CurlHandle {
  const Curl* curl;
  CURL* easy;
  std::array<char, CURL_ERROR_SIZE> error_text{};  // written by libcurl
  // Errors: those of load_curl(), io (no memory or descriptors).
  static Result<std::unique_ptr<CurlHandle>> open();
  CurlHandle(const Curl* library, CURL* handle) : curl(library), easy(handle) {}
  ~CurlHandle() { curl->easy_cleanup(easy); }
  CurlHandle(const CurlHandle&) = delete;
  CurlHandle& operator=(const CurlHandle&) = delete;
};

// Sets the options that all requests have, and returns whether libcurl accepts them. ca: file with the accepted CAs;
// empty: those of the system. stop: the request ends soon after it has become true; may be null. The arguments must
// outlive the request.
bool set_common_options(CurlHandle&, const std::string& url, curl_slist* headers, long connect_timeout_ms,
                        const std::string& ca, const std::atomic<bool>* stop);

// Refuses addresses outside of the networks after libcurl has resolved the name, before it connects.
struct AddressFilter {
  const Networks* networks = nullptr;  // null permits any address
  std::string refused = {};            // last refused address
};
// Sets the filter of a request, which must outlive the request. Returns whether libcurl accepts it.
bool set_address_filter(CurlHandle&, AddressFilter&);

// Converts a sockaddr of this family. Returns no value if the family is not IP.
std::optional<IpAddress> to_ip_address(int family, const void* address_data);

}  // namespace mycojobs
