# SPDX-License-Identifier: Apache-2.0
# What is given to others: docs/install.md. The scripts beside this file do it, and install what they need.
.PHONY: tarball deb test-package
tarball:
	@scripts/deps
	@packaging/tarball/build
deb:
	@scripts/deps
	@packaging/debian/build
test-package:
	@scripts/deps
	@$(MAKE) --no-print-directory all
	@test/package/run --build $(B) $(T)
