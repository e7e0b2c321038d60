// A reference to a store that gives access to some of its roles only, so that a function's signature shows which roles
// it uses. See docs/decisions/0014-roles-of-the-store.md.
#pragma once

#include <concepts>
#include <tuple>

#include "store/store.h"

namespace mycojobs {

// Holds one pointer for each role, so it is passed by value. The store must outlive the object. Conversions are
// implicit: from Store& to StoreRoles<ClaimStore, RunnerStore>, and from that type to fewer roles or to ClaimStore&.
template <class... Roles>
class StoreRoles {
 public:
  StoreRoles(Store& store) : roles_(static_cast<Roles*>(&store)...) {}  // NOLINT(*-explicit-*)
  template <class... OtherRoles>
  StoreRoles(const StoreRoles<OtherRoles...>& other)
      : roles_(&other.template as<Roles>()...) {}  // NOLINT(*-explicit-*)

  template <class Role>
  requires(std::same_as<Role, Roles> || ...) Role& as() const { return *std::get<Role*>(roles_); }
  template <class Role>
  requires(std::same_as<Role, Roles> || ...) operator Role&() const {  // NOLINT(*-explicit-*)
    return as<Role>();
  }

 private:
  std::tuple<Roles*...> roles_;
};

}  // namespace mycojobs
