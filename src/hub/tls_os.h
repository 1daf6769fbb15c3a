/* SPDX-License-Identifier: Apache-2.0 */
/* tls_os.h - the hub's certificate: made by a CA of the run's own, or brought by whoever has one. Shore.
 *
 * RUN/tls/ca.pem       what clients trust: give it to every site (it is no secret)
 * RUN/tls/ca-key.pem   signs certificates of the hub; 0600. Better kept elsewhere: only `beringia tls` needs it
 * RUN/tls/hub.pem      the hub's certificate (and its chain)
 * RUN/tls/hub-key.pem  its key; 0600 */
#ifndef HUB_TLS_OS_H
#define HUB_TLS_OS_H

#include "base/base.h"

enum { TLS_NAMES_MAX = 16, TLS_NAME_MAX = 254 };

struct tls_pair { /* PEM texts; free with tls_pair_fini, which wipes the key */
    struct buf cert, key;
    char name[TLS_NAME_MAX];          /* the first DNS name or address */
    int64_t expires;                  /* seconds since 1970 */
    char fingerprint[HASH_HEX_BYTES]; /* SHA-256 of the certificate */
};
/* E_MISSING; E_CONFIG: no certificate, no key, not of each other, over, or a key that others may read. */
enum brg_status tls_pair_load(const char *cert_path, const char *key_path, struct tls_pair *out,
                              struct err *e) MUST_USE;
void tls_pair_fini(struct tls_pair *p);
/* Would a client that asks for this host name or address accept it? */
bool tls_pair_covers(const struct tls_pair *p, const char *host);

/* A certificate for these names (127.0.0.1, ::1 and localhost are added), signed by RUN/tls/ca-key.pem,
 * which is made with its certificate where it is not there. Replaces hub.pem and hub-key.pem. */
enum brg_status tls_make(const char *run_dir, const char *const *names, size_t names_count,
                         uint32_t days, struct err *e) MUST_USE;

#endif
