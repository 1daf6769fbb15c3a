#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# release only
# The pages that people act on must say what the program does: every status of the table in base.h stands in
# docs/exit-status.md with its number, class and sentence, and nothing else does; every path that the hub serves, every
# code and every key of a message stands in docs/protocol.md.
set -u
cd "${ROOT:-.}" || exit 2
name=docs_exit_status_is_complete
table() { sed -n 's/^ *X(\([A-Z_]*\), \([0-9]*\), \([A-Z]*\), "\(.*\)").*/| \2 | \1 | \3 | \4 |/p' src/base/base.h; }
missing=$(table | while IFS= read -r row; do grep -qF -- "$row" docs/exit-status.md || echo "$row"; done)
extra=$(($(grep -c '^| [0-9]' docs/exit-status.md) - $(table | wc -l)))
if [ -z "$missing" ] && [ "$extra" -eq 0 ]; then echo "ok $name"; else echo "$missing"; echo "FAIL $name (extra rows: $extra)"; fi

name=docs_protocol_names_everything
words=$({ sed -n 's/.*FIELD[A-Z_]*([a-z_]*, \([a-z0-9_]*\).*/\1/p; s/.*, FIELD[A-Z_]*([a-z_]*, \([a-z0-9_]*\).*/\1/p' src/wire/messages.c
          sed -n 's/^    \[WIRE_[A-Z_]*\] = {"\([A-Z_]*\)", [0-9]*},/\1/p' src/wire/messages.c
          sed -n 's/.*json_member_[a-z0-9]*([^"]*"\([a-z_]*\)".*/\1/p' src/hub/json_view.c
          sed -n 's/^ *\(MESSAGE\|OPERATOR\)("\([a-z_]*\)").*/\2/p' src/hub/routes_os.c; } | sort -u)
lost=""
for w in $words; do grep -qwF -- "$w" docs/protocol.md || lost="$lost $w"; done
if [ -z "$lost" ]; then echo "ok $name"; else echo "FAIL $name: not in docs/protocol.md:$lost"; fi
