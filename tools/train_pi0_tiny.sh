#!/usr/bin/env bash
# Makes the bundled policies and the draft again: about two and a half hours on two idle cores. Every step resumes or is
# skipped when it is there. The result is as good as what is bundled, not the same to the bit: see docs/training.md.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/pi0-tiny}
export OMP_NUM_THREADS=1 LP_NUM_THREADS=0
replan=.venv/bin/replan

record() { # NAME, then the arguments of replan collect
    "$replan" collect --out "$out/data/$1" "${@:2}"
}
learn() { # NAME, then the arguments of replan train
    "$replan" train --out "$out/$1" "${@:2}"
}
standard() { echo "$out"/data/demos/* "$out"/data/dagger1/* "$out"/data/dagger1/*; }

record demos --suite conveyor --episodes 1100 --seed 1
learn first "$out"/data/demos/* --steps 1400
record dagger1 --suite conveyor --episodes 240 --seed 50 --policy "$out/first/policy.safetensors"
learn second $(standard) --steps 2000 --seed 1 --warmup 50 --start "$out/first/policy.safetensors"
record dagger2 --suite conveyor --episodes 240 --seed 60 --policy "$out/second/policy.safetensors"
learn third $(standard) "$out"/data/dagger2/* "$out"/data/dagger2/* \
    --steps 2400 --seed 2 --warmup 50 --start "$out/second/policy.safetensors"
cp "$out/third/policy.safetensors" "$out/pi0-tiny.safetensors"
"$replan" train-draft "$out"/data/demos/* "$out"/data/dagger[12]/* --policy "$out/pi0-tiny.safetensors" --frames 16000

record hard --suite conveyor-hard --episodes 400 --seed 70
learn hard "$out"/data/hard/* --steps 1000 --seed 3 --warmup 50 --rate 7e-4 --workers 1 --start "$out/pi0-tiny.safetensors"

# The hard variant goes on with new demonstrations and two rounds of DAgger, trained on together.
record hard-more --suite conveyor-hard --episodes 400 --seed 31
record hard-dagger1 --suite conveyor-hard --episodes 240 --seed 32 --policy "$out/hard/policy.safetensors"
learn hard-second "$out"/data/hard-more/* "$out"/data/hard-dagger1/* "$out"/data/hard-dagger1/* \
    --steps 2000 --seed 2 --start "$out/hard/policy.safetensors"
record hard-dagger2 --suite conveyor-hard --episodes 240 --seed 33 --policy "$out/hard-second/policy.safetensors"
learn hard-third "$out"/data/hard-more/* "$out"/data/hard-dagger1/* "$out"/data/hard-dagger2/* "$out"/data/hard-dagger2/* \
    --steps 2400 --seed 3 --start "$out/hard-second/policy.safetensors"
cp "$out/hard-third/policy.safetensors" "$out/pi0-tiny-hard.safetensors"
"$replan" train-draft "$out"/data/hard-more/* "$out"/data/hard-dagger[12]/* \
    --policy "$out/pi0-tiny-hard.safetensors" --frames 8000 --epochs 60
