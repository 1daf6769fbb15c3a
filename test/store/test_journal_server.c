/* SPDX-License-Identifier: Apache-2.0 */
/* A journal on a server: lost connections with either outcome, an older writer, names, and a journal that
 * is made whole before it has its name. What both kinds promise is in test_journal.c. */
#include "places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "store/store.h"

static enum brg_status append(struct journal *j, const char *text, struct err *e) {
    const struct record r = {.seq = journal_last_seq(j) + 1,
                             .kind = 7,
                             .body = (const uint8_t *)text,
                             .bytes = strlen(text)};
    return journal_append(j, &r, 1, e);
}

static void must(enum brg_status s, const struct err *e) {
    if (s != BRG_OK) fail_msg("%s", e->text);
}

struct texts {
    char all[512];
};
static enum brg_status see(void *user, const struct record *r, struct err *e) {
    struct texts *t = user;
    size_t n = strlen(t->all);
    (void)e;
    (void)snprintf(t->all + n, sizeof t->all - n, "%.*s ", (int)r->bytes, (const char *)r->body);
    return BRG_OK;
}

static void holds(struct journal *j, const char *want) {
    struct texts t = {.all = ""};
    struct err e = {0};
    must(journal_replay(j, 0, see, &t, &e), &e);
    assert_string_equal(t.all, want);
}

static enum journal_outcome come_back(struct journal *j) {
    enum journal_outcome out = JOURNAL_NO_DOUBT;
    struct err e = {0};
    enum brg_status s = BRG_E_NET;
    for (int i = 0; i < 200 && (s == BRG_E_NET || s == BRG_E_BUSY); i++) {
        s = journal_again(j, &out, &e);
        if (s != BRG_OK) usleep(50 * 1000);
    }
    must(s, &e);
    return out;
}

/* The asking is lost: nothing was done. The answer is lost: all was. Both look the same at first. */
TEST(journal_J2_a_lost_commit_is_looked_up_and_never_repeated) {
    char name[PLACE_BYTES], through[PLACE_BYTES];
    struct journal *j;
    struct err e = {0};
    place_name(PLACE_SERVER, "lost", name);
    must(journal_open(name, true, &j, &e), &e);
    journal_close(j);
    struct relay *r = relay_start(name, through);
    must(journal_open(through, false, &j, &e), &e);
    relay_arm(r, RELAY_CUT_ASKING); /* its first write, which raises the fence too */
    assert_int_equal(append(j, "a", &e), BRG_E_NET);
    assert_int_equal(come_back(j), JOURNAL_ABSENT);
    assert_int_equal(journal_last_seq(j), 0);
    relay_arm(r, RELAY_CUT_ANSWER);
    assert_int_equal(append(j, "a", &e), BRG_E_NET);
    assert_int_equal(come_back(j), JOURNAL_COMMITTED);
    assert_int_equal(journal_last_seq(j), 1);
    must(append(j, "b", &e), &e);
    relay_arm(r, RELAY_CUT_ANSWER);
    assert_int_equal(append(j, "c", &e), BRG_E_NET);
    assert_int_equal(append(j, "d", &e), BRG_E_NET); /* not before it is looked up */
    assert_int_equal(come_back(j), JOURNAL_COMMITTED);
    relay_arm(r, RELAY_CUT_ASKING);
    assert_int_equal(append(j, "e", &e), BRG_E_NET);
    assert_int_equal(come_back(j), JOURNAL_ABSENT);
    must(append(j, "f", &e), &e);
    holds(j, "a b c f ");
    journal_close(j);
    relay_stop(r);
}

TEST(journal_an_idle_connection_that_is_lost_is_noticed_and_comes_back) {
    char name[PLACE_BYTES], through[PLACE_BYTES];
    struct journal *j;
    struct err e = {0};
    place_name(PLACE_SERVER, "idle", name);
    must(journal_open(name, true, &j, &e), &e);
    journal_close(j);
    struct relay *r = relay_start(name, through);
    must(journal_open(through, false, &j, &e), &e);
    assert_true(journal_keep_ns(j) > 0);
    must(append(j, "a", &e), &e);
    must(journal_keep(j, &e), &e);
    relay_arm(r, RELAY_CUT_ASKING);
    assert_int_equal(journal_keep(j, &e), BRG_E_NET);
    assert_int_equal(come_back(j), JOURNAL_NO_DOUBT);
    must(append(j, "b", &e), &e);
    holds(j, "a b ");
    journal_close(j);
    relay_stop(r);
}

static const char SESSIONS[] =
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name || '.' = "
    "'beringia/@' AND pid <> pg_backend_pid()";

