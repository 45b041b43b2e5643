#!/usr/bin/env bash
# Sets the project up on a bare machine: .venv with the locked packages, the project itself in editable mode, and a
# software OpenGL for MuJoCo's cameras. Does nothing when nothing changed since the last time. The packages of other
# suites than the conveyor are `make setup-suites`.
#
#   PYTHON           interpreter to use (default: the first of python3.11 ... python3.13, python3, python3.10 that works)
#   TORCH_INDEX_URL  package index to take torch from. Without an NVIDIA GPU, set it to the CPU index that PyTorch's
#                    installation page names: PyPI's default build for Linux brings several GB of CUDA libraries.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Installs system packages as root on Debian or Ubuntu; elsewhere prints the command and stops.
system_packages() {
    local why=$1; shift
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "$why; installing $*"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
    else
        fail "$why. Install it, then run this again. On Debian or Ubuntu: sudo apt-get install --no-install-recommends $*"
    fi
}

stamp=.venv/setup.stamp
state=$(cat requirements.lock pyproject.toml tools/setup.sh | cksum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$state" ] && .venv/bin/python -c '' 2>/dev/null; then
    exit 0
fi

# 1. Python
supported='import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3 python3.10}; do
        if "$candidate" -c "$supported" 2>/dev/null; then python=$candidate; break; fi
    done
    [ -n "$python" ] || fail "needs Python 3.10 to 3.13 (3.11 is what results are published with); tried: ${PYTHON:-python3.11 python3.12 python3.13 python3 python3.10}. Install one, or name it: PYTHON=/path/to/python make setup"
    "$python" -c 'import ensurepip, venv' 2>/dev/null || system_packages "$python has no venv module" python3-venv
    say "making .venv with $("$python" --version)"
    "$python" -m venv .venv
fi
.venv/bin/python -c "$supported" || fail ".venv holds $(.venv/bin/python --version), which is not supported; remove it and run this again"
pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet)

# 2. torch, first and alone, so that the build that suits this machine is chosen once; the rest then finds it there.
torch=$(grep '^torch==' requirements.lock)
source=()
if [ -n "${TORCH_INDEX_URL:-}" ]; then source=(--index-url "$TORCH_INDEX_URL"); fi
if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
    chosen=$("${pip[@]}" --no-input install --dry-run --no-deps "${source[@]}" --report - "$torch" | .venv/bin/python -c '
import json, sys
print(json.load(sys.stdin)["install"][0]["metadata"]["version"])')
    if [ "$(uname -s)" = Linux ] && [[ "$chosen" != *+cpu ]] && ! nvidia-smi >/dev/null 2>&1; then
        say "NOTICE: no NVIDIA GPU found, but torch $chosen is a CUDA build (several GB). To get the CPU build, stop here and"
        say "        set TORCH_INDEX_URL to the CPU index that PyTorch's installation page names."
    fi
    say "installing torch $chosen"
    "${pip[@]}" install --no-deps "${source[@]}" "$torch"
fi

# 3. Everything else
if .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    say "installing the locked packages: some 60, 2 to 10 minutes, silently; it can be interrupted and run again"
    "${pip[@]}" install -r requirements.lock
else
    say "NOTICE: the lock holds releases that need Python 3.11; for 3.10 the newest ones that fit are installed instead"
    "${pip[@]}" install "$torch" "setuptools>=77" ".[dev,video]"
fi
# A client of policy servers that the tests are about. Alone: its own bound on NumPy is older than what it works with.
"${pip[@]}" install --no-deps openpi-client==0.1.2
PYTHONWARNINGS=ignore "${pip[@]}" install --no-deps --no-build-isolation --editable .

# 4. OpenGL: what counts is that MuJoCo draws with it
.venv/bin/replan setup conveyor

printf '%s' "$state" >"$stamp"
say "done"
