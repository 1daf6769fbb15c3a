# SPDX-License-Identifier: Apache-2.0
# One Makefile, GNU make. `make help` lists the targets; docs/hacking.md tells how to work with it.
#
# A room is a directory below src/; its objects go to build/<variant>/obj/src/<room>/. Nothing is
# listed by hand: new *.c files, new test directories and even empty rooms are found by wildcard.
# What one room needs for itself stands in its own src/<room>/room.mk or test/<room>/test.mk:
#
#   FLAGS_src/train/kernels_avx2.c = -mavx2 -mfma   more flags for one file
#   ROOMS_test/lease = base lease                   what the binary of test/lease/ is linked with
#   LIBS_train = -lmpi                              more libraries for the program and the tests
#
# Local wishes (CC, CFLAGS_LOCAL, WERROR, TEST_JOBS) go to config.mk, which git ignores.

-include config.mk

ROOMS := base data lease outer store object wire place train hub site cli
VARIANT ?= release
B := build/$(VARIANT)

ifeq ($(origin CC),default)
CC := gcc
endif

# ---- Flags ---------------------------------------------------------------------------------------

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion \
  -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef -Wformat=2 -Wswitch-enum \
  -Wdouble-promotion -Wcast-qual -Wwrite-strings
WERROR_FLAG := $(if $(filter 1,$(WERROR)),-Werror)

FLAGS_release := -O2 -g
FLAGS_debug := -O0 -g3
FLAGS_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
FLAGS_tsan := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
FLAGS_cov := -O0 -g --coverage
# Only by `make fuzz`, which also sets CC=clang. Comparisons are not traced: with -O2 that makes up to two and a half times the
# executions, and the words that a decoder asks for stand in its seeds.
FLAGS_fuzz := -O2 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-coverage=trace-cmp -fno-sanitize-recover=all
ifeq ($(FLAGS_$(VARIANT)),)
$(error VARIANT=$(VARIANT) is unknown; choose release, debug, asan, tsan or cov)
endif

# -fPIC for all: the same objects go into the program and into libberingia.so.
# banned.h makes strcpy and its like a compile error.
CFLAGS_ALL := -std=c17 -ffp-contract=off -fvisibility=hidden -fPIC -pthread $(FLAGS_$(VARIANT)) \
  $(CFLAGS_LOCAL)
CPPFLAGS_ALL := -D_GNU_SOURCE -Isrc -Iinclude -I. -include src/base/banned.h
LDFLAGS_ALL := -pthread $(FLAGS_$(VARIANT)) -Wl,--as-needed $(LDFLAGS_LOCAL)

PACKAGES := libmicrohttpd libcurl sqlite3 jansson nettle libpcre2-8 libutf8proc
PC_CFLAGS := $(shell pkg-config --cflags $(PACKAGES) 2>/dev/null)
PC_LIBS := $(shell pkg-config --libs $(PACKAGES) 2>/dev/null || echo no-libraries)
ifeq ($(PC_LIBS),no-libraries)
PC_LIBS = $(error a library is missing; run scripts/deps)
endif

-include $(wildcard src/*/room.mk test/*/test.mk)

LIBS = $(PC_LIBS) $(foreach r,$(ROOMS),$(LIBS_$r)) -lm

# A change of flags rebuilds; a change of comments in this file does not. Who only asks (make -q) changes nothing.
FLAGS_NOW := $(CC) $(CFLAGS_ALL) $(CPPFLAGS_ALL) $(PC_CFLAGS) \
  $(foreach v,$(sort $(filter FLAGS_src/% FLAGS_test/%,$(.VARIABLES))),$v=$($v))
ifeq ($(findstring q,$(firstword -$(MAKEFLAGS))),)
ifneq ($(strip $(file <$(B)/flags)),$(strip $(FLAGS_NOW)))
$(shell mkdir -p $(B))
$(file >$(B)/flags,$(FLAGS_NOW))
endif
endif

# ---- Objects -------------------------------------------------------------------------------------

