# SPDX-License-Identifier: Apache-2.0
# Certificates: gnutls is what libmicrohttpd and libcurl use too. docs/dependencies.md
LIBS_hub = -lgnutls

# The page inside the program: build/web/index.html where `make web` has made it, else the few lines that say
# how to. A copy, renewed only when it differs, so that nothing else is built again because of it.
PAGE_SOURCE = $(or $(wildcard build/web/index.html),src/hub/page_none.html)
FLAGS_src/hub/page.c = -DPAGE_FILE='"$(B)/page.html"'
$(B)/page.html: FORCE
	@mkdir -p $(@D)
	@cmp -s $(PAGE_SOURCE) $@ || cp $(PAGE_SOURCE) $@
$(B)/obj/src/hub/page.o: $(B)/page.html
