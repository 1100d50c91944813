# Every command sets up .venv by itself; nothing but Python 3.11+ and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-all rest release-check lint format types tests slow unit fuzz coverage chaos kills
.PHONY: attack soak bench docs clean environment collected matrix simulate plant

# The tests start hundreds of processes: none of them shall compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

environment:
	@$(PYTHON) tools/environment.py $(VENV)

demo: ## run the main job and show its result
	@$(PYTHON) tools/environment.py $(VENV) server,cli,spark
	@$(BIN)/python examples/demo.py

test: ## what every change must pass: lint, types, and the tests of the gate
	@$(MAKE) --no-print-directory environment
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint types $(VENV)/spark.jsa collected
	@$(MAKE) --no-print-directory tests

test-all: test rest ## all that CI runs: make test, and the rest

rest: slow coverage matrix docs ## what make test leaves out: slow tests, coverage, other versions, docs

release-check: test-all ## what a release must pass besides: some hours
	@UPRIVER_EXAMPLES=all $(BIN)/pytest -n auto -m "unit or simulation"
	@$(BIN)/pytest -n 2 --release
	@$(PYTHON) tools/matrix.py --all
	@$(MAKE) --no-print-directory fuzz simulate chaos kills attack soak plant

lint: environment ## style and likely mistakes
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tools/check_files.py
	@$(BIN)/python tools/reference.py --check

types: environment ## mypy --strict
	@$(BIN)/mypy

tests: environment $(VENV)/spark.jsa ## the tests of the gate, in several processes
	@$(BIN)/pytest -n auto

slow: environment $(VENV)/spark.jsa ## the tests that the gate leaves out
	@$(BIN)/pytest -n auto --slow

# Each of the processes would rewrite the assertions of all tests.
collected: environment
	@$(BIN)/pytest -n 0 --collect-only --quiet --quiet

# Spark starts in half the time with it.
$(VENV)/spark.jsa: tools/spark_archive.py pyproject.toml constraints.txt | environment
	@$(BIN)/python tools/spark_archive.py $@

matrix: environment ## what each supported Spark and Python must do; SPARK=4.0-python3.13 for one
	@$(PYTHON) tools/matrix.py $(SPARK)

unit: environment ## the short tests that start no processes, for while you work
	@$(BIN)/pytest -n auto -m unit

fuzz: environment ## property tests with new examples; SEED=7 repeats a run
	@seed=$${SEED:-$$($(PYTHON) -c 'import secrets; print(secrets.randbits(32))')}; \
	echo "make fuzz SEED=$$seed repeats this run"; \
	HYPOTHESIS_PROFILE=fuzz $(BIN)/pytest -n auto -m hypothesis --hypothesis-seed=$$seed

coverage: environment ## the lines and branches that the tests of one process reach, with a floor
	@$(BIN)/python tools/coverage_floor.py

chaos: environment ## what breaks, for about 20 minutes; SEED=7 and MINUTES=5 if wanted
	@$(BIN)/python tools/chaos.py $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

kills: environment ## a hundred drivers of pipelines killed at every step; KILLS=20 if wanted
	@UPRIVER_KILLS=$(or $(KILLS),100) $(if $(SEED),UPRIVER_CHAOS_SEED=$(SEED)) \
	$(BIN)/pytest -n 0 -o log_cli=true -o log_cli_level=INFO tests/tables/test_killed_drivers.py

attack: environment ## every known attack on real processes, for about 10 minutes; MINUTES=3 if wanted
	@$(BIN)/python tools/attack.py $(if $(MINUTES),--minutes $(MINUTES))

simulate: environment ## simulated worlds from fresh seeds; SEEDS=0-999 and SCOPE=single if wanted
	@$(BIN)/python tools/simulate.py $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SCOPE),--scope $(SCOPE))

plant: environment ## small faults planted in our own code, and how many worlds find each; 20 minutes
	@$(BIN)/python tools/plant.py

format: environment ## rewrite files in the project's style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

soak: environment ## one server under traffic for 15 minutes, and what grows; MINUTES=5 if wanted
	@$(BIN)/python tools/soak.py $(if $(MINUTES),--minutes $(MINUTES))

bench: environment ## run the benchmarks; results belong in benchmarks/RESULTS.md
	@for script in benchmarks/[a-z]*.py; do \
	  case $$script in benchmarks/machine.py|benchmarks/processes.py) ;; *) echo "== $$script"; $(BIN)/python $$script || exit 1;; esac; done

docs: environment $(VENV)/.docs-installed ## build the documentation into build/site
	@$(BIN)/python tools/reference.py --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site
	@echo "open build/site/index.html"

$(VENV)/.docs-installed: pyproject.toml | environment
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("$<", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $@.new
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --requirement $@.new
	@mv $@.new $@

clean: ## remove .venv and everything built
	rm -rf $(VENV) build dist src/*.egg-info src/upriver/wire/columns/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
