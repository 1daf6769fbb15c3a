/* SPDX-License-Identifier: Apache-2.0 */
/* slurm_words.c - the sentences, words, times and numbers of Slurm's commands.
 *
 * A refusal is told by one of a few hundred sentences on standard error, behind prefixes that differ
 * between commands and versions ("sbatch: error: ", "allocation failure: "), and between lines that
 * plugins of the facility print. So the sentences are looked for anywhere in a line, and the last line
 * that has one decides: a cause stands last. */
#include <stdio.h>
#include <string.h>

#include "place/slurm_words.h"

/* ---- Lines ------------------------------------------------------------------------------------- */

struct slurm_lines slurm_lines_of(const char *text, size_t n) {
    return (struct slurm_lines){text, text == NULL ? NULL : text + n};
}

bool slurm_line_next(struct slurm_lines *l, char out[SLURM_LINE_MAX]) {
    if (l->p == NULL || l->p >= l->end) return false;
    size_t n = 0;
    while (l->p < l->end && *l->p != '\n') {
        unsigned char c = (unsigned char)*l->p++;
        if (n + 1 < SLURM_LINE_MAX) out[n++] = c < 0x20 || c > 0x7e ? '?' : (char)c;
    }
    if (l->p < l->end) l->p++;
    while (n > 0 && (out[n - 1] == ' ' || out[n - 1] == '?')) n--; /* also a carriage return */
    out[n] = '\0';
    return true;
}

void slurm_copy(char *out, size_t cap, const char *text, size_t n) {
    if (n >= cap) n = cap - 1;
    memcpy(out, text, n);
    out[n] = '\0';
}

void slurm_say(struct place_said *said, enum place_class c, const char *text) {
    said->class_ = c;
    slurm_copy(said->text, sizeof said->text, text, strlen(text));
}

/* ---- Sentences --------------------------------------------------------------------------------- */

