#!/usr/bin/env bash
# Two tenants with separate hosts: ann, in context 7 of the left side, sends work to context 9 of the right side, and
# receives signed answers over HTTPS. As root, each side and the switch between them are network namespaces; otherwise all
# processes use loopback. The script removes all that it creates; with --keep it waits for Enter before that.
#   examples/tenants/demo.sh [--keep] [PROGRAM]
# PROGRAM: mycojobs, default the one of build/bin or of PATH. Needs redis-server, redis-cli and openssl. Exit 0: all checks passed.
set -uo pipefail

keep=no program=
for word in "$@"; do
  case $word in
    --keep) keep=yes ;;
    -*) sed -n '2,6s/^# //p' "$0"; [ "$word" = --help ] && exit 0; echo "$word is no option" >&2; exit 64 ;;
    *) program=$word ;;
  esac
done
for need in redis-server redis-cli; do
  command -v "$need" >/dev/null || { echo "$need is missing: apt install redis-server" >&2; exit 69; }
done
own_folder=$(cd "$(dirname "$0")" && pwd)
[ -n "$program" ] || program=$own_folder/../../build/bin/mycojobs
[ -x "$program" ] || program=$(command -v mycojobs) || { echo "no mycojobs: build it, or name it" >&2; exit 1; }
program=$(readlink -f "$program")
"$program" version 2>/dev/null | grep -q '^mycojobs ' || { echo "$program is no mycojobs" >&2; exit 1; }

if [ -t 1 ]; then bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'; else bold='' dim='' green='' red='' plain=''; fi
step() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
note() { printf '%s  %s%s\n' "$dim" "$1" "$plain"; }
failures=0
# check CLAIM TEXT OUTPUT: fails if OUTPUT does not contain TEXT.
check() {
  if grep -qF -- "$2" <<<"$3"; then printf '%s  ok%s  %s\n' "$green" "$plain" "$1"; return; fi
  printf '%s  WRONG%s  %s: no "%s" in:\n%s\n' "$red" "$plain" "$1" "$2" "$3"
  failures=$((failures + 1))
}

# ---- set-up and clean-up ----

