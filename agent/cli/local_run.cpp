#include "cli/local_run.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/fd.h"
#include "base/send_bytes.h"
#include "domain/codec.h"
#include "worker/output.h"

namespace mycojobs {
namespace {

constexpr const char* kNoAgent = "this run has no agent and no store behind it: use `mycojobs run` or submit the job";

class OutputFollower {
 public:
  OutputFollower(Sandbox& sandbox, const RunSpec& spec, Conversation& conversation, const RunPipes& pipes,
                 const LocalRunHooks& hooks)
      : sandbox_(sandbox),
        run_(spec.run),
        conversation_(conversation),
        out_(pipes.out),
        err_(pipes.err),
        channel_(pipes.channel),
        hooks_(hooks) {}

  Outcome to_the_end() {
    std::optional<Outcome> outcome;
    while (!outcome) {
      send_request();  // before we wait: what it waits for may be ours
      wait();
      read_all();
      if (hooks_.output_bytes != 0 && written() > hooks_.output_bytes) sandbox_.kill(run_, KillReason::output_limit, 0);
      for (auto& ended : sandbox_.read_ended()) {
        if (ended.run == run_ && ended.outcome.status != RunStatus::unkillable) outcome = std::move(ended.outcome);
      }
    }
    while (read_all()) {
    }
    outcome->usage.stdout_bytes = out_bytes_;
    outcome->usage.stderr_bytes = err_bytes_;
    return std::move(*outcome);
  }

 private:
  std::uint64_t written() const { return out_bytes_ + err_bytes_; }

  void wait() {
    const bool more_to_send = sent_ < outgoing_.size();
    std::array<pollfd, 4> sources{{{sandbox_.event_fd(), POLLIN, 0},
                                   {out_.get(), POLLIN, 0},
                                   {err_.get(), POLLIN, 0},
                                   {channel_.get(), static_cast<short>(POLLIN | (more_to_send ? POLLOUT : 0)), 0}}};
    ::poll(sources.data(), sources.size(), -1);  // a closed one reads -1 and is passed over
  }
  void send_request() {
    while (channel_) {
      if (sent_ == outgoing_.size()) outgoing_ = conversation_.take_output(), sent_ = 0;
      if (outgoing_.empty()) return;
      const ssize_t sent = send_bytes(channel_.get(), std::string_view(outgoing_).substr(sent_), attachment_);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) sent_ = outgoing_.size();  // its outcome will tell why
      if (sent < 0) return;
      attachment_ = -1;
      sent_ += static_cast<std::size_t>(sent);
    }
  }
  bool read_all() {
    const bool out = read(out_, [this](std::string_view bytes) {
      out_bytes_ += bytes.size();
      hooks_.on_output(false, bytes);
      cancel_if_due(bytes);
    });
    const bool err = read(err_, [this](std::string_view bytes) {
      err_bytes_ += bytes.size();
      conversation_.saw_stderr(bytes);
      hooks_.on_output(true, bytes);
    });
    const bool channel = read(channel_, [this](std::string_view bytes) { listen(bytes); });
    return out || err || channel;
  }
  void listen(std::string_view bytes) {
    conversation_.feed(bytes);
    for (const auto& note : conversation_.take_notes()) hooks_.on_note(note);
    for (const auto& call : conversation_.take_calls()) {
      const auto asked = parse_json(call);
      const auto id = asked && asked->is_object() && asked->contains("id") ? (*asked)["id"] : nlohmann::json(0);
      conversation_.answer(dump_json({{"id", id}, {"error", {{"code", "unavailable"}, {"message", kNoAgent}}}}));
    }
  }
  void cancel_if_due(std::string_view bytes) {
    constexpr std::uint32_t kGraceMs = 5000;
    if (hooks_.cancel_at.empty() || cancelled_) return;
    seen_ += bytes;
    cancelled_ = seen_.find(hooks_.cancel_at) != std::string::npos;
    if (cancelled_) sandbox_.kill(run_, KillReason::cancelled, kGraceMs);
  }
  template <class Take>
  bool read(Fd& fd, const Take& take) {
    if (!fd) return false;
    std::array<char, 65536> buffer;  // NOLINT(*-member-init): filled by read
    const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) return fd.reset(), false;
    take(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
    return true;
  }

  Sandbox& sandbox_;
  std::uint64_t run_;
  Conversation& conversation_;
  Fd out_, err_, channel_;
  const LocalRunHooks& hooks_;
  std::string seen_;  // of stdout, where that matters
  bool cancelled_ = false;
  std::string outgoing_;
  std::size_t sent_ = 0;
  int attachment_ = conversation_.attachment();  // not gone along yet
  std::uint64_t out_bytes_ = 0, err_bytes_ = 0;
};

}  // namespace

Result<LocalRun> run_locally(Sandbox& sandbox, std::vector<RunSpec> stages, Conversation& conversation,
                             const LocalRunHooks& hooks, std::uint64_t first_run) {
  LocalRun done;
  do {
    RunSpec& spec = stages.at(conversation.stage());
    spec.run = first_run++;
    MJ_TRY(pipes, sandbox.launch(spec));
    done.outcome = OutputFollower(sandbox, spec, conversation, pipes, hooks).to_the_end();
    judge_output(done.outcome, hooks.output_bytes);
  } while (conversation.go_on(done.outcome));
  done.end = conversation.finish(done.outcome);
  return done;
}

}  // namespace mycojobs
