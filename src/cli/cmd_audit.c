/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_audit.c - beringia audit: is each position merged exactly once? */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "cli/audit.h"
#include "cli/cli.h"
#include "wire/json.h"

static const char HELP[] =
    "beringia audit - prove from the journal that each position was merged exactly once\n"
    "\n"
    "  beringia audit RUN [--json] [--blobs]\n"
    "  beringia audit RUN --recursive REGION ... [--json] [--blobs]\n"
    "\n"
    "  --json       the summary as one JSON object\n"
    "  --blobs      also read every checkpoint and contribution and compare hashes\n"
    "  --recursive  also the runs of the regions below RUN, each named behind the one above it: "
    "that "
    "what\n"
    "               each handed in is exactly what its sites did, and what it took in exactly what "
    "the\n"
    "               run above has; docs/hierarchy.md\n"
    "\n"
    "Reads RUN/journal.db with code that shares nothing with the hub; the hub may be running. Ends "
    "with\n"
    "status 0 where every condition of docs/journal.md holds, nothing is doubled and nothing is "
    "lost;\n"
    "17 (E_AUDIT) where not; 18 (E_JOURNAL) where the journal is damaged.\n";

struct share { /* what one site has in the head */
    uint64_t contributions, samples;
};

/* One a site, the caller's to free. */
static struct share *shares_of(const struct audit *a) {
    struct share *s = mem_alloc(a->sites_count + 1, sizeof *s);
    for (size_t i = 0; i < a->deltas_count; i++) {
        const struct audit_delta *d = &a->deltas[i];
        if (d->site == 0 || d->site > a->sites_count || d->fate != FATE_MERGED) continue;
        s[d->site - 1].contributions++;
        s[d->site - 1].samples += d->samples;
    }
    return s;
}

static void put_sites(const struct audit *a, struct buf *b) {
    AUTO_FREE struct share *s = shares_of(a);
    buf_u8(b, '[');
    for (size_t i = 0; i < a->sites_count; i++) {
        bool first = true;
        if (i > 0) buf_u8(b, ',');
        buf_u8(b, '{');
        json_member_text(b, &first, "name", a->sites[i].name);
        json_member_u64(b, &first, "contributions", s[i].contributions);
        json_member_u64(b, &first, "samples", s[i].samples);
        buf_u8(b, '}');
    }
    buf_u8(b, ']');
}

/* ---- A tree of runs ---------------------------------------------------------------------------------- */
struct node {
    const char *dir;
    struct audit *a;
    struct audit_region region; /* of the run above it; the first node has none */
    size_t above;
};
struct tree {
    struct node *v; /* a region stands behind the run above it */
    size_t count;
};

static void put_regions(const struct tree *t, struct buf *b) {
    buf_u8(b, '[');
    for (size_t i = 1; i < t->count; i++) {
        const struct audit_region *r = &t->v[i].region;
        bool first = true;
        if (i > 1) buf_u8(b, ',');
        buf_u8(b, '{');
        json_member_bool(b, &first, "good", r->good);
        json_member_text(b, &first, "name", r->name);
        json_member_text(b, &first, "dir", t->v[i].dir);
        json_member_text(b, &first, "above", t->v[t->v[i].above].dir);
        json_member_u64(b, &first, "head", r->head);
        json_member_u64(b, &first, "taken", r->taken);
        json_member_u64(b, &first, "contributions", r->contributions);
        json_member_u64(b, &first, "samples", r->samples);
        json_member_u64(b, &first, "ahead", r->ahead);
        json_member_u64(b, &first, "unheard", r->unheard);
        json_member_bool(b, &first, "behind", r->behind);
        json_key(b, &first, "sites");
        put_sites(t->v[i].a, b);
        buf_u8(b, '}');
    }
    buf_u8(b, ']');
}

static void print_regions(const struct tree *t) {
    for (size_t i = 1; i < t->count; i++) {
        const struct audit_region *r = &t->v[i].region;
        printf("%-12s %s (%s): %llu contributions merged above, %llu samples; has taken version "
               "%llu in; %llu positions ahead of it%s%s\n",
               "region", r->name, t->v[i].dir, (unsigned long long)r->contributions,
               (unsigned long long)r->samples, (unsigned long long)r->taken,
               (unsigned long long)r->ahead,
               r->unheard > 0 ? ", some of them taken back and not heard of yet" : "",
               r->behind ? "; the run above went back, not heard of yet" : "");
        const struct audit *a = t->v[i].a;
        for (uint64_t k = 0; k < a->findings_count && k < AUDIT_FINDINGS_MAX; k++)
            printf("problem      %s: %s\n", r->name, a->findings[k]);
    }
}

