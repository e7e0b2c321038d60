// One mycojobs-pluginhost with its plugin: started, asked, killed. What comes from it is hostile. After any error of
// call() it is of no more use: drop it and start another.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/spawn.h"
#include "executors/plugin/wire.h"
#include "mycojobs/result.h"

namespace mycojobs::plugin {

struct Description {
  std::uint32_t abi = 0;
  bool interprets = false;
  std::string name, version;
  std::string profile;  // JSON; empty: none
  std::vector<std::string> script_types;
  bool operator==(const Description&) const = default;
};

struct Reply {
  WireKind kind = WireKind::nothing;  // answer, nothing, threw or too_large
  std::string text;                   // of answer
};

// Owned and called by one thread at a time. Blocks until the deadline of a call, and no longer than some 0.5 s more.
class HostProcess {
 public:
  // program: path of mycojobs-pluginhost; plugin: its open file; label: for the log. Error: invalid, the plugin is
  // refused (reason and remedy); unavailable, it died, hung or spoke nonsense while it was loaded; io, no host.
  static Result<std::unique_ptr<HostProcess>> start(const std::string& program, int plugin, std::string label,
                                                    std::uint32_t limit_ms);
  HostProcess(const HostProcess&) = delete;
  HostProcess& operator=(const HostProcess&) = delete;
  ~HostProcess();

  const Description& description() const { return description_; }
  // Error unavailable: how it failed.
  Result<Reply> call(WireKind, std::string_view text, std::uint32_t limit_ms);

 private:
  explicit HostProcess(std::string label) : label_(std::move(label)) {}
  Result<void> wait(short events, const std::string& during);
  Result<void> send(std::string_view bytes, const std::string& during);
  Result<void> receive(char* to, std::size_t size, const std::string& during);
  Result<Reply> receive_frame(std::uint32_t call, const std::string& during);
  Result<void> take_description(std::string_view payload);
  tl::unexpected<Error> died(const std::string& during);
  void read_stderr();
  void log_stderr(bool all);

  std::string label_;
  Child child_;
  Fd socket_, stderr_;
  Description description_;
  std::uint32_t calls_ = 0, limit_ms_ = 0;
  std::uint64_t deadline_boot_ms_ = 0;
  std::string written_;         // to stderr, and not logged yet
  std::size_t lines_left_ = 0;  // that this call may still log
  std::size_t lines_dropped_ = 0;
};

}  // namespace mycojobs::plugin
