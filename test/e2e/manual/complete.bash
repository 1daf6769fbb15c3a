# SPDX-License-Identifier: Apache-2.0
# complete.bash SCRIPT WORD...: what bash offers for the last word, one a line.
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
spec=$(complete -p beringia) || exit 1
[[ $spec == *"-F _beringia"* ]] || exit 1
_beringia
printf '%s\n' "${COMPREPLY[@]}"
