/* SPDX-License-Identifier: Apache-2.0 */
/* seal.c - is the hub behind what a site has seen?
 *
 * A hub that was restored from an old copy cannot know it. Its sites can: they come with versions, or a
 * term, that it has not made yet, or with other weights under a number of its own. Then everything has to
 * stop until a person decides (the hold). A claim alone must not stop it, or one site with a token stops
 * the run. So the hub seals what it announces with a key that stays with the run (RUN/seal.key), and a
 * site shows the seal with what it has seen:
 *
 *   announce v, θ, term + seals          JOIN: seen v, θ, term + seals
 *        hub ------------------> site -------------------------------> hub (an older copy)
 *                                         a seal fits:  hold           a seal does not: that site alone is
 *                                                                      refused, and an alarm is raised
 *
 * A seal says no more than "a hub of this run has announced this", and that is all that is asked: it may be
 * known to everybody, be repeated, and be of any age. Where the key was lost with the disk a true claim
 * has no proof either. Nothing is unsafe then: what the hub does goes on from its own head, as it does until
 * the first such JOIN anyway. The person who reads the alarm declares the branch by a rollback, and
 * numbers up to what was claimed are skipped (within reason: a claim is only a claim).
 *
 * LEASE and COMMIT name a base and carry no seal. One that was never made here is answered "join first".
 *
 * Invariant
 *   (H8) a hold follows from a sealed claim alone. */
#include <string.h>

#include "hub/machine.h"

enum {
    SEAL_WORDS_MAX = 96,
    DOUBT_VERSIONS =
        1 << 20, /* beyond what is known: numbers that a rollback skips because of a claim */
    DOUBT_TERMS = 1 << 12,
    DOUBT_LOG_S = 60, /* between two lines about the same claim */
};

static void seal_begin(struct buf *b, const struct hub_settings *s, const char *what) {
    buf_init(b, SEAL_WORDS_MAX);
    buf_str(b, what);
    buf_put(b, s->run.v, ID_BYTES);
}

static struct hash seal_end(struct buf *b, const struct hub_settings *s) {
    CHECK(!b->overflow);
    struct hash h = hash_keyed(&s->seal_key, b->data, b->bytes_count);
    buf_fini(b);
    return h;
}

struct hash hub_seal_version(const struct hub_settings *s, uint64_t version,
                             const struct hash *theta) {
    struct buf b;
    seal_begin(&b, s, "version");
    buf_u64(&b, version);
    buf_put(&b, theta->v, HASH_BYTES);
    return seal_end(&b, s);
}

struct hash hub_seal_term(const struct hub_settings *s, uint32_t term) {
    struct buf b;
    seal_begin(&b, s, "term");
    buf_u32(&b, term);
    return seal_end(&b, s);
}

/* After each step, so that reading costs nothing. */
void hub_seals_renew(struct hub *h) {
    struct hub_seals *k = &h->seals;
    if (!h->opened) return;
    const struct hub_version_view *v = &h->versions[h->head].v;
    bool same = k->version == v->version && hash_equal(&k->theta, &v->theta);
    if (!same || hash_is_zero(&k->of_version)) {
        k->version = v->version;
        k->theta = v->theta;
        k->of_version = hub_seal_version(&h->s, v->version, &v->theta);
    }
    if (k->term == h->term && !hash_is_zero(&k->of_term)) return;
    k->term = h->term;
    k->of_term = hub_seal_term(&h->s, h->term);
}

struct hash hub_head_seal(const struct hub *h) {
    const struct hub_version_view *v = &h->versions[h->head].v;
    bool there = h->seals.version == v->version && hash_equal(&h->seals.theta, &v->theta) &&
                 !hash_is_zero(&h->seals.of_version);
    return there ? h->seals.of_version : hub_seal_version(&h->s, v->version, &v->theta);
}

struct hash hub_term_seal(const struct hub *h) {
    bool there = h->seals.term == h->term && !hash_is_zero(&h->seals.of_term);
    return there ? h->seals.of_term : hub_seal_term(&h->s, h->term);
}

/* ---- What a site claims -------------------------------------------------------------------------- */

/* After a restore the hub may reach a number again with other weights; the number alone would let a
 * site of the lost branch in. Versions that are not known here (any more) cannot be compared. */
static bool is_foreign(const struct hub *h, const struct wire_join *b) {
    if (hash_is_zero(&b->theta_seen) || b->version_seen < h->foreign_below) return false;
    const struct hub_version *v = hub_version_of(h, b->version_seen);
    return v && !hash_equal(&v->v.theta, &b->theta_seen);
}

