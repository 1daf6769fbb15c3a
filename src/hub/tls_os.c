/* SPDX-License-Identifier: Apache-2.0 */
/* tls_os.c - see tls_os.h. ECDSA on P-256 with SHA-256: what every TLS library of the last ten years speaks. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/os.h"
#include "hub/tls_os.h"

enum { PEM_MAX = 64 * 1024, CA_DAYS = 3650, SKEW_S = 3600, CHAIN_MAX = 8 };

static enum brg_status failed(struct err *e, const char *what, int rc) {
    return err_set(e, BRG_E_CONFIG, "%s: %s", what, gnutls_strerror(rc));
}

/* ---- Loading ------------------------------------------------------------------------------------- */
static enum brg_status key_mode(const char *path, struct err *e) {
    struct stat st;
    if (stat(path, &st) != 0) return os_errno(e, errno, "looking at", path);
    if ((st.st_mode & 077) == 0) return BRG_OK;
    return err_set(e, BRG_E_CONFIG, "%s: others may read this key; chmod 600 it", path);
}

static bool is_address(const char *name) {
    unsigned char raw[16];
    return inet_pton(AF_INET, name, raw) == 1 || inet_pton(AF_INET6, name, raw) == 1;
}

/* The first name that the certificate is for, as text. */
static void first_name(gnutls_x509_crt_t crt, char out[TLS_NAME_MAX]) {
    unsigned char raw[TLS_NAME_MAX];
    out[0] = '\0';
    for (unsigned i = 0; out[0] == '\0'; i++) {
        size_t n = sizeof raw - 1;
        int type = gnutls_x509_crt_get_subject_alt_name(crt, i, raw, &n, NULL);
        if (type == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE) break;
        if (type == GNUTLS_SAN_DNSNAME && n < TLS_NAME_MAX && raw[0] != '*') {
            memcpy(out, raw, n);
            out[n] = '\0';
        } else if (type == GNUTLS_SAN_IPADDRESS && (n == 4 || n == 16)) {
            (void)inet_ntop(n == 4 ? AF_INET : AF_INET6, raw, out, TLS_NAME_MAX);
        }
    }
}

static enum brg_status pair_facts(const char *cert_path, const char *key_path,
                                  gnutls_x509_crt_t crt, gnutls_x509_privkey_t key,
                                  struct tls_pair *p, struct err *e) {
    unsigned char of_cert[32], of_key[32], print[32];
    size_t a = sizeof of_cert, b = sizeof of_key, c = sizeof print;
    int rc = gnutls_x509_crt_get_key_id(crt, GNUTLS_KEYID_USE_SHA256, of_cert, &a);
    if (rc == 0) rc = gnutls_x509_privkey_get_key_id(key, GNUTLS_KEYID_USE_SHA256, of_key, &b);
    if (rc == 0) rc = gnutls_x509_crt_get_fingerprint(crt, GNUTLS_DIG_SHA256, print, &c);
    if (rc != 0) return failed(e, cert_path, rc);
    if (a != b || memcmp(of_cert, of_key, a) != 0)
        return err_set(e, BRG_E_CONFIG, "%s is not the key of %s", key_path, cert_path);
    hex_encode(print, 32, p->fingerprint);
    p->expires = (int64_t)gnutls_x509_crt_get_expiration_time(crt);
    if (p->expires <= (int64_t)time(NULL))
        return err_set(e, BRG_E_CONFIG,
                       "%s: the certificate is over; renew it (beringia tls RUN create)",
                       cert_path);
    first_name(crt, p->name);
    return BRG_OK;
}