folder=$(mktemp -d /tmp/mycojobs-tenants-XXXXXX)
tag=mj$$ pids=() spaces=()
clean_up() {
  local pid space i
  for ((i = ${#pids[@]} - 1; i >= 0; --i)); do kill -TERM "${pids[i]}" 2>/dev/null; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null; done
  for space in "${spaces[@]}"; do ip netns del "$space"; done
  rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

left_ip=127.0.0.1 right_ip=127.0.0.1 port=$((20000 + $$ % 5000 * 4))
left_redis=$port right_redis=$((port + 1)) left_port=$((port + 2)) right_port=$((port + 3))
in_left=() in_right=()
networks=loopback
make_namespaces() {
  local side
  for side in switch left right; do
    ip netns add "$tag$side" || return
    spaces+=("$tag$side")
    ip -n "$tag$side" link set lo up || return
  done
  ip -n "${tag}switch" link add wire type bridge && ip -n "${tag}switch" link set wire up || return
  for side in left right; do
    ip -n "${tag}switch" link add "$side" type veth peer name eth0 netns "$tag$side" || return
    ip -n "${tag}switch" link set "$side" master wire up || return
  done
  ip -n "${tag}left" addr add 10.77.0.1/24 dev eth0 && ip -n "${tag}left" link set eth0 up || return
  ip -n "${tag}right" addr add 10.77.0.2/24 dev eth0 && ip -n "${tag}right" link set eth0 up
}
if [ "$(id -u)" = 0 ] && make_namespaces 2>"$folder/namespaces.log"; then
  in_left=(nsenter "--net=/run/netns/${tag}left") in_right=(nsenter "--net=/run/netns/${tag}right")  # ip netns exec hides cgroups
  left_ip=10.77.0.1 right_ip=10.77.0.2 networks=10.77.0.0/24
  where="three network namespaces: ${tag}left, ${tag}right, and ${tag}switch between them"
else
  for space in "${spaces[@]}"; do ip netns del "$space"; done
  spaces=()
  where="all on loopback: namespaces need root"
fi
# An ordinary user's shell has no cgroups of its own.
[ "$(id -u)" = 0 ] || export MYCOJOBS_SANDBOX_ALLOW_MISSING=cgroup:memory,cgroup:pids
left_url=https://$left_ip:$left_port right_url=https://$right_ip:$right_port
"$own_folder/certificates.sh" "$folder/tls" "left=$left_ip" "right=$right_ip" || exit 1

# Runs mycojobs for one side, with its own Redis, keys and folders.
left() {
  env MYCOJOBS_CONFIG= MYCOJOBS_REDIS="redis://127.0.0.1:$left_redis" MYCOJOBS_CONTEXT=7 MYCOJOBS_STATE_DIR="$folder/left" \
    MYCOJOBS_KEYS_DIR="$folder/left/keys" MYCOJOBS_COORDINATOR_NETWORKS="$networks" "${in_left[@]}" "$program" "$@"
}
right() {
  env MYCOJOBS_CONFIG= MYCOJOBS_REDIS="redis://127.0.0.1:$right_redis" MYCOJOBS_CONTEXT=9 MYCOJOBS_STATE_DIR="$folder/right" \
    MYCOJOBS_KEYS_DIR="$folder/right/keys" MYCOJOBS_COORDINATOR_NETWORKS="$networks" "${in_right[@]}" "$program" "$@"
}
left_cli() { "${in_left[@]}" redis-cli -p "$left_redis" -n 7 "$@"; }
# Starts a background process with its output in a file. exec: its pid is the one to kill.
start() {
  local log=$1
  shift
  (exec "$@") >"$folder/$log" 2>&1 </dev/null &
  pids+=($!)
}
start_side() {
  local side=$1 context=$2 redis=$3 port=$4 ip=$5
  shift 5
  local set=(env MYCOJOBS_CONFIG= MYCOJOBS_REDIS="redis://127.0.0.1:$redis" MYCOJOBS_CONTEXT="$context"
    MYCOJOBS_STATE_DIR="$folder/$side" MYCOJOBS_KEYS_DIR="$folder/$side/keys" MYCOJOBS_COORDINATOR_NETWORKS="$networks"
    MYCOJOBS_HTTPS_CA="$folder/tls/ca.crt" MYCOJOBS_API_TLS_CERT="$folder/tls/$side.crt" MYCOJOBS_API_TLS_KEY="$folder/tls/$side.key")
  start "$side-coordinator.log" "${set[@]}" "$@" "$program" coordinator --api-listen "$ip:$port" --coordinator-key coordinator
  start "$side-agent.log" "${set[@]}" MYCOJOBS_STATE_DIR="$folder/$side-agent" "$@" "$program" agent --slots 2 --runner-key runner
}
await() {  # waits until the command succeeds, at most 10 s
  local i
  for ((i = 0; i < 100; ++i)); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.1
  done
  echo "$*: not in 10 s" >&2
  cat "$folder"/*.log >&2
  exit 1
}
answers() { "${@:2}" redis-cli -p "$1" ping | grep -q PONG; }
step "1. Two sides ($where)"
mkdir -p "$folder"/{left,right}/{keys,redis}
start left-redis.log "${in_left[@]}" redis-server --port "$left_redis" --bind 127.0.0.1 --save '' --databases 32 --dir "$folder/left/redis"
start right-redis.log "${in_right[@]}" redis-server --port "$right_redis" --bind 127.0.0.1 --save '' --databases 32 --dir "$folder/right/redis"
await answers "$left_redis" "${in_left[@]}"
await answers "$right_redis" "${in_right[@]}"
note "made in $folder"
note "each coordinator has a certificate of one CA (certificates.sh), and accepts HTTPS only"
note "each has a Redis of its own, which the other cannot use; they know each other's addresses and public keys alone"

step "2. Keys: ann's, and one of each coordinator and runner"
ann=$(left key new ann 2>/dev/null)
eve=$(left key new eve 2>/dev/null)
left_key=$(left key new coordinator 2>/dev/null)
left key new runner >/dev/null 2>&1
right_key=$(right key new coordinator 2>/dev/null)
runner_key=$(right key new runner 2>/dev/null)
note "ann    $ann"
note "left   $left_key"
note "right  $right_key"

step "3. Records: who is who on each side, and who may send work"
{
  left actor create --id 12 --key "$ann"
  left context create 7 --admin 12
  left runner create --id 50 --address "$right_url" --pubkey "$right_key"
  left_cli hset runner:50 target_context 9
  right actor create --id 5 --key "$ann" --address "$left_url"
  right actor create --id 6 --key "$runner_key"
  right actor create --id 7 --key "$left_key" --address "$left_url"
  right context create 9 --admin 6 --submitter 5 --submitter 7
  right runner create --id 50 --address "$left_url" --pubkey "$left_key"
} >"$folder/records.log" 2>&1 || { cat "$folder/records.log"; exit 1; }
note "left:  ann is actor 12, an admin of context 7; runner 50 stands for the supervisor at $right_url"
note "right: the same key is actor 5, a submitter of context 9; answers go to $left_url"
note "       the coordinator of the left side is actor 7, another submitter: it sends nodes of flows"

start_side left 7 "$left_redis" "$left_port" "$left_ip" "${in_left[@]}"
start_side right 9 "$right_redis" "$right_port" "$right_ip" "${in_right[@]}"
await grep -q 'serves context' "$folder/left-agent.log"
await grep -q 'serves context' "$folder/right-agent.log"
await grep -q 'acquired leadership' "$folder/left-coordinator.log"
await grep -q 'acquired leadership' "$folder/right-coordinator.log"

send() { left message send "$@" --to 9 --address "$right_url" --caller 12 --follow 2>&1; }

health() { "${in_left[@]}" "$program" health --url "$right_url" "$@" 2>&1; }
check "the right side answers over HTTPS" "ok" "$(MYCOJOBS_CONFIG= health --https-ca "$folder/tls/ca.crt")"
check "without the CA its certificate is refused" "unknown CA" "$(MYCOJOBS_CONFIG= health)"

step "4. ann sends a script across"
cat >"$folder/hello.py" <<'PY'
import mycojobs
print("hello from the other side")
mycojobs.result["answer"] = 6 * 7
PY
said=$(send "$folder/hello.py" --key ann)
note "mycojobs message send hello.py --to 9 --address $right_url --caller 12 --key ann --follow"
check "its line came back" "hello from the other side" "$said"
check "its result came back" "answer = 42" "$said"
check "the message has ended" "message:12:1 is processed" "$said"

step "5. The receipt: signed by the runner there"
said=$(left receipt verify 12:1 --key "$runner_key" 2>&1)
note "mycojobs receipt verify 12:1 --key ${runner_key:0:12}..."
check "signature holds" "holds  signature" "$said"
check "result is what the runner signed" "holds  result" "$said"
check "log is what the runner signed" "holds  log" "$said"

step "6. A whole flow goes across"
cat >"$folder/two.yaml" <<'YAML'
name: two
jobs:
  count: {type: python, script: "import mycojobs; mycojobs.result['words'] = 3"}
  report: {type: python, needs: [count], script: "import mycojobs; mycojobs.result['line'] = 'three words'"}
YAML
said=$(send --flow "$folder/two.yaml" --key ann)
check "its result came back" "report.line = three words" "$said"

step "7. A flow here, one of whose nodes runs there"
cat >"$folder/mixed.yaml" <<YAML
name: mixed
jobs:
  here: {type: python, script: "import mycojobs; mycojobs.result['side'] = 'left'"}
  there: {type: python, needs: [here], supervisor_url: "$right_url", script: "import mycojobs; mycojobs.result['side'] = 'right'"}
  again: {type: python, needs: [there], script: "import mycojobs; mycojobs.result['side'] = 'left again'"}
YAML
said=$(left flow start "$folder/mixed.yaml" --caller 12 --follow 2>&1)
jobs=$(right job list 2>&1)
check "the flow has completed" "flow 1 completed" "$said"
check "with what its node said there" "there.side = right" "$said"
check "its node ran on the right side" "there" "$jobs"

step "8. Somebody else signs in ann's name"
said=$(send "$folder/hello.py" --key eve)
note "mycojobs message send hello.py ... --key eve"
check "her own side refuses it, with the reason" "is not the key of actor 12" "$said"
left actor update 12 --key eve >/dev/null
note "and once her own side believes her: mycojobs actor update 12 --key eve"
said=$(send "$folder/hello.py" --key eve)
check "the other side refuses it, with the reason" "no actor here has the key" "$said"
left actor update 12 --key ann >/dev/null
said=$(right context refusals 2>&1)
check "and noted there: mycojobs context refusals" "no actor here has the key" "$said"
note "eve's key is ${eve:0:12}..., ann's is ${ann:0:12}..."

printf '\n'
if [ $failures = 0 ]; then
  printf '%sAll as told, in %s s.%s\n' "$green" "$SECONDS" "$plain"
else
  printf '%s%s of the checks failed.%s\n' "$red" "$failures" "$plain"
fi
if [ $keep = yes ]; then
  cat <<EOF

Both sides run on. Type in another terminal:

  left()  { env MYCOJOBS_CONFIG= MYCOJOBS_REDIS=redis://127.0.0.1:$left_redis MYCOJOBS_CONTEXT=7 MYCOJOBS_KEYS_DIR=$folder/left/keys ${in_left[*]} $program "\$@"; }
  right() { env MYCOJOBS_CONFIG= MYCOJOBS_REDIS=redis://127.0.0.1:$right_redis MYCOJOBS_CONTEXT=9 MYCOJOBS_KEYS_DIR=$folder/right/keys ${in_right[*]} $program "\$@"; }
  left message send --text "good morning" --to 9 --address $right_url --caller 12 --key ann --follow
  right message list
  left message list; left job show 12:1; left context refusals

Enter ends and removes it all.
EOF
  if [ -t 0 ]; then read -r _; else echo "(no terminal to press Enter in: end it with Ctrl-C)"; sleep infinity & pids+=($!); wait $!; fi
fi
exit $((failures > 0))
