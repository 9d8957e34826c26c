# Every target sets up what it needs. PYTHON=python3.11 chooses the Python, and with it the ansible-core, that is used.
.PHONY: help setup lint sanity unit install molecule test test-flags test-engines test-all bench faults demo demo-down lock clean
export PYTHON
run := @scripts/bootstrap

help:  ## Say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | column -t -s '|'

setup:  ## Install the locked tools into .venv
	$(run)

lint:  ## ruff, mypy, shellcheck, yamllint, ansible-lint, changelog
	$(run) scripts/check lint

sanity:  ## ansible-test sanity, every test
	$(run) scripts/check sanity

unit:  ## Unit tests
	$(run) scripts/check unit

install:  ## Build the tarball, install it in an empty place, use it there
	$(run) scripts/check install

molecule:  ## The scenarios, on simulated hosts; SCENARIO=pivot for one
	$(run) scripts/check molecule $(SCENARIO)

test:  ## All of the above
	$(run) scripts/check lint sanity unit install molecule

test-flags:  ## The layouts' flags against the engines' own parsers; fetches 700 MB once
	$(run) scripts/check flags

test-all:  ## test, test-flags, make demo twice, and the scenarios that take long
	$(run) scripts/check lint sanity unit install molecule slow

test-engines:  ## The real vLLM and SGLang, built for CPUs: 4 GB of packages, Python 3.11
	$(run) scripts/check real_engines

bench:  ## Measure beside what it replaces; writes docs/benchmarks.md
	$(run) tests/benchmark/run.py

faults:  ## Write docs/faults.md anew from what the scenarios saw
	$(run) scripts/faults

demo:  ## Pivot a simulated 8-GPU host from vLLM to SGLang
	$(run) scripts/demo up

demo-down:  ## Remove all that demo made
	$(run) scripts/demo down

lock:  ## Lock anew what requirements/dev.in names
	$(run) scripts/lock

clean:  ## Remove what the tools made here; simulated hosts go with demo-down
	rm -rf .cache .venv .ansible
