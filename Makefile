# Every command sets up .venv by itself; nothing but Python 3.11+ and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test lint format types tests extended unit fuzz coverage chaos kills attack soak bench docs clean
.PHONY: environment matrix simulate plant

# The tests start hundreds of processes: none of them shall compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

environment:
	@$(PYTHON) tools/environment.py $(VENV)

demo: environment ## run the main job and show its result
	@$(BIN)/python examples/demo.py

test: ## everything that must pass: lint, types, tests
	@$(MAKE) --no-print-directory environment
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint types $(VENV)/spark.jsa
	@$(MAKE) --no-print-directory tests

lint: environment ## style and likely mistakes
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tools/check_files.py

types: environment ## mypy --strict
	@$(BIN)/mypy

tests: environment $(VENV)/spark.jsa ## all tests, in several processes; what fails runs once more, alone
	@$(BIN)/pytest -n auto || { status=$$?; [ $$status = 1 ] || exit $$status; \
	echo "what failed beside other tests runs once more, alone:"; \
	$(BIN)/pytest -n 1 --last-failed --last-failed-no-failures none --maxfail 5; }

# Spark starts in half the time with it.
$(VENV)/spark.jsa: tools/spark_archive.py pyproject.toml constraints.txt | environment
	@$(BIN)/python tools/spark_archive.py $@

extended: environment $(VENV)/spark.jsa ## the tests that take minutes each
	@$(BIN)/pytest -n 2 --extended

matrix: ## what every supported Spark must do, in environments of their own; SPARK=4.0 for one
	@$(PYTHON) tools/matrix.py $(SPARK)

unit: environment ## the short tests that start no processes, for while you work
	@$(BIN)/pytest -n auto -m unit

fuzz: environment ## property tests with new examples; SEED=7 repeats a run
	@seed=$${SEED:-$$($(PYTHON) -c 'import secrets; print(secrets.randbits(32))')}; \
	echo "make fuzz SEED=$$seed repeats this run"; \
	HYPOTHESIS_PROFILE=fuzz $(BIN)/pytest -n auto -m hypothesis --hypothesis-seed=$$seed

coverage: environment ## the lines and branches that the unit tests reach
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))' && export COVERAGE_CORE=sysmon; \
	$(BIN)/pytest -n auto -m unit --cov --cov-report=term:skip-covered

chaos: environment ## what breaks, for about 20 minutes; SEED=7 and MINUTES=5 if wanted
	@$(BIN)/python tools/chaos.py $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

kills: environment ## a hundred drivers of pipelines killed at every step; KILLS=20 if wanted
	@UPRIVER_KILLS=$(or $(KILLS),100) $(if $(SEED),UPRIVER_CHAOS_SEED=$(SEED)) \
	$(BIN)/pytest -n 0 -o log_cli=true -o log_cli_level=INFO tests/spark/tables/test_killed_drivers.py

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
