DEMO_EPISODES ?= 100
PYTEST_ARGS ?=

# One thread a process: parallel workers must not compete for cores, and results must not depend on how many there are.
export OMP_NUM_THREADS ?= 1

help:  ## Show this list
	@grep -hE '^[a-z]+: .*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## /\1\t/' | expand -t 8

setup:  ## Make .venv with everything in it (quick when nothing changed)
	@tools/setup.sh

demo: setup  ## The main job: four methods on the same conveyor episodes, a table and a page
	.venv/bin/replan eval --suite conveyor --policy pi0-tiny --method dense,few_step,flash,dp_cache \
	    --episodes $(DEMO_EPISODES) --seed 0 --workers 2 --out runs/demo
	.venv/bin/replan board runs/demo --html runs/demo/leaderboard.html

reference: setup  ## Measure again what results/reference holds (success against belt speed for published latencies)
	for spec in results/reference/belt_speed/*.toml; do \
	    .venv/bin/replan eval --spec $$spec --workers 2 --out $${spec%.toml} || exit; done
	.venv/bin/replan board results/reference/belt_speed/*/ --html results/reference/belt_speed.html \
	    --title "Success against belt speed and latency"

test: setup  ## Run the tests (PYTEST_ARGS="-m 'not slow'" leaves the long ones out)
	.venv/bin/python -m pytest $(PYTEST_ARGS)

check: setup  ## Lint, format, types, spelling
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/basedpyright
	.venv/bin/codespell

lock: setup  ## Resolve the newest allowed releases, in a clean environment, into requirements.lock
	rm -rf build/lock && .venv/bin/python -m venv build/lock
	build/lock/bin/pip install --quiet 'torch==2.13.*'
	build/lock/bin/pip install --quiet '.[dev,video]'
	@# Accelerator libraries and local labels (+cpu) belong to a machine, not to the project.
	build/lock/bin/pip freeze --all --exclude pip --exclude replan | grep -vE '^(cuda|nvidia|triton)' | sed 's/+.*//' > build/lock/resolved
	{ echo '# Written by `make lock`: what replan[dev,video] needs, direct and transitive, for Python 3.11 to 3.13.'; \
	    cat build/lock/resolved; } > requirements.lock
	rm -rf build/lock

.PHONY: help setup demo reference test check lock
