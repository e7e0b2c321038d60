// Fake artifact storage of a run. Every call is recorded, and blocks while an optional gate is closed.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "artifacts/job_artifacts.h"
#include "executors/executor.h"
#include "support/gate.h"

namespace mycojobs::test {

// Observes the calls of a FakeDisk; owned by the test, which keeps it alive longer than the FakeDisk. Thread-safe.
class DiskControl {
 public:
  explicit DiskControl(BlockingGate* gate = nullptr) : gate_(gate) {}
  // Returns all calls so far, separated by blanks, such as "open file write close".
  std::string calls() {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  // Returns the number of bytes written so far.
  std::size_t bytes() {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  friend class FakeDisk;
  void record_call(const std::string& call, std::size_t bytes = 0) {
    if (gate_ != nullptr) gate_->pass();
    const std::lock_guard lock(mutex_);
    calls_ += (calls_.empty() ? "" : " ") + call;
    bytes_ += bytes;
  }
  BlockingGate* gate_;
  std::mutex mutex_;
  std::string calls_;
  std::size_t bytes_ = 0;
};

// Accepts every artifact except the name "bad", which is rejected with a note.
class FakeDisk final : public RunArtifacts {
 public:
  explicit FakeDisk(DiskControl& control) : control_(control) {}
  ~FakeDisk() override {
    if (is_spooling_) control_.record_call("gone");
  }
  bool open(const std::string& name, bool executable) override {
    is_spooling_ = true;
    control_.record_call((executable ? "open executable " : "open ") + name);
    if (name != "bad") return true;
    notes_.emplace_back("bad is not kept");
    return false;
  }
  void write(std::string_view bytes) override {
    control_.record_call(bytes.size() < 20 ? "write " + std::string(bytes) : "write", bytes.size());
  }
  void close() override { control_.record_call("close"); }
  void set_redactor(std::shared_ptr<const Redactor>) override {}
  std::vector<std::string> consume_notes() override { return std::exchange(notes_, {}); }
  void report_dropped(const DroppedArtifact& dropped) override { dropped_.push_back(dropped); }
  std::vector<DroppedArtifact> dropped() const override { return dropped_; }
  std::string finish() override {
    control_.record_call("finish");
    is_spooling_ = false;
    notes_.emplace_back("finished");
    return "{}";
  }

 private:
  DiskControl& control_;
  bool is_spooling_ = false;
  std::vector<DroppedArtifact> dropped_;
  std::vector<std::string> notes_;
};

// A conversation that stores all data of the channel in one artifact.
class ArtifactConversation final : public Conversation {
 public:
  explicit ArtifactConversation(ArtifactSink& sink, std::string name = "file") : sink_(sink), name_(std::move(name)) {}
  std::string consume_output() override { return {}; }
  void feed(std::string_view bytes) override {
    if (!std::exchange(is_open_, true)) sink_.open(name_, false);
    sink_.write(bytes);
  }
  std::vector<std::string> consume_notes() override { return {}; }
  JobEnd finish(const Outcome& outcome) const override {
    JobEnd end;
    end.detail = std::string(to_string(outcome.status));
    return end;
  }

 private:
  ArtifactSink& sink_;
  std::string name_;
  bool is_open_ = false;
};

}  // namespace mycojobs::test
