#include "messaging/transport/http_transport.h"

namespace mycojobs {

Result<std::string> HttpTransport::exchange(const std::string& address, const std::string& request,
                                            std::uint32_t timeout_ms) {
  MJ_CHECK(check_request_size(request.size()));
  const std::string url = (address.ends_with('/') ? address.substr(0, address.size() - 1) : address) + kSupervisorPath;
  HttpPost post{url, request, "", timeout_ms, kMaxRequestBytes, &networks_};
  post.ca = ca_;
  MJ_TRY(answer, http_.post(post));
  if (answer.status == 200) return std::move(answer.body);
  const std::string status = url + ": HTTP status " + std::to_string(answer.status);
  if (answer.status == 404)
    return fail(Code::unavailable, status + ": no supervisor accepts messages there; check the address");
  return fail(answer.status >= 500 || answer.status == 429 ? Code::unavailable : Code::internal, status);
}

}  // namespace mycojobs
