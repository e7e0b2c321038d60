# Precedes each list of commands. `t NAME COMMAND` runs one command and prints its exit code and the first 160
# characters of its output in one line.
mkdir -p "${TMPDIR:-/tmp}/compat" && cd "${TMPDIR:-/tmp}/compat" || exit 1
export LC_ALL=C.UTF-8 TERM=xterm
t() {
  local name="$1" output code
  shift
  output=$(timeout 60 bash -c "$*" 2>&1 </dev/null)
  code=$?
  output=${output//$'\n'/ ¶ }
  printf '\nt %s: rc=%s %s\n' "$name" "$code" "${output:0:160}"
}
