# `make book` and `make test` do everything from a fresh clone; `make` alone lists the rest

# the Python that makes .venv: `make book PYTHON=python3.12`; left empty, the first suitable one is taken
PYTHON      ?=
# more arguments for pip, such as --extra-index-url https://download.pytorch.org/whl/cpu
PIP_ARGS    ?=
# more arguments for pytest, such as -k certify
PYTEST_ARGS ?=
# what `make bench` measures, such as --small, or --stage s03_blocked --n 512; --help lists it all
BENCH_ARGS  ?=
# where `make serve` listens
PORT        ?= 8000

VENV := .venv
BIN  := $(VENV)/bin
SITE := _build/html
ZIP  := _build/from-mirrors-to-tensor-cores.zip

# named after the content, so that touching a file or switching branches installs nothing again
STAMP := $(VENV)/installed-$(shell cat requirements.txt pyproject.toml | cksum | tr ' ' '-')

.DEFAULT_GOAL := help
.PHONY: help book strict test browser bench lint format serve zip lab clean distclean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

book: $(STAMP)  ## execute and build the whole book, and say where it is
	@rm -rf $(SITE)
	@$(BIN)/jupyter-book build . --all
	@echo "The book is ready: $(CURDIR)/$(SITE)/index.html"

strict: $(STAMP)  ## the same with every warning an error; shows what a failed cell said
	@rm -rf $(SITE)
	@$(BIN)/jupyter-book build . --all -W -n --keep-going || { \
	  find $(SITE)/reports -name '*.err.log' -exec tail -n 60 {} + 2>/dev/null; \
	  echo "The strict build failed; the warnings above say where."; exit 1; }
	@echo "The book is ready: $(CURDIR)/$(SITE)/index.html"

# one thread a worker: several workers with several threads each only wait for one another
test: $(STAMP)  ## run all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadgroup $(PYTEST_ARGS)

browser: $(STAMP) $(SITE)/index.html  ## open every built page in Chromium and check it
	$(BIN)/python tests/browser/check_site.py $(SITE)

bench: $(STAMP)  ## time the stages on the cases of the task, and only what passes its gates
	$(BIN)/python -m qrlib.bench $(BENCH_ARGS)

lint: $(STAMP)  ## check format and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(STAMP)  ## format the code and mend what can be mended by itself
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

serve: $(STAMP) $(SITE)/index.html  ## show the built book on http://127.0.0.1:8000
	$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory $(SITE)

zip: $(STAMP) $(SITE)/index.html  ## pack the built book into one file that opens without a network
	@$(BIN)/python -m qrlib.teach.offline $(SITE) $(ZIP)

lab: $(STAMP)  ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab notebooks

clean:  ## remove what was built
	rm -rf _build .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## remove .venv too
	rm -rf $(VENV)

$(SITE)/index.html:
	@$(MAKE) book

# Debian's python3 comes without ensurepip until python3-venv is installed; a version newer than 3.13 is
# taken only when it is asked for by name
$(STAMP):
	@set -e; \
	suits() { "$$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, $(if $(PYTHON),99,14)))' 2>/dev/null; }; \
	can_venv() { "$$1" -c 'import ensurepip, venv' 2>/dev/null; }; \
	if [ ! -x $(BIN)/pip ]; then \
	  found=; seen=; \
	  for p in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	    if suits $$p; then seen=$$p; if can_venv $$p; then found=$$p; break; fi; fi; \
	  done; \
	  if [ -z "$$found" ] && [ -n "$$seen" ]; then \
	    echo "$$seen cannot make a virtual environment: its venv module is missing."; \
	    echo "On Debian or Ubuntu: sudo apt-get install python3-venv"; exit 1; \
	  elif [ -z "$$found" ]; then \
	    echo "Python 3.11, 3.12 or 3.13 is needed; $(or $(PYTHON),python3) is" \
	      "$$($(or $(PYTHON),python3) --version 2>/dev/null || echo not there)."; \
	    echo "Install one, or name it: make book PYTHON=/path/to/python3.12"; exit 1; \
	  fi; \
	  echo "Making $(VENV) with $$($$found --version) ..."; \
	  $$found -m venv $(VENV); \
	fi
	@echo "Installing the pinned requirements into $(VENV) (some minutes the first time) ..."
	$(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS) -r requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	@# a kernel warns, page after page, that it talks over the loopback interface; that hides real warnings
	@mkdir -p $(VENV)/etc/ipython
	@echo 'c.IPKernelApp.log_level = "ERROR"' > $(VENV)/etc/ipython/ipython_kernel_config.py
	@# matplotlib says so when it lists the fonts for the first time; said in a cell it would stop the build
	@$(BIN)/python -c 'import matplotlib.font_manager'
	@rm -f $(VENV)/installed-* && touch $@