static void print_json(const struct audit *a, const struct tree *t,
                       const uint64_t counts[POS_STATES], bool all, bool good) {
    struct buf b;
    bool first = true;
    uint64_t sealed = 0;
    for (size_t i = 0; i < a->epochs_count; i++) sealed += a->epochs[i].sealed;
    buf_init(&b, 8 << 20);
    buf_u8(&b, '{');
    json_member_bool(&b, &first, "good", good);
    json_member_id(&b, &first, "run", &a->run);
    json_member_u64(&b, &first, "records", a->seq);
    json_member_hash(&b, &first, "chain", &a->chain);
    json_member_u64(&b, &first, "head", a->head);
    json_member_u64(&b, &first, "positions", a->positions * a->epochs_max);
    json_member_u64(&b, &first, "positions_opened", a->positions * a->epochs_count);
    json_member_u64(&b, &first, "epochs_opened", a->epochs_count);
    json_member_u64(&b, &first, "epochs_sealed", sealed);
    json_member_u64(&b, &first, "merged", counts[POS_MERGED]);
    json_member_u64(&b, &first, "skipped", counts[POS_SKIPPED]);
    json_member_u64(&b, &first, "staged", counts[POS_STAGED]);
    json_member_u64(&b, &first, "leased", counts[POS_LEASED]);
    json_member_u64(&b, &first, "available", counts[POS_AVAILABLE]);
    json_member_u64(&b, &first, "quarantined", counts[POS_QUARANTINED]);
    json_member_u64(&b, &first, "counted", a->counted);
    json_member_u64(&b, &first, "doubled", a->doubled);
    json_member_u64(&b, &first, "lost", a->lost);
    json_member_u64(&b, &first, "grants", a->grants);
    json_member_u64(&b, &first, "reclaimed", a->reclaimed);
    json_member_u64(&b, &first, "returned", a->returned);
    json_member_u64(&b, &first, "rejected", a->rejected);
    json_member_u64(&b, &first, "discarded", a->discarded);
    json_member_u64(&b, &first, "contributions", a->staged_ever);
    json_member_u64(&b, &first, "merges", a->merges);
    json_member_u64(&b, &first, "rollbacks", a->rollbacks);
    json_member_u64(&b, &first, "samples_granted", a->samples_granted);
    json_member_u64(&b, &first, "samples_reclaimed", a->samples_reclaimed);
    json_member_bool(&b, &first, "ledger_equal", a->ledger_equal);
    if (all) {
        json_member_u64(&b, &first, "blobs_checked", a->blobs_checked);
        json_member_u64(&b, &first, "blobs_missing", a->blobs_missing);
        json_member_u64(&b, &first, "blobs_bad", a->blobs_bad);
    }
    json_key(&b, &first, "sites");
    put_sites(a, &b);
    if (t->count > 1) {
        json_key(&b, &first, "regions");
        put_regions(t, &b);
    }
    json_member_u64(&b, &first, "findings", a->findings_count);
    json_key(&b, &first, "problems");
    buf_u8(&b, '[');
    for (uint64_t i = 0; i < a->findings_count && i < AUDIT_FINDINGS_MAX; i++) {
        if (i > 0) buf_u8(&b, ',');
        json_put_text(&b, a->findings[i]);
    }
    buf_u8(&b, ']');
    buf_u8(&b, '}');
    printf("%s\n", buf_cstr(&b));
    buf_fini(&b);
}

static void row(const char *name, uint64_t value) {
    printf("%-12s %llu\n", name, (unsigned long long)value);
}

static void print_text(const struct audit *a, const struct tree *t,
                       const uint64_t counts[POS_STATES], bool all, bool good) {
    char hex[HASH_HEX_BYTES];
    hash_hex(&a->chain, hex);
    row("records", a->seq);
    printf("%-12s %s\n", "chain", hex);
    row("head", a->head);
    row("positions", a->positions * a->epochs_max);
    row("merged", counts[POS_MERGED]);
    row("skipped", counts[POS_SKIPPED]);
    row("staged", counts[POS_STAGED]);
    row("leased", counts[POS_LEASED]);
    row("available", counts[POS_AVAILABLE] + a->positions * (a->epochs_max - a->epochs_count));
    row("quarantined", counts[POS_QUARANTINED]);
    row("doubled", a->doubled);
    row("lost", a->lost);
    row("rejected", a->rejected);
    row("reclaimed", a->reclaimed);
    if (all) {
        row("blobs", a->blobs_checked);
        row("blobs gone", a->blobs_missing);
        row("blobs bad", a->blobs_bad);
    }
    AUTO_FREE struct share *s = shares_of(a);
    for (size_t i = 0; i < a->sites_count; i++)
        printf("%-12s %s: %llu contributions merged, %llu samples\n", "site", a->sites[i].name,
               (unsigned long long)s[i].contributions, (unsigned long long)s[i].samples);
    print_regions(t);
    for (uint64_t i = 0; i < a->findings_count && i < AUDIT_FINDINGS_MAX; i++)
        printf("problem      %s\n", a->findings[i]);
    if (a->findings_count > AUDIT_FINDINGS_MAX)
        printf("problem      and %llu more\n",
               (unsigned long long)(a->findings_count - AUDIT_FINDINGS_MAX));
    printf("%s\n", good ? "good: nothing is doubled, nothing is lost" : "NOT good");
}

