#!/bin/sh
# web.sh is a DRAIN_SERVICE of drain.sh: a web server behind a load balancer whose probe asks for a file. Without the file
# the balancer sends no more work; what is under way are the connections to the port. Until the balancer must have
# noticed, the server counts as busy.
#
# It needs no rights but to the directory of WEB_HEALTH, which a reboot clears; the start of the server makes the file
# (ExecStartPost=+/usr/bin/touch /run/web/healthy). ../systemd/forewarn.service.d/drain.conf has the packaged forewarn make
# the directory.
#   WEB_HEALTH  the file that the probe asks for (/run/web/healthy)
#   WEB_PORT    the port of the connections (443)
#   WEB_PROBE   seconds until the balancer has noticed: interval × failures (15)
set -eu
umask 022 # the web server reads the file, and is another user
health=${WEB_HEALTH:-/run/web/healthy}
out=$health.out
port=${WEB_PORT:-443}

connections() { ss -Htn state established "sport = :$port"; }

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
	open=$(connections) # its failure is one of busy
	if [ -n "$open" ]; then
		printf '%s\n' "$open" | grep -c .
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
check)
	if ! [ -d "${health%/*}" ] || ! [ -w "${health%/*}" ]; then
		echo "${health%/*}: expected a directory to write to"
		exit 1
	fi
	if ! connections >/dev/null; then
		echo "the connections to port $port cannot be counted"
		exit 1
	fi
	;;
*)
	echo "expected out, busy, back or check" >&2
	exit 64
	;;
esac
