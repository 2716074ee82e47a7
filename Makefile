# `make lab` and `make test` need Python 3.11 or later and nothing else; the first one typed builds .venv.
# Quiet on purpose: what a command prints last is the thing that was asked for.

PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' </dev/null >/dev/null 2>&1 && echo $$name && break; done)
# Where it is set, each of the many processes of a test run would compile the course anew.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)/python
COURSE := $(VENV) -m course_utils.cli
# The folder is part of the stamp's name: an environment does not survive being moved, and is then completed again.
STAMP := .venv/.complete-$(shell printf %s "$(CURDIR)" | cksum | cut -d' ' -f1)

# The notebooks come first (in test-all, then strangers'): they are the longest pieces, and at the end short ones fill both processes.
# Every process has one thread, and there are as many as the two cores that CI has: a third took a tenth longer.
PYTEST := OMP_NUM_THREADS=1 COURSE_SCALE=smoke COURSE_STRICT=1 COURSE_HOME="$(CURDIR)/build/home" $(VENV) -m pytest -n 2 --dist loadscope --no-loadscope-reorder
# tests/kernels.py imports for all of them what each would import.
KERNEL := $(if $(filter Linux,$(shell uname -s)),--nbval-kernel-name=forked,--nbval-current-env)
NOTEBOOKS := --nbval-lax $(KERNEL) --nbval-cell-timeout=300 $(wildcard notebooks solutions)

.PHONY: help lab run site wheel handout test rehearse test-all test-browser lint constraints clean

help:
	@echo "make lab           open your own copy of the course in JupyterLab (builds .venv first)"
	@echo "make run           execute every chapter without a browser, then print the ledger"
	@echo "make site          build the course as a web site, in build/site"
	@echo "make wheel         the course as one file for pip, in build/wheel (for Colab, or a machine without a clone)"
	@echo "make handout       the course without answers, for learners: make handout ARGS=../handout/course"
	@echo "make test          check style, run the tests, execute every notebook at the smallest scale"
	@echo "make rehearse      carry every demo through, without a browser"
	@echo "make test-all      the same, with slow tests, a real browser and every Python found"
	@echo "make test-browser  every figure to play with, a bet, an exercise, all demos and the site in a real browser"
	@echo "make constraints   renew constraints.txt from what the package indexes hold today"
	@echo "make clean         remove .venv and everything that was generated"

lab: $(STAMP)
	@$(COURSE) lab $(ARGS)

run: $(STAMP)
	@$(COURSE) run $(ARGS)

site: $(STAMP)
	@$(COURSE) site $(ARGS)

# Without isolation nothing is downloaded: setuptools is there, as torch needs it.
wheel: $(STAMP)
	@rm -rf build/wheel build/lib build/bdist.*
	@$(VENV) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/wheel .
	@rm -rf build/lib build/bdist.*
	@ls build/wheel/*.whl

# Files as they lie here, so that what was just released goes along; only those that git tracks, so that nothing private does.
# What holds a line of an answer lies in the two folders that are left out: tests/staff/grading/test_handout.py looks for others.
# By name, because after `git add -A` a class and its grades are tracked, too.
HANDED_OUT := .ci .devcontainer .github .gitignore CHANGELOG.md CITATION.cff CONTRIBUTING.md LICENSE Makefile README.md benchmarks constraints.txt \
	course_staff course_utils docs environment.yml exercises notebooks pyproject.toml
TRACKED = git ls-files -z $(1) | xargs -0 -r ls -d 2>/dev/null

handout:
	@test -n "$(ARGS)" || { echo "Name a new folder: make handout ARGS=../handout/course" >&2; exit 1; }
	@test -d tests || { echo "This copy was handed out itself: use it as it is." >&2; exit 1; }
	@test ! -e "$(ARGS)" || test -z "$$(ls -A "$(ARGS)")" || { echo "$(ARGS) is not an empty folder: name another." >&2; exit 1; }
	@mkdir -p "$(ARGS)"
	@$(call TRACKED,$(HANDED_OUT)) | tar -cf - -T - | tar -xf - -C "$(ARGS)"
	@test -f "$(ARGS)/Makefile" || { echo "The files could not be listed (git says why above)." >&2; exit 1; }
	@others="$$($(call TRACKED,. $(patsubst %,':!%',$(HANDED_OUT) solutions tests)) | cut -d/ -f1 | sort -u | paste -sd, - | sed 's/,/, /g')"; \
		test -z "$$others" || echo "Left out, since the course has no such file or folder: $$others."
	@echo "The course without answers is in $(ARGS)."

rehearse: $(STAMP)
	@OMP_NUM_THREADS=1 COURSE_HOME="$(CURDIR)/build/home" $(COURSE) demo --check

ifeq ($(wildcard tests),)
test test-all test-browser:
	@echo "This copy was handed out without the tests, because they hold answers: \`make run\` executes every chapter."
else
test: lint
	@$(PYTEST) -m "not slow and not browser" $(NOTEBOOKS) tests $(ARGS)

test-all: lint
	@$(PYTEST) $(NOTEBOOKS) tests/strangers tests $(ARGS)

test-browser: $(STAMP)
	@COURSE_SCALE=smoke $(VENV) -m pytest -n 2 --dist worksteal -m "browser and not slow" tests/browser tests/staff/site $(ARGS)
endif

lint: $(STAMP)
	@$(VENV) -m ruff check --quiet .
	@$(VENV) -m ruff format --quiet --check .
	@$(VENV) -m codespell_lib
	@$(COURSE) lint

# Written last, so that an interrupted installation is taken up again by the next call.
$(STAMP): pyproject.toml constraints.txt
	@$(VENV) -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || $(MAKE) --no-print-directory .new-venv
	@echo "Installing the packages into .venv: once, some minutes, a few GB."
	@PYTHONWARNINGS=ignore $(VENV) -m pip install $$(test -t 1 || echo --quiet) --disable-pip-version-check -c constraints.txt -e ".[course,lab,dev,site]" && $(VENV) -m pip check --quiet || { \
		echo "The packages could not all be installed (pip says why above): check the network, then type the same command again." >&2; exit 1; }
	@touch $@

.PHONY: .new-venv
.new-venv:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later was found: install one, or name it: make lab PYTHON=/where/it/is." >&2; exit 1; }
	@echo "Creating .venv with $(PYTHON)."
	@$(PYTHON) -m venv --clear .venv >/dev/null 2>&1 || { \
		echo "$(PYTHON) cannot create an environment: on Debian and Ubuntu, sudo apt install python3-venv; then type the same command again." >&2; exit 1; }

# torch stays where it is (moving it is a decision, made by hand), and pins its own CUDA packages.
constraints: $(STAMP)
	@$(VENV) -m venv --clear build/fresh
	@$(subst .venv,build/fresh,$(VENV)) -m pip install --quiet --upgrade pip
	@$(subst .venv,build/fresh,$(VENV)) -m pip install --quiet ".[course,lab,dev,site]" "$$(grep '^torch==' constraints.txt)"
	@{ sed -n '/^#/p' constraints.txt; $(subst .venv,build/fresh,$(VENV)) -m pip freeze --all \
		| sed -E 's/\+cpu$$//' | grep -v -E '^(course-utils|cuda-|nvidia-|triton)'; } > build/constraints.txt
	@mv build/constraints.txt constraints.txt

clean:
	rm -rf .venv build runs .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