static enum brg_status read_one(struct node *n, bool blobs, struct err *e) {
    TRY(audit_journal(n->a, n->dir, e));
    audit_count(n->a);
    audit_files(n->a, n->dir, blobs);
    return BRG_OK;
}

/* The run above each, among those before it. */
static enum brg_status place(struct tree *t, size_t i, struct err *e) {
    struct node *n = &t->v[i];
    for (size_t k = 0; k < i; k++) {
        if (!id_equal(&t->v[k].a->run, &n->region.parent)) continue;
        n->above = k;
        return BRG_OK;
    }
    char hex[ID_HEX_BYTES];
    id_hex(&n->region.parent, hex);
    return err_set(e, BRG_E_CONFIG,
                   "%s: is a region of run %s, which is none of those before it on the line",
                   n->dir, hex);
}

/* From the bottom up: what a region's journal says was said by the run above before that is read. */
static enum brg_status tree_read(struct tree *t, bool blobs, struct err *e) {
    for (size_t i = t->count; i-- > 0;) {
        if (i > 0) TRY(audit_uplink(t->v[i].dir, &t->v[i].region, e));
        TRY(read_one(&t->v[i], blobs, e));
    }
    for (size_t i = t->count; i-- > 1;) {
        TRY(place(t, i, e));
        audit_region_check(t->v[t->v[i].above].a, t->v[i].a, &t->v[i].region);
    }
    return BRG_OK;
}

static int report(const struct tree *t, bool json, bool blobs) {
    const struct audit *a = t->v[0].a;
    uint64_t counts[POS_STATES];
    audit_counts(a, counts);
    bool good = a->findings_count == 0 && a->doubled == 0 && a->lost == 0;
    if (json)
        print_json(a, t, counts, blobs, good);
    else
        print_text(a, t, counts, blobs, good);
    if (good) return 0;
    fprintf(stderr,
            "beringia audit: %s: %llu positions doubled, %llu lost, %llu problems; keep the "
            "run directory as it is and see docs/operating.md\n",
            t->v[0].dir, (unsigned long long)a->doubled, (unsigned long long)a->lost,
            (unsigned long long)a->findings_count);
    return BRG_E_AUDIT;
}

static int audit_runs(char **dirs, size_t count, bool json, bool blobs) {
    struct err e = {0};
    struct tree t = {mem_alloc(count, sizeof *t.v), count};
    for (size_t i = 0; i < count; i++) {
        t.v[i].dir = dirs[i];
        t.v[i].a = mem_alloc(1, sizeof *t.v[i].a);
        audit_init(t.v[i].a);
    }
    int status = tree_read(&t, blobs, &e) == BRG_OK ? report(&t, json, blobs)
                                                    : cli_fail("audit", &e);
    for (size_t i = 0; i < count; i++) {
        audit_fini(t.v[i].a);
        mem_free(t.v[i].a);
    }
    mem_free(t.v);
    return status;
}

int cmd_audit(int argc, char **argv) {
    enum { OPT_JSON = 1, OPT_BLOBS, OPT_RECURSIVE, OPT_HELP };
    static const struct option options[] = {{"json", 0, NULL, OPT_JSON},
                                            {"blobs", 0, NULL, OPT_BLOBS},
                                            {"recursive", 0, NULL, OPT_RECURSIVE},
                                            {"help", 0, NULL, OPT_HELP},
                                            {NULL, 0, NULL, 0}};
    bool json = false, blobs = false, recursive = false;
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case OPT_JSON: json = true; break;
        case OPT_BLOBS: blobs = true; break;
        case OPT_RECURSIVE: recursive = true; break;
        case 'h':
        case OPT_HELP: fputs(HELP, stdout); return 0;
        default: return cli_bad_option("audit", argv);
        }
    }
    int runs = argc - optind;
    if (recursive && runs < 2)
        return cli_usage("audit", "--recursive wants RUN and the runs of its regions", "");
    if (!recursive && runs != 1) return cli_usage("audit", "want one RUN directory", "");
    return audit_runs(argv + optind, (size_t)runs, json, blobs);
}
