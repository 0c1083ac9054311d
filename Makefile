# Each target makes its own environment first.
# No NVIDIA card on x86-64 Linux? make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu takes the small build.
PYTHON ?= python3
TORCH_INDEX ?=
REPOSITORY ?=
RECIPE ?= sabour2017/mnist-r3-recon
TAG ?=
BIN := .venv/bin
# two processes of one thread each: more threads would wait for each other
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

.PHONY: demo play test test-slow test-browser test-wheel check bench table docs wheel release-check release-files clean

demo: .venv/done
	$(BIN)/torchcaps demo

play: .venv/done
	$(BIN)/torchcaps play

# Triton kernels need no GPU to be tested: its interpreter runs them, and it compiles them ahead of time. It exists for Linux only.
test: .venv/done $(if $(filter Linux,$(shell uname)),.venv/kernels/done)
	$(PYTEST)
	$(if $(filter Linux,$(shell uname)),TRITON_INTERPRET=1 PYTHONPATH=.venv/kernels $(PYTEST) tests/kernels tests/peers/test_opcheck.py)

test-slow: .venv/done $(if $(filter Linux,$(shell uname)),.venv/kernels/done)
	$(BIN)/python -m pytest -q -m "slow or data"
	$(if $(filter Linux,$(shell uname)),TRITON_INTERPRET=1 PYTHONPATH=.venv/kernels $(BIN)/python -m pytest -q -m slow tests/kernels tests/peers/test_opcheck.py)

# wants a chromium, Debian's say; ONNXRUNTIME_WEB names the .tgz of `npm pack onnxruntime-web` for the page as plain files
test-browser: .venv/done
	$(BIN)/pip install -q -c constraints.txt playwright
	$(BIN)/python -m pytest -q -m slow tests/play

# the source archive, and the wheel built from that
wheel: .venv/done
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build -o dist

# installs it into a fresh environment, away from this folder, and runs the commands there
test-wheel: wheel
	TORCHCAPS_WHEEL=$$(ls dist/*.whl) $(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL=$(TORCH_INDEX)) $(BIN)/python -m pytest -v -m "slow or not slow" tests/test_wheel.py

check: .venv/done
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

bench: .venv/done
	$(BIN)/torchcaps bench ops && $(BIN)/torchcaps bench train $(RECIPE)

table: .venv/done
	$(BIN)/python -m torchcaps.papers.pages

# links to files of the code lead to Repository of pyproject.toml, or to REPOSITORY; without either the pages hold copies
docs: .venv/done
	$(if $(REPOSITORY),TORCHCAPS_REPOSITORY=$(REPOSITORY)) $(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "open build/docs/index.html"

release-check: .venv/done
	$(BIN)/python .github/release_check.py "$$TAG"

# beside the wheel in dist: the pages that `make docs` built, the tables with the results behind them, the large weights
release-files: .venv/done
	tar -C build -czf dist/documentation.tar.gz docs
	git archive --format=tar.gz -o dist/tables.tar.gz HEAD results bench README.md docs/papers docs/do-capsules-beat-cnns.md
	$(BIN)/python -c "from torchcaps.pretrained import entries, file_of; [print(file_of(n)) for n, e in entries().items() if not e.ships]" | xargs -I FILE cp FILE dist/

# constraints by the environment, not by -c: so they hold for what builds the package, too. Python compiles what it
# imports; to compile all of PyTorch ahead takes a minute.
.venv/done: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install -q --no-compile $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e '.[experiments,sentences,export,play,hub,docs,dev]'
	touch $@

# beside the rest, because Triton's interpreter wants an older numpy than they have
.venv/kernels/done: .venv/done constraints-kernels.txt
	$(BIN)/pip install -q --no-compile --upgrade --target .venv/kernels -r constraints-kernels.txt
	touch $@

clean:
	rm -rf .venv
