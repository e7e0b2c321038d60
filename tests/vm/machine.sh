#!/usr/bin/env bash
# Boots a Debian 12 machine with the built program, runs rows.py there, and prints one line per row: machine.sh
# PACKAGE... (packages to install in the machine). Exit code 1: a row failed; 69: no machine can be created.
# VM_GROUPS selects among the groups packages, units and suite (the suite of the sandbox). VM_ROWS=REGEX selects rows of
# packages and units by name. VM_LIMIT_S: maximum duration. All files are below build/vm.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
work=build/vm
limit_s=${VM_LIMIT_S:-2400} # maximum life of the machine; alone on two cores it takes between a fifth and two thirds of this
groups=${VM_GROUPS:-packages units suite}
[ -z "${VM_ROWS:-}" ] || groups=${groups/suite/}

say() { printf 'vm: %s\n' "$*" >&2; }
give_up() { say "$2"; exit "$1"; }

[ "$(uname -m)" = x86_64 ] || give_up 69 "this test boots an x86-64 machine, and this host is $(uname -m)"
[ "$(id -u)" -eq 0 ] || give_up 69 "a disk with Debian on it can only be made by root: run ./dev test-vm as root"
for program in mmdebstrap mke2fs qemu-system-x86_64; do
  command -v "$program" >/dev/null || give_up 69 "$program is missing: ./dev test-vm installs it"
done
mkdir -p "$work"
exec 9>"$work/lock"
flock -n 9 || give_up 75 "another ./dev test-vm is at work in this folder"

# The Debian packages of the libraries that the built programs load.
libraries() {
  ldd build/bin/mycojobs{,-*} | awk '$2 == "=>" { print $3 }' | sort -u |
    xargs readlink -f | xargs -n 1 basename | sed 's|^|*/|' | xargs dpkg-query -S | cut -d: -f1 | sort -u
}
# These packages and the recommended packages are in a repository of the machine, in which apt must find them.
REPOSITORY="$(libraries | xargs) ca-certificates tzdata"
export REPOSITORY
key=$(cat "$here/image.sh" $(find "$here/root" -type f | sort) <(printf '%s\n' "$@" "$REPOSITORY") | sha256sum | cut -c1-16)
image=$work/image-$key
if [ ! -f "$image/root.img" ]; then
  say "making a disk with Debian 12 (about a minute; kept for the next time)"
  rm -rf "$work"/image-*
  "$here/image.sh" "$image" "$@" >"$work/image.log" 2>&1 || { tail -20 "$work/image.log" >&2; give_up 69 "no disk: see $work/image.log"; }
fi

say "packing the build, and once more as a newer version, whose program says so, too"
rm -rf "$work/packages" "$work/stage"
"$here/../../debian/make.sh" "$work/packages" MYCOJOBS_BUILT="$PWD/build" DEB_BUILD_OPTIONS=noautodbgsym
# Compressed for speed: the emulated machine unpacks them about ten times.
packed=$(ls "$work"/packages/mycojobs_*.deb)
dpkg-deb --raw-extract "$packed" "$work/stage"
dpkg-deb --root-owner-group -Zgzip -z1 --build "$work/stage" "$packed" >"$work/install.log"
sed -i 's/^Version: .*/&+next/' "$work/stage/DEBIAN/control"
python3 - "$work/stage/usr/bin/mycojobs" <<'END'
import sys
with open(sys.argv[1], "r+b") as file:
    program = file.read()
    assert program.count(b"\x000.1.0\x00") == 1, "kVersion of base/version.h stands at one place of the program"
    file.seek(program.index(b"\x000.1.0\x00"))
    file.write(b"\x000.1.1\x00")
END
dpkg-deb --root-owner-group -Zgzip -z1 --build "$work/stage" "$work/packages/" >"$work/install.log"

say "installing the build on a second disk"
rm -rf "$work/stage" "$work"/payload.img
mkdir -p "$work/stage"
DESTDIR=$PWD/$work/stage cmake --install build --strip >"$work/install.log"
cp "$here"/*.py "$work/stage/"
mkdir -p "$work/stage/packages"
cp "$work"/packages/*mycojobs_*.deb "$work/stage/packages/"
cp docs/install.md "$work/stage/"
cp -r examples/workflow/order examples/hello "$work/stage/"
echo "${VM_ROWS:-}" >"$work/stage/only"
echo "$groups" >"$work/stage/groups"
if [[ $groups == *suite* ]]; then
  # The suite of the sandbox at its expected path.
  mkdir -p "$work/stage/suite"
  cp build/bin/{sandbox_tests,cgroup_tests,attempt_host,bad_host,mycojobs-*} "$work/stage/suite/"
  strip "$work"/stage/suite/*
  echo "$PWD/build/bin" >"$work/stage/suite/place"
fi
mke2fs -q -t ext4 -O ^has_journal -d "$work/stage" "$work/payload.img" 128M >"$work/install.log" 2>&1

exec "$here/boot.sh" "$work" "$image" "$work/payload.img" "$limit_s"
