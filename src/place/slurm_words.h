/* SPDX-License-Identifier: Apache-2.0 */
/* slurm_words.h - private to slurm*.c: lines of a reply, and what its sentences mean. */
#ifndef PLACE_SLURM_WORDS_H
#define PLACE_SLURM_WORDS_H

#include "place/slurm.h"

enum { SLURM_LINE_MAX = 2048 };
#define SLURM_QUEUE_MARK "job|"

/* Lines of a text, one after another; cut at SLURM_LINE_MAX - 1 bytes; bytes that are no printable ASCII
 * become '?', so that a line can be shown. */
struct slurm_lines {
    const char *p, *end;
};
struct slurm_lines slurm_lines_of(const char *text, size_t n);
bool slurm_line_next(struct slurm_lines *l, char out[SLURM_LINE_MAX]);

/* Copies what fits. */
void slurm_copy(char *out, size_t cap, const char *text, size_t n);
/* *said for a reply that is not what was wanted: by its sentences, exit status and deadline. */
void slurm_judge(const struct place_reply *r, struct place_said *said);
void slurm_say(struct place_said *said, enum place_class c, const char *text);
/* "PENDING", "CANCELLED by 999", "COMPLETING+": false where it is not known. */
bool slurm_state_parse(const char *word, enum place_state *out);
/* "17", "17_[0-9%2]", "17_3", "17+0", "17;cluster". */
bool slurm_id_parse(const char *word, uint64_t *out, bool *out_array);

#endif