/* Another hub came while this one's session was gone: its next transaction fails, whatever it writes. */
TEST(journal_J3_an_older_writer_of_a_server_is_fenced) {
    char name[PLACE_BYTES];
    struct journal *old, *new;
    enum journal_outcome out;
    struct err e = {0};
    place_name(PLACE_SERVER, "fence", name);
    must(journal_open(name, true, &old, &e), &e);
    must(append(old, "a", &e), &e);
    assert_true(place_count(PLACE_SERVER, name, SESSIONS) >= 1);
    must(journal_open(name, false, &new, &e), &e);
    assert_int_equal(append(old, "lost", &e), BRG_E_NET);
    assert_int_equal(journal_again(old, &out, &e), BRG_E_BUSY); /* the new one has not written */
    must(append(new, "b", &e), &e);
    assert_int_equal(journal_again(old, &out, &e), BRG_E_FENCED);
    assert_non_null(strstr(e.text, "another hub"));
    must(append(new, "c", &e), &e);
    holds(new, "a b c ");
    journal_close(old);
    journal_close(new);
}

/* The lock is got round; what remains is the fence, in every statement that writes. */
TEST(journal_J3_the_fence_is_compared_in_every_transaction) {
    char name[PLACE_BYTES];
    struct journal *j;
    struct err e = {0};
    place_name(PLACE_SERVER, "every", name);
    must(journal_open(name, true, &j, &e), &e);
    must(append(j, "a", &e), &e);
    must(journal_snapshot_put(j, 1, "x", 1, &e), &e);
    place_tamper(PLACE_SERVER, name, "UPDATE @meta SET value = '9-other' WHERE name = 'fence'");
    assert_int_equal(append(j, "b", &e), BRG_E_FENCED);
    assert_int_equal(journal_snapshot_put(j, 1, "y", 1, &e), BRG_E_FENCED);
    assert_int_equal(journal_keep(j, &e), BRG_E_FENCED);
    assert_int_equal(place_count(PLACE_SERVER, name, "SELECT count(*) FROM @journal"), 1);
    journal_close(j);
    must(journal_open(name, false, &j, &e), &e); /* the next process reads it and goes on */
    place_tamper(PLACE_SERVER, name, "UPDATE @meta SET value = '10-other' WHERE name = 'fence'");
    assert_int_equal(append(j, "b", &e), BRG_E_FENCED); /* it has read too early */
    journal_close(j);
}

/* A server that forgot what it acknowledged (a replica that was behind) is not built upon. */
TEST(journal_J2_a_server_that_lost_acknowledged_records_is_refused) {
    char name[PLACE_BYTES];
    struct journal *j;
    enum journal_outcome out;
    struct err e = {0};
    place_name(PLACE_SERVER, "behind", name);
    must(journal_open(name, true, &j, &e), &e);
    must(append(j, "a", &e), &e);
    must(append(j, "b", &e), &e);
    (void)place_count(PLACE_SERVER, name, SESSIONS);
    place_tamper(PLACE_SERVER, name, "DELETE FROM @journal WHERE seq = 2");
    assert_int_equal(journal_keep(j, &e), BRG_E_NET);
    assert_int_equal(journal_again(j, &out, &e), BRG_E_JOURNAL);
    assert_non_null(strstr(e.text, "acknowledged"));
    journal_close(j);
}

TEST(journal_a_reader_follows_and_leads_when_the_writer_is_gone) {
    char name[PLACE_BYTES];
    struct journal *writer, *reader;
    struct texts t = {.all = ""};
    struct err e = {0};
    place_name(PLACE_SERVER, "follow", name);
    must(journal_open(name, true, &writer, &e), &e);
    must(append(writer, "a", &e), &e);
    must(journal_open_reader(name, &reader, &e), &e);
    assert_int_equal(journal_last_seq(reader), 1);
    must(append(writer, "b", &e), &e);
    must(append(writer, "c", &e), &e);
    holds(reader, "a "); /* what was there when it came; the writer may be ahead */
    must(journal_follow(reader, see, &t, &e), &e);
    assert_string_equal(t.all, "b c ");
    holds(reader, "a b c ");
    assert_int_equal(journal_lead(reader, &e), BRG_E_BUSY);
    must(append(writer, "d", &e), &e);
    journal_close(writer);
    enum brg_status s = BRG_E_BUSY; /* the server ends the session when it sees the end of file */
    for (int i = 0; i < 3000 && s == BRG_E_BUSY; i++) {
        s = journal_lead(reader, &e);
        if (s == BRG_E_BUSY) usleep(20 * 1000);
    }
    must(s, &e);
    must(journal_follow(reader, see, &t, &e), &e);
    assert_string_equal(t.all, "b c d ");
    must(append(reader, "e", &e), &e);
    holds(reader, "a b c d e ");
    journal_close(reader);
}

