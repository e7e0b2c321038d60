// The web page for browsers. Its files are built into the program by web/pack.py. The page has no special access: it
// uses only JSON-RPC and /events, with the rights of the user's token.
//
//   GET /           the page; revalidated for each use (ETag)
//   GET /assets/... file names contain a hash of the content, so browsers cache the files without expiry
//
// The files contain no data of jobs, so no token is needed. Their Content-Security-Policy allows scripts, styles and
// connections only of this server, and no inline code.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/http/http_message.h"

namespace mycojobs::api {

// A file of the page. `gzip` is the compressed content. All texts have static lifetime.
struct PageFile {
  std::string_view path, type, etag, gzip;
};
// Returns the files of the page; empty: the program was built without them.
std::span<const PageFile> page_files();
// Returns why the program has no page; empty: it has the page.
std::string_view page_unavailable_reason();

std::vector<HttpRoute> page_routes();
bool is_page_path(const std::string& path);

}  // namespace mycojobs::api
