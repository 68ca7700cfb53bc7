# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # $src, $cache and $tmp are those of the script that sources this
# Booted nodes: Debian 12 containers with systemd, and the packages that are installed on them. The node script of ../shared/testbed boots them.
# $cache keeps the bare tree, and the packages of the newest sources, for later runs and for scripts that run side by side.
# test_package and test_faults source it.
testbed=$src/../shared/testbed/cluster.sh
cache=${DTRAIN_TEST_CACHE:-/var/cache/dtrain-tests}

# nodes_possible TOOL…: skips the script where nodes cannot be booted, or a tool is missing.
nodes_possible() {
	[ "$(id -u)" = 0 ] || skip "needs root to boot containers"
	[ -r "$testbed" ] || skip "../shared/testbed/cluster.sh is absent"
	for tool in debootstrap systemd-nspawn nft ip jq dpkg-buildpackage "$@"; do
		command -v "$tool" >/dev/null || skip "$tool is not installed"
	done
	# Root of a container may lack the rights to boot other containers.
	ip link add dtp-probe$$ type bridge 2>/dev/null && ip link del dtp-probe$$ || skip "network bridges cannot be made here"
	mkdir -p "$tmp"/probe/{lower,upper,work,root}
	mount -t overlay dtp-probe -o "lowerdir=$tmp/probe/lower,upperdir=$tmp/probe/upper,workdir=$tmp/probe/work" "$tmp/probe/root" 2>/dev/null &&
		umount "$tmp/probe/root" || skip "overlays cannot be mounted here"
}

# nodes_tree: makes $cache/bookworm, once for all later runs.
nodes_tree() {
	mkdir -p "$cache"
	exec 8>"$cache/bookworm.lock"
	flock 8
	if [ ! -e "$cache/bookworm/.ready" ]; then
		rm -rf "$cache/bookworm"
		debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,iproute2,iputils-ping,nftables bookworm "$cache/bookworm" \
			>"$tmp/debootstrap.log" 2>&1 && touch "$cache/bookworm/.ready" || { tail -3 "$tmp/debootstrap.log"; return 1; }
	fi
	exec 8>&-
}

# nodes_packages with-cuda|without-cuda: builds the packages of the sources, with those of the CUDA engine where nvcc is installed and they are wanted, and
# sets $debs, the directory with them, and $cuda, "yes" or nothing. Scripts that run side by side build them once: with those of the CUDA engine
# they are complete for every script.
nodes_packages() {
	local profiles=nocheck options='' key line
	mkdir -p "$tmp/build" "$cache"
	(cd "$src" && git archive --format=tar HEAD 2>/dev/null || tar -c --exclude=./build-* --exclude=./.git .) >"$tmp/sources.tar"
	tar -x -C "$tmp/build" -f "$tmp/sources.tar"
	rm "$tmp/sources.tar"
	# No test is in the packages.
	key=$(cd "$tmp/build" && find . -path ./tests -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c 1-16)
	exec 8>"$cache/debs-$key.lock"
	flock 8
	cuda=
	# The packages of NVIDIA are not installed, so the check for build dependencies is switched off (-d); tests/depends has installed the others.
	if [ "$1" = without-cuda ] && [ ! -e "$cache/debs-$key-cuda/.ready" ]; then
		echo "without the CUDA engine"
	elif "$src/tests/cuda/toolkit" "${DTRAIN_TEST_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/dtrain-test-venv}-cuda" >"$tmp/toolkit" 2>"$tmp/toolkit.log"; then
		while IFS= read -r line; do export "${line?}"; done <"$tmp/toolkit"
		export NVCC_ARCH="-gencode arch=compute_90,code=sm_90"
		profiles=nocheck,pkg.dtrain.cuda options=-d cuda=yes
	else
		echo "without the CUDA engine: $(tail -n 1 "$tmp/toolkit.log")"
	fi
	debs=$cache/debs-$key${cuda:+-cuda}
	if [ ! -e "$debs/.ready" ]; then
		# A warning is an error here, as in the other builds of the suite, whose cache of ccache is used.
		echo 'enable_werror=yes' >"$tmp/config.site"
		export CONFIG_SITE=$tmp/config.site
		if [ -n "${CCACHE_DIR:-}" ] && [ -d /usr/lib/ccache ]; then export PATH=/usr/lib/ccache:$PATH CCACHE_BASEDIR=$tmp/build; fi
		# Nothing here reads debug symbols, and files are copied once: both would only be compressed.
		(cd "$tmp/build" && DEB_BUILD_OPTIONS="nocheck noautodbgsym parallel=$(nproc)" DPKG_DEB_COMPRESSOR_TYPE=none \
			dpkg-buildpackage -b -us -uc $options -P$profiles) >"$tmp/build.log" 2>&1 ||
			{ tail -40 "$tmp/build.log"; die "dpkg-buildpackage"; }
		find "$cache" -maxdepth 1 -name 'debs-*' -mmin +300 ! -name "debs-$key*" -exec rm -rf {} +
		rm -rf "$debs"
		mkdir "$debs"
		cp "$tmp"/*.deb "$tmp"/*.changes "$tmp"/*.buildinfo "$debs/"
		touch "$debs/.ready"
	fi
	exec 8>&-
}

# nodes_chroot COMMAND…: executes the command in the bare tree, which keeps what it changes.
nodes_chroot() {
	cp /etc/resolv.conf "$cache/bookworm/etc/resolv.conf"
	flock "$cache/bookworm.lock" chroot "$cache/bookworm" "$@"
}

# nodes_layer DIRECTORY COMMAND…: executes the command in the bare tree; what it changes is in DIRECTORY/upper, and the tree stays as it is.
nodes_layer() {
	local dir=$1
	shift
	exec 7>"$cache/bookworm.lock"
	flock 7
	mkdir -p "$dir"/{upper,work,root}
	mount -t overlay dtp-layer -o "lowerdir=$cache/bookworm,upperdir=$dir/upper,workdir=$dir/work" "$dir/root"
	cp /etc/resolv.conf "$dir/root/etc/resolv.conf"
	local status=0
	chroot "$dir/root" "$@" || status=$?
	umount "$dir/root"
	exec 7>&-
	return $status
}
