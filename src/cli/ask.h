/* SPDX-License-Identifier: Apache-2.0 */
/* ask.h - the command line asks a running hub by HTTP, as anybody may. */
#ifndef CLI_ASK_H
#define CLI_ASK_H

#include "base/base.h"

/* A URL as it is, or the address of the hub of a run directory on this machine (RUN/hub.json). */
enum brg_status cli_hub_url(const char *what, char *out, size_t cap, struct err *e) MUST_USE;
/* GET; anything but 200 is a failure. */
enum brg_status cli_hub_get(const char *url, const char *path, struct buf *out, struct err *e)
    MUST_USE;
/* POST of a JSON object. E_REFUSED: with the sentence that the hub gave. */
enum brg_status cli_hub_post(const char *url, const char *path, const char *json, struct buf *out,
                             struct err *e) MUST_USE;

#endif
