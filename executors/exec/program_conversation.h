// A conversation about a job that is a program (an interpreter with a script, a compiler, a binary), run by
// mycojobs-exechost.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "executors/executor.h"
#include "executors/script_answer.h"
#include "executors/script_conversation.h"

namespace mycojobs {

inline constexpr const char* kProgramHost = "exec";  // Stage::host

struct ProgramSpec {
  std::string_view executor;
  std::string_view profile;
  std::vector<std::string> command;    // [0]: absolute or in /usr/bin or /bin; "{script}" is the script's path
  bool verbatim = false;               // command: its words are from the job and are not replaced
  std::string script_file = "script";  // file name of the script below /job
  TextMap environment = {};            // the job's own values take precedence
  std::vector<ScriptFile> files = {};
  std::string attached_as = {};  // executable file name of `attached` below /job
  std::shared_ptr<const Fd> attached = {};
};

// Error invalid or too_large: names the field; the job can never run.
Result<std::unique_ptr<Conversation>> begin_program(const JobFacts&, const ProgramSpec&, ArtifactSink*);

// Stores the last lines of a stream in bounded memory.
class Tail {
 public:
  static constexpr std::size_t kMaxBytes = 4096;
  void feed(std::string_view bytes);
  const std::string& text() const { return text_; }
  std::string last_line() const;  // the last line that is not blank

 private:
  std::string text_;
};

// Base class for executors that need more of a run than the program's own answer. begin_program() uses it as it is.
class ProgramConversation : public Conversation {
 public:
  ProgramConversation(std::string request, EndContext, ArtifactSink*, std::shared_ptr<const Fd> attached = {});
  std::string take_output() override {
    reader_.mark_answered();
    return std::exchange(output_, {});
  }
  int attachment() const override { return attached_ ? attached_->get() : -1; }
  void feed(std::string_view bytes) override { reader_.feed(bytes); }
  std::uint64_t frames() const override { return reader_.frames(); }
  void on_stderr(std::string_view bytes) override { stderr_.feed(bytes); }
  std::vector<std::string> take_notes() override { return reader_.take_notes(); }
  std::vector<std::string> take_calls() override { return reader_.take_calls(); }
  void answer(std::string_view reply) override { reader_.reply(output_, reply); }
  JobEnd finish(const Outcome&) const override;

 protected:
  // The answer, with the last lines of stderr if the program failed.
  ScriptAnswer complete_answer() const;
  const EndContext& context() const { return context_; }
  const Tail& errors() const { return stderr_; }

 private:
  std::string output_;
  std::shared_ptr<const Fd> attached_;
  EndContext context_;
  AnswerReader reader_;
  Tail stderr_;
};

}  // namespace mycojobs