/* ---- Names --------------------------------------------------------------------------------------- */
TEST(journal_names_with_a_password_are_refused_and_not_repeated) {
    static const char *const names[] = {
        "postgresql://hub:SESAME@db.example/runs", "postgres://hub@db.example/runs?password=SESAME",
        "postgresql://hub@db.example/runs?p%61ssword=SESAME&schema=a",
        "postgresql://hub:SESAME@[::1/runs"};
    (void)place_name(PLACE_SERVER, "x", (char[PLACE_BYTES]){0}); /* wants libpq */
    for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
        struct journal *j = NULL;
        struct err e = {0};
        assert_int_equal(journal_open(names[i], false, &j, &e), BRG_E_CONFIG);
        assert_null(strstr(e.text, "SESAME"));
        assert_null(strstr(e.text, "\n"));
    }
}

TEST(journal_names_that_lead_nowhere_say_so) {
    char name[PLACE_BYTES], bad[PLACE_BYTES + 64];
    struct journal *j = NULL;
    struct err e = {0};
    place_name(PLACE_SERVER, "none", name);
    assert_int_equal(journal_open(name, false, &j, &e), BRG_E_MISSING);
    assert_non_null(strstr(e.text, "schema"));
    must(journal_open(name, true, &j, &e), &e);
    journal_close(j);
    assert_int_equal(journal_open(name, true, &j, &e), BRG_E_EXISTS);
    (void)snprintf(bad, sizeof bad, "%s;drop", name);
    assert_int_equal(journal_open(bad, false, &j, &e), BRG_E_CONFIG);
    (void)snprintf(bad, sizeof bad, "postgresql://hub@/runs?host=%s", test_dir());
    assert_int_equal(journal_open(bad, false, &j, &e), BRG_E_NET);
    assert_null(strstr(e.text, "\n"));
    place_tamper(PLACE_SERVER, name, "UPDATE @meta SET value = '2' WHERE name = 'format'");
    assert_int_equal(journal_open(name, false, &j, &e), BRG_E_JOURNAL);
    assert_non_null(strstr(e.text, "format"));
}

TEST(journal_where_reads_one_line) {
    char name[JOURNAL_NAME_MAX], path[OS_PATH_MAX];
    struct err e = {0};
    must(journal_where(test_dir(), name, &e), &e);
    assert_non_null(strstr(name, "/journal.db"));
    must(journal_where_set(test_dir(), "postgresql://hub@db/runs?schema=a", &e), &e);
    must(journal_where(test_dir(), name, &e), &e);
    assert_string_equal(name, "postgresql://hub@db/runs?schema=a");
    os_path(path, test_dir(), "journal.url");
    must(os_write_file_atomic(path, "postgresql://a\npostgresql://b\n", 30, &e), &e);
    assert_int_equal(journal_where(test_dir(), name, &e), BRG_E_CONFIG);
    must(os_write_file_atomic(path, "mysql://a\n", 10, &e), &e);
    assert_int_equal(journal_where(test_dir(), name, &e), BRG_E_CONFIG);
    must(journal_where_set(test_dir(), "anything else", &e), &e);
    assert_false(os_exists(path));
}

TEST(journal_a_file_can_not_be_followed) {
    struct journal *j = NULL;
    struct err e = {0};
    char path[OS_PATH_MAX];
    assert_int_equal(journal_open_reader(os_path(path, test_dir(), "x.db"), &j, &e), BRG_E_CONFIG);
    assert_non_null(strstr(e.text, "migrate"));
}

/* ---- Made whole, then named ---------------------------------------------------------------------- */
EACH(journal_that_is_made_has_its_name_at_the_end) {
    char name[PLACE_BYTES];
    struct journal *j;
    struct err e = {0};
    place_name(at, "made", name);
    must(journal_make(name, &j, &e), &e);
    must(append(j, "a", &e), &e);
    journal_close(j); /* a crash: nothing has the name, and the next try begins anew */
    assert_int_equal(journal_open(name, false, &j, &e), BRG_E_MISSING);
    must(journal_make(name, &j, &e), &e);
    must(append(j, "b", &e), &e);
    must(journal_publish(j, name, &e), &e);
    must(journal_open(name, false, &j, &e), &e);
    holds(j, "b ");
    journal_close(j);
    must(journal_retire(name, &e), &e);
    assert_int_equal(journal_open(name, false, &j, &e), BRG_E_MISSING);
    must(journal_make(name, &j, &e), &e);
    must(journal_publish(j, name, &e), &e);
    must(journal_retire(name, &e), &e); /* in the place of the older one */
}

TEST(journal_that_is_made_takes_no_name_that_is_taken_postgres) {
    char name[PLACE_BYTES];
    struct journal *j;
    struct err e = {0};
    place_name(PLACE_SERVER, "taken", name);
    must(journal_open(name, true, &j, &e), &e);
    journal_close(j);
    must(journal_make(name, &j, &e), &e);
    assert_int_equal(journal_publish(j, name, &e), BRG_E_EXISTS);
}