objects_of = $(patsubst %.c,$(B)/obj/%.o,$(wildcard $1/*.c))
MAIN_OBJECT := $(B)/obj/src/cli/main.o

# Folders of a room that belong to the program are named by its room.mk: FOLDERS_train = cpu.
$(foreach r,$(ROOMS),$(eval OBJECTS_$r := $(call objects_of,src/$r) \
  $(foreach f,$(FOLDERS_$r),$(call objects_of,src/$r/$f))))
ALL_OBJECTS := $(foreach r,$(ROOMS),$(OBJECTS_$r))
SIM_OBJECTS := $(filter-out %/sim/main.o,$(call objects_of,sim))

# Written beside and renamed, so that two makes at a time never see half an object.
$(B)/obj/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	@echo "  CC      $<"
	@$(CC) $(CFLAGS_ALL) $(WARNINGS) $(WERROR_FLAG) $(CPPFLAGS_ALL) $(PC_CFLAGS) $(FLAGS_$<) \
	  -MMD -MP -MT $@ -MF $(@:.o=.d) -c $< -o $@.$$$$.tmp && mv -f $@.$$$$.tmp $@ \
	  || { rm -f $@.$$$$.tmp; exit 1; }

-include $(wildcard $(B)/obj/*/*.d $(B)/obj/*/*/*.d $(B)/obj/*/*/*/*.d)

# ---- The program and the library -----------------------------------------------------------------

.DEFAULT_GOAL := all
.PHONY: all program library mpi
all: program library mpi

program: $(if $(OBJECTS_cli),$(B)/beringia)
$(B)/beringia: $(ALL_OBJECTS) $(SIM_OBJECTS) $(B)/obj/sim-many.o
	@echo "  LINK    $@"
	@$(CC) $(LDFLAGS_ALL) $(ALL_OBJECTS) $(SIM_OBJECTS) $(B)/obj/sim-many.o $(LIBS) -o $@.$$$$.tmp && mv -f $@.$$$$.tmp $@

# The C API: what include/beringia.h declares is exported, everything else is hidden.
# A site reads checkpoints, and has no journal: so neither SQLite nor libpq. It may meet the hub in a bucket.
LIBRARY_ROOMS := base data lease outer store object wire site
LIBRARY_OBJECTS = $(filter-out %/journal_os.o %/journal_sqlite_os.o %/journal_pg_os.o %/pg_os.o, \
  $(foreach r,$(LIBRARY_ROOMS),$(OBJECTS_$r)))
# A symbol that is missing is an error here, not at somebody's dlopen; sanitizers leave theirs open.
NO_UNDEFINED := $(if $(filter asan tsan,$(VARIANT)),,-Wl,--no-undefined)
# The soname changes when a program that was built before would not run any more; the version as semver.org says.
LIBRARY_SONAME := 0
LIBRARY_VERSION := $(shell sed -n 's/^.define BERINGIA_VERSION "\(.*\)"/\1/p' src/base/version.h)
library: $(if $(OBJECTS_site),$(if $(wildcard include/beringia.h),$(B)/libberingia.so))
$(B)/libberingia.so: $(LIBRARY_OBJECTS) src/site/exports.map
	@echo "  LINK    $@"
	@$(CC) -shared $(LDFLAGS_ALL) $(NO_UNDEFINED) -Wl,-z,nodelete -Wl,-soname,libberingia.so.$(LIBRARY_SONAME) \
	  -Wl,--version-script,src/site/exports.map $(LIBRARY_OBJECTS) $(LIBS) \
	  -o $@.$$$$.tmp && mv -f $@.$$$$.tmp $@ && ln -sf libberingia.so $(B)/libberingia.so.$(LIBRARY_SONAME)

include install.mk
include packaging/packaging.mk

# What speaks MPI is a file of its own, built with the mpicc of the place (Cray: MPICC=cc) and loaded
# when the program is started by an MPI launcher; without an mpicc it is left out. docs/mpi.md
MPICC ?= mpicc
MPI_FOUND := $(shell command -v $(firstword $(MPICC)) 2>/dev/null)
mpi: $(if $(MPI_FOUND),$(B)/beringia-mpi.so,mpi-none)
.PHONY: mpi-none
mpi-none:
	@echo "  no $(MPICC): built without $(B)/beringia-mpi.so; see docs/mpi.md"
$(B)/beringia-mpi.so: src/train/mpi/dp_mpi.c src/train/dp.h src/base/base.h $(B)/flags
	@echo "  MPICC   $@"
	@$(MPICC) -shared $(CFLAGS_ALL) $(WARNINGS) $(WERROR_FLAG) $(CPPFLAGS_ALL) $(LDFLAGS_ALL) $< \
	  -o $@.$$$$.tmp && mv -f $@.$$$$.tmp $@

# One room alone, however broken the others are: make room-base.
.PHONY: $(ROOMS:%=room-%)
$(foreach r,$(ROOMS),$(eval room-$r: $(OBJECTS_$r)))

# ---- Tests ---------------------------------------------------------------------------------------

# One binary a directory test/<name>/ that holds *.c; all rooms unless ROOMS_test/<name> says which.
# test/fuzz/ holds fuzzers, each a program of its own: see below.
TEST_NAMES := $(filter-out fuzz,$(sort $(patsubst test/%/,%,$(dir $(wildcard test/*/*.c)))))
TEST_BINARIES := $(TEST_NAMES:%=$(B)/test/%)
HARNESS_OBJECT := $(B)/obj/test/harness.o

