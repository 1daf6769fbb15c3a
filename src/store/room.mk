# SPDX-License-Identifier: Apache-2.0
# A journal in PostgreSQL wants libpq; without it (or with POSTGRES=no) the program says so when it is asked for
# one. docs/store.md
POSTGRES ?= $(shell pkg-config --exists libpq 2>/dev/null && echo yes || echo no)
ifeq ($(POSTGRES),yes)
PG_FLAGS := -DHAVE_LIBPQ $(shell pkg-config --cflags libpq)
LIBS_store := $(shell pkg-config --libs libpq)
FLAGS_src/store/pg_os.c = $(PG_FLAGS)
FLAGS_src/store/journal_pg_os.c = $(PG_FLAGS)
FLAGS_src/cli/audit_pg_os.c = $(PG_FLAGS)
FLAGS_test/store/places.c = $(PG_FLAGS)
endif
