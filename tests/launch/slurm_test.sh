#!/usr/bin/env bash
# The batch files of launch/slurm on a real Slurm of two nodes, which this test starts: network, mount and UTS namespaces
# of one machine, each with a slurmd. Texts must be those of one process, also when a worker leaves, a group is killed,
# the server moves to the other node, or a job goes back to the queue. All traffic stays inside the namespaces.
# Usage: slurm_test.sh OUTRIDER SOURCE_DIR WORK_DIR, with WORK_DIR outside /tmp, of which each node has its own
# Needs: root, iproute2, util-linux, munge, slurmctld, slurmd, slurm-client, slurm-wlm-basic-plugins. Exits with 77, and
# says why, if not. Takes two minutes.
set -euo pipefail

outrider=$(realpath "$1")
source=$(realpath "$2")

skip() {
  echo "NOT TESTED: Slurm: $*" >&2
  exit 77
}
export PATH=$PATH:/usr/sbin:/sbin
for tool in ip unshare nsenter munged slurmctld slurmd srun sbatch curl; do
  command -v "$tool" >/dev/null || skip "there is no '$tool' (Debian: munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins)"
done
[ "$(id -u)" = 0 ] || skip "needs root"
for model in target draft; do
  [ -f "$source/launch/demo_pair/$model/model.safetensors" ] || skip "there is no demo pair in launch/demo_pair"
done