define test_rule
ROOMS_test/$1 ?= $(ROOMS)
TEST_OBJECTS_$1 := $(call objects_of,test/$1)
$(B)/test/$1: $$(TEST_OBJECTS_$1) $(HARNESS_OBJECT) \
    $$(filter-out $(MAIN_OBJECT),$$(foreach r,$$(ROOMS_test/$1),$$(OBJECTS_$$r)))
	@mkdir -p $$(@D)
	@echo "  LINK    $$@"
	@$$(CC) $$(LDFLAGS_ALL) $$(filter %.o,$$^) $$(LIBS) -lcmocka -o $$@.$$$$$$$$.tmp \
	  && mv -f $$@.$$$$$$$$.tmp $$@
.PHONY: unit-$1
unit-$1: $(B)/test/$1
	@$$(SANITIZER_ENV) $(B)/test/$1 $$(T)
endef

ASAN_ENV := ASAN_OPTIONS="detect_leaks=1:allocator_may_return_null=1:handle_segv=2:handle_sigbus=2:handle_sigfpe=2:$$ASAN_OPTIONS" \
  UBSAN_OPTIONS="print_stacktrace=1:$$UBSAN_OPTIONS"
TSAN_ENV := TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:$$TSAN_OPTIONS"
SANITIZER_ENV := $(if $(filter asan,$(VARIANT)),$(ASAN_ENV),$(if $(filter tsan,$(VARIANT)),$(TSAN_ENV)))

$(foreach n,$(TEST_NAMES),$(eval $(call test_rule,$n)))

.PHONY: test tests run-tests asan tsan
tests: $(TEST_BINARIES)
test:
	@scripts/deps
	@$(MAKE) --no-print-directory run-tests
run-tests: all tests chaos-tools $(B)/bench/quality_run
	@$(SANITIZER_ENV) B=$(B) VARIANT=$(VARIANT) T="$(T)" test/run $(TEST_BINARIES)
asan tsan:
	@$(MAKE) --no-print-directory VARIANT=$@ test

# ---- The black box: real processes under faults; test/chaos/README.md -----------------------------

COUNTING_SITE_OBJECT := $(B)/obj/test/chaos/src/counting_site.o
-include $(COUNTING_SITE_OBJECT:.o=.d)
$(B)/chaos/counting_site: $(COUNTING_SITE_OBJECT) $(LIBRARY_OBJECTS)
	@mkdir -p $(@D)
	@echo "  LINK    $@"
	@$(CC) $(LDFLAGS_ALL) $^ $(LIBS) -o $@.$$$$.tmp && mv -f $@.$$$$.tmp $@

MINUTES ?= 20
.PHONY: chaos chaos-tools
chaos-tools: $(B)/chaos/counting_site
	@test/link/build
	@test/shim/build
chaos: all chaos-tools
	@B=$(B) VARIANT=$(VARIANT) test/chaos/chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(CHAOS_ARGS)

# ---- Against PyTorch and llama.cpp: heavy packages, so not in `make test` ---------------------------

.PHONY: test-models test-curves
test-models: all
	@test/torch/run test/torch/models.py --build $(B) $(if $(T),--only $(T))
test-curves: all
	@test/torch/run test/torch/curves.py --build $(B) $(ARGS)

