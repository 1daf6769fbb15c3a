/* SPDX-License-Identifier: Apache-2.0 */
/* slurm.c - the answers of sbatch, squeue, sacct, scancel and scontrol, each to its struct. */
#include "place/slurm.h"

#include <stdio.h>
#include <string.h>

#include "place/slurm_words.h"

/* ---- sbatch --test-only ------------------------------------------------------------------------ */

/* Cuts the piece before `mark` off *p; false where there is none. */
static bool piece(const char **p, const char *mark, char *out, size_t cap) {
    const char *at = strstr(*p, mark);
    if (at == NULL) return false;
    slurm_copy(out, cap, *p, (size_t)(at - *p));
    *p = at + strlen(mark);
    return true;
}

/* "TIME", "TIME a", "TIME on cluster NAME a" (25.05 on prints both): the time into *out. */
static bool start_parse(char *text, struct place_estimate *out) {
    size_t n = strlen(text);
    if (n > 2 && strcmp(text + n - 2, " a") == 0) text[n - 2] = '\0';
    char *cluster = strstr(text, " on cluster ");
    if (cluster != NULL) {
        *cluster = '\0';
        cluster += strlen(" on cluster ");
        slurm_copy(out->cluster, sizeof out->cluster, cluster, strlen(cluster));
    }
    return slurm_time_parse(text, &out->start_s) && out->start_s > 0;
}

/*   PROGRAM: Job 6 to start at TIME using 2 processors on [nodes ]LIST[ in partition NAME]
 * *out is changed where the line is such a one; false in *out_good where a part is not understood. */
static bool estimate_line(const char *line, struct place_estimate *out, bool *out_good) {
    char word[SLURM_LINE_MAX], time[SLURM_LINE_MAX], count[64];
    const char *p = strstr(line, "Job ");
    if (p == NULL || strstr(p, " to start at ") == NULL) return false;
    p += strlen("Job ");
    struct place_estimate e = {.said = {.class_ = PLACE_FINE}};
    bool array = false;
    *out_good = piece(&p, " to start at ", word, sizeof word) &&
                slurm_id_parse(word, &e.job, &array) && piece(&p, " using ", time, sizeof time) &&
                start_parse(time, &e) && piece(&p, " processors on ", count, sizeof count) &&
                parse_u64(count, &e.processors);
    e.hetjob = strncmp(p, "nodes ", 6) != 0;
    if (!e.hetjob) p += 6;
    const char *in = strstr(p, " in partition ");
    slurm_copy(e.nodes, sizeof e.nodes, p, in != NULL ? (size_t)(in - p) : strlen(p));
    if (in != NULL) {
        in += strlen(" in partition ");
        slurm_copy(e.partition, sizeof e.partition, in, strlen(in));
    }
    slurm_copy(e.said.text, sizeof e.said.text, line, strlen(line));
    *out = e;
    return true;
}

void slurm_probe_parse(const struct place_reply *r, struct place_estimate *out) {
    char line[SLURM_LINE_MAX];
    bool found = false, good = false;
    memset(out, 0, sizeof *out);
    if (r->timed_out || r->rc != 0) {
        slurm_judge(r, &out->said);
        return;
    }
    struct slurm_lines l = slurm_lines_of(r->err, r->err_bytes);
    while (slurm_line_next(&l, line)) {
        if (estimate_line(line, out, &good)) found = true;
        if (found && strstr(line, " Preempts: ") != NULL) out->preempts = true;
    }
    if (!found)
        slurm_say(&out->said, PLACE_STRANGE, "success, and no estimate");
    else if (!good)
        out->said.class_ = PLACE_STRANGE; /* the line is in the text */
}

/* ---- sbatch ------------------------------------------------------------------------------------- */

void slurm_submit_parse(const struct place_reply *r, struct place_submitted *out) {
    static const char sentence[] = "Submitted batch job ";
    char line[SLURM_LINE_MAX];
    memset(out, 0, sizeof *out);
    if (r->timed_out || r->rc != 0) {
        slurm_judge(r, &out->said);
        return;
    }
    slurm_say(&out->said, PLACE_STRANGE, "success, and no job id");
    struct slurm_lines l = slurm_lines_of(r->out, r->out_bytes);
    while (slurm_line_next(&l, line)) {
        const char *p =
            strncmp(line, sentence, sizeof sentence - 1) == 0 ? line + sizeof sentence - 1 : line;
        bool array = false, sentenced = p != line;
        char id[SLURM_LINE_MAX];
        const char *rest = p;
        slurm_copy(id, sizeof id, p, strcspn(p, " ;"));
        rest += strlen(id);
        if (!slurm_id_parse(id, &out->job, &array)) continue;
        const char *cluster = NULL;
        if (*rest == ';')
            cluster = rest + 1;
        else if (sentenced && strncmp(rest, " on cluster ", 12) == 0)
            cluster = rest + 12;
        else if (*rest != '\0')
            continue; /* a banner that begins with a number */
        if (cluster != NULL)
            slurm_copy(out->cluster, sizeof out->cluster, cluster, strlen(cluster));
        slurm_say(&out->said, PLACE_FINE, line);
    }
    if (out->said.class_ != PLACE_FINE) out->job = 0;
}