static enum brg_status pair_look(const char *cert_path, const char *key_path, struct tls_pair *p,
                                 struct err *e) {
    gnutls_x509_crt_t *chain = NULL, crt = NULL;
    gnutls_x509_privkey_t key = NULL;
    gnutls_datum_t cert_pem = {p->cert.data, (unsigned)p->cert.bytes_count},
                   key_pem = {p->key.data, (unsigned)p->key.bytes_count};
    unsigned count = 0;
    enum brg_status s = BRG_OK;
    int rc = gnutls_x509_crt_list_import2(&chain, &count, &cert_pem, GNUTLS_X509_FMT_PEM, 0);
    if (rc < 0 || count == 0) s = failed(e, cert_path, rc);
    if (s == BRG_OK) {
        crt = chain[0];
        CHECK(gnutls_x509_privkey_init(&key) == 0);
        rc = gnutls_x509_privkey_import2(key, &key_pem, GNUTLS_X509_FMT_PEM, NULL, 0);
        if (rc < 0) s = failed(e, key_path, rc);
    }
    if (s == BRG_OK) s = pair_facts(cert_path, key_path, crt, key, p, e);
    if (key != NULL) gnutls_x509_privkey_deinit(key);
    for (unsigned i = 0; i < count; i++) gnutls_x509_crt_deinit(chain[i]);
    gnutls_free(chain);
    return s;
}

void tls_pair_fini(struct tls_pair *p) {
    if (p->key.data != NULL) explicit_bzero(p->key.data, p->key.bytes_count);
    buf_fini(&p->cert);
    buf_fini(&p->key);
    memset(p, 0, sizeof *p);
}

enum brg_status tls_pair_load(const char *cert_path, const char *key_path, struct tls_pair *out,
                              struct err *e) {
    struct tls_pair p = {.name = ""};
    buf_init(&p.cert, PEM_MAX);
    buf_init(&p.key, PEM_MAX);
    enum brg_status s = os_read_file(cert_path, PEM_MAX - 1, &p.cert, e);
    if (s == BRG_OK) s = key_mode(key_path, e);
    if (s == BRG_OK) s = os_read_file(key_path, PEM_MAX - 1, &p.key, e);
    if (s == BRG_OK) s = pair_look(cert_path, key_path, &p, e);
    if (s == BRG_OK)
        *out = p;
    else
        tls_pair_fini(&p);
    return s;
}

bool tls_pair_covers(const struct tls_pair *p, const char *host) {
    gnutls_x509_crt_t crt;
    gnutls_datum_t pem = {p->cert.data, (unsigned)p->cert.bytes_count};
    bool covers = false;
    CHECK(gnutls_x509_crt_init(&crt) == 0);
    if (gnutls_x509_crt_import(crt, &pem, GNUTLS_X509_FMT_PEM) == 0)
        covers = gnutls_x509_crt_check_hostname(crt, host) != 0;
    gnutls_x509_crt_deinit(crt);
    return covers;
}

/* ---- Making -------------------------------------------------------------------------------------- */
struct making { /* both, once they are there */
    gnutls_x509_crt_t ca, crt;
    gnutls_x509_privkey_t ca_key, key;
};

static int serial_set(gnutls_x509_crt_t crt) {
    unsigned char serial[16];
    os_random(serial, sizeof serial);
    serial[0] = (unsigned char)((serial[0] & 0x7f) | 1); /* positive, not 0 */
    return gnutls_x509_crt_set_serial(crt, serial, sizeof serial);
}

/* What a certificate of either kind has. */
static int crt_begin(gnutls_x509_crt_t crt, gnutls_x509_privkey_t key, const char *name,
                     uint32_t days) {
    unsigned char id[32];
    size_t n = sizeof id;
    time_t now = time(NULL);
    int rc = gnutls_x509_privkey_generate(key, GNUTLS_PK_ECDSA,
                                          GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0);
    if (rc == 0) rc = gnutls_x509_crt_set_version(crt, 3);
    if (rc == 0) rc = serial_set(crt);
    if (rc == 0) rc = gnutls_x509_crt_set_activation_time(crt, now - SKEW_S);
    if (rc == 0) rc = gnutls_x509_crt_set_expiration_time(crt, now + (time_t)days * 86400);
    if (rc == 0)
        rc = gnutls_x509_crt_set_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, name,
                                           (unsigned)strlen(name));
    if (rc == 0) rc = gnutls_x509_crt_set_key(crt, key);
    if (rc == 0) rc = gnutls_x509_crt_get_key_id(crt, 0, id, &n);
    if (rc == 0) rc = gnutls_x509_crt_set_subject_key_id(crt, id, n);
    return rc;
}

