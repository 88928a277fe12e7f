#!/bin/sh
# A shell tool that can be preempted: it works through the numbers up to $1, one
# unit of work each, and goes on where it stopped.
set -eu
total=$1
done=0
[ -z "${ALOFT_RESUME_FROM:-}" ] || done=$(cat "$ALOFT_RESUME_FROM")
report() { echo "$1" >>"${ALOFT_PROGRESS_FILE:-/dev/null}"; }
save() { # whole or not there; then said
	echo "$done" >"$ALOFT_CHECKPOINT_DIR/.new"
	mv "$ALOFT_CHECKPOINT_DIR/.new" "$ALOFT_CHECKPOINT_DIR/at-$done"
	report "{\"step\":$done,\"total\":$total,\"unit\":\"numbers\",\"checkpoint\":\"at-$done\"}"
}
stop=
trap 'stop=1' TERM # between two units, so that none is done twice
report "{\"step\":$done,\"total\":$total,\"unit\":\"numbers\"}"
while [ "$done" -lt "$total" ]; do
	echo "$((done * done))" >>"$ALOFT_OUTPUT_DIR/squares" # the work
	sleep "${2:-0.01}" || true # the signal reaches it too
	done=$((done + 1))
	[ $((done % 50)) -ne 0 ] || save
	[ -z "$stop" ] || { save; exit 75; }
done
report "{\"step\":$done,\"total\":$total,\"unit\":\"numbers\",\"result\":\"counted to $done\"}"
