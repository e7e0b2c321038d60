#include "api/artifacts/file_listener.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "api/api_settings.h"
#include "api/http/download_headers.h"
#include "api/http/http_server.h"
#include "artifacts/job_artifacts.h"
#include "base/log.h"
#include "net/host.h"
#include "net/tls_identity.h"

namespace mycojobs::api {
namespace {

constexpr std::size_t kListenerBlockBytes = 64U << 10;
constexpr std::uint64_t kMaxRateWaitMs = 50;  // interval of the checks whether the connection is open

// A client must read a block within write_timeout_ms, which determines the minimum rate of a client.
ApiLimits make_listener_limits() {
  ApiLimits limits;
  limits.max_connections = 64;
  limits.max_pending_connections = 64;
  limits.max_head_bytes = 4096;
  limits.max_body_bytes = 1;
  limits.head_timeout_ms = 5000;
  limits.body_timeout_ms = 5000;
  limits.idle_timeout_ms = 1000;
  limits.write_timeout_ms = 5000;
  limits.hides_reasons = true;
  return limits;
}

HttpReply make_not_found_reply() { return {404, "text/plain", {}, {}, {}}; }

}  // namespace

Result<std::string> make_link_address(const std::string& listen, const std::string& advertise, std::uint16_t port) {
  MJ_TRY(address, parse_listen(listen));
  const bool is_unspecified = address.host.empty() || address.host == "0.0.0.0" || address.host == "::";
  if (advertise.empty() && is_unspecified)
    return fail(Code::invalid,
                "is needed, since artifacts.listen has no address of this host: give HOST:PORT at which "
                "other hosts reach it");
  const bool is_v6 = address.host.find(':') != std::string::npos;
  const std::string host = is_v6 ? '[' + address.host + ']' : address.host;
  const std::uint16_t default_port = port != 0 ? port : std::max<std::uint16_t>(address.port, 1);
  MJ_TRY(host_port, parse_host_port(advertise.empty() ? host : advertise, default_port));
  return to_text(host_port);
}

FileListener::FileListener(std::shared_ptr<HeldFileLinks> links, const Clock& clock, std::shared_ptr<Metrics> metrics,
                           std::uint64_t rate)
    : links_(std::move(links)),
      clock_(clock),
      metrics_(std::move(metrics)),
      bucket_(rate, std::max<std::uint64_t>(rate / 10, kListenerBlockBytes) - 1) {}

FileListener::~FileListener() { http_.reset(); }

std::uint16_t FileListener::port() const { return http_->port(); }

Result<std::unique_ptr<FileListener>> FileListener::start(const Settings& settings,
                                                          std::shared_ptr<HeldFileLinks> links, const Clock& clock,
                                                          std::shared_ptr<Metrics> metrics) {
  std::unique_ptr<FileListener> listener(new FileListener(links, clock, std::move(metrics), settings.rate));
  auto admit = [links](const HttpRequest& request) {
    const auto context = links->find_context(request.parameter("ticket"));
    if (!context) return Admission{make_not_found_reply()};
    Admission admission;
    admission.connection_class = ConnectionClass::token;
    admission.actor = *context;
    return admission;
  };
  std::vector<HttpRoute> routes{
      {"GET", kFileLinkPath, [raw = listener.get()](const HttpRequest& request) { return raw->make_reply(request); }}};
  MJ_TRY(http, HttpServer::start(settings.listen, make_listener_limits(), std::move(routes), std::move(admit),
                                 std::make_shared<TlsContext>(settings.tls, TlsRole::server)));
  listener->http_ = std::move(http);
  auto address = make_link_address(settings.listen, settings.advertise, listener->port());
  if (!address) return fail(std::move(address).error(), "artifacts.advertise");
  listener->address_ = std::move(*address);
  links->set_server(listener->address_,
                    [certificate = settings.tls.certificate] { return read_public_key_sha256(certificate); });
  log(LogLevel::info, "api", "artifacts are sent at {}", listener->address_);
  return listener;
}

HttpReply FileListener::make_reply(const HttpRequest& request) {
  auto file = links_->consume(request.parameter("ticket"));
  if (!file) return make_not_found_reply();
  const auto range = parse_byte_range(request.header("range"), file->bytes);
  if (!range || range->end != file->bytes) return make_not_found_reply();
  HttpReply reply;
  reply.status = range->is_partial ? 206 : 200;
  reply.type = "application/octet-stream";
  if (range->is_partial) reply.headers.emplace_back("Content-Range", format_content_range(*range, file->bytes));
  reply.stream_bytes = range->size();
  reply.stream = [this, offset = range->begin, shared = std::make_shared<HeldFileLinks::HeldFile>(std::move(*file))](
                     EventSink& sink) { send(*shared, offset, sink); };
  return reply;
}

bool FileListener::wait_for_rate(std::size_t bytes, const EventSink& sink) {
  while (true) {
    std::uint64_t wait_ms = 0;
    {
      const std::lock_guard lock(mutex_);
      wait_ms = bucket_.empty_ms(clock_.boot_ms());
      if (wait_ms == 0) {
        bucket_.consume(bytes, clock_.boot_ms());
        return true;
      }
    }
    if (!sink.is_open()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(wait_ms, kMaxRateWaitMs)));
  }
}

// Sends the file from the offset on. After an error, the server closes the connection, and the receiver detects the
// missing bytes.
void FileListener::send(const HeldFileLinks::HeldFile& file, std::uint64_t offset, EventSink& sink) {
  while (offset < file.bytes) {
    const auto max_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(file.bytes - offset, kListenerBlockBytes));
    const auto bytes = read_file_piece(file.fd.get(), offset, max_bytes);
    if (!bytes || bytes->empty() || !wait_for_rate(bytes->size(), sink) || !sink.send(*bytes)) return;
    metrics_->add(Metric::transfer_bytes, {file.context, "sent_https"}, static_cast<double>(bytes->size()));
    offset += bytes->size();
  }
}

}  // namespace mycojobs::api
