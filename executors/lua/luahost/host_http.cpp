// HTTP by libcurl. Nothing of it runs in the zygote but its loading.
#include <curl/curl.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "base/errno_text.h"
#include "base/fd.h"
#include "executors/lua/luahost/job.h"

namespace mycojobs::lua {
namespace {

struct Transfer {
  std::string body, status_line;
  std::vector<std::pair<std::string, std::string>> headers;  // of the last answer
  std::size_t max_bytes = 0;
  Fd file;  // the body goes there, if it is open
  std::string problem;
  std::size_t received = 0;
};

std::size_t on_body(char* bytes, std::size_t, std::size_t size, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  transfer.received += size;
  if (transfer.received > transfer.max_bytes) {
    transfer.problem = "the answer is over " + std::to_string(transfer.max_bytes) + " bytes";
    return 0;
  }
  if (!transfer.file) {
    transfer.body.append(bytes, size);
    return size;
  }
  for (std::size_t done = 0; done < size;) {
    const ssize_t written = ::write(transfer.file.get(), bytes + done, size - done);
    if (written < 0 && errno != EINTR) {
      transfer.problem = errno_text(errno);
      return 0;
    }
    if (written > 0) done += static_cast<std::size_t>(written);
  }
  return size;
}

std::size_t on_header(char* bytes, std::size_t, std::size_t size, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  std::string line(bytes, size);
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.pop_back();
  if (line.starts_with("HTTP/")) {
    transfer.headers.clear();
    transfer.status_line = line;
    return size;
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string::npos) return size;
  std::string name = line.substr(0, colon);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::size_t start = line.find_first_not_of(" \t", colon + 1);
  transfer.headers.emplace_back(std::move(name), start == std::string::npos ? "" : line.substr(start));
  return size;
}

int on_progress(void*, curl_off_t, curl_off_t, curl_off_t, curl_off_t) { return host_job::term_seen() ? 1 : 0; }

std::string field(lua_State* state, const char* name, bool& there) {
  lua_getfield(state, 1, name);
  std::size_t size = 0;
  const char* text = lua_tolstring(state, -1, &size);
  there = text != nullptr;
  std::string value = there ? std::string(text, size) : std::string();
  lua_pop(state, 1);
  return value;
}

using Handle = std::unique_ptr<CURL, void (*)(CURL*)>;
using List = std::unique_ptr<curl_slist, void (*)(curl_slist*)>;

// The field headers of the table at 1: an array of "Name: value".
List headers_of(lua_State* state) {
  List list(nullptr, curl_slist_free_all);
  lua_getfield(state, 1, "headers");
  for (lua_Integer i = 1, count = lua_istable(state, -1) ? luaL_len(state, -1) : 0; i <= count; ++i) {
    lua_rawgeti(state, -1, i);
    curl_slist* const longer = curl_slist_append(list.get(), luaL_checkstring(state, -1));
    if (longer != nullptr) (void)list.release(), list.reset(longer);
    lua_pop(state, 1);
  }
  lua_pop(state, 1);
  return list;
}

int push_failure(lua_State* state, const std::string& problem, const Transfer& transfer) {
  lua_pushnil(state);
  lua_pushlstring(state, problem.data(), problem.size());
  lua_pushlstring(state, transfer.status_line.data(), transfer.status_line.size());
  return 3;
}

int push_answer(lua_State* state, CURL* curl, const Transfer& transfer) {
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  lua_pushinteger(state, status);
  lua_pushlstring(state, transfer.body.data(), transfer.body.size());
  lua_newtable(state);
  for (const auto& [name, value] : transfer.headers) {
    lua_pushlstring(state, value.data(), value.size());
    lua_setfield(state, -2, name.c_str());
  }
  lua_pushlstring(state, transfer.status_line.data(), transfer.status_line.size());
  return 4;
}

// The table at 1.
struct HttpRequest {
  std::string url, method, body, file, proxy;
  bool has_body = false, to_file = false;
  long patience_ms = 0, redirects = 0;
};

HttpRequest http_request(lua_State* state) {
  HttpRequest request;
  bool there = false;
  request.url = field(state, "url", there);
  request.method = field(state, "method", there);
  request.body = field(state, "body", request.has_body);
  request.file = field(state, "file", request.to_file);
  request.proxy = field(state, "proxy", there);
  return request;
}

void set_options(CURL* handle, const HttpRequest& request, const List& headers, Transfer& transfer) {
  curl_easy_setopt(handle, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(handle, CURLOPT_PROXY, request.proxy.c_str());
  curl_easy_setopt(handle, CURLOPT_NOPROXY, "");
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, request.redirects > 0 ? 1L : 0L);
  curl_easy_setopt(handle, CURLOPT_MAXREDIRS, request.redirects);
  curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, request.patience_ms);
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_USERAGENT, "mycojobs");
  curl_easy_setopt(handle, CURLOPT_ACCEPT_ENCODING, "");
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(handle, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers.get());
  if (request.has_body) {
    curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(handle, CURLOPT_POSTFIELDS, request.body.c_str());
  }
  if (request.method == "HEAD") curl_easy_setopt(handle, CURLOPT_NOBODY, 1L);
  if (request.method != "HEAD" && !(request.method == "GET" && !request.has_body)) {
    curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
}

// {url, method, headers, body, file, proxy ("": none), milliseconds, redirects, max_bytes} -> status, body, headers,
// status line; or nil, what is wrong, the last status line (of the proxy, if it was the proxy that refused).
int lua_http(lua_State* state) {
  luaL_checktype(state, 1, LUA_TTABLE);
  HttpRequest request = http_request(state);
  lua_getfield(state, 1, "milliseconds");
  lua_getfield(state, 1, "redirects");
  lua_getfield(state, 1, "max_bytes");
  request.patience_ms = static_cast<long>(luaL_checkinteger(state, -3));
  request.redirects = static_cast<long>(luaL_checkinteger(state, -2));
  Transfer transfer;
  transfer.max_bytes = static_cast<std::size_t>(luaL_checkinteger(state, -1));
  if (request.to_file)
    transfer.file.reset(::open(request.file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (request.to_file && !transfer.file) return push_errno(state, errno);
  const List headers = headers_of(state);
  const Handle curl(curl_easy_init(), curl_easy_cleanup);
  if (curl == nullptr) return push_failure(state, "no memory for a connection", transfer);
  set_options(curl.get(), request, headers, transfer);
  const CURLcode code = curl_easy_perform(curl.get());
  if (code == CURLE_OK) return push_answer(state, curl.get(), transfer);
  return push_failure(state, transfer.problem.empty() ? curl_easy_strerror(code) : transfer.problem, transfer);
}

}  // namespace

void add_http_functions(lua_State* state) {
  const luaL_Reg functions[] = {{"http", lua_http}, {nullptr, nullptr}};
  add_functions(state, functions);
}

}  // namespace mycojobs::lua