# ---- Benches: each prints a line of figures, and fails where a promise is broken ------------------

BENCHES := $(patsubst bench/bench_%.c,%,$(wildcard bench/bench_*.c))
define bench_rule
$(B)/bench/$1: $(B)/obj/bench/bench_$1.o $(call objects_of,bench/$1) $$(filter-out $(MAIN_OBJECT),$$(ALL_OBJECTS))
	@mkdir -p $$(@D)
	@echo "  LINK    $$@"
	@$$(CC) $$(LDFLAGS_ALL) $$(filter %.o,$$^) $$(LIBS) -o $$@.$$$$$$$$.tmp && mv -f $$@.$$$$$$$$.tmp $$@
.PHONY: bench-$1
bench-$1: $(B)/bench/$1 all
	@$$(RUN_BENCH_$1) $(B)/bench/$1 $$(ARGS)
endef
$(foreach b,$(BENCHES),$(eval $(call bench_rule,$b)))

# What a round costs, with real processes and a wide-area link: bench/round/round says how.
$(B)/bench/round_site: $(B)/obj/bench/round/site.o $(LIBRARY_OBJECTS)
	@mkdir -p $(@D)
	@echo "  LINK    $@"
	@$(CC) $(LDFLAGS_ALL) $^ $(LIBS) -o $@.$$$$.tmp && mv -f $@.$$$$.tmp $@
.PHONY: bench-round
bench-round: all $(B)/bench/round_site
	@QUICK=$(QUICK) bench/round/round --build $(B) $(ARGS)

# Quality over sites, the laboratory: bench/quality/quality says how. QUICK=1: a quarter of an hour. RESULTS=DIR: where
# they are kept, to go on with elsewhere.
$(B)/bench/quality_run: $(call objects_of,bench/quality) $(filter-out $(MAIN_OBJECT),$(ALL_OBJECTS))
	@mkdir -p $(@D)
	@echo "  LINK    $@"
	@$(CC) $(LDFLAGS_ALL) $^ $(LIBS) -o $@.$$$$.tmp && mv -f $@.$$$$.tmp $@
.PHONY: bench-quality
bench-quality: all $(B)/bench/quality_run
	@QUICK=$(QUICK) RESULTS=$(RESULTS) bench/quality/quality --build $(B) $(ARGS)

# The promise: 45 % sooner than waiting for all, in 1,000 drawn worlds; and a replay of traces beside it.
# That of the tokenizer wants a vocabulary, a text and a peer, which bench/tokenizer fetches.
RUN_BENCH_tokenizer = bench/tokenizer
.PHONY: bench-project
bench-project: all
	@mkdir -p build/project
	@$(B)/beringia project share/place/replay.yaml --svg build/project/replay.svg $(ARGS)
	@$(B)/beringia project share/place/ideal.yaml --need 0.45 --svg build/project/ideal.svg $(ARGS)

.PHONY: bench-mpi
bench-mpi: all
	@bench/mpi --program $(B)/beringia $(ARGS)

# The trainer beside PyTorch, which test/torch/run installs where it is missing.
.PHONY: bench-train bench-train-0.6b
bench-train: all
	@test/torch/run bench/train --build $(B) $(ARGS)
bench-train-0.6b: all
	@bench/train --build $(B) --big

# make fuzz F=wire SECONDS=60: one fuzzer; without F each in turn. Inputs stay in build/fuzz/corpus/.
# RUNS=10000000 counts executions instead, however long they take. First inputs are those kept in test/fuzz/corpus/<name>,
# and test/fuzz/seeds/<name> or test/golden/<name>.
FUZZERS := $(patsubst test/fuzz/fuzz_%.c,%,$(wildcard test/fuzz/fuzz_*.c))
SECONDS ?= 30
define fuzz_rule
$(B)/fuzz_$1: $(B)/obj/test/fuzz/fuzz_$1.o \
    $$(filter-out $(MAIN_OBJECT),$$(foreach r,$$(or $$(ROOMS_fuzz/$1),$$(ROOMS_test/$1),$(ROOMS)),$$(OBJECTS_$$r)))
	@echo "  LINK    $$@"
	@$$(CC) $$(LDFLAGS_ALL) -fsanitize=fuzzer $$(filter %.o,$$^) $$(LIBS) -o $$@
