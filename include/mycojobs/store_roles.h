// A store of which some roles alone are used: the signature of who takes this says what it may do. See
// docs/decisions/0014-roles-of-the-store.md.
#pragma once

#include <concepts>
#include <tuple>

#include "mycojobs/store.h"

namespace mycojobs {

// As cheap as that many pointers; the store outlives it. It goes in wherever one of its roles is wanted, or fewer of
// them: RolesOf<ClaimStore, RunnerStore> of a Store&, ClaimStore& of that.
template <class... Roles>
class RolesOf {
 public:
  RolesOf(Store& store) : roles_(static_cast<Roles*>(&store)...) {}  // NOLINT(*-explicit-*)
  template <class... More>
  RolesOf(const RolesOf<More...>& wider) : roles_(&wider.template as<Roles>()...) {}  // NOLINT(*-explicit-*)

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
