/* SPDX-License-Identifier: Apache-2.0 */
/* What Slurm prints: recorded answers of real clusters (test/slurm/fixtures, by test/slurm/record), and
 * lines of versions that are not at hand. BERINGIA_FIXTURES names another directory of recordings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../harness.h"
#include "base/os.h"
#include "place/slurm.h"

static struct place_reply reply(int rc, const char *out, const char *err) {
    return (struct place_reply){
        .rc = rc, .out = out, .err = err, .out_bytes = strlen(out), .err_bytes = strlen(err)};
}

/* The class of a recorded answer of this kind; the text that decided. */
static struct place_said judge(const char *kind, const struct place_reply *r) {
    struct place_said said = {.class_ = PLACE_STRANGE};
    struct place_jobs jobs = {.jobs = NULL};
    if (strcmp(kind, "probe") == 0) {
        struct place_estimate e;
        slurm_probe_parse(r, &e);
        said = e.said;
        if (said.class_ == PLACE_FINE) {
            assert_true(e.start_s > 1700000000);
            assert_true(e.processors > 0);
            assert_true(e.job > 0);
            assert_true(strncmp(e.nodes, "alder-n", 7) == 0 || strncmp(e.nodes, "fac", 3) == 0);
        }
    } else if (strcmp(kind, "submit") == 0) {
        struct place_submitted s;
        slurm_submit_parse(r, &s);
        said = s.said;
        assert_true((s.job > 0) == (said.class_ == PLACE_FINE));
    } else if (strcmp(kind, "queue") == 0) {
        slurm_queue_parse(r, &jobs);
        said = jobs.said;
    } else if (strcmp(kind, "history") == 0) {
        slurm_history_parse(r, &jobs);
        said = jobs.said;
    } else if (strcmp(kind, "job") == 0) {
        slurm_job_parse(r, &jobs);
        said = jobs.said;
        if (said.class_ == PLACE_FINE) assert_int_equal(jobs.count, 1);
    } else if (strcmp(kind, "cancel") == 0) {
        slurm_cancel_parse(r, &said);
    } else if (strcmp(kind, "config") == 0) {
        struct slurm_config c;
        slurm_config_parse(r, &c);
        said = c.said;
        if (said.class_ == PLACE_FINE) assert_true(c.min_job_age_s > 0);
    } else if (strcmp(kind, "version") == 0) {
        char line[64];
        uint32_t year, month;
        snprintf(line, sizeof line, "%.*s", (int)strcspn(r->out, "\n"), r->out);
        if (slurm_version_parse(line, &year, &month)) said.class_ = PLACE_FINE;
    }
    return said;
}

static void read_stream(const char *dir, const char *name, const char *end, struct buf *out) {
    char path[OS_PATH_MAX];
    struct err e = {0};
    os_path(path, dir, "%s.%s", name, end);
    buf_init(out, 1 << 20);
    if (os_read_file(path, 1 << 20, out, &e) != BRG_OK) printf("%s\n", e.text);
    (void)buf_cstr(out);
}

TEST(slurm_recorded_answers_have_the_class_of_their_situation) {
    const char *given = getenv("BERINGIA_FIXTURES");
    const char *dir = given != NULL ? given : "test/slurm/fixtures";
    char path[OS_PATH_MAX], line[4096];
    unsigned count = 0, wrong = 0;
    os_path(path, dir, "index.tsv");
    FILE *index = fopen(path, "r");
    assert_non_null(index);
    while (fgets(line, sizeof line, index) != NULL) {
        char name[128], kind[32], class_[32];
        int rc;
        if (sscanf(line, "%127[^\t]\t%31[^\t]\t%d\t%31[^\t]\t", name, kind, &rc, class_) != 4)
            continue;
        struct buf out, err;
        read_stream(dir, name, "out", &out);
        read_stream(dir, name, "err", &err);
        struct place_reply r = {.rc = rc,
                                .timed_out = rc == 124 && err.bytes_count + out.bytes_count == 0,
                                .out = (const char *)out.data,
                                .err = (const char *)err.data,
                                .out_bytes = out.bytes_count,
                                .err_bytes = err.bytes_count};
        struct place_said said = judge(kind, &r);
        count++;
        if (strcmp(place_class_name(said.class_), class_) != 0) {
            printf("%s: %s, expected %s: %s\n", name, place_class_name(said.class_), class_,
                   said.text);
            wrong++;
        }
        /* What is not fine is shown. */
        if (said.class_ != PLACE_FINE && strcmp(kind, "version") != 0)
            assert_true(said.text[0] != '\0');
        buf_fini(&out);
        buf_fini(&err);
    }
    fclose(index);
    printf("%u recordings, %u of another class\n", count, wrong);
    assert_int_equal(wrong, 0);
    assert_true(count >= 90 || given != NULL);
}

