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
  bool is_verbatim = false;            // whether the command comes from the job, so that {script} is not replaced
  std::string script_file = "script";  // file name of the script below /job
  TextMap environment = {};            // the job's own values take precedence
  std::vector<ScriptFile> files = {};
  std::string attached_path = {};  // path of `attached` below /job; the file is executable
  std::shared_ptr<const Fd> attached = {};
};

// Errors invalid and too_large name the field; the job can never run.
Result<std::unique_ptr<Conversation>> begin_program(const JobFacts&, const ProgramSpec&, ArtifactSink*);

// Stores the last lines of a stream in bounded memory.
class OutputTail {
 public:
  static constexpr std::size_t kMaxBytes = 4096;
  void feed(std::string_view bytes);
  const std::string& text() const { return text_; }
  std::string last_line() const;  // Returns the last line that is not blank.

 private:
  std::string text_;
};

// Conversation about one program, which begin_program() creates. Base class for executors that evaluate more than the
// answer of the program.
class ProgramConversation : public Conversation {
 public:
  ProgramConversation(std::string request, EndContext, ArtifactSink*, std::shared_ptr<const Fd> attached = {});
  std::string consume_output() override {
    reader_.on_replies_sent();
    return std::exchange(output_, {});
  }
  int attachment() const override { return attached_ ? attached_->get() : -1; }
  void feed(std::string_view bytes) override { reader_.feed(bytes); }
  std::uint64_t frames() const override { return reader_.frames(); }
  void on_stderr(std::string_view bytes) override { stderr_.feed(bytes); }
  std::vector<std::string> consume_notes() override { return reader_.consume_notes(); }
  std::vector<std::string> consume_calls() override { return reader_.consume_calls(); }
  void answer(std::string_view reply) override { reader_.append_reply(output_, reply); }
  JobEnd finish(const Outcome&) const override;

 protected:
  // Returns the answer, with the last lines of stderr if the program failed.
  ScriptAnswer complete_answer() const;
  const EndContext& context() const { return context_; }
  const OutputTail& stderr_tail() const { return stderr_; }

 private:
  std::string output_;
  std::shared_ptr<const Fd> attached_;
  EndContext context_;
  AnswerReader reader_;
  OutputTail stderr_;
};

}  // namespace mycojobs
