#!/usr/bin/env bash
# Makes the bundled policies of libero_object, libero_spatial (which starts from its first stage) and robotwin, each with its draft: some
# 40 minutes a suite on two idle cores, two thirds of it for recordings; then goes on with a round of DAgger, which the
# bundled ones did not have. Every step resumes or is skipped when it is there. Not the same to the bit as what is
# bundled: the experts were worked on while it was recorded, and robotwin's began from a policy of other tasks.
#
#   tools/train_pi0_tiny_suites.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/pi0-tiny-suites}
export OMP_NUM_THREADS=1 LP_NUM_THREADS=0
replan=.venv/bin/replan
five=adjust_bottle,grab_roller,lift_pot,press_stapler,turn_switch

record() { # NAME, then the arguments of replan collect
    "$replan" collect --out "$out/data/$1" "${@:2}"
}
learn() { # NAME, then the arguments of replan train
    "$replan" train --out "$out/$1" "${@:2}"
}
finish() { # STAGE, NAME of the policy, recordings
    cp "$out/$1/policy.safetensors" "$out/$2.safetensors"
    "$replan" train-draft "${@:3}" --policy "$out/$2.safetensors" --frames 8000 --epochs 30
}

record object --suite libero_object --episodes 160 --seed 1
learn object "$out"/data/object/* --model tiny-coarse --steps 1600
record object-more --suite libero_object --episodes 240 --seed 21
record object-dagger --suite libero_object --episodes 60 --seed 22 --policy "$out/object/policy.safetensors"
learn object-third "$out"/data/object-more/* "$out"/data/object-dagger/* "$out"/data/object-dagger/* \
    --steps 1500 --warmup 50 --seed 3 --shift 3 --start "$out/object/policy.safetensors"
finish object-third pi0-tiny-libero-object "$out"/data/object-more/* "$out"/data/object-dagger/*

record spatial --suite libero_spatial --episodes 140 --seed 1
learn spatial "$out"/data/spatial/* --steps 1200 --warmup 100 --start "$out/object/policy.safetensors"
finish spatial pi0-tiny-libero-spatial "$out"/data/spatial/*

record robotwin --suite robotwin --episodes 300 --seed 1 --task "$five"
learn robotwin "$out"/data/robotwin/* --model tiny-coarse --steps 3400
finish robotwin pi0-tiny-robotwin "$out"/data/robotwin/*

# Further: the policy drives, the expert labels, and training goes on with both.
record spatial-dagger --suite libero_spatial --episodes 60 --seed 2 --policy "$out/spatial/policy.safetensors"
learn spatial-second "$out"/data/spatial/* "$out"/data/spatial-dagger/* "$out"/data/spatial-dagger/* \
    --steps 1200 --warmup 50 --seed 1 --start "$out/spatial/policy.safetensors"
record robotwin-dagger --suite robotwin --episodes 300 --seed 2 --policy "$out/robotwin/policy.safetensors" --task "$five"
learn robotwin-second "$out"/data/robotwin/* "$out"/data/robotwin-dagger/* \
    --steps 2000 --warmup 50 --seed 1 --start "$out/robotwin/policy.safetensors"
