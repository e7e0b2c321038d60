// Knows libcurl, as transport/http_client.cpp does. A connection to host:port is its CONNECT_ONLY: it resolves names
// without blocking, and tries all addresses of a name.
#include "prerequisites/probes.h"

#include <curl/curl.h>

namespace mycojobs {
namespace {

constexpr long kLookMs = 3000;  // then the answer is no
// A yes counts for longer than a look takes: of several conditions the first one still counts when the last has been
// seen.
constexpr std::uint64_t kYesMs = 5000, kNoMs = 1000;
constexpr std::size_t kProbesAtOnce = 64;

std::size_t refuse_body(char*, std::size_t, std::size_t, void*) { return 0; }

}  // namespace

struct Probes::Look {
  explicit Look(Condition c) : condition(std::move(c)), easy(::curl_easy_init()) {}
  ~Look() { ::curl_easy_cleanup(easy); }
  Look(const Look&) = delete;
  Look& operator=(const Look&) = delete;

  Condition condition;
  CURL* easy;
};

Probes::Probes(const Clock& clock, void* multi) : clock_(clock), multi_(multi) {}

Result<std::unique_ptr<Probes>> Probes::open(const Clock& clock) {
  static const CURLcode kReady = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  CURLM* multi = kReady == CURLE_OK ? ::curl_multi_init() : nullptr;
  if (multi == nullptr) return fail(Code::io, "libcurl does not start: no memory or descriptors are left");
  return std::unique_ptr<Probes>(new Probes(clock, multi));
}

Probes::~Probes() {
  for (auto& [text, look] : under_way_) ::curl_multi_remove_handle(multi_, look->easy);
  under_way_.clear();
  ::curl_multi_cleanup(multi_);
}

std::optional<bool> Probes::ask(const Condition& condition) {
  const auto seen = seen_.find(condition.text);
  if (seen != seen_.end() && clock_.boot_ms() < seen->second.until_boot_ms) return seen->second.yes;
  if (under_way_.contains(condition.text) || under_way_.size() >= kProbesAtOnce) return std::nullopt;
  auto look = std::make_unique<Look>(condition);
  CURL* easy = look->easy;
  if (easy == nullptr) return std::nullopt;
  const bool http = condition.kind == Condition::Kind::http;
  const std::string url = http ? condition.target : "http://" + condition.target;
  bool set = ::curl_easy_setopt(easy, CURLOPT_URL, url.c_str()) == CURLE_OK;
  set = set && ::curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
  set = set && ::curl_easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK;
  set = set && ::curl_easy_setopt(easy, CURLOPT_CONNECT_ONLY, http ? 0L : 1L) == CURLE_OK;
  set = set && ::curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L) == CURLE_OK;
  set = set && ::curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L) == CURLE_OK;
  set = set && ::curl_easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, 0L) == CURLE_OK;
  set = set && ::curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK;
  set = set && ::curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L) == CURLE_OK;  // a resolver that hangs is not waited for
  set = set && ::curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, kLookMs) == CURLE_OK;
  set = set && ::curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, refuse_body) == CURLE_OK;
  set = set && ::curl_easy_setopt(easy, CURLOPT_USERAGENT, "mycojobs") == CURLE_OK;
  if (!set || ::curl_multi_add_handle(multi_, easy) != CURLM_OK) {
    seen_[condition.text] = {false, clock_.boot_ms() + kNoMs};  // a URL that libcurl does not take
    return false;
  }
  under_way_.emplace(condition.text, std::move(look));
  return std::nullopt;
}

bool Probes::wait(int wake_fd, std::uint32_t timeout_ms) {
  int running = 0;
  ::curl_multi_perform(multi_, &running);
  if (take_finished()) return true;
  curl_waitfd wake{};
  wake.fd = wake_fd;
  wake.events = CURL_WAIT_POLLIN;
  ::curl_multi_poll(multi_, &wake, 1, static_cast<int>(timeout_ms), nullptr);
  ::curl_multi_perform(multi_, &running);
  return take_finished();
}

bool Probes::take_finished() {
  const std::uint64_t now = clock_.boot_ms();
  std::erase_if(seen_, [&](const auto& entry) { return now >= entry.second.until_boot_ms; });
  bool any = false;
  int left = 0;
  while (const CURLMsg* message = ::curl_multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    for (auto place = under_way_.begin(); place != under_way_.end(); ++place) {
      if (place->second->easy != message->easy_handle) continue;
      long status = 0;
      ::curl_easy_getinfo(message->easy_handle, CURLINFO_RESPONSE_CODE, &status);
      const bool http = place->second->condition.kind == Condition::Kind::http;
      // An answer with a body ends in our refusal of it; it has been given all the same.
      const bool answered = message->data.result == CURLE_OK || (http && message->data.result == CURLE_WRITE_ERROR);
      const bool yes = answered && (!http || (status >= 100 && status < 400));
      seen_[place->first] = {yes, now + (yes ? kYesMs : kNoMs)};
      ::curl_multi_remove_handle(multi_, place->second->easy);
      under_way_.erase(place);
      any = true;
      break;
    }
  }
  return any;
}

}  // namespace mycojobs
