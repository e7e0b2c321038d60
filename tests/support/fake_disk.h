// Fake storage for the artifacts of runs: records every call, and blocks while an optional gate is closed.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "artifacts/job_artifacts.h"
#include "support/gate.h"

namespace mycojobs::test {

// The test's view of the fake storage. Thread-safe.
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
  void allow_next_call(const std::string& what, std::size_t bytes = 0) {
    if (gate_ != nullptr) gate_->pass();
    const std::lock_guard lock(mutex_);
    calls_ += (calls_.empty() ? "" : " ") + what;
    bytes_ += bytes;
  }
  BlockingGate* gate_;
  std::mutex mutex_;
  std::string calls_;
  std::size_t bytes_ = 0;
};

// Rejects a file named "bad" and adds a note.
class FakeDisk final : public RunArtifacts {
 public:
  explicit FakeDisk(DiskControl& control) : control_(control) {}
  ~FakeDisk() override {
    if (spool_) control_.allow_next_call("gone");
  }
  bool open(const std::string& name, bool executable) override {
    spool_ = true;
    control_.allow_next_call((executable ? "open executable " : "open ") + name);
    if (name != "bad") return true;
    notes_.emplace_back("bad is not kept");
    return false;
  }
  void write(std::string_view bytes) override {
    control_.allow_next_call(bytes.size() < 20 ? "write " + std::string(bytes) : "write", bytes.size());
  }
  void close() override { control_.allow_next_call("close"); }
  void keep_out(std::shared_ptr<const Redactor>) override {}
  std::vector<std::string> take_notes() override { return std::exchange(notes_, {}); }
  void report_dropped(const DroppedArtifact& dropped) override { dropped_.push_back(dropped); }
  std::vector<DroppedArtifact> dropped() const override { return dropped_; }
  std::string finish() override {
    control_.allow_next_call("finish");
    spool_ = false;
    notes_.emplace_back("finished");
    return "{}";
  }

 private:
  DiskControl& control_;
  bool spool_ = false;
  std::vector<DroppedArtifact> dropped_;
  std::vector<std::string> notes_;
};

// Writes all channel data into one artifact.
class ArtifactConversation final : public Conversation {
 public:
  explicit ArtifactConversation(ArtifactSink& sink, std::string name = "file") : sink_(sink), name_(std::move(name)) {}
  std::string take_output() override { return {}; }
  void feed(std::string_view bytes) override {
    if (!std::exchange(open_, true)) sink_.open(name_, false);
    sink_.write(bytes);
  }
  std::vector<std::string> take_notes() override { return {}; }
  JobEnd finish(const Outcome& outcome) const override {
    JobEnd end;
    end.detail = std::string(to_string(outcome.status));
    return end;
  }

 private:
  ArtifactSink& sink_;
  std::string name_;
  bool open_ = false;
};

}  // namespace mycojobs::test
