#!/usr/bin/env bash
# Builds a copy of this tree on another release, and runs its examples and tests. Usage:
#   test.sh SUITE PACKAGES [CTEST OPTION...]
# Or cross-compiles the tree for another architecture, and runs the unit tests:
#   test.sh arm64 PACKAGES [GOOGLETEST OPTION...]
# PACKAGES: the package names, separated by spaces, as one argument. All files are below build/on-SUITE: the release,
# the copy and the cache of the compiler.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
suite=${1:?suite} packages=${2:?packages}
shift 2
work=build/on-$suite
release=$suite
[ "$suite" != arm64 ] || release=bookworm+arm64

say() { printf 'on %s: %s\n' "$suite" "$*" >&2; }
give_up() { say "$2"; exit "$1"; }

[ "$(id -u)" -eq 0 ] || give_up 69 "another release's files can only be unpacked by root: run ./dev test-on $suite as root"
mkdir -p "$work"/{source,cache}
exec 9>"$work/lock"
flock -n 9 || give_up 75 "another ./dev test-on $suite is at work in this folder"

# shellcheck disable=SC2086  # each package name is a separate word
key=$(cat "$here/root.sh" <(printf '%s\n' $packages) | sha256sum | cut -c1-16)
if [ ! -d "$work/release-$key/root" ]; then
  say "unpacking the release (a minute; kept for the next time)"
  rm -rf "$work"/release-*
  # shellcheck disable=SC2086
  "$here/root.sh" "$release" "$work/release-$key" $packages >"$work/release.log" 2>&1 ||
    { tail -20 "$work/release.log" >&2; give_up 69 "no release: see $work/release.log"; }
fi

rsync -a --delete --exclude=/.git --filter=':- .gitignore' ./ "$work/source/"
inside() { "$here/inside.sh" "$work/release-$key/root" "$work/source" "$work/cache" "$@" 9>&-; }
if [ "$suite" = arm64 ]; then
  inside tests/on/arm64.sh "$@"
else
  inside ./dev run
  inside ./dev test "$@"
  # The store on Valkey, which Debian 12 does not have.
  [ "$suite" != trixie ] || inside env MYCOJOBS_TEST_REDIS_SERVER=/usr/bin/valkey-server build/bin/contract_tests --gtest_brief=1
fi
