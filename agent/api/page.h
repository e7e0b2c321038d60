// The page: files of the program itself (web/, put in by web/pack.py), for browsers. It has no private way to anything:
// what it shows and does goes through the JSON-RPC and /events, with the rights of whoever's token it was given.
//
//   GET /           the page; asked for again each time (ETag)
//   GET /assets/... named by their content: kept for ever
//
// Nobody needs a token for them: they say nothing of any job. Their Content-Security-Policy lets nothing run, load or
// send but what comes from here, and nothing inline.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/http.h"

namespace mycojobs::api {

struct PageFile {
  std::string_view path, type, etag, gzip;
};
// Empty: the program was built without.
std::span<const PageFile> page_files();
std::string_view why_no_page();  // empty: there is one

std::vector<HttpRoute> page_routes();
bool is_page_path(const std::string& path);

}  // namespace mycojobs::api
