#!/usr/bin/env bash
# Builds docker/Dockerfile with podman and without a registry, and tests the image as root and as an unprivileged user:
# test.sh [ROW...]. All files are below build/image; images and the compiler's cache stay there. Exit code 1: a row
# failed.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
work=build/image

say() { printf 'image: %s\n' "$*" >&2; }
give_up() { say "$2"; exit "$1"; }

[ "$(id -u)" -eq 0 ] || give_up 69 "mounts and networks of its own can only be made by root: run ./dev test-image as root"
for program in mmdebstrap podman crun podman-compose newuidmap slirp4netns; do
  command -v "$program" >/dev/null || give_up 69 "$program is missing: ./dev test-image installs it"
done
mkdir -p "$work"
exec 9>"$work/lock"
flock -n 9 || give_up 75 "another ./dev test-image is at work in this folder"

# Runs the same tests twice: as root, and as a user with only podman and 65536 ids.
root() { "$here/private.sh" "$work" "$@" 9>&-; }
user() { root unshare --pid --fork --mount-proc --kill-child "$here/as_user.sh" "$work/user" "$@"; }

# debian:bookworm-slim, from the package sources of the host.
if ! root podman image exists docker.io/library/debian:bookworm-slim; then
  say "making debian:bookworm-slim (half a minute; kept for the next time)"
  # shellcheck disable=SC2016
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' 'Origin: Debian' |
    sort -u >"$work/sources"
  [ -s "$work/sources" ] || give_up 69 "apt knows no Debian source: run apt-get update"
  TMPDIR=$PWD/$work mmdebstrap --mode=root --variant=minbase --aptopt='Apt::Install-Recommends "false"' \
    --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/'{man,doc,locale}'/*' bookworm "$work/base.tar" - \
    <"$work/sources" >"$work/base.log" 2>&1 || { tail -20 "$work/base.log" >&2; give_up 69 "no base: see $work/base.log"; }
  root podman import -q "$work/base.tar" docker.io/library/debian:bookworm-slim >"$work/base.log" 2>&1
  rm "$work/base.tar"
fi
build() { # WHO NAME DOCKERFILE FOLDER
  "$1" podman build --pull=never --network=host --format docker --layers -t "$2" -f "$3" "$4" >"$work/build.log" 2>&1 ||
    { tail -30 "$work/build.log" >&2; give_up 1 "$3 does not build: see $work/build.log"; }
}
# The rows have private networks, processes and mounts, which end with them.
rows() { # COMMAND...
  root unshare --net --pid --fork --mount-proc --kill-child sh -c 'ip link set lo up; exec "$@"' - "$@"
}

say "building docker/Dockerfile (a few minutes the first time)"
build root localhost/mycojobs docker/Dockerfile .
build root docker.io/library/redis:7 tests/image/redis.Dockerfile tests/image
root podman image prune -f >"$work/build.log" 2>&1
say "building it as an ordinary user, too"
if ! user podman image exists docker.io/library/debian:bookworm-slim; then
  root podman save -q docker.io/library/debian:bookworm-slim | user podman load -q >"$work/build.log"
fi
if [ ! -d "$work/user/tmp/buildah-cache" ] && [ -d "$work/tmp/buildah-cache" ]; then
  # The output of root's compilation.
  mkdir -p "$work/user/tmp"
  cp -r --no-preserve=ownership "$work/tmp/buildah-cache" "$work/user/tmp/"
  user_id=$(sed -n 's/^name=.* id=\([0-9]*\) .*/\1/p' "$here/as_user.sh")
  chown -R "$user_id:$user_id" "$work/user/tmp"
fi
build user localhost/mycojobs docker/Dockerfile .
build user docker.io/library/redis:7 tests/image/redis.Dockerfile tests/image
user podman image prune -f >"$work/build.log" 2>&1

before=$SECONDS
say "the rows"
rows "$here/rows.py" "$@" | tee "$work/rows.log"
say "the rows once more, of an ordinary user"
rows "$here/as_user.sh" "$work/user" tests/image/rows.py "$@" | sed -u 's/^ok /ok rootless: /; s/^FAILED /FAILED rootless: /' | tee -a "$work/rows.log"
# Removes empty groups of cgroup version 1.
find /sys/fs/cgroup -depth -type d -path '*/libpod_parent*' -exec rmdir {} + 2>/dev/null || true
passed=$(grep -c '^ok ' "$work/rows.log" || true)
failed=$(grep -c '^FAILED ' "$work/rows.log" || true)
[ "$(grep -c '^end of rows' "$work/rows.log")" -eq 2 ] || give_up 1 "the rows did not come to their end"
printf 'image: %s rows held, %s failed (%s s; %s s with the build)\n' "$passed" "$failed" "$((SECONDS - before))" "$SECONDS"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
