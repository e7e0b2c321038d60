// Reports to the service manager how we are: sd_notify(3) without its library. A datagram for each state, to the socket
// that NOTIFY_SOCKET names, a path or an abstract name ("@..."). Without that variable nobody listens, and nothing is
// sent.
//
// Threads: any. Nothing here blocks: a manager that does not read loses what it was sent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mycojobs {

class ServiceManager {
 public:
  // As the environment has them; empty: not there. What makes no sense (an address that is none, an interval that is no
  // number) is logged and counts as not there.
  ServiceManager(std::string notify_socket, const std::string& watchdog_usec, const std::string& watchdog_pid);
  static ServiceManager of_environment();

  void ready(std::string_view status) const;  // "READY=1": we serve
  void stopping() const;                      // "STOPPING=1": we drain
  void alive() const;                         // "WATCHDOG=1"
  void status(std::string_view text) const;   // one line for `systemctl status`
  bool listens() const { return !socket_.empty(); }
  // How often alive() is expected at least, halved so that one may be late; nothing: nobody watches this process.
  std::optional<std::uint64_t> alive_every_ms() const { return alive_every_ms_; }

 private:
  void send(const std::string& state) const;
  std::string socket_;
  std::optional<std::uint64_t> alive_every_ms_;
};

}  // namespace mycojobs
