#include "cli/local_run.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/fd.h"
#include "text/json.h"
#include "worker/runs/job_output.h"

namespace mycojobs {
namespace {

constexpr const char* kNoAgentMessage =
    "this run has no agent and no store behind it: use `mycojobs run` or submit the job";

class RunFollower {
 public:
  RunFollower(Sandbox& sandbox, const RunSpec& spec, Conversation& conversation, const RunPipes& pipes,
              const LocalRunHooks& hooks)
      : sandbox_(sandbox),
        run_(spec.run),
        conversation_(conversation),
        out_(pipes.out),
        err_(pipes.err),
        channel_(pipes.channel),
        requests_(pipes.requests),
        is_merged_(spec.merge_output),
        hooks_(hooks) {}

  Outcome follow_to_end() {
    std::optional<Outcome> outcome;
    while (!outcome) {
      send_request();  // before the wait, because the script may wait for it
      wait();
      read_all();
      if (hooks_.max_output_bytes != 0 && output_bytes() > hooks_.max_output_bytes)
        sandbox_.kill(run_, KillReason::output_limit, 0);
      for (auto& end : sandbox_.read_ended()) {
        if (end.run == run_ && end.outcome.status != RunStatus::unkillable) outcome = std::move(end.outcome);
      }
    }
    while (read_all()) {
    }
    outcome->usage.stdout_bytes = stdout_bytes_;
    outcome->usage.stderr_bytes = stderr_bytes_;
    return std::move(*outcome);
  }

 private:
  std::uint64_t output_bytes() const { return stdout_bytes_ + stderr_bytes_; }

  void wait() {
    const bool has_output = sent_bytes_ < outgoing_bytes_.size();
    std::array<pollfd, 5> descriptors{{{sandbox_.event_fd(), POLLIN, 0},
                                       {out_.get(), POLLIN, 0},
                                       {err_.get(), POLLIN, 0},
                                       {channel_.get(), POLLIN, 0},
                                       {has_output ? requests_.get() : -1, POLLOUT, 0}}};
    ::poll(descriptors.data(), descriptors.size(), -1);  // a closed descriptor is -1, which poll() ignores
  }
  void send_request() {
    while (requests_) {
      if (sent_bytes_ == outgoing_bytes_.size()) outgoing_bytes_ = conversation_.consume_output(), sent_bytes_ = 0;
      if (outgoing_bytes_.empty()) return;
      const ssize_t sent =
          send_bytes(requests_.get(), std::string_view(outgoing_bytes_).substr(sent_bytes_), attachment_);
      if (sent < 0 && errno != EAGAIN && errno != EINTR)
        sent_bytes_ = outgoing_bytes_.size();  // the outcome contains the reason
      if (sent < 0) return;
      attachment_ = -1;
      sent_bytes_ += static_cast<std::size_t>(sent);
    }
  }
  bool read_all() {
    const bool out = read(out_, [this](std::string_view bytes) {
      stdout_bytes_ += bytes.size();
      is_merged_ ? conversation_.on_stderr(bytes) : conversation_.on_stdout(bytes);
      hooks_.on_output(false, bytes);
      cancel_if_due(bytes);
    });
    const bool err = read(err_, [this](std::string_view bytes) {
      stderr_bytes_ += bytes.size();
      conversation_.on_stderr(bytes);
      hooks_.on_output(true, bytes);
    });
    const bool channel = read(channel_, [this](std::string_view bytes) { read_frames(bytes); });
    return out || err || channel;
  }
  void read_frames(std::string_view bytes) {
    conversation_.feed(bytes);
    for (const auto& note : conversation_.consume_notes()) hooks_.on_note(note);
    for (const auto& message : conversation_.consume_calls()) {
      const auto request = parse_json(message);
      const auto id = request && request->is_object() && request->contains("id") ? (*request)["id"] : nlohmann::json(0);
      conversation_.answer(dump_json({{"id", id}, {"error", {{"code", "unavailable"}, {"message", kNoAgentMessage}}}}));
    }
  }
  void cancel_if_due(std::string_view bytes) {
    constexpr std::uint32_t kGraceMs = 5000;
    if (hooks_.cancel_text.empty() || is_cancelled_) return;
    stdout_text_ += bytes;
    is_cancelled_ = stdout_text_.find(hooks_.cancel_text) != std::string::npos;
    if (is_cancelled_) sandbox_.kill(run_, KillReason::cancelled, kGraceMs);
  }
  template <class Callback>
  bool read(Fd& fd, const Callback& on_bytes) {
    if (!fd) return false;
    std::array<char, 65536> buffer;  // NOLINT(*-member-init): filled by read
    const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) return fd.reset(), false;
    on_bytes(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
    return true;
  }

  Sandbox& sandbox_;
  std::uint64_t run_;
  Conversation& conversation_;
  Fd out_, err_, channel_, requests_;
  bool is_merged_;  // RunSpec::merge_output
  const LocalRunHooks& hooks_;
  std::string stdout_text_;  // collected only if cancel_text is set
  bool is_cancelled_ = false;
  std::string outgoing_bytes_;
  std::size_t sent_bytes_ = 0;
  int attachment_ = conversation_.attachment();  // -1 after it was sent
  std::uint64_t stdout_bytes_ = 0, stderr_bytes_ = 0;
};

}  // namespace

Result<LocalRun> run_locally(Sandbox& sandbox, std::vector<RunSpec> stages, Conversation& conversation,
                             const LocalRunHooks& hooks, std::uint64_t first_run) {
  LocalRun local_run;
  do {
    RunSpec& spec = stages.at(conversation.stage());
    spec.run = first_run++;
    spec.grants.packages = conversation.packages();
    MJ_TRY(pipes, sandbox.launch(spec));
    local_run.outcome = RunFollower(sandbox, spec, conversation, pipes, hooks).follow_to_end();
    apply_output_limit(local_run.outcome, hooks.max_output_bytes);
  } while (conversation.next_stage(local_run.outcome));
  local_run.end = conversation.finish(local_run.outcome);
  return local_run;
}

}  // namespace mycojobs
