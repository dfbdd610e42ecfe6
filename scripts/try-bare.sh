#!/bin/bash
# Tries `make demo` and `make test` from a clean clone in a fresh Debian 12 root made by debootstrap. As root.
#
#   scripts/try-bare.sh [DIRECTORY] [TARGET …]      default: /var/tmp/ftd-bare, targets "demo test"
#
# It needs debootstrap, the network, some 10 GB, and the machine for about half an hour; what it makes stays in DIRECTORY, and only
# there, and is used again the next time.
#
# The root gets nothing but Debian's base system, gcc, make, git, python3, and this machine's Rust tool chain and CA certificates.
set -euo pipefail
root=${1:-/var/tmp/ftd-bare}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(demo test)
[ "$(id -u)" = 0 ] || { echo "try-bare: only root can make a root of its own" >&2; exit 1; }
[ -e "$root/etc/debian_version" ] || command -v debootstrap > /dev/null ||
    { echo "try-bare: debootstrap is missing: apt-get install debootstrap" >&2; exit 1; }
source=$(cd "$(dirname "$0")/.." && pwd)

if [ ! -e "$root/etc/debian_version" ]; then
    mirror=$(sed -n 's/^URIs: *\([^ ]*\/debian\)$/\1/p; s/^deb \(\[.*\] \)\?\([^ ]*\/debian\) .*/\2/p' \
        /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -1 || true)
    debootstrap --variant=minbase --include=ca-certificates,gcc,libc6-dev,make,git,python3 bookworm "$root" "$mirror"
fi
# The same sources and network settings as here.
cp /etc/resolv.conf /etc/hosts "$root/etc/" 2>/dev/null || true
cp -r /etc/apt/sources.list* /etc/apt/apt.conf.d "$root/etc/apt/" 2>/dev/null || true
cp -r /usr/share/keyrings/. "$root/usr/share/keyrings/" 2>/dev/null || true
cp -r /etc/ssl/certs/. "$root/etc/ssl/certs/"
[ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/"
toolchain=$(rustc --print sysroot)
mkdir -p "$root/opt/rust" "$root/root/.cargo"
cp -r "$toolchain/." "$root/opt/rust/"
[ ! -e "$HOME/.cargo/config.toml" ] || cp "$HOME/.cargo/config.toml" "$root/root/.cargo/"

rm -rf "$root/root/ftd"
git clone -q "$source" "$root/root/ftd"
for file in proc sys dev dev/shm; do
    mkdir -p "$root/$file"
done
# Mounts vanish with the name space.
exec unshare -m bash -c '
    set -e
    root=$1; shift
    mount --make-rprivate /
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/dev/shm"
    for target in "$@"; do
        begun=$SECONDS
        chroot "$root" /usr/bin/env -i HOME=/root PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            ${https_proxy:+https_proxy="$https_proxy"} ${http_proxy:+http_proxy="$http_proxy"} \
            make -C /root/ftd "$target"
        echo "make $target: $((SECONDS - begun)) s"
    done
' bash "$root" "${targets[@]}"
