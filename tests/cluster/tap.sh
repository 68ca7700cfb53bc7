# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # $work is that of the script that sources this
# Checks of a script of this directory. $work is a directory of the script's own.
skip() { echo "$*"; exit 77; }
die() { echo "FAILED: $*" >&2; exit 1; }

# The Test Anything Protocol, for a script of many checks: each check is a result of its own in ./runtests, and a failed check does not end
# the script. tap_end is the last command; a script that ends without it has failed. What a check prints is shown where it fails.
tap_count=0
tap_failed=0
tap_name=''    # of the check that is under way
tap_awaited='' # what until_true waits for
exec {tap_output}>&1
tap() { # NAME COMMAND…: a check that passes where the command succeeds
	local name=$1
	shift
	tap_count=$((tap_count + 1))
	tap_name=$name
	if "$@" >"$work/tap" 2>&1; then
		echo "ok $tap_count - $name"
	else
		tap_failed=$((tap_failed + 1))
		echo "not ok $tap_count - $name"
		sed 's/^/# /' "$work/tap"
	fi
	tap_name=''
}
# The first command of a script's trap for EXIT. A check that ends the script, as until_true does after its deadline, has failed: its output, which
# still goes to a file then, is shown.
tap_exit() {
	if [ -n "$tap_name" ]; then
		exec >&"$tap_output" 2>&1
		echo "not ok $tap_count - $tap_name"
		sed 's/^/# /' "$work/tap"
		tap_name=''
	fi
	# A command without an end of its own was stopped by the deadline of the whole script.
	if [ -n "$tap_awaited" ]; then echo "# the script ended while it waited for $tap_awaited"; fi
	tap_awaited=''
}
tap_end() {
	echo "1..$tap_count"
	[ $tap_failed = 0 ]
}
is_equal() { [ "$1" = "$2" ] || { echo "got \"$1\", wanted \"$2\""; return 1; }; }
is_like() { case $1 in *"$2"*) ;; *) echo "\"$1\" lacks \"$2\""; return 1 ;; esac; }
fails() { if "$@"; then return 1; fi; }
# until_true SECONDS WHAT COMMAND…: repeats the command until it succeeds; ends the script after this many seconds.
until_true() {
	local seconds=$1 what=$2 end=$((SECONDS + $1))
	shift 2
	tap_awaited=$what
	until "$@"; do
		[ $SECONDS -lt $end ] || { tap_awaited=''; die "waited $seconds s for $what"; }
		sleep 0.05
	done
	tap_awaited=''
}
