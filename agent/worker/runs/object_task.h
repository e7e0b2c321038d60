// One call of a script on the object store, executed in steps of one or two round trips, so that no run delays the
// others. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "security/rights.h"
#include "store/objects/object_store.h"
#include "store/store.h"
#include "worker/runs/object_call.h"

namespace mycojobs {

// The job that makes the call.
struct ObjectCaller {
  Id context = 0, actor = 0;
  ClaimRef claim;
};

class ObjectTask {
 public:
  enum class State {
    done,               // answer() is set
    in_progress,        // another step follows
    lock_busy,          // another job holds the write lock: call step() again soon
    store_unavailable,  // call step() again later
  };
  // name: unique among the writes of the claim. json: the call as the script sent it.
  ObjectTask(std::string name, std::string_view json);

  State step(RecordStore&, ObjectStore&, const ObjectCaller&);
  bool may_write() const { return may_write_; }  // whether the task may hold the write lock, or wait for it
  const std::string& answer() const { return answer_; }
  const std::optional<Refusal>& refusal() const { return refusal_; }  // set if answer() reports a denied call
  std::size_t bytes() const { return bytes_; }                        // size of the call
  // Ends the task with this error as its answer.
  State finish_with_error(const Error&);

 private:
  State run_operation(ObjectStore&, const ObjectCaller&);
  State declare(ObjectStore&, const ObjectCaller&);
  State write(ObjectStore&, const ObjectCaller&);
  State read_page(ObjectStore&, const ObjectCaller&);
  State index_next(ObjectStore&, const ObjectCaller&);
  Result<void> check_rights(RecordStore&, ObjectStore&, const ObjectCaller&);
  State handle_error(const Error&);
  State finish(std::string_view result_json);

  std::string name_, id_;
  std::size_t bytes_ = 0;
  Result<ObjectCall> call_;
  bool rights_checked_ = false, is_declared_ = false, is_indexing_ = false, may_write_ = false;
  std::vector<StoredObject> page_;
  std::size_t page_bytes_ = 0;
  std::string answer_;
  std::optional<Refusal> refusal_;
};

}  // namespace mycojobs
