// A value that one thread replaces while others read it, for example when the configuration is reloaded. Copies of a
// LiveValue share the value.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

namespace mycojobs {

template <class T>
class LiveValue {
 public:
  LiveValue() = default;
  template <class Value>
  LiveValue(std::shared_ptr<Value> value) {  // NOLINT(google-explicit-constructor): converts like a shared pointer
    replace(std::move(value));
  }

  // Returns the current value, or null. Thread-safe.
  std::shared_ptr<const T> now() const {
    const std::lock_guard lock(state_->mutex);
    return state_->value;
  }
  void replace(std::shared_ptr<const T> value) {
    const std::lock_guard lock(state_->mutex);
    state_->value = std::move(value);
  }

 private:
  struct State {
    std::mutex mutex;
    std::shared_ptr<const T> value;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace mycojobs