.PHONY: run-fuzz-$1
run-fuzz-$1: $(B)/fuzz_$1
	@test/fuzz/all --unpack $1 --into $(B)/corpus/$1
	$(B)/fuzz_$1 $(if $(RUNS),-runs=$(RUNS),-max_total_time=$(SECONDS)) -print_final_stats=1 -artifact_prefix=$(B)/ \
	  $(FUZZ_ARGS_$1) $(B)/corpus/$1 $(or $(wildcard test/fuzz/seeds/$1),$(wildcard test/golden/$1))
endef
$(foreach f,$(FUZZERS),$(eval $(call fuzz_rule,$f)))
.PHONY: fuzz fuzz-all run-fuzz-all
fuzz:
	@$(MAKE) --no-print-directory VARIANT=fuzz CC=clang $(addprefix run-fuzz-,$(or $(F),$(FUZZERS)))
# All of them to ten million executions each, over as many calls as it takes: test/fuzz/all.
fuzz-all:
	@$(MAKE) --no-print-directory VARIANT=fuzz CC=clang run-fuzz-all
run-fuzz-all: $(FUZZERS:%=$(B)/fuzz_%)
	@test/fuzz/all --build $(B) $(ARGS) $(foreach f,$(FUZZERS),"$f $(FUZZ_ARGS_$f)")

# ---- The simulator, the demonstration, the rules -------------------------------------------------

# What it is made of, and `make mutants`, stand in sim/sim.mk; the program has it as `beringia sim`.
.PHONY: sim
sim: $(B)/sim
	@$(SANITIZER_ENV) $(B)/sim $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(SIM_ARGS)

include sim/sim.mk

# The lease protocol without time, by SPIN; and the campaign of kills.
.PHONY: model kill-campaign
model:
	@test/model/run $(MODEL_ARGS)
kill-campaign: all
	@test/campaign/kill --of hub --build $(B)
	@test/campaign/kill --of site --build $(B)

# Ranks of mpirun; make test has the short form of it.
.PHONY: test-mpi
test-mpi:
	@scripts/deps
	@$(MAKE) --no-print-directory all $(B)/test/train
	@$(B)/test/train dp_
	@d=$$(mktemp -d) && LONG=1 ROOT=$(CURDIR) BERINGIA=$(CURDIR)/$(B)/beringia SCRATCH=$$d test/e2e/mpi.py && rm -rf $$d

# A site's restarts from memory, from its partner's, from disk. docs/restart.md
.PHONY: test-restart
test-restart:
	@scripts/deps
	@$(MAKE) --no-print-directory all $(B)/test/train
	@$(B)/test/train memory_
	@test/restart/run --build $(B) $(ARGS)

# Synchronous rounds: three sites beside a central run, 100 steps, kills; the warm start. docs/outer.md
.PHONY: test-sync
test-sync: all $(B)/test/outer $(B)/test/train $(B)/test/hub $(B)/test/site
	@$(B)/test/outer synchronous && $(B)/test/train synchronous && $(B)/test/train gradient_reaches && $(B)/test/hub sync && $(B)/test/site gradient
	@d=$$(mktemp -d) && LONG=1 ROOT=$(CURDIR) BERINGIA=$(CURDIR)/$(B)/beringia SCRATCH=$$d test/e2e/sync.py && rm -rf $$d

# Three real Slurm clusters of this machine, agents, a courier, kills and outages: test/slurm/run.
.PHONY: test-slurm
test-slurm: all
	@test/slurm/run --build $(B) $(SLURM_ARGS)

# Attacks on a real hub while an honest site trains; a short form of it is in `make test`. docs/security.md
.PHONY: test-security
test-security: all
	@BERINGIA=$(CURDIR)/$(B)/beringia ROOT=$(CURDIR) test/security/run $(T)

# Two regions with two sites each over an ocean of 90 ms, beside a flat star; docs/hierarchy.md
.PHONY: test-hierarchy
test-hierarchy: all
	@test/hierarchy/run --build $(B) $(ARGS)

# The journal on a PostgreSQL server and standby hubs; the server is started by it. A short form is in `make test`, where a
# server is installed. docs/store.md, docs/operating.md
.PHONY: test-postgres
test-postgres: all chaos-tools $(B)/test/store $(B)/bench/hub
	@test/postgres/run --build $(B) $(ARGS)

