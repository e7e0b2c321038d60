// The HTTPS listener of a process that stores files for other hosts. The listener serves only the open links of the
// process (artifacts/transfer/file_link.h):
//
//   GET /files?ticket=...     Range: bytes=N-     sends the file of the link, and invalidates the link
//
// All other requests are answered with status 404 and without a body. The server starts a thread only for a connection
// with a valid ticket. A context can use at most a quarter of the connections, and the server closes the connection of
// a client that reads less than about 13 KiB/s. So neither a context nor a slow client can block all downloads.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "api/http/http_message.h"
#include "artifacts/transfer/file_link.h"
#include "base/clock.h"
#include "base/result.h"
#include "base/token_bucket.h"
#include "net/tls.h"
#include "telemetry/metrics.h"

namespace mycojobs::api {

class HttpServer;  // api/http/http_server.h

class FileListener {
 public:
  struct Settings {
    std::string listen;  // same format as ApiSettings::listen
    std::string
        advertise;    // host, or host and port, at which other hosts reach the listener; empty: the address of `listen`
    TlsSettings tls;  // REQUIRES: has a certificate
    std::uint64_t rate = 0;  // limit of all connections together in bytes per second; 0 means unlimited
  };
  // Starts the listener, and passes its address to `links`. REQUIRES: the clock outlives the object. Errors: those of
  // HttpServer::start(), and invalid if other hosts cannot use the address.
  static Result<std::unique_ptr<FileListener>> start(const Settings&, std::shared_ptr<HeldFileLinks> links,
                                                     const Clock&, std::shared_ptr<Metrics>);
  ~FileListener();
  FileListener(const FileListener&) = delete;
  FileListener& operator=(const FileListener&) = delete;
  std::uint16_t port() const;
  const std::string& address() const { return address_; }  // "host:port" in links

 private:
  FileListener(std::shared_ptr<HeldFileLinks>, const Clock&, std::shared_ptr<Metrics>, std::uint64_t rate);
  HttpReply make_reply(const HttpRequest&);
  void send(const HeldFileLinks::HeldFile&, std::uint64_t offset, EventSink&);
  // Waits until Settings::rate permits the bytes. Returns false if the connection was closed.
  bool wait_for_rate(std::size_t bytes, const EventSink&);

  const std::shared_ptr<HeldFileLinks> links_;
  const Clock& clock_;
  const std::shared_ptr<Metrics> metrics_;
  std::string address_;
  std::mutex mutex_;
  TokenBucket bucket_;                // guarded by mutex_
  std::unique_ptr<HttpServer> http_;  // destroyed first, since the threads of the server use the other members
};

// Returns the address for links: `advertise`, or `listen` if `advertise` is empty. port: the port of the result if
// `advertise` has no port; 0 means the port of `listen`. Error invalid: other hosts cannot use the address.
Result<std::string> make_link_address(const std::string& listen, const std::string& advertise, std::uint16_t port);

}  // namespace mycojobs::api
