// The origins by which clients call this server. A login by key signs the origin, and the Host header selects it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/http/http_message.h"
#include "base/result.h"

namespace mycojobs::api {

// Returns whether a text is a valid Host header, HOST or HOST:PORT: one name, IPv4 address or [IPv6 address], without
// user, list or blanks.
bool is_host_and_port(std::string_view);

// Parses an origin and returns it in the form "https://jobs.example.org" or "http://10.0.0.7:9652": lower case, without
// the scheme's default port. Error `invalid`.
Result<std::string> parse_origin(std::string_view);
// Parses a list of origins. Error `invalid`: a text is not an origin, or one Host header would select two origins.
Result<std::vector<std::string>> parse_origins(const std::vector<std::string>&);

// Returns the origin that a request was sent to, or an empty text for an unknown Host header. With `origins`: the
// origin that the Host header selects. Without: http://127.0.0.1:PORT, http://localhost:PORT or http://[::1]:PORT, or
// with TLS https://..., with the port that the server listens on, for a loopback peer that is not a proxy (Forwarded,
// X-Forwarded-*, Via). A loopback origin does not identify a host: every server with this port has the same one.
std::string find_origin(const HttpRequest&, const std::vector<std::string>& origins);

}  // namespace mycojobs::api
