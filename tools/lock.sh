#!/usr/bin/env bash
# Resolves replan and its suites together, in the newest allowed releases, and cuts the result into four locks:
#
#   requirements.lock                what replan[dev,video] needs: one release each for Python 3.11 to 3.13
#   envs/libero/requirements.lock    what libero needs besides replan itself, with the hashes of all its files, for
#   envs/robotwin/requirements.lock  `replan setup`; likewise
#   envs/aloha/requirements.lock     gym-aloha alone, of which only the scene is used
set -euo pipefail
cd "$(dirname "$0")/.."

work=build/lock
rm -rf "$work" && .venv/bin/python -m venv "$work"
"$work/bin/pip" install --quiet uv
echo 'torch==2.13.*' >"$work/torch"  # what the bundled policies were trained and measured with
resolve() {
    "$work/bin/uv" pip compile --quiet --no-cache --no-header --no-annotate --universal --constraint "$work/torch" "$@"
}
names() { sed -n 's/^\([A-Za-z0-9._-]*\)==.*/\1/p' "$1"; }
here() { grep -vE "sys_platform == 'win32'|^(cuda|nvidia|triton)"; }  # what every Linux machine needs

# A machine's accelerator libraries are not the project's; torch brings those that it wants.
main=(pyproject.toml --python-version 3.11 --fork-strategy fewest)
resolve "${main[@]}" --extra dev --extra video --extra libero --extra robotwin | here >"$work/together"
resolve "${main[@]}" --extra dev --extra video --constraint "$work/together" | here >"$work/main"
{
    echo '# Written by `make lock`: what replan[dev,video] needs, direct and transitive, for Python 3.11 to 3.13.'
    cat "$work/main"
} >requirements.lock

sed 's/$/ ; python_version >= "3.11"/' "$work/together" >"$work/constraints"
alone() { # PACKAGE==VERSION...: without their requirements
    printf '%s\n' "$@" >"$work/alone"
    resolve "$work/alone" --python-version 3.10 --generate-hashes --no-deps
}
header() { echo "# Written by \`make lock\`: what \`replan setup $1\` adds to replan, each file by its hash."; }
suite() { # NAME [PACKAGE==VERSION...]: an extra, and packages whose own requirements are left out
    local lock=envs/$1/requirements.lock mine=()
    resolve pyproject.toml --python-version 3.10 --constraint "$work/constraints" >"$work/replan"
    for name in $(names "$work/replan" | grep -vx opencv-python); do mine+=(--no-emit-package "$name"); done
    {
        header "$1"
        resolve pyproject.toml --python-version 3.10 --generate-hashes --constraint "$work/constraints" --extra "$1" "${mine[@]}"
        shift
        if [ $# -gt 0 ]; then alone "$@"; fi
    } >"$lock"
}
suite libero
suite robotwin rlinf-robotwin-runtime==0.1.3 gym-aloha==0.1.5
{ header aloha; alone gym-aloha==0.1.5; } >envs/aloha/requirements.lock
rm -rf "$work"
