// libcurl, loaded when somebody first calls anybody. It brings thirty libraries (LDAP, Kerberos, two of TLS): linked to
// the program they were half of the time that each of our commands takes to start, and memory of agents that call
// nobody.
#pragma once

#include <curl/curl.h>

#include "mycojobs/result.h"

namespace mycojobs {

// Each function as curl.h declares it.
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

// Any thread; it stays loaded. Errors: io (it is not there, or does not start: asked again, it is tried again).
Result<const Curl*> load_curl();

}  // namespace mycojobs
