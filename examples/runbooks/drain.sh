#!/bin/sh
# drain.sh takes a service off this machine before Azure touches it, and puts it back when that is over. forewarn runs it,
# as drain.yaml shows: it drains when an event is announced or changes, and returns when the event is over.
#
# It ends before the event begins: FOREWARN_NOTICE_SECONDS is the time that is left, of which DRAIN_RESERVE is kept.
# Exit 0 says that the service does no work any more, so that forewarn may approve. Exit 1 says that it still does: it stays
# out of service, nothing is approved, and people read the last line of the output. Exit 75: it is not back yet, and
# forewarn tries again. Exit 78: somebody has to set it up.
# Called again it goes on where it stands. The service comes back with the last of the events that it went out for, and is
# left alone if it did not go out for any.
#
# Set in the settings of forewarn, as env:
#   DRAIN_SERVICE  a program that takes one word: out (take no more work), busy (print how much is under way, 0 is none),
#                  back (take work again) or check (do nothing, and fail if one of the others would: say why); out and
#                  back may come twice. web.sh is one
#   DRAIN_STATE    a directory that outlives a reboot and that only this user may write to: a file for each event
#   DRAIN_LIMIT    seconds that a drain may last (600; forewarn ends a run after 900)
#   DRAIN_RESERVE  seconds to be left when it ends (30)
set -eu

end() { # CODE WORDS
	echo "$2"
	exit "$1"
}

number() { # VARIABLE VALUE
	case $2 in
	'' | *[!0-9]*) end 78 "$1 is \"$2\"; expected a number of seconds" ;;
	esac
}

# drain waits until the service has no work left, and no longer than it may.
drain() {
	budget=$limit
	if [ "$notice" -gt 0 ] && [ $((notice - reserve)) -lt "$budget" ]; then
		budget=$((notice - reserve))
	fi
	until=$(($(date +%s) + budget))
	(
		flock 9 && : >"$mark" && "$DRAIN_SERVICE" out 9>&-
	) 9>"$DRAIN_STATE/lock" || end 1 "the service could not be taken out"
	while :; do
		busy=$("$DRAIN_SERVICE" busy) || busy="an unknown amount of work"
		if [ "$busy" = 0 ]; then
			end 0 "drained"
		fi
		if [ "$(date +%s)" -ge "$until" ]; then
			end 1 "not drained in time: $busy under way"
		fi
		sleep 1
	done
}

# return_to_service keeps the mark until the service is back, so that a run that fails can be repeated.
return_to_service() {
	if ! [ -e "$mark" ]; then
		end 0 "the service was not taken out for this event"
	fi
	(
		flock 9
		for other in "$DRAIN_STATE"/*.event; do
			if [ "$other" != "$mark" ]; then
				rm -f "$mark"
				end 0 "the service stays out, for another event"
			fi
		done
		"$DRAIN_SERVICE" back 9>&- || end 75 "the service did not come back"
		rm -f "$mark"
		end 0 "back in service"
	) 9>"$DRAIN_STATE/lock"
}

notice=${FOREWARN_NOTICE_SECONDS:-0}
limit=${DRAIN_LIMIT:-600}
reserve=${DRAIN_RESERVE:-30}
number FOREWARN_NOTICE_SECONDS "$notice"
number DRAIN_LIMIT "$limit"
number DRAIN_RESERVE "$reserve"
event=$(printf %s "${CE_SUBJECT:-}" | tr -c 'A-Za-z0-9-' _) # it names a file
if [ -z "$event" ]; then
	end 78 "no event: forewarn runs this"
fi
if ! command -v "${DRAIN_SERVICE:-}" >/dev/null; then
	end 78 "DRAIN_SERVICE is \"${DRAIN_SERVICE:-}\"; expected a program"
fi
if ! [ -d "${DRAIN_STATE:-}" ] || ! [ -w "$DRAIN_STATE" ]; then
	end 78 "DRAIN_STATE is \"${DRAIN_STATE:-}\"; expected a directory to write to"
fi
if ! command -v flock >/dev/null; then
	end 78 "flock is not installed"
fi
if [ -n "${FOREWARN_TEST:-}" ]; then
	why=$("$DRAIN_SERVICE" check 2>&1) || end 78 "$DRAIN_SERVICE check: ${why:-it failed}"
	end 0 "a test: nothing is done"
fi
umask 077
mark=$DRAIN_STATE/$event.event

case ${FOREWARN_CHANGE:-} in
updated)
	if [ "${CE_AZSELF:-true}" = false ]; then
		return_to_service # it no longer names this VM
	fi
	drain
	;;
scheduled) drain ;;
vanished) return_to_service ;;
*) end 0 "nothing to do when it is ${FOREWARN_CHANGE:-unknown}" ;;
esac
