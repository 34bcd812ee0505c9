#!/bin/sh
# web.sh is a DRAIN_SERVICE of drain.sh: a web server behind a load balancer whose probe asks for a file. Without the file
# the balancer sends no more work; what is under way are the connections to the port. Until the balancer must have
# noticed, the server counts as busy.
#
# It needs no rights but to the directory of WEB_HEALTH, which a reboot clears; the start of the server makes the file
# (ExecStartPost=/usr/bin/touch /run/web/healthy).
#   WEB_HEALTH  the file that the probe asks for (/run/web/healthy)
#   WEB_PORT    the port of the connections (443)
#   WEB_PROBE   seconds until the balancer has noticed: interval × failures (15)
set -eu
health=${WEB_HEALTH:-/run/web/healthy}
out=$health.out

case ${1:-} in
out)
	rm -f "$health"
	if ! [ -e "$out" ]; then
		date +%s >"$out"
	fi
	;;
busy)
	since=0
	if [ -e "$out" ]; then
		read -r since <"$out"
	fi
	connections=$(ss -Htn state established "sport = :${WEB_PORT:-443}") # its failure is one of busy
	if [ -n "$connections" ]; then
		printf '%s\n' "$connections" | grep -c .
	elif [ $(($(date +%s) - since)) -lt "${WEB_PROBE:-15}" ]; then
		echo 1
	else
		echo 0
	fi
	;;
back)
	rm -f "$out"
	: >"$health"
	;;
*)
	echo "expected out, busy or back" >&2
	exit 64
	;;
esac