# Names of this run only, so that two runs do not meet. An interface name has at most 15 characters.
id=$$
work=$(realpath -m "$3")/$id
left=outrider-l$id right=outrider-r$id
mkdir -p "$work"
chmod 755 "$work"
cleanup() {
  for space in "$left" "$right"; do
    for pid in $(ip netns pids "$space" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null || true; done
    ip netns delete "$space" 2>/dev/null || true
  done
  [ ! -f "$work/munged.pid" ] || kill "$(<"$work/munged.pid")" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

ip netns add "$left" 2>"$work/why" || skip "cannot make a network namespace: $(cat "$work/why")"
ip netns add "$right"
unshare --uts --mount true 2>"$work/why" || skip "cannot make namespaces: $(cat "$work/why")"
ip link add "ol$id" netns "$left" type veth peer name "or$id" netns "$right" 2>"$work/why" ||
  skip "cannot join namespaces by a veth pair: $(cat "$work/why")"
# 198.18.0.0/15 is set aside for tests (RFC 2544): no real network has it.
left_address=198.18.78.1 right_address=198.18.78.2
plug() { # space interface address
  ip -n "$1" link set lo up
  ip -n "$1" address add "$3/24" dev "$2"
  ip -n "$1" link set "$2" up
}
plug "$left" "ol$id" "$left_address"
plug "$right" "or$id" "$right_address"

mkdir "$work/munge" "$work/state" "$work/log"
head -c 1024 /dev/urandom >"$work/munge/key"
chmod 400 "$work/munge/key"
munged --force --key-file="$work/munge/key" --socket="$work/munge/socket" --pid-file="$work/munged.pid" \
  --log-file="$work/munge/log" --seed-file="$work/munge/seed" 2>"$work/why" || skip "munged does not start: $(cat "$work/why")"
mkdir "$work/etc"
printf '%s left\n%s right\n127.0.0.1 localhost\n' "$left_address" "$right_address" >"$work/etc/hosts"
printf 'CgroupAutomount=yes\n' >"$work/etc/cgroup.conf"
cat >"$work/etc/slurm.conf" <<END
ClusterName=outrider$id
SlurmctldHost=left($left_address)
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmUser=root
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/%n.pid
SlurmctldLogFile=$work/log/slurmctld
SlurmdLogFile=$work/log/%n
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
NodeName=left NodeAddr=$left_address CPUs=16 State=UNKNOWN
NodeName=right NodeAddr=$right_address CPUs=16 State=UNKNOWN
PartitionName=all Nodes=left,right Default=YES MaxTime=INFINITE State=UP
END
export SLURM_CONF=$work/etc/slurm.conf

# Runs the rest of its arguments on a node. /sys stays, unlike with `ip netns exec`: slurmd wants the control groups.
on() { # left or right, then the command
  local name=$1 space=$left
  shift
  [ "$name" = left ] || space=$right
  mkdir -p "$work/tmp-$name" "$work/shm-$name"
  chmod 1777 "$work/tmp-$name" "$work/shm-$name"
  nsenter --net="/run/netns/$space" unshare --uts --mount bash -c 'hostname "$1"; mount --bind "$2/tmp-$1" /tmp
    mount --bind "$2/shm-$1" /dev/shm; mount --bind "$2/etc/hosts" /etc/hosts; shift 2; exec "$@"' on "$name" "$work" "$@"
}
# Waits for at most some seconds until a command succeeds.
until_true() { # seconds, then the command
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.3
  done
}
on left slurmctld
mkdir -p "$work/spool-left" "$work/spool-right"
on left slurmd -N left
on right slurmd -N right
both_idle() { [ "$(on left sinfo --noheader --format '%D %t' 2>/dev/null)" = "2 idle" ]; }
until_true 60 both_idle || skip "slurmd does not start: $(tail -n 3 "$work"/log/left)"

cd "$source"
export OUTRIDER=$outrider OUTRIDER_RUN_DIR=$work/run
submit() { # node or an empty word, further options and the batch file with its arguments; prints the job's number
  local node=$1
  shift
  on left sbatch --parsable ${node:+--nodelist "$node"} --output "$work/%j.out" --error "$work/%j.err" "$@"
}
state_is() { on left scontrol show job "$1" | grep -q "JobState=$2"; }
fail() {
  echo "FAILED: $*" >&2
  tail -n 20 "$work"/*.err >&2
  exit 1
}
wait_for() { until_true 120 "$@" || fail "after 120 s not true: $*"; }

# One job over both nodes: a coordinator, a draft worker and two target ranks.
prompt=(--prompt "Once upon a time" --max-tokens 48 --quiet)
alone=$("$outrider" generate --model launch/demo_pair/target "${prompt[@]}")
[ ${#alone} -gt 50 ] || fail "one process generated only '$alone'"
job=$(submit left,right --nodes=2 launch/slurm/generate.sbatch "${prompt[@]}")
wait_for state_is "$job" COMPLETED
[ "$(<"$work/$job.out")" = "$alone" ] || fail "the text of a job over two nodes is not that of one process"

# A server, and a draft worker that leaves when it is asked to.
ask() { # address
  on left curl -s -m 60 "http://$1:8000/v1/completions" -H 'Content-Type: application/json' \
    -d '{"prompt": "Once upon a time", "max_tokens": 48, "temperature": 0.8, "seed": 7}' |
    sed -n 's/.*"text":"\(\([^"\\]\|\\.\)*\)".*/\1/p'
}
serves() { on left curl -sf -m 5 "http://$1:8000/ready" >/dev/null; }
has_joined() { grep -q "$2" "$work/$1.err" 2>/dev/null; }
server=$(submit left launch/slurm/serve.sbatch --host 0.0.0.0)
wait_for serves "$left_address"
worker=$(submit right launch/slurm/join.sbatch draft-worker)
wait_for has_joined "$server" "draft worker .* at $right_address joined"
first=$(ask "$left_address")
[ ${#first} -gt 50 ] || fail "the server generated only '$first'"
on left scancel --signal=TERM "$worker"
wait_for state_is "$worker" COMPLETED
[ "$(ask "$left_address")" = "$first" ] || fail "another text without the draft worker"
on left scancel --signal=TERM "$server"
wait_for state_is "$server" COMPLETED

# Two target groups that join, one over both nodes. It is killed; then the server moves to the other node.
export OUTRIDER_TARGET_GROUPS=2
server=$(submit left launch/slurm/serve.sbatch --host 0.0.0.0)
wait_for test -s "$OUTRIDER_RUN_DIR/address"
wide=$(submit left,right --nodes=2 --ntasks=2 launch/slurm/join.sbatch target-group --retry-for 5)
narrow=$(submit right launch/slurm/join.sbatch target-group --retry-for 5)
wait_for has_joined "$server" "there are 2 target groups"
[ "$(ask "$left_address")" = "$first" ] || fail "another text with groups that joined"
on left scancel "$wide"
wait_for state_is "$wide" CANCELLED
[ "$(ask "$left_address")" = "$first" ] || fail "another text when a group was killed"
on left scontrol requeue "$server"
wait_for state_is "$server" PENDING
on left scontrol update JobId="$server" ReqNodeList=right StartTime=now
wait_for serves "$right_address"
[ "$(ask "$right_address")" = "$first" ] || fail "another text when the server moved to another node"
on left scancel --signal=TERM "$server"
wait_for state_is "$server" COMPLETED
on left scancel --signal=TERM "$narrow"
wait_for state_is "$narrow" COMPLETED
unset OUTRIDER_TARGET_GROUPS

# A drafter without a model, and a job that cannot run: it ends with the reason.
server=$(submit left launch/slurm/serve.sbatch --host 0.0.0.0)
wait_for serves "$left_address"
worker=$(submit right launch/slurm/join.sbatch draft-worker --drafter suffix)
wait_for has_joined "$server" "draft worker .* at $right_address joined"
wrong=$(submit right launch/slurm/join.sbatch draft-worker --draft-model "$work/nothing")
wait_for state_is "$wrong" FAILED
[ "$(ask "$left_address")" = "$first" ] || fail "another text with drafts from the text"
on left scancel --signal=TERM "$worker" "$server"
wait_for state_is "$worker" COMPLETED
wait_for state_is "$server" COMPLETED

# A job that goes back to the queue before it has written anything begins anew. Slurm counts restarts in this variable.
export SLURM_RESTART_COUNT=1
job=$(submit "" launch/slurm/generate.sbatch "${prompt[@]}" --output "$work/nothing_yet.jsonl")
unset SLURM_RESTART_COUNT
wait_for state_is "$job" COMPLETED

# One that had written results keeps them.
for i in $(seq 150); do echo "{\"prompt\": \"There were $i dogs\", \"max_tokens\": 100}"; done >"$work/prompts.jsonl"
job=$(submit "" launch/slurm/generate.sbatch --prompts "$work/prompts.jsonl" --output "$work/results.jsonl" --max-num-seqs 2)
has_results() { [ "$(cat "$work"/results.jsonl.*.partial 2>/dev/null | wc -l)" -ge 3 ]; }
wait_for has_results
on left scontrol requeue "$job"
wait_for state_is "$job" PENDING
on left scontrol update JobId="$job" StartTime=now
wait_for state_is "$job" COMPLETED
grep -qE '^outrider: [0-9]+ of 150 requests are finished in' "$work/$job.err" || fail "nothing was resumed"
"$outrider" generate --model launch/demo_pair/target --prompts "$work/prompts.jsonl" --output "$work/plain.jsonl" --quiet
texts() { sed 's/.*"text":\("\([^"\\]\|\\.\)*"\).*/\1/' "$1"; }
[ "$(texts "$work/results.jsonl")" = "$(texts "$work/plain.jsonl")" ] || fail "a resumed job has other texts"

echo "Slurm $(sinfo --version | cut -d' ' -f2): same texts; workers, groups and servers come and go; a job resumes"
