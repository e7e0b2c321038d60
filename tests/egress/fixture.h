// The real mycojobs-egress with this test as its launcher, servers on loopback, and sockets to play the job.
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
#include "sandbox/egress/messages.h"

namespace mycojobs::test {

Fd listen_on_loopback(std::uint16_t& port, int type = 0);  // type: 0 is SOCK_STREAM
Fd connect_to(std::uint16_t port);                         // on loopback; its reads and writes give up after 20 s

bool send_text(int fd, std::string_view bytes);   // all of it, or false
std::string read_some(int fd, std::size_t size);  // exactly so much, or less at the end
std::string read_to_end(int fd);                  // until the end or a reset
std::string read_head(int fd);                    // up to and with the empty line
bool ends(int fd);                                // the other side closes or resets; what it says before is read away
void say_end(int fd);                             // half-close

// Serves each connection by `handler` on a thread of its own, until this goes.
class Server {
 public:
  explicit Server(std::function<void(int)> handler);
  ~Server();
  std::uint16_t port() const { return port_; }
  int accepted() const { return accepted_; }
  std::string place() const { return "127.0.0.1:" + std::to_string(port_); }

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
void echo(int fd);  // until the end, then its own

class Egress {
 public:
  explicit Egress(std::vector<std::string> arguments = {});
  ~Egress();
  // Port of the new run's listener. Runs are told apart by their numbers.
  std::uint16_t serve(std::uint64_t run, const std::vector<std::string>& allow);
  void serve(std::uint64_t run, const std::vector<std::string>& allow, const Fd& listener);
  void next_job(std::uint64_t run);
  // Closes the run and waits for its end; what was denied before goes to `denied`.
  egress::Ended close(std::uint64_t run);
  std::string next_denied();   // waits for it
  std::string next_trouble();  // likewise
  int socket() const { return socket_.get(); }
  pid_t pid() const { return child_.pid; }
  int hang_up();  // closes the socket and returns the exit code
  std::vector<egress::Denied> denied;

 private:
  sandbox::RawFrame next();
  Child child_;
  Fd socket_;
};

std::string connect_request(const std::string& place);
std::string get_request(const std::string& url, const std::string& more = "");
std::string socks_request(const std::string& host, std::uint16_t port);  // greeting and request at once

}  // namespace mycojobs::test
