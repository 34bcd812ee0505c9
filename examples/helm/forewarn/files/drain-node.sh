#!/bin/sh
# drain-node.sh cordons and drains the node of Kubernetes that this pod runs on, before Azure touches it, and uncordons it
# when that is over. forewarn runs it, as values/drain.yaml shows.
#
# It ends before the event begins: FOREWARN_NOTICE_SECONDS is the time that is left, of which DRAIN_RESERVE is kept.
# Exit 0 says that no pod is left but those of DaemonSets, so that forewarn may approve. Exit 1 says that there are: the
# node stays cordoned, nothing is approved, and people read the last line of the output. Exit 75: the API server does not
# answer, and forewarn tries again. Exit 78: somebody has to set it up.
# Annotations of the node say for which events it is out. It comes back with the last of them, and is left alone if
# somebody else had cordoned it.
#
# It needs kubectl and flock. The API server knows the node by the token of the pod. May be set in the settings of forewarn,
# as env:
#   KUBECONFIG     how the API server is reached (the kubeconfig beside this script)
#   DRAIN_FLAGS    of kubectl drain (--ignore-daemonsets --delete-emptydir-data). Without --force a pod that nothing would
#                  start again is not evicted, and the drain fails
#   DRAIN_LIMIT    seconds that a drain may last (600; forewarn ends a run after 900)
#   DRAIN_RESERVE  seconds to be left when it ends (30)
#   DRAIN_STATE    a directory to write to (/var/lib/forewarn)
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

api() {
	kubectl --request-timeout=10s "$@"
}

# unschedulable is true or false. kubectl cordon and uncordon end with 0 when they are refused.
unschedulable() {
	api patch node "$node" -p "{\"spec\":{\"unschedulable\":$1}}" >/dev/null
}

# look sets cordoned to yes or nothing, and marks to the events for which the node is out.
look() {
	cordoned=$(api get node "$node" -o go-template='{{if .spec.unschedulable}}yes{{end}}') || end 75 "$no_answer"
	marks=$(api get node "$node" -o go-template='{{range $key, $value := .metadata.annotations}}{{$key}}
{{end}}') || end 75 "$no_answer"
	marks=$(printf '%s\n' "$marks" | sed -n "s,^$prefix/,,p")
}

# cordon marks the node, unless somebody else has cordoned it.
cordon() {
	look
	if [ -z "$cordoned" ] || [ -n "$marks" ]; then
		api annotate node "$node" --overwrite "$prefix/$event=" >/dev/null || end 75 "$node was not annotated"
		unschedulable true || end 75 "$node was not cordoned"
	fi
}

# drain waits until the pods are gone, and no longer than it may.
drain() {
	budget=$limit
	if [ "$notice" -gt 0 ] && [ $((notice - reserve)) -lt "$budget" ]; then
		budget=$((notice - reserve))
	fi
	if [ "$budget" -lt 1 ]; then
		budget=1 # 0 would be no limit
	fi
	(
		flock 9 && cordon
	) 9>"$lock" || exit
	# shellcheck disable=SC2086 # several words
	kubectl drain "$node" $flags --timeout="${budget}s" || end 1 "the node was not drained"
	end 0 "drained"
}

# uncordon takes the mark away last, so that a run that fails can be repeated.
uncordon() {
	look
	if ! printf '%s\n' "$marks" | grep -qxF "$event"; then
		end 0 "the node was not cordoned for this event"
	fi
	words="the node stays cordoned, for another event"
	if [ "$marks" = "$event" ]; then
		unschedulable false || end 75 "the node was not uncordoned"
		words="uncordoned"
	fi
	api annotate node "$node" "$prefix/$event-" >/dev/null || end 75 "$node was not annotated"
	end 0 "$words"
}

return_to_service() {
	(
		flock 9 && uncordon
	) 9>"$lock"
	exit
}

# may fails if the role is missing, and says which right.
may() {
	api auth can-i "$@" >/dev/null 2>&1 || end 78 "no right to $*"
}

notice=${FOREWARN_NOTICE_SECONDS:-0}
limit=${DRAIN_LIMIT:-600}
reserve=${DRAIN_RESERVE:-30}
flags=${DRAIN_FLAGS:---ignore-daemonsets --delete-emptydir-data}
prefix=drain.forewarn
lock=${DRAIN_STATE:-/var/lib/forewarn}/drain.lock
no_answer="the API server does not answer, or refuses"
export KUBECONFIG="${KUBECONFIG:-/etc/forewarn/runbook/kubeconfig}"
number FOREWARN_NOTICE_SECONDS "$notice"
number DRAIN_LIMIT "$limit"
number DRAIN_RESERVE "$reserve"
event=$(printf %s "${CE_SUBJECT:-}" | tr -c 'A-Za-z0-9-' _) # it names an annotation
if [ -z "$event" ]; then
	end 78 "no event: forewarn runs this"
fi
for program in kubectl flock; do
	if ! command -v "$program" >/dev/null; then
		end 78 "$program is not in the image"
	fi
done
if ! [ -w "${lock%/*}" ]; then
	end 78 "DRAIN_STATE is \"${lock%/*}\"; expected a directory to write to"
fi
whoami='{{range index .status.userInfo.extra "authentication.kubernetes.io/node-name"}}{{.}}{{end}}'
node=$(api auth whoami -o go-template="$whoami") || end 75 "$no_answer"
if [ -z "$node" ]; then
	end 78 "the token names no node; expected that of a pod, and Kubernetes 1.30 or later"
fi
if [ -n "${FOREWARN_TEST:-}" ]; then
	api get node "$node" >/dev/null || end 78 "$no_answer"
	may patch nodes
	may list pods --all-namespaces
	may create pods --subresource=eviction --all-namespaces
	may get daemonsets.apps --all-namespaces
	end 0 "a test: nothing is done"
fi

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
