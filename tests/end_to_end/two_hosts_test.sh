#!/usr/bin/env bash
# Two hosts on one machine: two network namespaces joined by a veth pair, each with a host name of its own. mpirun
# spreads one job over both, and the text must be that of one process. All traffic stays inside the namespaces.
# Usage: two_hosts_test.sh OUTRIDER SOURCE_DIR
# Needs: root (or CAP_SYS_ADMIN and CAP_NET_ADMIN), iproute2, util-linux, mpirun. Exits with 77, and says why, if not.
set -euo pipefail

outrider=$(realpath "$1")
pair=$(realpath "$2")/launch/demo_pair

skip() {
  echo "NOT TESTED: two hosts: $*" >&2
  exit 77
}
for tool in ip unshare nsenter mpirun; do
  command -v "$tool" >/dev/null || skip "there is no '$tool'; install iproute2, util-linux and openmpi-bin"
done
for model in target draft; do
  [ -f "$pair/$model/model.safetensors" ] || skip "there is no demo pair in launch/demo_pair"
done

# Names of this run only, so that two runs do not meet. An interface name has at most 15 characters.
id=$$
left=outrider-l$id right=outrider-r$id
work=$(mktemp -d)
failed=0

cleanup() {
  for space in "$left" "$right"; do
    # A daemon of mpirun may outlive a failed job. Only processes of this test run in these namespaces.
    for pid in $(ip netns pids "$space" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null || true; done
    ip netns delete "$space" 2>/dev/null || true  # and with it its end of the cable, hence the other
  done
  rm -rf "$work"
}
trap cleanup EXIT

ip netns add "$left" 2>"$work/why" || skip "cannot make a network namespace: $(cat "$work/why")"
ip netns add "$right" 2>"$work/why" || skip "cannot make a network namespace: $(cat "$work/why")"
unshare --uts true 2>"$work/why" || skip "cannot make a UTS namespace: $(cat "$work/why")"
# Each host has, as its first interface, a bridge for containers: up, with the same address everywhere, and a dead end.
# The coordinator must not choose it.
for space in "$left" "$right"; do
  ip link add bridge0 netns "$space" type veth peer name container0 netns "$space" 2>"$work/why" ||
    skip "cannot make a veth pair: $(cat "$work/why")"
  ip -n "$space" address add 172.31.77.1/24 dev bridge0
  ip -n "$space" link set bridge0 up
  ip -n "$space" link set container0 up
done
ip link add "ol$id" netns "$left" type veth peer name "or$id" netns "$right" 2>"$work/why" ||
  skip "cannot join namespaces by a veth pair: $(cat "$work/why")"

# 198.18.0.0/15 is set aside for tests (RFC 2544): no real network has it.
subnet=198.18.77.0/24 left_address=198.18.77.1 right_address=198.18.77.2
plug() { # space interface address
  ip -n "$1" link set lo up
  ip -n "$1" address add "$3/24" dev "$2"
  ip -n "$1" link set "$2" up
}
plug "$left" "ol$id" "$left_address"
plug "$right" "or$id" "$right_address"

# Runs the rest of its arguments on a host: address, then the command.
cat >"$work/on_host" <<END
#!/usr/bin/env bash
set -euo pipefail
address=\$1; shift
case \$address in
  $left_address) space=$left name=left ;;
  $right_address) space=$right name=right ;;
  *) echo "no such host: \$address" >&2; exit 1 ;;
esac
exec ip netns exec "\$space" unshare --uts bash -c 'hostname "\$1"; shift; exec "\$@"' on_host "\$name" "\$@"
END
# mpirun calls this script in place of ssh, with the address of a host and one command line for its shell.
cat >"$work/remote_shell" <<END
#!/usr/bin/env bash
set -euo pipefail
address=\$1; shift
exec "$work/on_host" "\$address" bash -c "\$*"
END
chmod +x "$work/on_host" "$work/remote_shell"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Shared memory would cross the border between the hosts, so the ranks get TCP only.
mpi=(mpirun --host "$left_address:2,$right_address:2" --mca plm_rsh_agent "$work/remote_shell"
  --mca btl tcp,self --mca pml ob1 --mca oob_tcp_if_include "$subnet" --mca btl_tcp_if_include "$subnet"
  --bind-to none --map-by node)
request=(generate --model "$pair/target" --draft-model "$pair/draft" --prompt "Once upon a time" --max-tokens 48
  --temperature 0.8 --seed 7 --quiet)

# Runs a job on both hosts; its output is in $work/text and $work/errors, its exit code in $code.
run_job() {
  code=0
  timeout --kill-after=5 60 "$work/on_host" "$left_address" "${mpi[@]}" "$@" \
    >"$work/text" 2>"$work/errors" </dev/null || code=$?
}
fail() {
  failed=1
  echo "FAILED: $*" >&2
  echo "exit code $code, standard output and errors:" >&2
  cat "$work/text" "$work/errors" >&2
}

run_job hostname
[ "$(sort -u "$work/text" | tr '\n' ' ')" = "left right " ] || { fail "mpirun does not reach both hosts"; exit 1; }

alone=$("$outrider" "${request[@]}")
[ ${#alone} -gt 50 ] || { echo "FAILED: one process generated only '$alone'" >&2; exit 1; }

# Over keys that the job makes for itself. Default mapping by node: ranks 0 and 2 live on the left, ranks 1 and 3 on the right. So the coordinator and its
# draft worker are apart, and the target group spans both hosts.
run_job "$outrider" "${request[@]}"
[ $code -eq 0 ] && [ "$(cat "$work/text")" = "$alone" ] || fail "the text over two hosts is not that of one process"

# The coordinator on the right, by its own choice of address, and a group of two beside the drafter.
run_job "$outrider" "${request[@]}" --layout target=2,draft=1,coordinator=1 --bind-host "$right_address"
[ $code -eq 0 ] && [ "$(cat "$work/text")" = "$alone" ] || fail "--bind-host: the text is not that of one process"

# A prompt that is prefilled on the left and decoded on the right: its blocks cross the border, encrypted.
long=$(printf 'Once upon a time there was a little dog who lived in a big house. %.0s' 1 2 3 4 5 6 7 8)
prompt=(generate --model "$pair/target" --draft-model "$pair/draft" --prompt "$long" --max-tokens 24 --quiet)
alone_long=$("$outrider" "${prompt[@]}")
run_job "$outrider" "${prompt[@]}" --layout coordinator=1,draft=1,target=prefill:1x1,decode:1x1 --report "$work/report.json"
[ $code -eq 0 ] && [ "$(cat "$work/text")" = "$alone_long" ] || fail "prefilled on another host: the text is not that of one process"
tr -d ' \n' <"$work/report.json" | grep -qE '"fallbacks":0,"prompts":1' || fail "no blocks of the prompt crossed the border"

# An address of another host cannot be bound.
run_job "$outrider" "${request[@]}" --bind-host "$right_address"
[ $code -eq 2 ] && [ "$(grep -c -e '--bind-host' "$work/errors")" -eq 1 ] ||
  fail "--bind-host of another host: expected one message that names it, and exit code 2"

# Ranks on another host could not reach the coordinator's loopback address. The error comes before any wait.
run_job "$outrider" "${request[@]}" --bind-host 127.0.0.1
[ $code -eq 2 ] && [ "$(grep -c -e '--bind-host' "$work/errors")" -eq 1 ] ||
  fail "--bind-host 127.0.0.1: expected one message that names it, and exit code 2"

[ $failed -eq 0 ] && echo "two hosts: same text as one process; refusals are clear"
exit $failed
