#!/bin/sh
# Asks Azure and forewarn's emulated Azure the same questions, and prints each answer in which they differ.
#
#   sh azure.sh
#
# Run it on a VM in Azure that has forewarn and curl. It takes 15 seconds, after a first answer that may take two minutes.
# It switches scheduled events on, as forewarn run does. It approves nothing: the one approval it sends names an event
# that doesn't exist. Ids, names and dates are left out, so the output can be shown to others.
set -eu
azure=${1:-http://169.254.169.254} # another address is for the test of this script
events='/metadata/scheduledevents?api-version=2020-07-01'
dir=$(mktemp -d)
trap 'kill "$emulator" 2>/dev/null || true; rm -rf "$dir"' EXIT
forewarn emulate --listen 127.0.0.1:0 --control "" >"$dir/emulator" 2>/dev/null &
emulator=$!
until emulated=$(sed -n 's/.*"endpoint":"\([^"]*\)".*/\1/p' "$dir/emulator") && [ -n "$emulated" ]; do sleep 0.1; done

# answer ADDRESS PATH [OPTIONS OF CURL]: the status, the content type, whether there is an ETag, and the body.
answer() {
	at=$1$2
	shift 2
	curl -sS --noproxy '*' -m 150 -D "$dir/head" -o "$dir/body" "$@" "$at" 2>&1 || return 0
	tr -d '\r' <"$dir/head" | sed -nE '1s/^[^ ]* ([0-9]*).*/status \1/p; s/^content-type: */type /Ip; s/^(etag): .*/\1/Ip' | sort
	sed -E 's/[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}/ID/g; s/[0-9]{4}-[0-9]{2}-[0-9]{2}/DATE/g
		s/("DocumentIncarnation":) *[0-9]+/\1N/; s/"Events":\[.+\]/"Events":[…]/
		s/("(newest-versions|apiVersions)":) *\[[^]]*\]/\1…/' "$dir/body"
	echo
}

# ask NAME PATH [OPTIONS OF CURL]
differ=0
ask() {
	name=$1
	shift
	answer "$emulated" "$@" >"$dir/is.emulated"
	answer "$azure" "$@" >"$dir/is.azure"
	sleep "${PAUSE:-1}" # Azure answers five requests a second
	if cmp -s "$dir/is.emulated" "$dir/is.azure"; then
		echo "same     $name"
	else
		differ=$((differ + 1))
		echo "DIFFERS  $name"
		sed 's/^/         azure     /' "$dir/is.azure"
		sed 's/^/         emulated  /' "$dir/is.emulated"
	fi
}

took=$(curl -sS --noproxy '*' -m 150 -o /dev/null -w '%{time_total}' -H Metadata:true "$azure$events") || {
	echo "Nothing answers at $azure. Is this a VM in Azure?"
	exit 69
}
echo "The first answer took $took s."
ask 'the document' "$events" -H Metadata:true
ask 'without the header Metadata' "$events"
ask 'forwarded by a proxy' "$events" -H Metadata:true -H 'X-Forwarded-For: 192.0.2.1'
ask 'without an api-version' /metadata/scheduledevents -H Metadata:true
ask 'an api-version that never was' '/metadata/scheduledevents?api-version=2020-07-02' -H Metadata:true
ask 'an api-version of the future' '/metadata/scheduledevents?api-version=2099-01-01' -H Metadata:true
ask 'a path that is not there' '/metadata/nothing?api-version=2020-07-01' -H Metadata:true
ask 'the method DELETE' "$events" -H Metadata:true -X DELETE
ask 'an approval that is no JSON' "$events" -H Metadata:true -d '{'
ask 'an approval of an unknown event' "$events" -H Metadata:true \
	-d '{"StartRequests":[{"EventId":"00000000-0000-0000-0000-000000000000"}]}'
ask 'the list of versions' /metadata/versions -H Metadata:true

# What forewarn reads of instance metadata. Azure may have more keys.
keys() { answer "$1" '/metadata/instance/compute?api-version=2021-02-01' -H Metadata:true | grep -oE '"[A-Za-z]+":' | sort -u; }
missing=$(keys "$emulated" >"$dir/keys" && keys "$azure" | grep -vxFf - "$dir/keys" | tr '\n' ' ') || true
[ -z "$missing" ] || { differ=$((differ + 1)); echo "DIFFERS  instance metadata: Azure has no $missing"; }

echo
case $differ in
0) echo 'The emulated Azure answers as Azure does.' ;;
*) echo "$differ answers differ. Please tell the maintainers, with this output."; exit 1 ;;
esac