static int ca_make(struct making *m) {
    unsigned char tag[4];
    char hex[9], name[64];
    os_random(tag, sizeof tag);
    hex_encode(tag, sizeof tag, hex);
    (void)snprintf(name, sizeof name, "Beringia CA %s", hex);
    int rc = crt_begin(m->ca, m->ca_key, name, CA_DAYS);
    if (rc == 0) rc = gnutls_x509_crt_set_basic_constraints(m->ca, 1, 0);
    if (rc == 0)
        rc = gnutls_x509_crt_set_key_usage(m->ca, GNUTLS_KEY_KEY_CERT_SIGN | GNUTLS_KEY_CRL_SIGN);
    if (rc == 0) rc = gnutls_x509_crt_sign2(m->ca, m->ca, m->ca_key, GNUTLS_DIG_SHA256, 0);
    return rc;
}

static int name_add(gnutls_x509_crt_t crt, const char *name) {
    unsigned char raw[16];
    if (inet_pton(AF_INET, name, raw) == 1)
        return gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_IPADDRESS, raw, 4,
                                                    GNUTLS_FSAN_APPEND);
    if (inet_pton(AF_INET6, name, raw) == 1)
        return gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_IPADDRESS, raw, 16,
                                                    GNUTLS_FSAN_APPEND);
    return gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_DNSNAME, name,
                                                (unsigned)strlen(name), GNUTLS_FSAN_APPEND);
}

static int hub_make(struct making *m, const char *const *names, size_t count, uint32_t days) {
    static const char *const own[] = {"127.0.0.1", "::1", "localhost"};
    unsigned char id[32];
    size_t n = sizeof id;
    char common
        [64]; /* at most 64 characters by the standard; nobody reads it: the names below count */
    (void)snprintf(common, sizeof common, "%.63s", names[0]);
    int rc = crt_begin(m->crt, m->key, common, days);
    for (size_t i = 0; rc == 0 && i < count; i++) rc = name_add(m->crt, names[i]);
    for (size_t i = 0; rc == 0 && i < ARRAY_COUNT(own); i++) rc = name_add(m->crt, own[i]);
    if (rc == 0) rc = gnutls_x509_crt_set_basic_constraints(m->crt, 0, -1);
    if (rc == 0) rc = gnutls_x509_crt_set_key_usage(m->crt, GNUTLS_KEY_DIGITAL_SIGNATURE);
    if (rc == 0) rc = gnutls_x509_crt_set_key_purpose_oid(m->crt, GNUTLS_KP_TLS_WWW_SERVER, 0);
    if (rc == 0) rc = gnutls_x509_crt_get_subject_key_id(m->ca, id, &n, NULL);
    if (rc == 0) rc = gnutls_x509_crt_set_authority_key_id(m->crt, id, n);
    if (rc == 0) rc = gnutls_x509_crt_sign2(m->crt, m->ca, m->ca_key, GNUTLS_DIG_SHA256, 0);
    return rc;
}

static enum brg_status put_crt(const char *path, gnutls_x509_crt_t crt, struct err *e) {
    gnutls_datum_t pem = {NULL, 0};
    int rc = gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_PEM, &pem);
    if (rc != 0) return failed(e, path, rc);
    enum brg_status s = os_write_file_atomic(path, pem.data, pem.size, e);
    gnutls_free(pem.data);
    return s;
}

