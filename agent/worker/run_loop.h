// The thread that owns the sandbox: starts runs, carries bytes between a job and its conversation, keeps its output
// without the secrets of its context, and turns its outcome into the job's end. One epoll for the launcher and for
// every pipe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <unordered_map>
#include <variant>

#include "base/fd.h"
#include "base/mailbox.h"
#include "base/pulse.h"
#include "mycojobs/clock.h"
#include "worker/output.h"
#include "worker/pace.h"
#include "worker/secrets.h"
#include "worker/types.h"

namespace mycojobs {

class RunLoop {
 public:
  struct Callbacks {                                                 // any thread may be behind them
    std::function<void(Outgoing)> post;                              // takes a report
    std::function<void(BrokerCall)> ask = [](const BrokerCall&) {};  // answered with answer(), sooner or later
    std::function<void(RunNumber)> forget = [](RunNumber) {};        // no answer is wanted any more
  };
  // Says in `pace` how fast runs end. It outlives this.
  RunLoop(std::unique_ptr<Sandbox>, const Clock&, const WorkerSettings&, Pace& pace, Callbacks);
  ~RunLoop() { stop(); }
  void stop();  // leaves at once: the launcher ends with the sandbox, and every job with it

  // Any thread. Unknown runs are ignored. More than there are slots begin one after the other.
  void start(Start);
  void fence(RunNumber, std::uint64_t fence_boot_ms);
  void kill(RunNumber, KillReason);
  void answer(RunNumber, std::string reply_json);
  void cancel_all();
  // False while no launcher can be had, and for a moment after a run could not be started: claim nothing.
  bool ready() const { return ready_ && clock_.boot_ms() >= resting_until_ms_; }
  void wake() { orders_.wake(); }                // any thread: come round once
  const Pulse& pulse() const { return pulse_; }  // any thread

 private:
  struct Fence {
    RunNumber run;
    std::uint64_t boot_ms;
  };
  struct Kill {
    RunNumber run;  // 0: all
    KillReason reason;
  };
  struct Reply {
    RunNumber run;
    std::string json;
  };
  using Order = std::variant<Start, Fence, Kill, Reply>;
  enum class Pipe : std::uint32_t { out, err, channel };
  static constexpr std::uint64_t kPartialMs = 50;  // how long a line may wait for its end
  // Most jobs end before, and what they wrote is read then: nobody is woken for it.
  static constexpr std::uint64_t kListenMs = 5;
  // What the sandbox knows a run by: each stage is a run of its own there.
  static constexpr unsigned kStageShift = 56;
  static std::uint64_t sandbox_run(RunNumber run, std::size_t stage) {
    return run | std::uint64_t{stage} << kStageShift;
  }
  static RunNumber number_of(std::uint64_t run) { return run & ((std::uint64_t{1} << kStageShift) - 1); }
  static std::uint64_t tag_of(RunNumber run, Pipe pipe) { return run << 2 | static_cast<std::uint32_t>(pipe); }
  // What goes through here is without the secrets that its context had when the run began.
  struct Clean {
    explicit Clean(std::shared_ptr<const Redactor> all) : redactor(std::move(all)), out(*redactor), err(*redactor) {}
    std::shared_ptr<const Redactor> redactor;
    Redaction out, err;  // each stream by itself: a value does not go on in the other one
    Redaction& of(LogStream stream) { return stream == LogStream::err ? err : out; }
  };
  struct Run {
    Start job;
    OutputCapture output;
    Fd out = {}, err = {}, channel = {};
    std::size_t stage = 0;
    std::uint64_t fence_boot_ms = 0;         // the last one
    std::optional<KillReason> killed = {};   // somebody wants it to end
    bool output_over = false;                // it wrote more than it may
    std::unique_ptr<Clean> clean = nullptr;  // none: there is no secret
    std::string outgoing = {};               // on its way down the channel
    std::size_t sent = 0;                    // of it
    int attachment = -1;                     // the conversation's; not gone along yet
    bool writing = false;                    // waits until the channel takes more
    std::uint64_t partial_since_ms = 0;
    std::uint64_t listen_at_ms = 0;  // when its output will be waited for; 0: it is
    bool withheld = false;           // unkillable, and told
  };
  struct Waiting {
    Start job;
    std::uint64_t since_boot_ms = 0;
  };

  void loop();
  void obey(Order&);
  bool has_slot() const { return runs_.size() < settings_.slots; }
  void queue_or_begin(Start);
  void begin_waiting();  // as far as there are slots; those that have waited for too long go back to their queues
  void give_back_waiting(const std::string& why);
  void give_back(const Start&, const std::string& why);
  Waiting* find_waiting(RunNumber);
  void fence_waiting(RunNumber, std::uint64_t boot_ms);
  void kill_waiting(RunNumber);  // 0: all
  int timeout_ms() const;
  void look_at_runs();
  void listen_to_output(RunNumber, Run&);
  void begin(Start&);
  Result<void> launch(RunNumber, Run&);
  void kill_run(RunNumber, Run&, KillReason);
  void release(RunNumber, const ClaimRef&, std::string reason, bool ran);
  void on_pipe(RunNumber, Run&, Pipe);
  void pump(RunNumber, Run&);
  bool read_pipe(RunNumber, Run&, Pipe);  // true: it stopped before the pipe was empty
  void listen(RunNumber, Run&, std::string_view bytes);
  void take_note(Run&, const std::string&);
  void watch_output(RunNumber, Run&);
  void end(RunEnded&);
  static void count_output(const Run&, Outcome&);
  void withhold(RunNumber, Run&, const std::string& reason);
  void close_output(RunNumber, Run&);
  EndReport end_of(Run&, Outcome&, std::string artifacts);
  std::string keep_artifacts(Run&);
  void pass_on_output(RunNumber, Run&);
  void flush_partials();
  void revive_sandbox();

  std::unique_ptr<Sandbox> sandbox_;
  const Clock& clock_;
  WorkerSettings settings_;
  Callbacks callbacks_;
  Mailbox<Order> orders_;
  Fd epoll_;
  int watched_sandbox_ = -1;
  Secrets secrets_;
  std::unordered_map<RunNumber, Run> runs_;
  std::deque<Waiting> waiting_;  // for a slot
  bool partials_ = false;        // a line waits for its end
  bool unheard_ = false;         // there is a run whose output is not waited for yet
  Pace& pace_;
  std::mt19937_64 chance_{std::random_device{}()};  // of the pauses before retries
  std::uint64_t revive_at_ms_ = 0;
  std::string why_not_;  // the last reason, so that it is logged once
  Pulse pulse_;
  std::atomic<bool> ready_{true};
  std::atomic<std::uint64_t> resting_until_ms_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace mycojobs