static const struct sentence {
    const char *words;
    enum place_class class_;
} sentences[] = {
    /* The request can never be met. */
    {"Node count specification invalid", PLACE_NEVER},
    {"More processors requested than permitted", PLACE_NEVER},
    {"Requested time limit is invalid", PLACE_NEVER},
    {"Requested partition configuration not available", PLACE_NEVER},
    {"Invalid feature specification", PLACE_NEVER},
    {"Invalid license specification", PLACE_NEVER},
    {"Invalid generic resource (gres) specification", PLACE_NEVER},
    {"Invalid partition name specified", PLACE_NEVER},
    {"invalid partition specified", PLACE_NEVER},
    {"Invalid node name specified", PLACE_NEVER},
    {"Invalid job array specification", PLACE_NEVER},
    {"Invalid Trackable RESource (TRES) specification", PLACE_NEVER},
    {"Memory required by task is not available", PLACE_NEVER},
    {"Requested reservation is invalid", PLACE_NEVER},
    {"Job dependency problem", PLACE_NEVER},
    {"Requested operation not supported on this system", PLACE_NEVER},
    {"QOSMaxWallDurationPerJobLimit", PLACE_NEVER},
    {"AssocMaxWallDurationPerJobLimit", PLACE_NEVER},
    {"MaxNodePerUserLimit", PLACE_NEVER},
    {"MaxNodePerJob", PLACE_NEVER},
    {"MaxCpuPerUserLimit", PLACE_NEVER},
    {"MaxCpuPerJobLimit", PLACE_NEVER},
    {"MaxGRESPer", PLACE_NEVER},
    {"MaxMemoryPer", PLACE_NEVER},
    {"QOSMinCpuNotSatisfied", PLACE_NEVER},
    {"QOSMinGRES", PLACE_NEVER},
    /* One sentence for never, not now and not yet: it is asked again. */
    {"Requested node configuration is not available", PLACE_NOT_NOW},
    {"Requested nodes are busy", PLACE_NOT_NOW},
    {"Required node not available (down, drained or reserved)", PLACE_NOT_NOW},
    {"Required partition not available (inactive or drain)", PLACE_NOT_NOW},
    {"Node is not available", PLACE_NOT_NOW},
    {"Requested reservation not usable now", PLACE_NOT_NOW},
    {"Reservation is inactive", PLACE_NOT_NOW},
    /* Not for this user. */
    {"Invalid account or account/partition combination specified", PLACE_DENIED},
    {"Invalid qos specification", PLACE_DENIED},
    {"Invalid qos, account", PLACE_DENIED},
    {"User's group not permitted to use this partition", PLACE_DENIED},
    {"group not permitted to use this partition", PLACE_DENIED},
    {"account not permitted to use this partition", PLACE_DENIED},
    {"Access/permission denied", PLACE_DENIED},
    {"Access denied to requested reservation", PLACE_DENIED},
    {"Invalid user id", PLACE_DENIED},
    {"Permission denied", PLACE_DENIED},
    {"Job is not permitted", PLACE_DENIED},
    {"Allocating node not permitted", PLACE_DENIED},
    {"user not allowed", PLACE_DENIED},
    /* Limits of this user that free themselves. */
    {"MaxSubmitJob", PLACE_LIMIT},
    {"MaxJobsPer", PLACE_LIMIT},
    {"Job violates accounting/QOS policy", PLACE_LIMIT},
    {"Job violates accounting policy", PLACE_LIMIT},
    {"job submit limit", PLACE_LIMIT},
    /* The scheduler takes no more just now. */
    {"Resource temporarily unavailable", PLACE_BUSY},
    {"Slurm temporarily unable to accept job", PLACE_BUSY},
    {"Slurm controller is busy", PLACE_BUSY},
    {"Too many jobs", PLACE_BUSY},
    {"Job/step already completing", PLACE_BUSY},
    {"Rate limited", PLACE_BUSY},
    {"RPC rate limit", PLACE_BUSY},
    {"Requests are rate limited", PLACE_BUSY},
    /* It did not answer, or not us. */
    {"Socket timed out", PLACE_AWAY},
    {"Unable to contact slurm controller", PLACE_AWAY},
    {"Unable to contact slurmdbd", PLACE_AWAY},
    {"Zero Bytes were transmitted or received", PLACE_AWAY},
    {"Protocol authentication error", PLACE_AWAY},
    {"Munge encode failed", PLACE_AWAY},
    {"Munge decode failed", PLACE_AWAY},
    {"authentication error", PLACE_AWAY},
    {"Authentication credential", PLACE_AWAY},
    {"Slurm backup controller in standby mode", PLACE_AWAY},
    {"backup controller", PLACE_AWAY},
    {"Communication connection failure", PLACE_AWAY},
    {"Communication shutdown failure", PLACE_AWAY},
    {"Message receive failure", PLACE_AWAY},
    {"Message send failure", PLACE_AWAY},
    {"Header lengths are longer than data received", PLACE_AWAY},
    {"Incompatible versions of client and server", PLACE_AWAY},
    {"Connection refused", PLACE_AWAY},
    {"Connection timed out", PLACE_AWAY},
    {"Connection reset by peer", PLACE_AWAY},
    {"Broken pipe", PLACE_AWAY},
    {"No route to host", PLACE_AWAY},
    {"Network is unreachable", PLACE_AWAY},
    {"Transport endpoint is not connected", PLACE_AWAY},
    {"Problem talking to the database", PLACE_AWAY},
    {"Problem talking to database", PLACE_AWAY},
    {"can't be reached now", PLACE_AWAY},
    {"Sending PersistInit msg", PLACE_AWAY},
    {"is DOWN", PLACE_AWAY},
    /* Ours to mend. */
    {"Could not establish a configuration source", PLACE_OURS},
    {"Unable to open file", PLACE_OURS},
    {"Batch script is empty", PLACE_OURS},
    {"Batch script contains DOS line breaks", PLACE_OURS},
    {"instead of expected UNIX line breaks", PLACE_OURS},
    {"This does not look like a batch script", PLACE_OURS},
    {"For instance: #!", PLACE_OURS},
    {"contain a NULL character", PLACE_OURS},
    {"getcwd failed", PLACE_OURS},
    {"Pathname of a file, directory or other parameter too long", PLACE_OURS},
    {"Script arguments not permitted with --wrap", PLACE_OURS},
    {"unrecognized option", PLACE_OURS},
    {"invalid option", PLACE_OURS},
    {"Invalid --", PLACE_OURS},
    {"Invalid time specification", PLACE_OURS},
    {"is not a valid", PLACE_OURS},
    {"Unable to process configuration file", PLACE_OURS},
    {"command not found", PLACE_OURS},
    {"--help\" for more information", PLACE_OURS},
    /* Absent here. */
    {"Slurm accounting storage is disabled", PLACE_ABSENT},
    {"Invalid job id specified", PLACE_ABSENT}, /* forgotten, or never there */
    {"accounting_storage/none", PLACE_ABSENT},
    {"Slurm job completion is not configured", PLACE_ABSENT},
};