# Weights through an object store: Debian's Swift, which it installs (root) and starts in a scratch directory. docs/s3.md
.PHONY: test-s3
test-s3: all
	@test/s3/run --build $(B) $(ARGS)

# Proxies, IPv6, no route and a courier: in network namespaces, so as root. docs/networks.md
.PHONY: test-net
test-net: all
	@BERINGIA=$(CURDIR)/$(B)/beringia ROOT=$(CURDIR) test/net/run $(T)

# The documents' commands, run as they stand; docs/three-facilities.md on three real Slurm clusters behind what facilities have
# between them and the world (network namespaces: root). test/docs/blocks.py says how a block is marked.
.PHONY: test-docs test-facilities
test-docs: all
	@BERINGIA=$(CURDIR)/$(B)/beringia ROOT=$(CURDIR) test/docs/run $(T)
test-facilities: all
	@test/facilities/run --build $(B) $(ARGS)

# What an agent costs on a login node: CPU, memory, commands an hour.
.PHONY: bench-agent
bench-agent: all
	@bench/bench_agent --build $(B) --minutes $(or $(AGENT_MINUTES),1)

# The dashboard: one HTML file, which the next `make` puts into the program (src/hub/room.mk). In a real Chromium
# beside a real run; and what a hundred viewers cost.
.PHONY: web test-web test-web-demo bench-viewers
web:
	@web/build
test-web:
	@scripts/deps
	@$(MAKE) --no-print-directory web
	@$(MAKE) --no-print-directory all
	@test/web/run --build $(B) $(ARGS)
test-web-demo:
	@$(MAKE) --no-print-directory test-web ARGS=--demo
bench-viewers: all
	@bench/viewers --build $(B) $(ARGS)

# Slurm's estimates and ours against the truth, on three real clusters; eight minutes.
$(B)/bench/estimates_predict: $(B)/obj/bench/estimates/predict.o $(OBJECTS_base) $(OBJECTS_wire) $(OBJECTS_place)
	@mkdir -p $(@D)
	@echo "  LINK    $@"
	@$(CC) $(LDFLAGS_ALL) $^ $(LIBS) -o $@.$$$$.tmp && mv -f $@.$$$$.tmp $@
.PHONY: bench-estimates
bench-estimates: all $(B)/bench/estimates_predict
	@bench/estimates/estimates --build $(B) $(ARGS)

.PHONY: demo lint format check clean help
demo:
	@scripts/deps
	@$(MAKE) --no-print-directory all
	@scripts/demo --build $(B)

lint:
	@CC="$(CC)" LINT_CFLAGS="$(CFLAGS_ALL) $(CPPFLAGS_ALL) $(PC_CFLAGS)" scripts/lint $(ONLY)

