// Reports the state of the process to the service manager: sd_notify(3) without its library. Each state is a datagram
// to the socket that NOTIFY_SOCKET names, a path or an abstract name ("@..."). Without that variable nothing is sent.
//
// Thread-safe. The functions do not block: a datagram is lost if the manager does not read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mycojobs {

class ServiceManager {
 public:
  // The arguments are the values of the environment variables, or empty texts. An invalid value (not an address, an
  // interval that is not a number) is logged and ignored.
  ServiceManager(std::string notify_socket, const std::string& watchdog_usec, const std::string& watchdog_pid);
  static ServiceManager from_environment();

  void notify_ready(std::string_view status) const;  // "READY=1": the process serves
  void notify_stopping() const;                      // "STOPPING=1": the process drains
  void notify_watchdog() const;                      // "WATCHDOG=1"
  void notify_status(std::string_view text) const;   // a line for `systemctl status`
  bool is_available() const { return !socket_.empty(); }
  // Returns the interval for calls of notify_watchdog(): half of the watchdog's interval, so that one call may be late.
  // Returns no value if the process has no watchdog.
  std::optional<std::uint64_t> watchdog_interval_ms() const { return watchdog_interval_ms_; }

 private:
  void send(const std::string& state) const;
  std::string socket_;
  std::optional<std::uint64_t> watchdog_interval_ms_;
};

// Returns whether a file is in the folder of $CREDENTIALS_DIRECTORY. The service manager gives credentials
// (LoadCredential=) to the user of the unit alone, with an access control list that looks like access of a group.
// Kubernetes mounts secrets as links to files of root that a group can read.
bool is_managed_credential(const std::string& path);

}  // namespace mycojobs