static bool version_sealed(const struct hub *h, const struct wire_join *b) {
    struct hash want = hub_seal_version(&h->s, b->version_seen, &b->theta_seen);
    return hash_equal(&want, &b->version_seal);
}

static bool term_sealed(const struct hub *h, const struct wire_join *b) {
    struct hash want = hub_seal_term(&h->s, b->term_seen);
    return hash_equal(&want, &b->term_seal);
}

static void hold(struct hub *h, const char *name, uint64_t version_seen, uint32_t term_seen) {
    if (version_seen < h->versions_next && term_seen <= h->term)
        hub_refuse(
            h, WIRE_HUB_BEHIND,
            "this site has a version %llu with other weights than the hub's: the run went on "
            "somewhere else; keep the right one, or roll back to declare a branch",
            (unsigned long long)version_seen);
    else
        hub_refuse(
            h, WIRE_HUB_BEHIND,
            "this site has seen version %llu and term %u, the hub knows less than %llu and has "
            "term %u: the hub was restored from an old copy; load the newer one, or roll back to "
            "declare a branch",
            (unsigned long long)version_seen, term_seen, (unsigned long long)h->versions_next,
            h->term);
    if (h->held && version_seen <= h->held_version && term_seen <= h->held_term) return;
    struct hub_record *r = hub_draft(h, RECORD_HOLD);
    uint32_t site = 0;
    (void)hub_site_named(h, name, &site);
    r->u.hold.site = site;
    hub_text_copy(r->u.hold.name, sizeof r->u.hold.name, name);
    r->u.hold.version_seen = version_seen;
    r->u.hold.term_seen = term_seen;
    hub_emit(h, r);
    hub_merge_cancel(h);
    hub_note(h, "lvl=error ev=hub_behind site=%s version_seen=%llu term_seen=%u", name,
             (unsigned long long)version_seen, term_seen);
}

/* Remembered for the alarm, and for the person who declares the branch because of it. */
static void doubt(struct hub *h, const char *name, const struct wire_join *b) {
    struct hub_doubt *d = &h->doubt, *most = &h->doubted;
    hub_refuse(h, WIRE_HUB_BEHIND,
               "this site has seen version %llu and term %u but cannot prove it; the hub, before "
               "%llu and %u, goes on: give the site a new --state, or the hub its newer copy",
               (unsigned long long)b->version_seen, b->term_seen,
               (unsigned long long)h->versions_next, h->term);
    bool told = strcmp(d->name, name) == 0 && d->version == b->version_seen &&
                d->term == b->term_seen && h->now - d->at < (time_ns)DOUBT_LOG_S * NS_PER_S;
    if (told) return;
    hub_note(h, "lvl=warn ev=unproved site=%s version_seen=%llu term_seen=%u", name,
             (unsigned long long)b->version_seen, b->term_seen);
    hub_text_copy(d->name, sizeof d->name, name);
    d->version = b->version_seen;
    d->term = b->term_seen;
    d->at = h->now;
    bool likely = b->version_seen < h->versions_next + DOUBT_VERSIONS &&
                  (uint64_t)b->term_seen < (uint64_t)h->term + DOUBT_TERMS;
    if (!likely) return;
    hub_text_copy(most->name, sizeof most->name, name);
    if (b->version_seen > most->version) most->version = b->version_seen;
    if (b->term_seen > most->term) most->term = b->term_seen;
}

bool hub_is_behind(struct hub *h, const char *name, const struct wire_join *b) {
    /* Versions of an abandoned branch are known here although they are beyond the head. */
    bool version = b->version_seen >= h->versions_next || is_foreign(h, b);
    bool term = b->term_seen > h->term;
    if (!version && !term) return false;
    bool version_true = version_sealed(h, b), term_true = term_sealed(h, b);
    bool proved = (version && version_true) || (term && term_true);
    if (!proved) {
        doubt(h, name, b);
        return true;
    }
    CHECK(proved); /* H8 */
    /* Of what is not sealed no more is written down than what the hub knows itself: H8. */
    uint64_t known = h->versions_next - 1;
    hold(h, name, version_true || b->version_seen < known ? b->version_seen : known,
         term_true || b->term_seen < h->term ? b->term_seen : h->term);
    return true;
}

void hub_ask_to_join(struct hub *h, uint64_t base) {
    hub_refuse(
        h, WIRE_UNKNOWN_SITE,
        "this site trains from version %llu, which this hub has not made: join again and say "
        "what was seen",
        (unsigned long long)base);
}
