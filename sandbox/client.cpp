#include "sandbox/client.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <set>

#include "base/errno_text.h"
#include "base/log.h"
#include "sandbox/launcher_link.h"
#include "sandbox/probe.h"

namespace mycojobs {
namespace {

using namespace sandbox;

constexpr int kStartMs = 30000;

// What the launcher says when it has tried itself.
Result<void> wait_until_started(LauncherLink& link, std::vector<LayerReport>* layers = nullptr) {
  for (;;) {
    RawFrame frame;
    Started started;
    Layer layer;
    if (link.receive(frame, kStartMs) != Received::frame) {
      return fail(Code::unavailable, "sandbox: mycojobs-launcher ended, or was silent for 30 s, before it was ready");
    }
    if (layers != nullptr && decode(frame, layer)) {
      layers->push_back({layer.name, layer.ok, layer.detail, layer.remedy});
    } else if (decode(frame, started)) {
      if (started.ok || (layers != nullptr && !layers->empty())) return {};
      return fail(Code::unsupported, "sandbox: " + started.problem);
    } else {
      return fail(Code::internal, "sandbox: mycojobs-launcher is of another version");
    }
  }
}

struct BothEnds {
  Fd ours, theirs;
};

bool make_pipe(BothEnds& pipe) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  pipe.ours.reset(ends[0]);
  pipe.theirs.reset(ends[1]);
  return ::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0;
}

bool make_channel(BothEnds& channel) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
  channel.ours.reset(ends[0]);
  channel.theirs.reset(ends[1]);
  return ::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0;
}

class LauncherClient final : public Sandbox {
 public:
  explicit LauncherClient(SandboxConfig config) : config_(std::move(config)) {}

  Result<void> restart() override {
    link_.reset();
    lose_all();
    MJ_TRY(link, LauncherLink::start(config_, false));
    MJ_CHECK(wait_until_started(link));
    link_.emplace(std::move(link));
    return {};
  }

  Result<RunPipes> launch(const RunSpec& spec) override {
    if (!alive()) return fail(Code::unavailable, "sandbox: mycojobs-launcher has ended");
    BothEnds out, err, channel;
    if (!make_pipe(out) || !make_pipe(err) || !make_channel(channel)) {
      return fail(Code::io, "sandbox: no descriptors for a run: " + errno_text(errno) + "; raise LimitNOFILE");
    }
    const int error =
        send_message(link_->socket(), Launch{spec}, {out.theirs.get(), err.theirs.get(), channel.theirs.get()});
    if (error != 0) {
      died("does not take a run: " + errno_text(error));
      return fail(Code::unavailable, "sandbox: mycojobs-launcher does not answer: " + errno_text(error));
    }
    under_way_.insert(spec.run);
    return RunPipes{out.ours.release(), err.ours.release(), channel.ours.release()};
  }

  void kill(std::uint64_t run, KillReason reason, std::uint32_t grace_ms) override {
    if (alive() && under_way_.contains(run)) send(Kill{run, reason, grace_ms});
  }
  void fence(std::uint64_t run, std::uint64_t fence_boot_ms) override {
    if (alive() && under_way_.contains(run)) send(Fence{run, fence_boot_ms});
  }

  int event_fd() const override { return link_ ? link_->socket() : -1; }
  bool alive() const override { return link_.has_value(); }

  std::vector<RunEnded> read_ended() override {
    while (alive()) {
      RawFrame frame;
      Ended ended;
      const Received received = link_->receive(frame, 0);
      if (received == Received::nothing) break;
      if (received != Received::frame || !decode(frame, ended)) {
        died("has ended, or does not speak as it should");
        break;
      }
      if (under_way_.erase(ended.run) > 0) ended_.push_back({ended.run, std::move(ended.outcome)});
    }
    return std::exchange(ended_, {});
  }

 private:
  template <class Message>
  void send(const Message& message) {
    if (int error = send_message(link_->socket(), message); error != 0) died("takes no orders: " + errno_text(error));
  }
  // Its runs end with it: the zygotes are tied to it, every namespace to its zygote.
  void died(const std::string& how) {
    log(LogLevel::error, "sandbox", "mycojobs-launcher {}; {} runs are lost", how, under_way_.size());
    link_.reset();
    lose_all();
  }
  void lose_all() {
    for (std::uint64_t run : under_way_) {
      RunEnded ended;
      ended.run = run;
      ended.outcome.status = RunStatus::lost;
      ended.outcome.reason = "the sandbox's launcher ended before the job did";
      ended_.push_back(std::move(ended));
    }
    under_way_.clear();
  }

  SandboxConfig config_;
  std::optional<LauncherLink> link_;
  std::set<std::uint64_t> under_way_;
  std::vector<RunEnded> ended_;
};

}  // namespace

Result<std::unique_ptr<Sandbox>> start_sandbox(const SandboxConfig& config) {
  auto client = std::make_unique<LauncherClient>(config);
  MJ_CHECK(client->restart());
  return std::unique_ptr<Sandbox>(std::move(client));
}

Result<std::vector<LayerReport>> probe_layers(const SandboxConfig& config) {
  SandboxConfig lenient = config;
  lenient.allow_missing.clear();
  lenient.warm.clear();
  std::vector<LayerReport> layers;
  MJ_TRY(link, LauncherLink::start(lenient, true));
  MJ_CHECK(wait_until_started(link, &layers));
  return layers;
}

}  // namespace mycojobs