static const struct sentence *sentence_find(const char *line) {
    for (size_t i = 0; i < ARRAY_COUNT(sentences); i++)
        if (strstr(line, sentences[i].words) != NULL) return &sentences[i];
    return NULL;
}

/* The policy sentence does not say which limit: a line before it does. */
static void judge_policy(const struct place_reply *r, struct place_said *said) {
    char line[SLURM_LINE_MAX];
    struct slurm_lines l = slurm_lines_of(r->err, r->err_bytes);
    if (strstr(said->text, "Job violates accounting") == NULL) return;
    while (slurm_line_next(&l, line)) {
        const struct sentence *s = sentence_find(line);
        if (s == NULL || strstr(line, "Job violates accounting") != NULL) continue;
        if (s->class_ == PLACE_NEVER || s->class_ == PLACE_LIMIT) slurm_say(said, s->class_, line);
    }
}

/* The last line of both streams that has a sentence; where none has, the last line at all. */
static bool judge_lines(const char *text, size_t n, struct place_said *said, char *last) {
    char line[SLURM_LINE_MAX];
    struct slurm_lines l = slurm_lines_of(text, n);
    bool known = false;
    while (slurm_line_next(&l, line)) {
        const struct sentence *s = sentence_find(line);
        if (line[0] != '\0') slurm_copy(last, PLACE_TEXT_MAX, line, strlen(line));
        if (s == NULL) continue;
        slurm_say(said, s->class_, line);
        known = true;
    }
    return known;
}

void slurm_judge(const struct place_reply *r, struct place_said *said) {
    char last[PLACE_TEXT_MAX] = "";
    if (r->timed_out) {
        slurm_say(said, PLACE_AWAY, "no answer before our own deadline");
        return;
    }
    bool known = judge_lines(r->out, r->out_bytes, said, last);
    known = judge_lines(r->err, r->err_bytes, said, last) || known;
    if (known) {
        judge_policy(r, said);
        return;
    }
    /* 255, and what SLURM_EXIT_ERROR may make of it, is a command line that was not understood. */
    slurm_say(said, r->rc == 255 || r->rc == 127 || r->rc == 126 ? PLACE_OURS : PLACE_STRANGE,
              last[0] != '\0' ? last : "no word at all");
}

/* ---- Words ------------------------------------------------------------------------------------- */

bool slurm_state_parse(const char *word, enum place_state *out) {
    static const struct {
        const char *word;
        enum place_state state;
    } states[] = {
        {"PENDING", PLACE_JOB_PENDING},       {"REQUEUED", PLACE_JOB_PENDING},
        {"REQUEUE_HOLD", PLACE_JOB_PENDING},  {"REQUEUE_FED", PLACE_JOB_PENDING},
        {"SPECIAL_EXIT", PLACE_JOB_PENDING},  {"RESV_DEL_HOLD", PLACE_JOB_PENDING},
        {"RUNNING", PLACE_JOB_RUNNING},       {"CONFIGURING", PLACE_JOB_RUNNING},
        {"COMPLETING", PLACE_JOB_RUNNING},    {"RESIZING", PLACE_JOB_RUNNING},
        {"SIGNALING", PLACE_JOB_RUNNING},     {"STAGE_OUT", PLACE_JOB_RUNNING},
        {"POWER_UP_NODE", PLACE_JOB_RUNNING}, {"UPDATE_DB", PLACE_JOB_RUNNING},
        {"LAUNCH_FAILED", PLACE_JOB_FAILED},  {"RECONFIG_FAIL", PLACE_JOB_FAILED},
        {"SUSPENDED", PLACE_JOB_SUSPENDED},   {"STOPPED", PLACE_JOB_SUSPENDED},
        {"COMPLETED", PLACE_JOB_DONE},        {"FAILED", PLACE_JOB_FAILED},
        {"NODE_FAIL", PLACE_JOB_FAILED},      {"BOOT_FAIL", PLACE_JOB_FAILED},
        {"OUT_OF_MEMORY", PLACE_JOB_FAILED},  {"TIMEOUT", PLACE_JOB_TIMEOUT},
        {"DEADLINE", PLACE_JOB_TIMEOUT},      {"CANCELLED", PLACE_JOB_CANCELLED},
        {"REVOKED", PLACE_JOB_CANCELLED},     {"PREEMPTED", PLACE_JOB_PREEMPTED},
        {"EXPEDITING", PLACE_JOB_PENDING},
    };
    size_t n = strcspn(word, " +");
    for (size_t i = 0; i < ARRAY_COUNT(states); i++) {
        if (strlen(states[i].word) != n || strncmp(states[i].word, word, n) != 0) continue;
        *out = states[i].state;
        return true;
    }
    return false;
}

