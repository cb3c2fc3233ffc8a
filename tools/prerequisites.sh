#!/usr/bin/env bash
# Debian packages that `make demo` or `make test` needs. As root what is missing is installed; otherwise it is named.
# Usage: tools/prerequisites.sh demo|test
set -euo pipefail

# command, file or library (lib….so.N) that shows that it is there, and the package it comes from
demo=(
    "libnuma.so.1:libnuma1"  # the serving kernels link to it
)
tests=(
    "${demo[@]}"
    "gcc:gcc"
    "g++:g++"
    "/usr/include/stdio.h:libc6-dev"
    "git:git"
    "ssh:openssh-client"
    "/usr/sbin/sshd:openssh-server"
    "ip:iproute2"
    "ps:procps"
)
case "${1:-}" in
    demo) wanted=("${demo[@]}") ;;
    test) wanted=("${tests[@]}") ;;
    *) sed -n '2,3s/^# //p' "$0" >&2; exit 2 ;;
esac

is_there() {
    case "$1" in
        /*) [ -e "$1" ] ;;
        lib*.so.*) PATH="$PATH:/usr/sbin:/sbin" ldconfig -p | grep -qF "$1 " ;;
        *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

missing=()
for item in "${wanted[@]}"; do
    is_there "${item%%:*}" || missing+=("${item##*:}")
done
"${PYTHON:-python3}" -c 'import ensurepip, venv' >/dev/null 2>&1 || missing+=(python3-venv)
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "missing on this machine: ${missing[*]}; as root: apt-get install ${missing[*]}" >&2
    exit 1
fi
echo "installing: ${missing[*]}"
# Services of these packages are not wanted here; tests start their own sshd.
if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
for try in 1 2 3; do
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 && exit 0
    sleep 5
done
cat "$log" >&2
exit 1
