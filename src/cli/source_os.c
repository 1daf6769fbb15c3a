/* SPDX-License-Identifier: Apache-2.0 */
/* source_os.c - finds a version of a run on the disk.
 *
 * The head is not always the newest file of RUN/versions: after a rollback newer ones stay there for a
 * while, and just after a merge the name may not be made yet. So the journal is asked, and the blob is
 * taken where the name is missing. */
#include <dirent.h>
#include <fcntl.h>
#include <string.h>

#include "cli/audit.h"
#include "cli/source.h"

static enum brg_status newest_version(const char *versions, uint64_t *out, struct err *e) {
    DIR *d = opendir(versions);
    bool found = false;
    uint64_t best = 0;
    if (!d) return err_set(e, BRG_E_MISSING, "%s: the directory cannot be read", versions);
    for (const struct dirent *x; (x = readdir(d)) != NULL;) {
        char name[32];
        uint64_t v;
        const char *end = strstr(x->d_name, ".safetensors");
        if (!end || strcmp(end, ".safetensors") != 0) continue;
        size_t digits = (size_t)(end - x->d_name);
        if (digits == 0 || digits >= sizeof name) continue;
        memcpy(name, x->d_name, digits);
        name[digits] = '\0';
        if (!parse_u64(name, &v)) continue;
        if (!found || v > best) best = v;
        found = true;
    }
    closedir(d);
    if (!found) return err_set(e, BRG_E_MISSING, "%s: no version is there yet", versions);
    *out = best;
    return BRG_OK;
}

/* The path of a version's blob; the version itself where the head is wanted. */
static enum brg_status blob_of(struct audit *a, bool head, struct model_source *out,
                               struct err *e) {
    char hex[HASH_HEX_BYTES];
    TRY(audit_journal(a, out->dir, e));
    if (head) out->version = a->head;
    const struct audit_version *v = audit_version_find(a, out->version);
    if (v == NULL)
        return err_set(e, BRG_E_MISSING, "%s: the run has no version %llu; see beringia status",
                       out->dir, (unsigned long long)out->version);
    hash_hex(&v->checkpoint, hex);
    os_path(out->weights, out->dir, "blobs/%.2s/%s", hex, hex);
    return BRG_OK;
}

static enum brg_status ask_journal(bool head, struct model_source *out, struct err *e) {
    struct audit *a = mem_alloc(1, sizeof *a);
    audit_init(a);
    enum brg_status s = blob_of(a, head, out, e);
    audit_fini(a);
    mem_free(a);
    return s;
}

static enum brg_status find_version(const char *version, struct model_source *out, struct err *e) {
    char path[OS_PATH_MAX];
    bool head = version == NULL || strcmp(version, "head") == 0;
    bool journal = os_exists(os_path(path, out->dir, "journal.db")) ||
                   os_exists(os_path(path, out->dir, "journal.url"));
    if (!head && !parse_u64(version, &out->version))
        return err_set(e, BRG_E_USAGE, "--version %.40s: want a number, or head", version);
    if (head && journal) TRY(ask_journal(true, out, e));
    if (head && !journal)
        TRY(newest_version(os_path(path, out->dir, "versions"), &out->version, e));
    os_path(path, out->dir, "versions/%llu.safetensors", (unsigned long long)out->version);
    if (!head && journal && !os_exists(path)) TRY(ask_journal(false, out, e));
    if (out->weights[0] == '\0' || os_exists(path)) memcpy(out->weights, path, sizeof path);
    if (!os_exists(out->weights))
        return err_set(e, BRG_E_MISSING,
                       "%s: version %llu is not kept; %s/versions has those that are", out->dir,
                       (unsigned long long)out->version, out->dir);
    return BRG_OK;
}

enum brg_status cli_model_source(const char *dir, const char *version, struct model_source *out,
                                 struct err *e) {
    char path[OS_PATH_MAX];
    memset(out, 0, sizeof *out);
    if (strlen(dir) >= sizeof out->dir - 256)
        return err_set(e, BRG_E_USAGE, "%.100s...: the path is too long", dir);
    memcpy(out->dir, dir, strlen(dir) + 1);
    out->run = os_exists(os_path(path, dir, "versions"));
    if (!out->run) {
        if (version != NULL)
            return err_set(e, BRG_E_USAGE,
                           "%s is not a run (it has no versions/): leave --version out", dir);
        os_path(out->config, dir, "config.json");
        memcpy(out->weights, out->dir, sizeof out->weights);
        return BRG_OK;
    }
    os_path(out->config, dir, "model.json");
    return find_version(version, out, e);
}

/* ---- The mean of the weights ------------------------------------------------------------------------ */
static enum brg_status ema_open(const struct model_source *s, struct checkpoint *out,
                                struct err *e) {
    if (!s->run)
        return err_set(e, BRG_E_USAGE, "%s is not a run (it has no versions/): leave --ema out",
                       s->dir);
    TRY(checkpoint_open(s->weights, out, e));
    if (out->ema_offset > 0) return BRG_OK;
    checkpoint_fini(out);
    return err_set(e, BRG_E_MISSING,
                   "%s: has no mean of the weights (outer.ema); set outer.ema in run.yaml for the "
                   "versions to come",
                   s->weights);
}

enum brg_status cli_ema_load(const struct model_source *s, uint64_t parameters, float *theta,
                             struct err *e) {
    struct checkpoint c;
    memset(&c, 0, sizeof c);
    TRY(ema_open(s, &c, e));
    uint64_t at = c.ema_offset, elements = c.elements;
    checkpoint_fini(&c);
    if (elements != parameters)
        return err_set(e, BRG_E_CHECKPOINT, "%s: is of another model", s->weights);
    AUTO_CLOSE int fd = open(s->weights, O_RDONLY | O_CLOEXEC);
    return os_pread_all(fd, theta, elements * sizeof *theta, at, s->weights, e);
}

/* The set's hash of theta is not that of the mean: it goes. */
enum brg_status cli_ema_set(const struct model_source *s, struct tensor_set *set, struct err *e) {
    struct checkpoint c;
    memset(&c, 0, sizeof c);
    TRY(ema_open(s, &c, e));
    uint64_t shift = c.ema_offset - c.theta_offset;
    checkpoint_fini(&c);
    CHECK(set->files_count == 1);
    struct tensors *t = &set->files[0].table;
    for (size_t i = 0; i < t->count; i++)
        if (!checkpoint_own_tensor(t->v[i].name)) t->v[i].offset += shift;
    buf_reset(&t->meta);
    buf_put(&t->meta, "{}", 2);
    return BRG_OK;
}
