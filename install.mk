# SPDX-License-Identifier: Apache-2.0
# make install: the program, libberingia (shared, static, pkg-config), its header, the manual, what the Tab key offers.
#
#   make install PREFIX=$HOME/.local          for oneself, no root needed
#   make install PREFIX=/usr DESTDIR=stage    for a package
#
# Only files that `make` has built are copied; nothing is built as root.

PREFIX ?= /usr/local
DESTDIR ?=
LIBDIR ?= $(PREFIX)/lib
INSTALLED = $(abspath $(DESTDIR)$(PREFIX))
INSTALLED_LIB = $(abspath $(DESTDIR)$(LIBDIR))

# The names that a static program needs besides: what LIBRARY_ROOMS lean on.
LIBRARY_PACKAGES := libcurl jansson nettle libpcre2-8 libutf8proc

# One object, in which all names but brg_* are local: no name of ours can clash with one of the host's.
$(B)/libberingia.a: $(LIBRARY_OBJECTS)
	@echo "  AR      $@"
	@$(CC) -r -nostdlib $(LIBRARY_OBJECTS) -o $@.$$$$.o && \
	  objcopy -w --keep-global-symbol='brg_*' $@.$$$$.o && \
	  rm -f $@.$$$$.tmp && $(AR) rcs $@.$$$$.tmp $@.$$$$.o && mv -f $@.$$$$.tmp $@ && rm -f $@.$$$$.o

$(B)/beringia.pc: Makefile install.mk FORCE
	@printf '%s\n' 'prefix=$(PREFIX)' 'includedir=$${prefix}/include' 'libdir=$(LIBDIR)' '' \
	  'Name: beringia' 'Description: one model on many supercomputers: the side of a site' \
	  'Version: $(LIBRARY_VERSION)' 'Requires.private: $(LIBRARY_PACKAGES)' \
	  'Libs: -L$${libdir} -lberingia' 'Libs.private: -lm -pthread' 'Cflags: -I$${includedir}' > $@
.PHONY: FORCE
FORCE:

# What the program says of itself: `beringia manual` and `beringia completion`.
$(B)/told: $(B)/beringia
	@rm -rf $@ $@.tmp && mkdir -p $@.tmp
	@$(B)/beringia manual --out $@.tmp/man
	@$(B)/beringia completion bash > $@.tmp/beringia
	@$(B)/beringia completion zsh > $@.tmp/_beringia
	@mv $@.tmp $@

BASH_COMPLETIONS = $(INSTALLED)/share/bash-completion/completions
ZSH_COMPLETIONS = $(INSTALLED)/share/zsh/site-functions

.PHONY: install uninstall
install: all $(B)/libberingia.a $(B)/beringia.pc $(B)/told
	@mkdir -p $(INSTALLED)/bin $(INSTALLED)/include $(INSTALLED_LIB)/pkgconfig \
	  $(INSTALLED)/share/man/man3 $(INSTALLED)/share/beringia/models
	install -m 755 $(B)/beringia $(INSTALLED)/bin/beringia
	install -m 644 include/beringia.h $(INSTALLED)/include/beringia.h
	install -m 644 $(B)/libberingia.so $(INSTALLED_LIB)/libberingia.so.$(LIBRARY_VERSION)
	ln -sf libberingia.so.$(LIBRARY_VERSION) $(INSTALLED_LIB)/libberingia.so.$(LIBRARY_SONAME)
	ln -sf libberingia.so.$(LIBRARY_SONAME) $(INSTALLED_LIB)/libberingia.so
	@mkdir -p $(INSTALLED)/lib/beringia
	[ ! -e $(B)/beringia-mpi.so ] || install -m 755 $(B)/beringia-mpi.so $(INSTALLED)/lib/beringia/beringia-mpi.so
	install -m 644 $(B)/libberingia.a $(INSTALLED_LIB)/libberingia.a
	install -m 644 $(B)/beringia.pc $(INSTALLED_LIB)/pkgconfig/beringia.pc
	install -m 644 man/man3/*.3 $(INSTALLED)/share/man/man3/
	@cd man/man3 && for page in *.3; do for name in $$(sed -n 's/^\.Nm \([a-z_]*\).*/\1/p' $$page); do \
	  [ -e $$name.3 ] || echo ".so man3/$$page" > "$(INSTALLED)/share/man/man3/$$name.3"; done; done
	@mkdir -p $(INSTALLED)/share/man/man1 $(INSTALLED)/share/man/man5 $(INSTALLED)/share/man/man7 \
	  $(BASH_COMPLETIONS) $(ZSH_COMPLETIONS)
	install -m 644 $(B)/told/man/man1/*.1 $(INSTALLED)/share/man/man1/
	install -m 644 $(B)/told/man/man5/*.5 $(INSTALLED)/share/man/man5/
	install -m 644 man/man7/*.7 $(INSTALLED)/share/man/man7/
	install -m 644 $(B)/told/beringia $(BASH_COMPLETIONS)/beringia
	install -m 644 $(B)/told/_beringia $(ZSH_COMPLETIONS)/_beringia
	install -m 644 share/models/*.json $(INSTALLED)/share/beringia/models/
	@mkdir -p $(INSTALLED)/share/beringia/prometheus $(INSTALLED)/share/beringia/grafana
	install -m 644 share/prometheus/alerts.yml $(INSTALLED)/share/beringia/prometheus/
	install -m 644 share/grafana/beringia.json $(INSTALLED)/share/beringia/grafana/

uninstall:
	rm -f $(INSTALLED)/bin/beringia $(INSTALLED)/include/beringia.h $(INSTALLED_LIB)/libberingia.* \
	  $(INSTALLED_LIB)/pkgconfig/beringia.pc $(INSTALLED)/share/man/man3/brg_*.3 \
	  $(INSTALLED)/share/man/man3/libberingia.3 $(INSTALLED)/share/man/man1/beringia.1 \
	  $(INSTALLED)/share/man/man1/beringia-*.1 $(INSTALLED)/share/man/man5/beringia-*.5 \
	  $(INSTALLED)/share/man/man7/beringia.7 $(BASH_COMPLETIONS)/beringia $(ZSH_COMPLETIONS)/_beringia
	rm -rf $(INSTALLED)/share/beringia $(INSTALLED)/lib/beringia

# PyTorch is large: its tests install Debian's python3-torch themselves, and are no part of `make test`.
.PHONY: test-python
test-python: all
	@B=$(B) T="$(T)" test/python/run

# The same with PyTorch 2.6, and FSDP, which 1.13 has for GPUs only. Debian 13's is unpacked there, not installed.
.PHONY: test-torch2
test-torch2: all
	@test/python/torch2 build/torch2
	@B=$(B) T="$(T)" PYTHON=$(CURDIR)/build/torch2/python SCRIPTS="fsdp loop segment" test/python/run