TEST(slurm_estimates_of_all_versions) {
    static const struct {
        const char *line;
        uint64_t job, processors;
        const char *nodes, *partition, *cluster;
    } lines[] = {
        {"sbatch: Job 6 to start at 1795953437 using 2 processors on n[1-2]", 6, 2, "n[1-2]", "",
         ""},
        {"sbatch: Job 6 to start at 1795953437 using 2 processors on nodes n[1-2]", 6, 2, "n[1-2]",
         "", ""},
        {"sbatch: Job 6 to start at 1795953437 using 2 processors on nodes n[1-2] in partition gpu",
         6, 2, "n[1-2]", "gpu", ""},
        {"sbatch: Job 6 to start at 1795953437 a using 2 processors on nodes n1 in partition gpu",
         6, 2, "n1", "gpu", ""},
        {"sbatch: Job 6 to start at 1795953437 on cluster frost a using 2 processors on nodes n1 "
         "in partition gpu",
         6, 2, "n1", "gpu", "frost"},
        {"srun: Job 67043327 to start at 2026-11-29T11:57:17 using 2 processors on nodes n1",
         67043327, 2, "n1", "", ""},
        {"sbatch: Job 6 to start at 2026-11-29T13:57:17+0200 using 2 processors on nodes n1", 6, 2,
         "n1", "", ""},
    };
    for (size_t i = 0; i < ARRAY_COUNT(lines); i++) {
        struct place_estimate e;
        char err[512];
        snprintf(err, sizeof err, "sbatch: Welcome\nsbatch: error: 3 hours left\n%s\n",
                 lines[i].line);
        struct place_reply r = reply(0, "", err);
        slurm_probe_parse(&r, &e);
        assert_int_equal(e.said.class_, PLACE_FINE);
        assert_int_equal(e.job, lines[i].job);
        assert_true(e.start_s == 1795953437);
        assert_int_equal(e.processors, lines[i].processors);
        assert_string_equal(e.nodes, lines[i].nodes);
        assert_string_equal(e.partition, lines[i].partition);
        assert_string_equal(e.cluster, lines[i].cluster);
    }
}

TEST(slurm_strange_estimates_are_shown_and_not_guessed) {
    static const char *const lines[] = {
        "sbatch: Job 6 to start at Tomorr 12:00 using 2 processors on nodes n1",
        "sbatch: Job 6 to start at 12:07:58 using 2 processors on nodes n1",
        "sbatch: Job x to start at 1795953437 using 2 processors on nodes n1",
        "sbatch: Job 6 to start at 1795953437 using many processors on nodes n1",
        "sbatch: Job 6 to start at 1795953437 on nodes n1",
        "sbatch: Job 6 to start at N/A using 2 processors on nodes n1",
        "sbatch: Job 6 to start at 1795953437.5 using 2 processors on nodes n1",
        "Die Aufgabe 6 beginnt um 1795953437",
        "",
    };
    for (size_t i = 0; i < ARRAY_COUNT(lines); i++) {
        struct place_estimate e;
        struct place_reply r = reply(0, "", lines[i]);
        slurm_probe_parse(&r, &e);
        assert_int_equal(e.said.class_, PLACE_STRANGE);
        assert_true(e.said.text[0] != '\0');
    }
    struct place_said said;
    struct place_reply r = reply(1, "", "sbatch: error: the moon is in the wrong house\n");
    slurm_cancel_parse(&r, &said);
    assert_int_equal(said.class_, PLACE_STRANGE);
    assert_string_equal(said.text, "sbatch: error: the moon is in the wrong house");
    r.timed_out = true;
    slurm_cancel_parse(&r, &said);
    assert_int_equal(said.class_, PLACE_AWAY);
}

TEST(slurm_submissions_are_read_past_banners) {
    static const struct {
        const char *out;
        uint64_t job;
        const char *cluster;
    } cases[] = {
        {"17\n", 17, ""},
        {"17;frost\n", 17, "frost"},
        {"Submitted batch job 17\n", 17, ""},
        {"Submitted batch job 17 on cluster frost\n", 17, "frost"},
        {"Welcome to frost\n\n2 news\n4000 hours left\n17\n", 17, ""},
        {"17 jobs are waiting\n", 0, ""},
        {"Submitted batch job\n", 0, ""},
        {"0\n", 0, ""},
        {"99999999999999999999999\n", 0, ""},
        {"", 0, ""},
    };
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct place_submitted s;
        struct place_reply r = reply(0, cases[i].out, "sbatch: Welcome\n");
        slurm_submit_parse(&r, &s);
        assert_int_equal(s.job, cases[i].job);
        assert_string_equal(s.cluster, cases[i].cluster);
        assert_int_equal(s.said.class_, cases[i].job > 0 ? PLACE_FINE : PLACE_STRANGE);
    }
}

