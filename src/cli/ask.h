/* SPDX-License-Identifier: Apache-2.0 */
/* ask.h - the command line asks a running hub by HTTP, as anybody may who has a token.
 *
 * Of a run directory on this machine: the address from RUN/hub.json, the token from RUN/hub.token (which the
 * owner of the directory alone can read), the CA from RUN/tls/ca.pem. Of a URL: as the environment says,
 * BERINGIA_TOKEN_FILE, BERINGIA_TOKEN, BERINGIA_CA (wire/net_os.h). --token and --ca win over both. */
#ifndef CLI_ASK_H
#define CLI_ASK_H

#include <jansson.h>

#include "wire/net_os.h"

struct hub_address {
    char url[400];
    char connect[128]; /* "", or HOST:PORT to go to for url */
    bool local;        /* a run directory's: no proxy */
    struct net_identity id;
};
/* Who is asked, and as whom: of each command that asks a hub. */
struct hub_who {
    const char *run;        /* a run directory or a URL */
    const char *token, *ca; /* files; NULL: as above */
};
enum { CLI_OPT_TOKEN = 1000, CLI_OPT_CA };
#define CLI_WHO_OPTIONS                                                                            \
    {"token", 1, NULL, CLI_OPT_TOKEN}, {                                                           \
        "ca", 1, NULL, CLI_OPT_CA                                                                  \
    }
#define CLI_WHO_HELP                                                                               \
    "  --token FILE  of a URL: a token, a file with mode 0600; else $BERINGIA_TOKEN_FILE, "        \
    "$BERINGIA_TOKEN\n"                                                                            \
    "  --ca FILE     of a URL: the hub's CA, PEM; else $BERINGIA_CA, else the system's\n"
/* true where the option was one of them. */
bool cli_who_option(struct hub_who *w, int option, const char *value);
/* A URL as it is, or the address of the hub of a run directory on this machine. */
enum brg_status cli_hub_find(const struct hub_who *who, struct hub_address *out, struct err *e)
    MUST_USE;
/* GET; anything but 200 is a failure. */
enum brg_status cli_hub_get(const struct hub_address *hub, const char *path, struct buf *out,
                            struct err *e) MUST_USE;
/* POST of a JSON object. E_REFUSED: with the sentence that the hub gave. */
enum brg_status cli_hub_post(const struct hub_address *hub, const char *path, const char *json,
                             struct buf *out, struct err *e) MUST_USE;
/* A string of an answer, owned by it; "" where it is missing or something else. */
const char *cli_word(const json_t *answer, const char *key);

#endif
