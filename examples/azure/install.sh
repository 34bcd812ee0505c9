#!/bin/sh
# Installs forewarn on a Linux VM, or updates it. Put forewarn.deb or forewarn.rpm, and forewarn.yaml, beside this script,
# and run it as root, as Azure's Custom Script extension does:
#   sh install.sh SHA256-OF-THE-PACKAGE
# It can be run again. Settings that are wrong change nothing. It ends well once forewarn is ready.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
fail() {
	echo "install.sh: $*" >&2
	exit 1
}
[ "$(id -u)" = 0 ] || fail 'run it as root'
[ $# = 1 ] || fail 'expected one argument, the SHA-256 of the package'
package=$here/forewarn.deb
[ -f "$package" ] || package=$here/forewarn.rpm
[ -f "$package" ] || fail "$here has neither forewarn.deb nor forewarn.rpm"
[ -f "$here/forewarn.yaml" ] || fail "$here has no forewarn.yaml"
echo "$1  $package" | sha256sum --check --quiet || fail "$package is not the one with the SHA-256 $1"

case $package in
*.deb)
	dpkg --configure --pending || true # what an installation that was cut off has left
	# At the first boot others install things too.
	DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 --allow-downgrades --reinstall install "$package"
	;;
*.rpm) rpm --upgrade --oldpackage --replacepkgs "$package" ;;
esac

new=/etc/forewarn/forewarn.yaml.new
install -m 0640 -g forewarn "$here/forewarn.yaml" $new
if ! forewarn check --config $new; then
	rm -f $new
	fail 'the settings are wrong; what ran before still runs'
fi
mv $new /etc/forewarn/forewarn.yaml
systemctl enable forewarn
systemctl reload-or-restart forewarn

# 0 is well, 1 a warning, such as an event that is announced. Azure's first answer can take two minutes.
tries=100
until said=$(forewarn status --check) || [ $? = 1 ]; do
	tries=$((tries - 1))
	[ $tries -gt 0 ] || fail "not ready after 5 minutes: $said"
	sleep 3
done
echo "$said"
# No reason to fail: a role of the identity can take minutes to count.
forewarn check --connect || echo 'install.sh: forewarn runs; what it cannot reach stands above'