TEST(slurm_queue_lines_keep_odd_names_and_refuse_odd_states) {
    struct place_job *jobs = mem_alloc(PLACE_JOBS_MAX, sizeof *jobs);
    struct place_jobs q = {.jobs = jobs};
    struct place_reply r = reply(
        0,
        "job|5|PENDING|Resources, and more|N/A|N/A|1795953437|10:00|2|gpu|odd|name with blanks\n"
        "line\n\nthat goes on|with bars\n"
        "job|6_[0-99]|PENDING|Priority|1795953500|1795954100|1795953437|1-00:00:00|1|gpu|a\n"
        "job|7+0|CANCELLED by 99|None|1795953437|1795953437|1795953437|UNLIMITED|1|gpu|\n",
        "");
    slurm_queue_parse(&r, &q);
    assert_int_equal(q.said.class_, PLACE_FINE);
    assert_int_equal(q.count, 3);
    assert_string_equal(jobs[0].name, "odd|name with blanks");
    assert_true(jobs[0].start_s == 0);
    assert_int_equal(jobs[0].limit_s, 600);
    assert_true(jobs[1].array);
    assert_int_equal(jobs[1].limit_s, 86400);
    assert_int_equal(jobs[2].state, PLACE_JOB_CANCELLED);
    assert_true(jobs[2].limit_s == UINT64_MAX);
    static const char *const bad[] = {
        "job|5|DREAMING|None|N/A|N/A|1795953437|10:00|2|gpu|a\n",
        "job|5|PENDING|None|soon|N/A|1795953437|10:00|2|gpu|a\n",
        "job|x|PENDING|None|N/A|N/A|1795953437|10:00|2|gpu|a\n",
        "job|5|PENDING|None|N/A|N/A|1795953437|10:00\n",
        "slurm_load_jobs error: something new\n",
    };
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        r = reply(0, bad[i], "");
        slurm_queue_parse(&r, &q);
        assert_int_equal(q.said.class_, PLACE_STRANGE);
        assert_int_equal(q.count, 0);
        assert_memory_equal(q.said.text, bad[i], strlen(bad[i]) - 1);
    }
    mem_free(jobs);
}

TEST(slurm_times_and_spans) {
    int64_t t = 1;
    assert_true(slurm_time_parse("1795953437", &t) && t == 1795953437);
    assert_true(slurm_time_parse("2026-11-29T11:57:17", &t) && t == 1795953437);
    assert_true(slurm_time_parse("2026-11-29T11:57:17Z", &t) && t == 1795953437);
    assert_true(slurm_time_parse("2026-11-29T06:57:17-05:00", &t) && t == 1795953437);
    assert_true(slurm_time_parse("2000-02-29T00:00:00", &t) && t == 951782400);
    assert_true(slurm_time_parse("Unknown", &t) && t == 0);
    assert_true(slurm_time_parse("None", &t) && t == 0);
    static const char *const bad[] = {
        "2026", "11:57:17",   "2026-13-01T00:00:00", "29 Nov 11:57", "2026-11-29 11:57:17",
        "-5",   "1795953437x"};
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) assert_false(slurm_time_parse(bad[i], &t));
    uint64_t s = 1;
    assert_true(slurm_span_parse("10", &s) && s == 600);
    assert_true(slurm_span_parse("10:30", &s) && s == 630);
    assert_true(slurm_span_parse("1:10:30", &s) && s == 4230);
    assert_true(slurm_span_parse("2-03", &s) && s == 183600);
    assert_true(slurm_span_parse("2-03:04:05", &s) && s == 183845);
    assert_true(slurm_span_parse("UNLIMITED", &s) && s == UINT64_MAX);
    assert_true(slurm_span_parse("Partition_Limit", &s) && s == 0);
    static const char *const bad_spans[] = {"1:2:3:4", "x", "1-", "-1", "1:"};
    for (size_t i = 0; i < ARRAY_COUNT(bad_spans); i++)
        assert_false(slurm_span_parse(bad_spans[i], &s));
}

TEST(slurm_reasons_that_never_clear_are_known) {
    assert_int_equal(slurm_reason_class("Priority"), SLURM_REASON_WAITS);
    assert_int_equal(slurm_reason_class("(Resources)"), SLURM_REASON_WAITS);
    assert_int_equal(slurm_reason_class("Dependency"), SLURM_REASON_WAITS);
    assert_int_equal(slurm_reason_class("DependencyNeverSatisfied"), SLURM_REASON_STUCK);
    assert_int_equal(slurm_reason_class("QOSMaxJobsPerUserLimit"), SLURM_REASON_LIMITED);
    assert_int_equal(slurm_reason_class("QOSMaxNodePerUserLimit"), SLURM_REASON_STUCK);
    assert_int_equal(slurm_reason_class("AssocGrpCPUMinutesLimit"), SLURM_REASON_STUCK);
    assert_int_equal(slurm_reason_class("ReqNodeNotAvail, UnavailableNodes:n[1-4]"),
                     SLURM_REASON_WAITS);
    assert_int_equal(slurm_reason_class("SomethingNew"), SLURM_REASON_STRANGE);
}

TEST(slurm_versions) {
    uint32_t y, m;
    assert_true(slurm_version_parse("slurm-wlm 22.05.8", &y, &m) && y == 22 && m == 5);
    assert_true(slurm_version_parse("slurm 23.02.1-1", &y, &m) && y == 23 && m == 2);
    assert_true(slurm_version_parse("slurm 25.11.0", &y, &m) && y == 25 && m == 11);
    assert_false(slurm_version_parse("pbs_version = 22.05.11", &y, &m));
    assert_false(slurm_version_parse("slurm 2x.05", &y, &m));
}
