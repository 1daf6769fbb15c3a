/* SPDX-License-Identifier: Apache-2.0 */
/* gate_os.h - private to the hub's shore: who gets in, how often, for how long; and what is written down.
 *
 *   admission   RUN/tokens.json as it is at this moment: a token that was revoked is refused from the next
 *               request on. Without that file the hub serves loopback alone, and everybody there.
 *   rates       of each token; of failures of each address
 *   watch       connections that have shown no token yet, and bodies that trickle, are cut
 *   access log  RUN/access.jsonl: each privileged call: who, from where, what, the answer
 *
 * All functions may be called from any thread. */
#ifndef HUB_GATE_OS_H
#define HUB_GATE_OS_H

#include <sys/socket.h>

#include "base/base.h"
#include "hub/tokens.h"
#include "hub/watch.h"

enum { GATE_FROM_MAX = 64, GATE_PARTS_A_NAME = 4 };

struct caller {             /* who asks */
    enum token_scope scope; /* 0: nobody has to show a token here */
    bool loopback;
    char id[TOKEN_ID_BYTES]; /* "": no token */
    char name[WIRE_NAME_MAX];
    char from[GATE_FROM_MAX];
};

struct gate;
struct gate_options {
    const char *run_dir;
    double rate;              /* requests a second of one token */
    time_ns patience_ns;      /* what a connection without a token is given */
    uint32_t connections_max; /* of which a quarter may have shown none */
};
/* Writes RUN/hub.token, the operator's for commands on this machine. E_CONFIG, E_MESSAGE: RUN/tokens.json
 * cannot be used. */
enum brg_status gate_open(const struct gate_options *o, struct gate **out, struct err *e) MUST_USE;
void gate_close(struct gate *g);
/* Tokens are wanted: RUN/tokens.json is there, or was since the hub started. */
bool gate_closed_to_strangers(struct gate *g);

/* ---- Admission ------------------------------------------------------------------------------------ */
enum gate_answer {
    GATE_IN = 0,
    GATE_STRANGER, /* 401: no token, or none that is known and good */
    GATE_SCOPE,    /* 403: a good token, for something else */
    GATE_RATE,     /* 429: *out_wait until there is room again */
    GATE_BROKEN,   /* 503: RUN/tokens.json cannot be read: nobody gets in */
};
struct gate_question {
    const struct sockaddr *from;
    const char *authorization; /* the header; NULL: none */
    uint32_t scopes;           /* that may */
    bool counted;              /* against the rate: pieces of an upload are not */
};
enum gate_answer gate_admit(struct gate *g, const struct gate_question *q, struct caller *out,
                            time_ns *out_wait);
/* May this caller speak for a site of this name? */
bool gate_speaks_for(const struct caller *c, const char *name);
/* Whose upload is did? False: another name's. The first to send a piece has it. A name has
 * GATE_PARTS_A_NAME at most: *out_drop is true where the oldest of them has to go. */
bool gate_part_take(struct gate *g, const struct caller *c, const struct id128 *did, bool *out_drop,
                    struct id128 *out_oldest);

/* Forgets an upload that this caller began. Nobody's: begun before this process, or never. */
enum gate_part { GATE_PART_MINE, GATE_PART_OTHERS, GATE_PART_NOBODYS };
enum gate_part gate_part_drop(struct gate *g, const struct caller *c, const struct id128 *did);

/* ---- Connections ----------------------------------------------------------------------------------- */
/* A watch is that of one connection and lives as long as it. */
struct watch *gate_watch_begin(struct gate *g, int fd, const struct sockaddr *from);
void gate_watch_end(struct gate *g, struct watch *w);
/* admitted: whose good token the connection has shown (or none is wanted), NULL: nothing new. It stays a
 * friend's until that token is revoked: then it is cut, whatever it is about to do. */
void gate_watch_move(struct gate *g, struct watch *w, enum watch_phase to,
                     const struct caller *admitted);
void gate_watch_bytes(struct gate *g, struct watch *w, size_t n); /* of a body */
/* For status and tests: connections, those without a token, those that were cut so far. */
struct gate_figures {
    uint64_t connections, strangers, cut, refused, limited;
};
struct gate_figures gate_figures(struct gate *g);

/* ---- The access log -------------------------------------------------------------------------------- */
struct access_entry {
    const char *who;  /* "token", "local", "loopback", "cli" */
    const char *what; /* "operator/drain" */
    const char *args; /* an object of JSON, or NULL */
    int http;         /* 0: asked, not answered yet */
};
/* One line, appended to RUN/access.jsonl and synced: it is there before the call has an effect. */
enum brg_status access_append(const char *run_dir, const struct caller *c,
                              const struct access_entry *x, struct err *e) MUST_USE;

#endif
