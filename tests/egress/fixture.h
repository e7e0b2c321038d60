// The real mycojobs-egress with this test as its launcher, servers on loopback, and client sockets that act as the job.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/spawn.h"
#include "sandbox/egress/egress_messages.h"

namespace mycojobs::test {

Fd listen_on_loopback(std::uint16_t& port, int type = 0);  // `type`: 0 means SOCK_STREAM
Fd connect_to(std::uint16_t port);                         // on loopback; reads and writes time out after 20 s

bool send_text(int fd, std::string_view bytes);   // returns false if it could not send all bytes
std::string read_some(int fd, std::size_t size);  // exactly `size` bytes, or fewer at end of file
std::string read_to_end(int fd);                  // until end of file or a reset
std::string read_head(int fd);                    // up to and including the empty line
bool wait_for_close(int fd);                      // waits until the peer closes or resets; discards earlier data
void close_sending(int fd);                       // closes the sending direction

// Serves each connection with `handler` on a thread of its own, until the destructor runs.
class Server {
 public:
  explicit Server(std::function<void(int)> handler);
  ~Server();
  std::uint16_t port() const { return port_; }
  int accepted() const { return accepted_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  std::uint16_t port_ = 0;
  Fd listener_;
  std::function<void(int)> handler_;
  std::atomic<int> accepted_{0};
  std::mutex lock_;
  std::list<Fd> open_;
  std::list<std::thread> threads_;
  std::thread acceptor_;
};
void echo(int fd);  // until end of file; then closes its sending direction

class Egress {
 public:
  explicit Egress(std::vector<std::string> arguments = {});
  ~Egress();
  // Starts a run and returns the port of its listener. `run` identifies the run.
  std::uint16_t serve(std::uint64_t run, const std::vector<std::string>& allow);
  void serve(std::uint64_t run, const std::vector<std::string>& allow, const Fd& listener);
  void next_job(std::uint64_t run);
  // Closes the run and waits for its end. Denials reported before the end are added to `denied`.
  egress::ProxyRunEnded close(std::uint64_t run);
  std::string next_denied();   // waits for the next denial
  std::string next_problem();  // waits for the next problem
  int socket() const { return socket_.get(); }
  pid_t pid() const { return child_.pid; }
  int close_socket();  // closes the socket and returns the exit code
  std::vector<egress::ConnectionDenied> denied;

 private:
  sandbox::RawFrame next();
  Child child_;
  Fd socket_;
};

std::string connect_request(const std::string& address);
std::string get_request(const std::string& url, const std::string& extra_headers = "");
std::string socks_request(const std::string& host, std::uint16_t port);  // greeting and request together

}  // namespace mycojobs::test
