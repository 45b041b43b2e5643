DEMO_EPISODES ?= 100
PYTEST_ARGS ?=
# Processes that share the test files. A test may start two workers of its own, so more than the cores gains nothing.
TEST_WORKERS ?= 2
FUZZ_ARGS ?=
# Specifications that `make reference` runs.
REFERENCE ?= results/reference/*/*.toml

# One thread a process: parallel workers must not compete for cores, and results must not depend on how many there are.
export OMP_NUM_THREADS ?= 1

help:  ## Show this list
	@grep -hE '^[a-z-]+: .*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 16

setup:  ## Make .venv with everything in it (quick when nothing changed)
	@tools/setup.sh

# Exit code 3: not for this Python, as it has said; its tests skip themselves then.
setup-suites: setup  ## Also what LIBERO, ALOHA and RoboTwin need (some 500 MB, two to six minutes; again: one)
	.venv/bin/replan setup libero
	.venv/bin/replan setup aloha
	.venv/bin/replan setup robotwin || [ $$? -eq 3 ]

demo: setup  ## The main job: four methods on the same conveyor episodes, a table and a page
	.venv/bin/replan eval --suite conveyor --policy pi0-tiny --method dense,few_step,flash,dp_cache \
	    --episodes $(DEMO_EPISODES) --seed 0 --workers 2 --out runs/demo
	.venv/bin/replan board runs/demo --html runs/demo/leaderboard.html

reference: setup-suites libraries  ## Measure again what results/reference holds (some days; REFERENCE=... measures a part)
	for spec in $(REFERENCE); do \
	    .venv/bin/replan eval --spec $$spec --workers 2 --out $${spec%.toml} || exit; done
	for page in "belt_speed:Success against belt speed and latency" "suites:Four suites" \
	    "methods:Every method" "flash:FLASH, its ablations and its adaptive verifier"; do \
	    runs=results/reference/$${page%%:*}; ls $$runs/*/episodes.db > /dev/null 2>&1 || continue; \
	    .venv/bin/replan board $$runs/*/ --html $$runs.html --title "$${page#*:}" || exit; done

libraries: setup-suites  ## Build the libraries of executions that rmuscle and nirvana read, where they are missing
	for suite in conveyor:pi0-tiny conveyor-hard:pi0-tiny-hard libero_object:pi0-tiny-libero-object \
	    libero_spatial:pi0-tiny-libero-spatial; do \
	    test -f policies/checkpoints/$${suite#*:}.library/index.sqlite || \
	    .venv/bin/replan library build --suite $${suite%:*} --out policies/checkpoints/$${suite#*:}.library || exit; done

test: setup  ## Run the tests (PYTEST_ARGS="-m 'not slow'" leaves more out)
	.venv/bin/python -m pytest -n $(TEST_WORKERS) --dist loadfile -m "not long" $(PYTEST_ARGS)

test-all: setup  ## Also the long ones: rates of experts, and the same cells over and over (some ten minutes more)
	.venv/bin/python -m pytest -n $(TEST_WORKERS) --dist loadfile

fuzz: setup  ## Hostile command lines, files and databases: each must end with a sentence (FUZZ_ARGS="--seed 1")
	.venv/bin/python tools/fuzz.py $(FUZZ_ARGS)

check: setup  ## Lint, format, types, spelling
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/basedpyright
	.venv/bin/codespell

mutation: setup  ## Mutate the files that decide an episode or a number (MINUTES=20, FILES=...); results in tools/mutation.md
	.venv/bin/python -m pip install -q cosmic-ray==8.7.0  # which only this needs
	.venv/bin/python tools/mutation.py --minutes $(or $(MINUTES),20) $(FILES)

kernels: setup  ## Compile the GPU kernels for five architectures (no GPU needed); writes kernels/resources.toml
	.venv/bin/python -m pip install -q 'triton==3.7.1'  # what torch 2.13 comes with on CUDA
	.venv/bin/python tools/kernels.py

lock: setup  ## Resolve the newest allowed releases into requirements.lock and the suites' locks
	tools/lock.sh

.PHONY: help setup setup-suites demo reference libraries test test-all fuzz check kernels lock mutation
