// How much lies in the incoming/ folders of a host, of all contexts (worker/artifact_store.h), and how much may. It is
// counted by names, which say what belongs to whom and how large it will be: nothing is remembered, so that it holds
// for all processes there and after a restart. Only who wants room counts, not each piece. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "mycojobs/artifact_store.h"

namespace mycojobs {

class IncomingRoom {
 public:
  IncomingRoom(std::string state_dir, std::uint64_t most) : state_dir_(std::move(state_dir)), most_(most) {}

  static std::string folder_name(const ParcelName&);
  static std::string file_name(const FileContent&);  // whole; with something behind it: a part

  std::uint64_t share() const { return most_ / 4; }  // of one sender, in bytes
  // Whether there is room for these, which are not there yet. Nobody else is let in while the answer lives: until they
  // have their places. Errors: unavailable, too_large; both name the setting.
  Result<Fd> let_in(Id context, const ParcelName&, const std::vector<FileContent>&) const;
  // Takes away what nobody has touched for an hour, of contexts that are not served any more, too: it has room.
  void forget_old() const;

 private:
  struct Lying {
    std::uint64_t all = 0, of_sender = 0;
    std::uint64_t of_parcel = 0;  // its files
  };
  Result<Lying> count(Id context, const ParcelName&) const;

  const std::string state_dir_;
  const std::uint64_t most_;
};

}  // namespace mycojobs
