// One call of a script on the object store, in steps that are each one round trip or two, so that no run holds up
// another.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "domain/object_call.h"
#include "domain/rights.h"
#include "mycojobs/objects.h"
#include "mycojobs/store.h"

namespace mycojobs {

// Whose call it is.
struct ObjectCaller {
  Id context = 0, caller = 0;
  ClaimRef claim;
};

class ObjectTask {
 public:
  enum class State {
    done,  // answer() has it
    more,  // another step is to follow
    busy,  // another job writes: step again in a moment
    away,  // the store is: step again after a while
  };
  // name: the write's own among those of the claim. json: as the script sent it.
  ObjectTask(std::string name, std::string_view json);

  State step(RecordStore&, ObjectStore&, const ObjectCaller&);
  bool may_write() const { return may_write_; }  // it may have become the writer, or wait to be
  const std::string& answer() const { return answer_; }
  const std::optional<Refusal>& refusal() const { return refusal_; }  // that answer() tells
  std::size_t bytes() const { return bytes_; }                        // of the call
  State give_up(const Error&);                                        // answers with this

 private:
  State act(ObjectStore&, const ObjectCaller&);
  State declare(ObjectStore&, const ObjectCaller&);
  State write(ObjectStore&, const ObjectCaller&);
  State read_page(ObjectStore&, const ObjectCaller&);
  State index(ObjectStore&, const ObjectCaller&);
  Result<void> check_rights(RecordStore&, ObjectStore&, const ObjectCaller&);
  State refuse(const Error&);
  State reply(std::string_view result_json);

  std::string name_, id_;
  std::size_t bytes_ = 0;
  Result<ObjectCall> call_;
  bool allowed_ = false, declared_ = false, indexing_ = false, may_write_ = false;
  std::vector<StoredObject> found_;
  std::size_t found_bytes_ = 0;
  std::string answer_;
  std::optional<Refusal> refusal_;
};

}  // namespace mycojobs
