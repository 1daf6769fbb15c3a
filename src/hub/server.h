/* SPDX-License-Identifier: Apache-2.0 */
/* server.h - the face of the hub's shore: a run directory becomes a process that answers HTTP.
 * Shore; the command line and tests use it. */
#ifndef HUB_SERVER_H
#define HUB_SERVER_H

#include "hub/settings.h"

struct journal;
struct hub;

/* ---- A run directory ------------------------------------------------------------------------------ */
struct run_dir {
    char path[4096];
    struct run_facts facts;
    struct run_settings settings;
    char model_json[8192];
};
/* Reads run.json, run.yaml and model.json. E_MISSING where this is no run directory. */
enum brg_status run_dir_load(const char *path, struct run_dir *out, struct err *e) MUST_USE;
/* RUN/seal.key into its settings; a fresh one where there is none, to be kept (0600) once the run has proved to
 * be one. Only a hub that serves needs it. E_CONFIG. */
enum brg_status run_seal_key(struct run_dir *d, bool *out_fresh, struct err *e) MUST_USE;
void run_seal_key_keep(const struct run_dir *d);

/* Rebuilds the machine from the newest snapshot and the records behind it; a damaged snapshot is left
 * aside and all records are taken. Gives the hub (free with hub_destroy). */
enum brg_status hub_rebuild(struct journal *j, const struct hub_settings *s, struct hub **out,
                            uint64_t *out_replayed, struct err *e) MUST_USE;

/* Makes RUN's journal anew from a published checkpoint, where the old one is gone: RUN may hold what is
 * left of it (run.json, run.yaml, model.json), or nothing; what is missing comes from the checkpoint.
 *   E_EXISTS: RUN has a journal;  E_CHECKPOINT, E_CORRUPT: no good checkpoint, or of another run;
 *   E_MISSING: it does not tell enough of its run;  E_FULL;  E_IO */
struct rebuild_told {
    uint64_t version, tokens;
    bool settings_kept;   /* RUN/run.yaml was there */
    bool settings_copied; /* else: from the checkpoint; else defaults were written */
};
enum brg_status run_rebuild(const char *run_dir, const char *checkpoint, struct rebuild_told *out,
                            struct err *e) MUST_USE;

/* ---- The server ------------------------------------------------------------------------------------ */
struct hub_server;
struct notify;                        /* hub/notify_os.h */
struct hub_parent_options {           /* of a region: docs/hierarchy.md */
    const char *url, *name;           /* of the parent; this region's name as its site */
    const char *token_file, *ca_file; /* NULL: as the environment says */
    uint64_t rounds;                  /* of the region, for one of the parent */
    time_ns timeout_ns;
};
struct hub_server_options {
    const char *run_dir;
    const char *listen;       /* NULL: as run.yaml says; "host:port", port 0 takes any free one */
    uint32_t connections_max; /* 0: 512, and two for each site that may join */
    bool rollback;            /* goes back to rollback_to before anybody is answered */
    uint64_t rollback_to;
    uint64_t verify_now_bytes; /* a larger head is verified while serving; 0: 256 MiB */
    const struct hub_parent_options *parent; /* NULL: no region; borrowed */
    struct notify *alive; /* NULL, or who is told that the machine moves; kept until close */
    /* From hub_journal_open; taken, whatever comes. NULL: opens the run's journal itself. */
    struct journal *journal;
    struct hub *hub; /* a machine that has seen all of journal; NULL: rebuilds it */
};
/* The journal of a run whose journal is a server's; *out NULL with BRG_OK where a signal of `stop`
 * (blocked) came first. Waits a minute for a server that is not reached. As a standby it follows the
 * journal for as long as another process writes it, and *out_hub is the machine then. alive: NULL, or
 * who is told that it lives. */
enum brg_status hub_journal_open(const struct run_dir *run, const char *name, bool standby,
                                 const void *stop, struct notify *alive, struct journal **out,
                                 struct hub **out_hub, struct err *e) MUST_USE;

/* Locks the run, rebuilds the machine, verifies the head's checkpoint, listens. Starts its threads.
 * E_BUSY: another hub has it; E_PORT; E_JOURNAL, E_CORRUPT: the run's files. */
enum brg_status hub_server_open(const struct hub_server_options *o, struct hub_server **out,
                                struct err *e) MUST_USE;
/* Not BRG_OK: it cannot be a region any more (the parent refused it for good); the process should end. */
enum brg_status hub_server_failed(struct hub_server *s, struct err *e);
const char *hub_server_url(const struct hub_server *s);
/* "", or HOST:PORT where this machine reaches it, when url has a name that may lead elsewhere. */
const char *hub_server_connect(const struct hub_server *s);
/* "", or what sites give as --hub that come through the run's bucket. */
const char *hub_server_mailbox(const struct hub_server *s);
/* Looks whether the certificate's files are others than before, and goes on with what they say now: new
 * connections get the new one, those that are open stay. Files that are no good change nothing. now: say so in
 * any case, at once. From the thread that opened it; call it every few seconds. */
void hub_server_renew(struct hub_server *s, bool now);
/* Stops listening, makes durable what waits, ends the threads, frees. */
void hub_server_close(struct hub_server *s);

#endif