format:
	clang-format -i $(wildcard $(if $(ROOM),src/$(ROOM)/*.[ch] src/$(ROOM)/*/*.[ch] \
	  test/$(ROOM)/*.[ch],src/*/*.[ch] src/*/*/*.[ch] \
	  test/*.[ch] test/*/*.[ch] sim/*.[ch] bench/*.[ch] include/*.h))

check: test lint
	@$(MAKE) --no-print-directory asan

clean:
	rm -rf build

help:
	@echo "make                  the program build/$(VARIANT)/beringia and libberingia.so"
	@echo "make test [T=name]    all tests, or those whose name contains it"
	@echo "make mpi [MPICC=cc]   beringia-mpi.so alone, with the MPI of the place: docs/mpi.md"
	@echo "make room-lease       compile src/lease alone;  also room-base, room-hub, ..."
	@echo "make unit-lease       build and run test/lease alone [T=name]; rooms by ROOMS_test/lease"
	@echo "make asan | tsan      build and run the tests with sanitizers"
	@echo "make test-mpi         the ranks of mpirun, at length: killed, hanging, more or fewer; docs/mpi.md"
	@echo "make test-restart [ARGS='--millions 30']  a site's restarts from memory, partner, disk; docs/restart.md"
	@echo "make test-sync        synchronous rounds: three sites beside a central run, 100 steps, kills; docs/outer.md"
	@echo "make test-security [T=name]  attacks on a real hub while an honest site trains; docs/security.md"
	@echo "make test-docs [T=name]   every command block of the documents, run as it stands; test/docs/blocks.py"
	@echo "make test-hierarchy  two regions with two sites each over an ocean, beside a flat star: bytes, perplexity, kills (root); docs/hierarchy.md"
	@echo "make test-facilities  docs/three-facilities.md as it stands: real Slurm, proxies, namespaces (root)"
	@echo "make test-postgres [ARGS='--minutes 4 --only NAME']  the journal on a PostgreSQL server, standby hubs; docs/store.md"
	@echo "make test-s3 [ARGS='--only NAME']  a real object store: weights, hub and sites that meet there, killed and wrong too (root; installs Swift); docs/s3.md"
	@echo "make test-net [T=name]    proxies, IPv6, a courier: network namespaces (root); docs/networks.md"
	@echo "make lint | format    the rules of the project | clang-format [ROOM=lease]"
	@echo "make check            test, lint, asan"
	@echo "make fuzz [F=wire SECONDS=60 | RUNS=n]   libFuzzer on the decoders (clang)"
	@echo "make fuzz-all [ARGS='--minutes 30' | ARGS=--keep]   each of them to ten million executions, over as many calls as it takes"
	@echo "make test-models [T=name]  exported models in PyTorch and llama.cpp (installs them); test/torch"
	@echo "make test-curves      a training here and in PyTorch, from the same weights and batches"
	@echo "make demo             a whole run on this machine"
	@echo "make model            the SPIN models of the lease protocol, and their mutants"
	@echo "make kill-campaign    200 kills each of the hub and of a site, audited each time"
	@echo "make sim [SEEDS=n | SEED=n]     the protocol in virtual time; docs/simulation.md"
	@echo "make mutants          planted faults, each of which the simulator must find"
	@echo "make chaos [MINUTES=20 SEED=n]  a hub and sites as processes under faults; test/chaos"
	@echo "make bench-order | bench-hub | bench-outer | bench-matmul  [ARGS=...]  figures, against what is promised"
	@echo "make bench-tokenizer  MB/s of Qwen3's vocabulary on one core, beside Hugging Face's library (npm)"
	@echo "make bench-mpi        two ranks beside one process [ARGS='--rounds 5']"
	@echo "make bench-merge [ARGS='--millions 60']  the merge of three int4 contributions, of the stream rate"
	@echo "make bench-quality [QUICK=1 RESULTS=DIR ARGS=...]  perplexity over sites beside central runs; docs/quality.md"
	@echo "make bench-round [QUICK=1 ARGS=...]  what a round costs over a wide-area link, at full size"
	@echo "make install [PREFIX=/usr/local DESTDIR=]   program, libberingia, manual, completions; uninstall"
	@echo "make tarball          everything but glibc in one file, for sites without root; docs/install.md"
	@echo "make deb              Debian packages, with the hub as a service; docs/install.md"
	@echo "make test-package [T=name]   installs all of these in bare systems and trains there (root; debootstrap)"
	@echo "make test-python [T=name]    the Python binding and PyTorch, with Debian's python3-torch"
	@echo "make test-torch2 [T=name]    the same with PyTorch 2.6 (Debian 13's, unpacked in build/), and FSDP"
	@echo "make bench-project    time to target under policies of placement; docs/placement.md"
	@echo "make bench-train | bench-train-0.6b  [ARGS=...]  the trainer beside PyTorch | a step of 0.6B"
	@echo "make test-slurm       three real Slurm clusters with agents, a courier, kills (root; installs Slurm)"
	@echo "make bench-estimates  Slurm's estimates of waits and ours against the truth (root; installs Slurm)"
	@echo "make bench-agent [AGENT_MINUTES=10]  what an agent costs on a login node"
	@echo "make web              the dashboard, which the next make puts into the program (wants npm)"
	@echo "make test-web         the dashboard in a real Chromium beside a real run (root; installs Chromium)"
	@echo "make test-web-demo    the same beside a whole make demo, from its first minute to its last (eight minutes)"
	@echo "make bench-viewers    what 100 viewers of the dashboard cost the hub"
	@echo "make clean"
	@echo "settings: VARIANT=release|debug|asan|tsan|cov WERROR=1 CC=clang POSTGRES=no T=name; config.mk"
