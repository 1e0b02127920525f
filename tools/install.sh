#!/usr/bin/env bash
# install.sh PYTHON VENV: builds the virtual environment. With an NVIDIA GPU: requirements.txt; without: requirements-cpu*.txt.
set -euo pipefail
python=${1:?"usage: install.sh PYTHON VENV"} venv=${2:?"usage: install.sh PYTHON VENV"}

say() { printf 'install: %s\n' "$*"; }
die() { printf 'install: %s\n' "$*" >&2; exit 2; }

[ -n "$python" ] || die "no python3 found; install Python 3.11 (Debian, Ubuntu: apt-get install python3), or name one: make PYTHON=/path/to/python3.11"
command -v "$python" >/dev/null || die "$python: no such interpreter; name one: make PYTHON=/path/to/python3.11"
"$python" -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' ||
    die "$python is $("$python" -V 2>&1); Python 3.11 or later is needed (make PYTHON=/path/to/python3.11)"
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    # Debian and Ubuntu keep ensurepip in a package of its own.
    package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing $package, without which no virtual environment can be made"
        { apt-get update -q && apt-get install -y -q --no-install-recommends "$package"; } >/dev/null ||
            die "apt-get could not install $package; install it and run make again"
    else
        die "$python cannot make a virtual environment; install it with: sudo apt-get install $package"
    fi
fi

started=$SECONDS
"$python" -m venv "$venv"
if [ -n "${MTPGATE_CPU:-}" ] || ! { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }; then
    say "no NVIDIA GPU: SGLang for the CPU (about 2.5 GB, 2 to 4 minutes)"
    "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
        die "the pins in requirements-cpu.txt are for Python 3.11; name one: make PYTHON=/path/to/python3.11"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r requirements-cpu.txt
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r requirements-cpu-sglang.txt
else
    say "NVIDIA GPU found: SGLang with CUDA (about 11 GB, 6 minutes)"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt
fi
touch "$venv/installed"
say "done in $((SECONDS - started)) s"