void slurm_cancel_parse(const struct place_reply *r, struct place_said *out) {
    memset(out, 0, sizeof *out);
    if (!r->timed_out && r->rc == 0) return;
    slurm_judge(r, out);
    static const char *const over[] = {"Job/step already completing", "Invalid job id specified",
                                       "Job is already complete"};
    for (size_t i = 0; i < ARRAY_COUNT(over); i++)
        if (strstr(out->text, over[i]) != NULL) out->class_ = PLACE_FINE;
}

/* ---- squeue and sacct --------------------------------------------------------------------------- */

/* Cuts `line` at '|' into count fields; the last one keeps what is left. */
static bool fields_cut(char *line, char **out, size_t count) {
    for (size_t i = 0; i + 1 < count; i++) {
        out[i] = line;
        char *bar = strchr(line, '|');
        if (bar == NULL) return false;
        *bar = '\0';
        line = bar + 1;
    }
    out[count - 1] = line;
    return true;
}

static bool u32_of(const char *text, uint32_t *out) {
    uint64_t v;
    if (!parse_u64(text, &v) || v > UINT32_MAX) return false;
    *out = (uint32_t)v;
    return true;
}

static bool queue_line(char *line, struct place_job *j) {
    char *f[10];
    if (!fields_cut(line + strlen(SLURM_QUEUE_MARK), f, ARRAY_COUNT(f))) return false;
    if (!slurm_id_parse(f[0], &j->id, &j->array) || !slurm_state_parse(f[1], &j->state))
        return false;
    if (!slurm_time_parse(f[3], &j->start_s) || !slurm_time_parse(f[4], &j->end_s) ||
        !slurm_time_parse(f[5], &j->submit_s) || !slurm_span_parse(f[6], &j->limit_s) ||
        !u32_of(f[7], &j->nodes))
        return false;
    slurm_copy(j->reason, sizeof j->reason, f[2], strlen(f[2]));
    slurm_copy(j->name, sizeof j->name, f[9], strlen(f[9]));
    return true;
}

/* "0:15": exit status and signal. */
static bool exit_parse(const char *text, uint32_t *out) {
    char status[24];
    size_t n = strcspn(text, ":");
    uint32_t sig = 0;
    slurm_copy(status, sizeof status, text, n);
    if (text[n] != ':' || !u32_of(status, out) || !u32_of(text + n + 1, &sig)) return false;
    if (sig != 0) *out = 128 + sig;
    return true;
}

static bool history_line(char *line, struct place_job *j) {
    char *f[8];
    if (!fields_cut(line, f, ARRAY_COUNT(f))) return false;
    if (!slurm_id_parse(f[0], &j->id, &j->array) || !slurm_state_parse(f[1], &j->state))
        return false;
    if (!exit_parse(f[2], &j->exit_code) || !slurm_time_parse(f[3], &j->submit_s) ||
        !slurm_time_parse(f[4], &j->start_s) || !slurm_time_parse(f[5], &j->end_s) ||
        !u32_of(f[6], &j->nodes))
        return false;
    slurm_copy(j->name, sizeof j->name, f[7], strlen(f[7]));
    return true;
}

static void jobs_parse(const struct place_reply *r, struct place_jobs *out, const char *mark,
                       bool (*read)(char *line, struct place_job *j)) {
    char line[SLURM_LINE_MAX], shown[SLURM_LINE_MAX];
    out->count = 0;
    memset(&out->said, 0, sizeof out->said);
    if (r->timed_out || r->rc != 0) {
        slurm_judge(r, &out->said);
        return;
    }
    struct slurm_lines l = slurm_lines_of(r->out, r->out_bytes);
    while (slurm_line_next(&l, line)) {
        struct place_job j = {0};
        bool marked = strncmp(line, mark, strlen(mark)) == 0;
        if (line[0] == '\0' || (!marked && out->count > 0)) continue;
        if (line[strcspn(line, ".|= ")] == '.') continue; /* a step of a job, not a job */
        slurm_copy(shown, sizeof shown, line, strlen(line));
        bool good = marked && read(line, &j);
        if (good && out->count < PLACE_JOBS_MAX) {
            if (out->jobs != NULL) out->jobs[out->count] = j;
            out->count++;
            continue;
        }
        slurm_say(&out->said, PLACE_STRANGE, good ? "more jobs than can be looked at" : shown);
        out->count = 0;
        return;
    }
}