static enum brg_status put_key(const char *path, gnutls_x509_privkey_t key, struct err *e) {
    gnutls_datum_t pem = {NULL, 0};
    int rc = gnutls_x509_privkey_export2(key, GNUTLS_X509_FMT_PEM, &pem);
    if (rc != 0) return failed(e, path, rc);
    enum brg_status s = os_write_secret_atomic(path, pem.data, pem.size, e);
    explicit_bzero(pem.data, pem.size);
    gnutls_free(pem.data);
    return s;
}

static enum brg_status ca_read(struct making *m, const char *cert_path, const char *key_path,
                               struct err *e) {
    struct tls_pair p;
    TRY(tls_pair_load(cert_path, key_path, &p, e));
    gnutls_datum_t cert = {p.cert.data, (unsigned)p.cert.bytes_count},
                   key = {p.key.data, (unsigned)p.key.bytes_count};
    int rc = gnutls_x509_crt_import(m->ca, &cert, GNUTLS_X509_FMT_PEM);
    if (rc == 0) rc = gnutls_x509_privkey_import(m->ca_key, &key, GNUTLS_X509_FMT_PEM);
    tls_pair_fini(&p);
    return rc == 0 ? BRG_OK : failed(e, cert_path, rc);
}

/* The CA of the run: as it is, or a new one. */
static enum brg_status ca_get(struct making *m, const char *run_dir, struct err *e) {
    char cert[OS_PATH_MAX], key[OS_PATH_MAX];
    os_path(cert, run_dir, "tls/ca.pem");
    os_path(key, run_dir, "tls/ca-key.pem");
    bool has_cert = os_exists(cert), has_key = os_exists(key);
    if (has_cert && has_key) return ca_read(m, cert, key, e);
    if (has_cert)
        return err_set(e, BRG_E_MISSING,
                       "%s: the key of %s is not there: put it back; or move %s away for a new CA, "
                       "which every site must be given",
                       key, cert, cert);
    int rc = ca_make(m);
    if (rc != 0) return failed(e, "a CA", rc);
    TRY(put_key(key, m->ca_key, e));
    return put_crt(cert, m->ca, e);
}

static enum brg_status names_check(const char *const *names, size_t count, struct err *e) {
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-";
    if (count == 0 || count > TLS_NAMES_MAX)
        return err_set(e, BRG_E_USAGE, "want 1 to %d names", TLS_NAMES_MAX);
    for (size_t i = 0; i < count; i++) {
        size_t n = strlen(names[i]);
        if (is_address(names[i])) continue;
        if (n == 0 || n >= TLS_NAME_MAX || strspn(names[i], letters) != n)
            return err_set(e, BRG_E_USAGE, "'%.60s' is neither a host name nor an address",
                           names[i]);
    }
    return BRG_OK;
}

enum brg_status tls_make(const char *run_dir, const char *const *names, size_t names_count,
                         uint32_t days, struct err *e) {
    struct making m;
    char path[OS_PATH_MAX];
    TRY(names_check(names, names_count, e));
    TRY(os_mkdirs(os_path(path, run_dir, "tls"), e));
    CHECK(gnutls_x509_crt_init(&m.ca) == 0);
    CHECK(gnutls_x509_crt_init(&m.crt) == 0);
    CHECK(gnutls_x509_privkey_init(&m.ca_key) == 0);
    CHECK(gnutls_x509_privkey_init(&m.key) == 0);
    enum brg_status s = ca_get(&m, run_dir, e);
    if (s == BRG_OK) {
        int rc = hub_make(&m, names, names_count, days);
        if (rc != 0) s = failed(e, "the hub's certificate", rc);
    }
    if (s == BRG_OK) s = put_key(os_path(path, run_dir, "tls/hub-key.pem"), m.key, e);
    if (s == BRG_OK) s = put_crt(os_path(path, run_dir, "tls/hub.pem"), m.crt, e);
    gnutls_x509_crt_deinit(m.ca);
    gnutls_x509_crt_deinit(m.crt);
    gnutls_x509_privkey_deinit(m.ca_key);
    gnutls_x509_privkey_deinit(m.key);
    return s;
}
