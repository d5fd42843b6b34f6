#!/usr/bin/env bash
# The program in ten seconds: a model writes, a drafter changes no byte of it, a job under mpirun neither, and a server
# answers a request over HTTP.
# Usage: smoke_test.sh OUTRIDER SOURCE_DIR
set -euo pipefail
outrider=$(realpath "$1")
pair=$(realpath "$2")/launch/demo_pair
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
work=$(mktemp -d)
server=
cleanup() {
  [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

prompt=(--prompt "Once upon a time" --max-tokens 24 --quiet)
plain=$("$outrider" generate --model "$pair/target" "${prompt[@]}")
[ ${#plain} -gt 40 ] || fail "the model wrote: $plain"
drafted=$("$outrider" generate --model "$pair/target" --draft-model "$pair/draft" "${prompt[@]}")
[ "$drafted" = "$plain" ] || fail "with a draft model: $drafted"
if command -v mpirun >/dev/null && "$outrider" doctor | grep -qE '^MPI +yes'; then
  together=$(mpirun --oversubscribe -n 3 "$outrider" generate --model "$pair/target" --draft-model "$pair/draft" \
    "${prompt[@]}" --layout coordinator=1,draft=1,target=1)
  [ "$together" = "$plain" ] || fail "under mpirun: $together"
fi

"$outrider" serve --model "$pair/target" --draft-model "$pair/draft" --port 0 >"$work/log" 2>&1 &
server=$!
port=
for _ in $(seq 300); do
  port=$(grep -aoE 'http://[^ ]*:[0-9]+' "$work/log" | head -1 | grep -oE '[0-9]+$' || true)
  [ -z "$port" ] || break
  kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
[ -n "$port" ] || { cat "$work/log" >&2; fail "the server names no address"; }
body='{"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}'
exec 3<>"/dev/tcp/127.0.0.1/$port"
printf 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %s\r\n\r\n%s' \
  ${#body} "$body" >&3
reply=$(timeout 30 cat <&3)
[[ $reply == "HTTP/1.1 200 "* && $reply == *'"text"'* ]] || fail "the server answered: $reply"
kill -TERM "$server"
wait "$server" || fail "the server ended with code $?"
server=
echo "the same text from a model alone, with drafts and under mpirun; a server answered"
