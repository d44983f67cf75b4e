# Everything a person needs, one word each: `make help`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo examples agency run test test-deep test-pythons mutants check docs vectors site screens wheel bench soak game-day bench-attacks stubs lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

# Install the lock $(1), and the packages of this clone. Exactly the lock: nothing is resolved, so a version that an index lists
# later changes nothing. `uv pip check` then says whether the lock is complete. pip installs uv by its hashes in the lock of the
# development, and uv installs the rest in a tenth of pip's time. pip does it where uv fails: uv reads no configuration of pip, so it
# may find no index.
define install
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@sed -n '/^uv==/,/[^\\]$$/p' requirements-dev.lock > $(VENV)/uv.lock
	$(INSTALL) --no-deps --require-hashes -r $(VENV)/uv.lock
	$(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python --no-deps --require-hashes -r $(1) \
		|| $(INSTALL) --no-deps --require-hashes -r $(1)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	$(BIN)/uv pip check --quiet --python $(BIN)/python
	@touch $@
endef

$(VENV)/runtime: requirements.lock pyproject.toml
	$(call install,requirements.lock)

$(VENV)/development: requirements-dev.lock pyproject.toml
	$(call install,requirements-dev.lock)

# What starts servers runs below a supervisor, which ends them all at Ctrl-C. No shell stands between make and it: a shell would end at
# the same signal, and make would not wait for the end of the servers.
SUPERVISED := $(BIN)/python tools/supervise.py --tmpdir

demo: $(VENV)/runtime ## The main job end to end, narrated: publish, handshake, report, vote, consensus, attacks
	$(SUPERVISED) --keep-failed -- $(BIN)/python demo

EXAMPLES := $(sort $(wildcard protocols/*/example))

define EXAMPLE
	@echo $(1)
	@$(SUPERVISED) -- $(BIN)/python $(1)

endef

examples: $(VENV)/runtime ## The example of each protocol of the catalogue (protocols/*/example), one after the other
	$(foreach example,$(EXAMPLES),$(call EXAMPLE,$(example)))

agency: $(VENV)/runtime ## A travel agency and a room of ten drivers; FAULTS=short, full, pauses, room or all has them killed, moved, hung or paused
	$(SUPERVISED) -- env PYTHONPATH=examples:demo $(BIN)/python -m agency $(if $(FAULTS),--faults $(FAULTS) --trips 100)

run: $(VENV)/runtime ## A registry on 127.0.0.1:8080 with the first-party catalogue; WITNESS=URL#KEY has its log witnessed
	$(SUPERVISED) -- $(BIN)/python demo/run.py $(if $(WITNESS),--witness '$(WITNESS)') $(OPTIONS)

# Tests and the programs that they start keep their bytecode, whatever the environment says: otherwise each of these processes compiles
# all that it imports, and pytest rewrites all tests once for each of its workers.
unexport PYTHONDONTWRITEBYTECODE

TEST := $(SUPERVISED) -- $(BIN)/python tools/shards.py

test: $(VENV)/development ## The tests; ROOM=registry/log, or a path: those of one part (tests/rooms.toml)
	$(TEST) $(ROOM)

test-deep: $(VENV)/development ## Every test, with all cases, examples and faults, the mutants, and other Pythons
	env TREATY_DEPTH=full $(TEST)
	$(MAKE) mutants
	$(MAKE) test-pythons

test-pythons: $(VENV)/development ## Demo, package and a fifth of the tests on each Python from 3.11 to 3.14 that is found
	$(BIN)/python tools/pythons.py

# One process for each processor: each of them starts pytest once for a mutant, and works all the time.
mutants: $(VENV)/development ## Break each rule of the conformance page on purpose, and see a test of its number fail
	$(SUPERVISED) -- $(BIN)/python -m pytest '--basetemp={tmpdir}/p' --numprocesses $(shell nproc) --dist load --verbose tests/mutants/run_mutants.py

check: $(VENV)/development ## Lint, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/development ## Write the generated parts of the documentation anew, and build the site with those that only it has
	$(BIN)/python -m docs.generate
	$(BIN)/python -m docs.site

vectors: $(VENV)/development ## Write the test vectors that the code makes anew, and their list in the specification
	PYTHONPATH=tests/support $(BIN)/python tests/support/made_vectors.py
	$(BIN)/python -m docs.generate

site: $(VENV)/development ## Build the documentation as a site, which a registry then serves under /docs/
	$(BIN)/python -m docs.site

screens: site ## Take the pictures of the command line and of the pages anew, in docs/screens
	$(BIN)/python tools/screens.py

wheel: site ## The wheel of everything, with the site, and the wheels of single packages, in dist/
	$(BIN)/python -m hatchling build -t wheel
	@for folder in $(dir $(wildcard consensus/*/pyproject.toml client/*/pyproject.toml)); do \
		(cd $$folder && $(CURDIR)/$(BIN)/python -m hatchling build -t wheel -d $(CURDIR)/dist) || exit 1; \
	done

bench: $(VENV)/development ## The ratios that the docs quote, into bench/results
	$(BIN)/python -m bench
	$(BIN)/python -m bench agreeing
	$(BIN)/python -m bench speaking

soak: $(VENV)/development ## Mixed traffic on a registry for MINUTES (60 by default): memory, descriptors and latency
	$(BIN)/python -m bench soak --minutes $(or $(MINUTES),60)

game-day: $(VENV)/development ## Provoke each alert on real processes with Prometheus, and see it fire and end; ONLY=NAME,NAME: these alerts
	$(SUPERVISED) -- env PYTHONPATH=tests/support:tests ONLY=$(ONLY) $(BIN)/python -m game_day

bench-attacks: $(VENV)/development ## What an attack on an election costs, by our rule and by others
	$(BIN)/python -m bench.attacks

LOCK := $(BIN)/uv pip compile --quiet pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

IMAGE_LOCK := $(BIN)/uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_36 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --constraint requirements.lock --custom-compile-command "make lock"

AIP := protocols/aip/python

stubs: $(VENV)/development ## Generate the stubs of AIP from its .proto anew
	$(BIN)/python -m grpc_tools.protoc -I $(AIP) --python_out=$(AIP) --pyi_out=$(AIP) --grpc_python_out=$(AIP) treaty_aip/stubs/aip.proto

lock: $(VENV)/development ## Renew the lock files, those of the image too
	$(LOCK) --group dev -o requirements-dev.lock
	$(LOCK) --group build --constraint requirements-dev.lock -o requirements.lock
	$(IMAGE_LOCK) pyproject.toml --extra registry --extra telemetry -o deploy/container/runtime.lock
	$(IMAGE_LOCK) deploy/container/build.in -o deploy/container/build.lock

clean: ## Remove what make built here
	rm -rf $(VENV) $(VENV)-3.* .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
