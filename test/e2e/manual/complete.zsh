# SPDX-License-Identifier: Apache-2.0
# complete.zsh FOLDER LINE...: what zsh offers at the end of each LINE, as "NUMBER WORD"; FOLDER holds _beringia. An
# interactive zsh is started on a terminal of its own; there a widget takes the place of the Tab key, in which compadd
# also says what it adds.
zmodload zsh/zpty || exit 1
zpty shell zsh -f -i || exit 1
expect() { # reads until a line holds $1
  local text
  while zpty -r shell text; do [[ $text == *$1* ]] && return; done
  exit 1
}
zpty -w shell "PS1= PS2= ; fpath=(${(q)1} \$fpath); autoload -Uz compinit; compinit -D -u; print rea''dy"
expect ready
zpty -w shell 'LISTMAX=10000; setopt no_list_ambiguous; zstyle ":completion:*" list-prompt ""
  compadd() {
    local -a said shown
    [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]] && { builtin compadd "$@"; return }
    builtin compadd -A said "$@"
    (( $#said )) && print -rl -- "+"${^said} >> $SAID
    builtin compadd "$@"
  }
  look() { _main_complete; print -r -- "=end" >> $SAID; compstate[insert]=; compstate[list]= }
  zle -C look complete-word look
  bindkey "^T" look; print se''t'
expect set
for ((line = 2; line <= $#; line++)); do
  : > $SAID
  zpty -w -n shell $'\C-U'"${@[line]}"$'\C-T'
  until grep -q "^=end" $SAID; do sleep 0.02; done
  while zpty -r -t shell echoed; do :; done # or the terminal would be full one day
  grep "^+" $SAID | sort -u | sed "s/^+/$((line - 2)) /"
done
zpty -d shell
