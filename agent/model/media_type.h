// Media types of artifacts. Contents are not read: the type is a hint for programs and for the page, which decides by
// it whether a preview is possible. Pure and thread-safe.
#pragma once

#include <string_view>

namespace mycojobs {

// Returns the media type for the ending of a file name. Names without a known ending have the type text/plain if the
// content is text, and otherwise application/octet-stream.
std::string_view find_media_type(std::string_view name, bool is_text);
// Returns the media type with which a file is sent to a browser: an image type that browsers decode without scripts, or
// text/plain, or application/octet-stream. Documents that can contain scripts (HTML, SVG, XML, PDF) are sent as
// application/octet-stream.
std::string_view get_download_type(std::string_view media_type);

}  // namespace mycojobs
