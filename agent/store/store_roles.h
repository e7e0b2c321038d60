// A reference to a store that gives access to some of its roles only, so that a function's signature shows which roles
// it uses. See docs/decisions/0014-roles-of-the-store.md.
#pragma once

#include <concepts>
#include <tuple>

#include "store/store.h"

namespace mycojobs {

// Copying costs as much as copying a pointer for each role. The store must outlive the object. Conversions are
// implicit: from Store& to StoreRoles<ClaimStore, RunnerStore>, from there to fewer roles or to ClaimStore&.
template <class... Roles>
class StoreRoles {
 public:
  StoreRoles(Store& store) : roles_(static_cast<Roles*>(&store)...) {}  // NOLINT(*-explicit-*)
  template <class... More>
  StoreRoles(const StoreRoles<More...>& wider) : roles_(&wider.template as<Roles>()...) {}  // NOLINT(*-explicit-*)

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
