#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The library exports what include/beringia.h declares and nothing else; the header is C99 and C++; the sizes of
# its structs are those of test/golden/abi.txt, its soname too. A change there is
# a change for every program that was built before; a line may come, none may go while the soname stays.
set -u
cd "${ROOT:-$(dirname "$0")/../..}" || exit 2
B=${B:-build/release}
SCRATCH=${SCRATCH:-$(mktemp -d)}
library=$B/libberingia.so
[ -f "$library" ] || { echo "skip site_abi: no $library"; exit 0; }
{
    readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/soname \1/p'
    nm -D --defined-only "$library" | awk '$2 == "T" {print $3}' | sed 's/@.*//' | grep '^brg_' | sort
    for t in brg_options brg_run brg_tensor brg_array brg_trainer brg_figures brg_data_facts brg_moment; do
        printf '#include <stdio.h>\n#include "beringia.h"\nint main(void){printf("%s %%zu\\n", sizeof(struct %s));return 0;}\n' \
            "$t" "$t" > "$SCRATCH/size.c"
        gcc -std=c99 -pedantic -Werror -Iinclude "$SCRATCH/size.c" -o "$SCRATCH/size" && "$SCRATCH/size"
    done
} > "$SCRATCH/abi.txt"
if [ "${1:-}" = --accept ]; then cp "$SCRATCH/abi.txt" test/golden/abi.txt; exit 0; fi
if diff -u test/golden/abi.txt "$SCRATCH/abi.txt"; then echo "ok site_abi_is_the_golden_one"
else echo "FAIL site_abi_is_the_golden_one"; fi
extra=$(nm -D --defined-only "$library" | awk '{print $3}' | grep -v '^brg_' | grep -v '^_' || true)
extra=$(echo "$extra" | grep -v '^BERINGIA_0' || true) # the version's own name
if [ "${VARIANT:-release}" != release ] || [ -z "$extra" ]; then echo "ok site_abi_exports_nothing_else"
else echo "$extra"; echo "FAIL site_abi_exports_nothing_else"; fi
echo '#include "beringia.h"' > "$SCRATCH/x.cc"
if g++ -std=c++11 -pedantic -Wall -Wextra -Werror -Iinclude -fsyntax-only "$SCRATCH/x.cc"; then echo "ok site_header_is_good_cpp"
else echo "FAIL site_header_is_good_cpp"; fi