void slurm_queue_parse(const struct place_reply *r, struct place_jobs *out) {
    jobs_parse(r, out, SLURM_QUEUE_MARK, queue_line);
}

void slurm_history_parse(const struct place_reply *r, struct place_jobs *out) {
    jobs_parse(r, out, "", history_line);
}

/* ---- scontrol ----------------------------------------------------------------------------------- */

/* The value of " NAME=" in a line of NAME=VALUE pairs; values here hold no blanks. */
static bool value_of(const char *line, const char *name, char *out, size_t cap) {
    size_t n = strlen(name);
    for (const char *p = line; (p = strstr(p, name)) != NULL; p += n) {
        if ((p != line && p[-1] != ' ') || p[n] != '=') continue;
        slurm_copy(out, cap, p + n + 1, strcspn(p + n + 1, " "));
        return true;
    }
    return false;
}

static bool scontrol_line(char *line, struct place_job *j) {
    char id[32], state[48], submit[48], start[48], end[48], limit[48], nodes[32];
    if (!value_of(line, "JobId", id, sizeof id) ||
        !value_of(line, "JobState", state, sizeof state) ||
        !value_of(line, "SubmitTime", submit, sizeof submit) ||
        !value_of(line, "StartTime", start, sizeof start) ||
        !value_of(line, "EndTime", end, sizeof end) ||
        !value_of(line, "TimeLimit", limit, sizeof limit) ||
        !value_of(line, "JobName", j->name, sizeof j->name) ||
        !value_of(line, "NumNodes", nodes, sizeof nodes))
        return false;
    (void)value_of(line, "Reason", j->reason, sizeof j->reason);
    nodes[strcspn(nodes, "-")] = '\0'; /* "1-2" of a pending job: at least */
    return slurm_id_parse(id, &j->id, &j->array) && slurm_state_parse(state, &j->state) &&
           slurm_time_parse(submit, &j->submit_s) && slurm_time_parse(start, &j->start_s) &&
           slurm_time_parse(end, &j->end_s) && slurm_span_parse(limit, &j->limit_s) &&
           u32_of(nodes, &j->nodes);
}

void slurm_job_parse(const struct place_reply *r, struct place_jobs *out) {
    jobs_parse(r, out, "", scontrol_line);
}

/* "MinJobAge               = 300 sec" */
static bool config_value(const char *line, const char *name, char *out, size_t cap) {
    size_t n = strlen(name);
    if (strncmp(line, name, n) != 0 || (line[n] != ' ' && line[n] != '=')) return false;
    const char *p = line + n;
    while (*p == ' ') p++;
    if (*p++ != '=') return false;
    while (*p == ' ') p++;
    slurm_copy(out, cap, p, strlen(p));
    return true;
}

static uint64_t seconds_of(const char *text) {
    char number[24];
    uint64_t v = 0;
    slurm_copy(number, sizeof number, text, strcspn(text, " "));
    return parse_u64(number, &v) ? v : 0;
}

void slurm_config_parse(const struct place_reply *r, struct slurm_config *out) {
    char line[SLURM_LINE_MAX], v[256];
    memset(out, 0, sizeof *out);
    if (r->timed_out || r->rc != 0) {
        slurm_judge(r, &out->said);
        return;
    }
    bool any = false;
    struct slurm_lines l = slurm_lines_of(r->out, r->out_bytes);
    while (slurm_line_next(&l, line)) {
        if (config_value(line, "MinJobAge", v, sizeof v)) out->min_job_age_s = seconds_of(v);
        if (config_value(line, "MessageTimeout", v, sizeof v))
            out->message_timeout_s = seconds_of(v);
        if (config_value(line, "SLURM_VERSION", v, sizeof v))
            slurm_copy(out->version, sizeof out->version, v, strlen(v));
        if (config_value(line, "ClusterName", v, sizeof v)) {
            slurm_copy(out->cluster, sizeof out->cluster, v, strlen(v));
            any = true;
        }
        if (config_value(line, "AccountingStorageType", v, sizeof v))
            out->accounting = strcmp(v, "accounting_storage/slurmdbd") == 0;
    }
    if (!any) slurm_say(&out->said, PLACE_STRANGE, "a configuration without ClusterName");
}

bool slurm_version_parse(const char *text, uint32_t *out_year, uint32_t *out_month) {
    const char *p = strchr(text, ' ');
    unsigned year = 0, month = 0;
    int used = 0;
    if (strncmp(text, "slurm", 5) != 0 || p == NULL) return false;
    if (sscanf(p + 1, "%2u.%2u%n", &year, &month, &used) != 2 || used < 4) return false;
    if (p[1 + used] != '.' && p[1 + used] != '\0') return false;
    if (year < 2 || month < 1 || month > 12) return false;
    *out_year = year;
    *out_month = month;
    return true;
}
