// Loads libcurl on first use. libcurl depends on thirty libraries (LDAP, Kerberos, two of TLS). If they were linked to
// the program, half of the start time of each command would be spent on loading them.
#pragma once

#include <curl/curl.h>

#include "base/result.h"

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

}  // namespace mycojobs