static bool digits(const char **p, uint64_t *out) {
    uint64_t v = 0;
    const char *begin = *p;
    for (; **p >= '0' && **p <= '9'; (*p)++) {
        if (v > (UINT64_MAX - 9) / 10) return false;
        v = v * 10 + (uint64_t)(**p - '0');
    }
    *out = v;
    return *p > begin;
}

bool slurm_id_parse(const char *word, uint64_t *out, bool *out_array) {
    const char *p = word;
    uint64_t v;
    if (!digits(&p, &v) || v == 0) return false;
    *out_array = *p == '_' && p[1] == '[';
    bool good = *p == '\0' || *p == ';' || ((*p == '_' || *p == '+') && p[1] != '\0');
    if (good) *out = v;
    return good;
}

enum slurm_reason slurm_reason_class(const char *reason) {
    static const struct {
        const char *begins;
        enum slurm_reason class_;
    } table[] = {
        {"None", SLURM_REASON_WAITS},
        {"Priority", SLURM_REASON_WAITS},
        {"Resources", SLURM_REASON_WAITS},
        {"BeginTime", SLURM_REASON_WAITS},
        {"Dependency", SLURM_REASON_WAITS},
        {"Licenses", SLURM_REASON_WAITS},
        {"Cleaning", SLURM_REASON_WAITS},
        {"Prolog", SLURM_REASON_WAITS},
        {"Reservation", SLURM_REASON_WAITS},
        {"ReqNodeNotAvail", SLURM_REASON_WAITS},
        {"Nodes required for job are DOWN", SLURM_REASON_WAITS},
        {"NodeDown", SLURM_REASON_WAITS},
        {"PartitionDown", SLURM_REASON_WAITS},
        {"PartitionInactive", SLURM_REASON_WAITS},
        {"FrontEndDown", SLURM_REASON_WAITS},
        {"JobArrayTaskLimit", SLURM_REASON_LIMITED},
        {"QOSMaxJobs", SLURM_REASON_LIMITED},
        {"QOSMaxSubmit", SLURM_REASON_LIMITED},
        {"QOSGrp", SLURM_REASON_LIMITED},
        {"AssocMaxJobs", SLURM_REASON_LIMITED},
        {"AssocGrpCPUMinutesLimit", SLURM_REASON_STUCK},
        {"AssocGrpCPURunMinutesLimit", SLURM_REASON_LIMITED},
        {"AssocGrpBillingMinutes", SLURM_REASON_STUCK},
        {"AssocGrp", SLURM_REASON_LIMITED},
        {"MaxJobsPerUser", SLURM_REASON_LIMITED},
        {"PartitionTimeLimit", SLURM_REASON_STUCK},
        {"PartitionNodeLimit", SLURM_REASON_STUCK},
        {"PartitionConfig", SLURM_REASON_STUCK},
        {"TimeLimit", SLURM_REASON_STUCK},
        {"QOSMax", SLURM_REASON_STUCK}, /* nodes, CPUs, time of one job or user */
        {"QOSMin", SLURM_REASON_STUCK},
        {"QOSTimeLimit", SLURM_REASON_STUCK},
        {"QOSNotAllowed", SLURM_REASON_STUCK},
        {"QOSUsageThreshold", SLURM_REASON_STUCK},
        {"AssocMax", SLURM_REASON_STUCK},
        {"AccountNotAllowed", SLURM_REASON_STUCK},
        {"AccountingPolicy", SLURM_REASON_STUCK},
        {"InvalidAccount", SLURM_REASON_STUCK},
        {"InvalidQOS", SLURM_REASON_STUCK},
        {"BadConstraints", SLURM_REASON_STUCK},
        {"DependencyNeverSatisfied", SLURM_REASON_STUCK},
        {"JobHeld", SLURM_REASON_STUCK},
        {"job requeued in held state", SLURM_REASON_STUCK},
        {"JobHoldMaxRequeue", SLURM_REASON_STUCK},
        {"launch failed requeued held", SLURM_REASON_STUCK},
        {"JobLaunchFailure", SLURM_REASON_STUCK},
        {"SystemFailure", SLURM_REASON_STUCK},
    };
    const char *r = reason;
    size_t best = 0;
    enum slurm_reason found = SLURM_REASON_STRANGE;
    if (*r == '(') r++;
    for (size_t i = 0; i < ARRAY_COUNT(table); i++) {
        size_t n = strlen(table[i].begins);
        if (n <= best || strncmp(r, table[i].begins, n) != 0) continue;
        best = n; /* the longest: DependencyNeverSatisfied is no Dependency */
        found = table[i].class_;
    }
    return found;
}

