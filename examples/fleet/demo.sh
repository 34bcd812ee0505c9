#!/bin/sh
# A fleet on this machine, in a minute: three NATS servers, three VMs of a set with a bridge each, and two relays, of
# which the one that tells people is killed in the middle. Every VM says every change; people get one message for each.
#
#   sh examples/fleet/demo.sh
#
# It takes forewarn and nats-server from the PATH, or else builds them with go, in a checkout of forewarn. What it
# starts it ends, and it leaves nothing behind. PORTS is the first of the nine ports that it uses.
set -eu

ports=${PORTS:-14220}
dir=$(mktemp -d)
started=
running=
finish() {
	for pid in $started; do kill -9 "$pid" 2>/dev/null || true; done
	rm -rf "$dir"
}
trap finish EXIT
trap 'exit 1' INT TERM

program() { # name, package
	command -v "$1" || { go build -o "$dir/$1" "$2" >&2 && echo "$dir/$1"; }
}
cd "$(dirname "$0")/../.."
forewarn=$(program forewarn ./cmd/forewarn)
nats=$(program nats-server github.com/nats-io/nats-server/v2)

start() { # name, command
	name=$1
	shift
	"$@" >"$dir/$name.out" 2>"$dir/$name.log" &
	eval "$(echo "$name" | tr - _)=$!"
	started="$started $!"
	running="$running $name:$!"
}
# Whoever ends by itself, such as on a port that is taken, says why.
all_run() {
	for each in $running; do
		kill -0 "${each#*:}" 2>/dev/null && continue
		echo "${each%:*} ended; PORTS=$ports is the first of the nine ports:" >&2
		tail -n 3 "$dir/${each%:*}.log" >&2
		exit 1
	done
}
port() { echo $((ports + $1)); }
until_ok() { # what, command
	what=$1
	shift
	for _ in $(seq 60); do
		if "$@" >/dev/null 2>&1; then return; fi
		all_run
		sleep 0.5
	done
	echo "not within 30 s: $what" >&2
	tail -n 5 "$dir"/*.log >&2
	exit 1
}
told() { grep -q -e "$1" "$dir/ops.jsonl"; }
logged() { grep -q "$2" "$dir/$1.log"; }

urls="nats://127.0.0.1:$(port 0), nats://127.0.0.1:$(port 1), nats://127.0.0.1:$(port 2)"
for n in 0 1 2; do
	cat >"$dir/nats-$n.conf" <<-END
		server_name: nats-$n
		listen: "127.0.0.1:$(port $n)"
		jetstream { store_dir: "$dir/nats-$n" }
		cluster {
		  name: fleet
		  listen: "127.0.0.1:$(port $((n + 3)))"
		  routes: ["nats://127.0.0.1:$(port 3)", "nats://127.0.0.1:$(port 4)", "nats://127.0.0.1:$(port 5)"]
		}
	END
	start "nats-$n" "$nats" -c "$dir/nats-$n.conf"
done

for n in 1 2; do
	cat >"$dir/relay-$n.yaml" <<-END
		nats:
		  url: [$urls]
		  name: relay-$n
		  provision: {replicas: 3}
		state: $dir/relay-$n # or root becomes the owner of the state of a forewarn that is installed
		control: $dir/relay-$n.sock
		listen: ""
		sinks:
		  - name: ops
		    file: {path: $dir/ops.jsonl}
	END
done
until_ok "three servers with JetStream" "$forewarn" relay --config "$dir/relay-1.yaml" --provision=only
echo "Three servers run, and the stream is there with three replicas."
start relay-1 "$forewarn" relay --config "$dir/relay-1.yaml"
until_ok "a relay that serves the sink" logged relay-1 "this relay serves the sink"
start relay-2 "$forewarn" relay --config "$dir/relay-2.yaml"
until_ok "a second relay" logged relay-2 "the relay works"

for n in 0 1 2; do
	cat >"$dir/vm-$n.yaml" <<-END
		imds: {endpoint: "http://127.0.0.1:$(port 6)/vm/vm-$n"}
		state: $dir/vm-$n
		listen: ""
		sinks:
		  - name: stream
		    only: {vms: all}
		    nats:
		      url: [$urls]
	END
	start "vm-$n" "$forewarn" run --config "$dir/vm-$n.yaml"
done
cat >"$dir/scenario.yaml" <<-END
	name: fleet
	vms: [vm-0, vm-1, vm-2]
	steps:
	  - {at: 5s, schedule: {event: A, type: Reboot, resources: [vm-1], notice: 15m}}
	  - {at: 9s, update: {event: A, notice: 10m}}
	  - {at: 25s, start: A}
	  - {at: 29s, end: A}
END
start azure "$forewarn" emulate --listen "127.0.0.1:$(port 6)" --control "127.0.0.1:$(port 7)" --scenario "$dir/scenario.yaml"
echo "Two relays wait, and three VMs watch. Azure announces a reboot of vm-1."
until_ok "the announcement" told -scheduled
until_ok "the new time" told -updated-
running=$(echo "$running" | sed "s/relay-1:[0-9]*//")
kill -9 "$relay_1"
echo "relay-1 told people so far. It is killed now; relay-2 has to continue."
until_ok "the start" told -started
until_ok "the end" told -vanished

echo
"$forewarn" history --config "$dir/relay-2.yaml"
sleep 2
ids=$(sed 's/.*"id":"\([^"]*\)".*/\1/' "$dir/ops.jsonl" | grep -v -- -bridge-)
messages=$(echo "$ids" | wc -l)
changes=$(echo "$ids" | sort -u | wc -l)
said=0
for n in 0 1 2; do
	pid=$(eval echo "\$vm_$n")
	kill -TERM "$pid"
	wait "$pid" || true
	said=$((said + $("$forewarn" history --config "$dir/vm-$n.yaml" -o csv | grep -c ',stream,')))
done
echo "Three VMs said $said changes. People got $messages messages about $changes changes, from two relays."
test "$changes" = 4 && test "$messages" = 4