/* ---- Times ------------------------------------------------------------------------------------- */

static bool is_unknown(const char *t) {
    static const char *const words[] = {"N/A",     "Unknown", "None",    "NONE", "(null)",
                                        "INVALID", "",        "NOT_SET", "n/a",  "Partition_Limit"};
    for (size_t i = 0; i < ARRAY_COUNT(words); i++)
        if (strcmp(t, words[i]) == 0) return true;
    return false;
}

/* Days since 1970 of a proleptic Gregorian date (Howard Hinnant, days_from_civil). */
static int64_t days_of(int64_t y, int64_t m, int64_t d) {
    y -= m <= 2;
    int64_t era = y / 400, yoe = y - era * 400;
    int64_t doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

static bool two(const char **p, int64_t *out) {
    const char *s = *p;
    if (s[0] < '0' || s[0] > '9' || s[1] < '0' || s[1] > '9') return false;
    *out = (s[0] - '0') * 10 + (s[1] - '0');
    *p += 2;
    return true;
}

static bool mark(const char **p, char c) {
    if (**p != c) return false;
    (*p)++;
    return true;
}

/* "", "Z", "+0200", "-05:30": seconds east. */
static bool zone_parse(const char *p, int64_t *out) {
    int64_t h, m = 0;
    *out = 0;
    if (*p == '\0' || strcmp(p, "Z") == 0) return true;
    char sign = *p++;
    if (sign != '+' && sign != '-') return false;
    if (!two(&p, &h)) return false;
    if (*p == ':') p++;
    if (*p != '\0' && !two(&p, &m)) return false;
    if (*p != '\0' || h > 14 || m > 59) return false;
    *out = (h * 3600 + m * 60) * (sign == '-' ? -1 : 1);
    return true;
}

bool slurm_time_parse(const char *text, int64_t *out_s) {
    const char *p = text;
    uint64_t v;
    if (is_unknown(text)) {
        *out_s = 0;
        return true;
    }
    /* Seconds since 1970: ten digits since 2001; four digits would be a year. */
    if (digits(&p, &v) && *p == '\0' && (v == 0 || (v >= 100000000 && v < (1ull << 40)))) {
        *out_s = (int64_t)v;
        return true;
    }
    p = text;
    int64_t c, y, mo, d, h, mi, s, east;
    if (!two(&p, &c) || !two(&p, &y) || !mark(&p, '-') || !two(&p, &mo) || !mark(&p, '-') ||
        !two(&p, &d) || !mark(&p, 'T') || !two(&p, &h) || !mark(&p, ':') || !two(&p, &mi) ||
        !mark(&p, ':') || !two(&p, &s) || !zone_parse(p, &east))
        return false;
    if (c < 19 || mo < 1 || mo > 12 || d < 1 || d > 31 || h > 23 || mi > 59 || s > 60) return false;
    *out_s = days_of(c * 100 + y, mo, d) * 86400 + h * 3600 + mi * 60 + s - east;
    return true;
}

bool slurm_span_parse(const char *text, uint64_t *out_s) {
    const char *p = text;
    uint64_t v[3], days = 0;
    int count = 0;
    if (strcmp(text, "UNLIMITED") == 0 || strcmp(text, "infinite") == 0) {
        *out_s = UINT64_MAX;
        return true;
    }
    if (is_unknown(text)) {
        *out_s = 0;
        return true;
    }
    bool has_days = strchr(text, '-') != NULL;
    if (has_days && (!digits(&p, &days) || !mark(&p, '-') || days > 100000)) return false;
    do {
        if (count == 3 || !digits(&p, &v[count]) || v[count] > 100000000) return false;
        count++;
    } while (mark(&p, ':'));
    if (*p != '\0') return false;
    /* minutes; minutes:seconds; hours:minutes:seconds; and behind days: hours first. */
    static const uint64_t plain[3][3] = {{60, 0, 0}, {60, 1, 0}, {3600, 60, 1}};
    static const uint64_t behind[3][3] = {{3600, 0, 0}, {3600, 60, 0}, {3600, 60, 1}};
    uint64_t sum = days * 86400;
    for (int i = 0; i < count; i++)
        sum += v[i] * (has_days ? behind[count - 1][i] : plain[count - 1][i]);
    *out_s = sum;
    return true;
}
