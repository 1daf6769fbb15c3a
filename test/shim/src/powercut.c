/* SPDX-License-Identifier: Apache-2.0 */
/* powercut.c - puts files into a state that a power cut could have left.
 *
 *   powercut LOG [--keep P] [--seed N] [--ext4] [--verbose]
 *
 * Reads the log of faultfs.so after the program was killed, and takes back, newest first, what no
 * fsync made durable: writes and truncates whose file was not synced, names whose directory was not
 * synced. Then the log is emptied: the program may be started again.
 *   --keep P   each write that was not synced survives with chance P, in sectors, so that some are
 *              torn; names survive up to one random moment, as in an ordered metadata journal
 *   --ext4     fsync of a new file makes its name durable too, as most file systems do
 *
 * An inode is known by its number; where it is now follows from the renames in the log, which are
 * walked backwards with it. */
#include "undo.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SECTOR_BYTES = 512, PATH_BYTES_MAX = 4096 };

struct record {
    struct undo_head head;
    const unsigned char *path, *path2, *data;
    int durable;  /* a sync that came later covers it */
    int survives; /* not durable, yet on the disk by chance */
};

struct file { /* one inode */
    uint64_t inode;
    char *path; /* where it is at this point of the walk; NULL: nowhere */
    int touched;
    uint64_t size;
};

static struct record *records;
static size_t records_count;
static struct file *files;
static size_t files_count, files_room;
static uint64_t rng = 88172645463325252u;
static int verbose, ext4;
static unsigned long undone, kept;

static double chance(void) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (double)(rng >> 11) / 9007199254740992.0;
}

static void *must(void *p) {
    if (p == NULL) {
        perror("powercut");
        exit(2);
    }
    return p;
}

/* Open addressing; the table is sized for all records before the first use. */
static struct file *file_of(uint64_t inode) {
    size_t at = (size_t)(inode * 11400714819323198485u) & (files_room - 1);
    while (files[at].inode != 0 && files[at].inode != inode) at = (at + 1) & (files_room - 1);
    if (files[at].inode == 0) files_count++;
    files[at].inode = inode;
    return &files[at];
}

static void put_path(struct file *f, const unsigned char *path, size_t bytes) {
    free(f->path);
    f->path = must(strndup((const char *)path, bytes));
}

/* ---- What the log says --------------------------------------------------------------------- */

static void records_read(const char *name) {
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        perror(name);
        exit(2);
    }
    size_t bytes = (size_t)st.st_size;
    if (bytes == 0) exit(0);
    const unsigned char *log = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (log == MAP_FAILED) must(NULL);
    size_t room = 0;
    for (size_t at = 0; at + sizeof(struct undo_head) <= bytes;) {
        struct record r = {0};
        memcpy(&r.head, log + at, sizeof(r.head));
        if (r.head.magic != UNDO_MAGIC) {
            fprintf(stderr, "powercut: no record at byte %zu of %s\n", at, name);
            exit(2);
        }
        at += sizeof(r.head);
        /* A last record cut short by the kill: its call was never made. */
        if (r.head.data_bytes > bytes ||
            at + r.head.path_bytes + r.head.path2_bytes + r.head.data_bytes > bytes)
            break;
        r.path = log + at;
        r.path2 = r.path + r.head.path_bytes;
        r.data = r.path2 + r.head.path2_bytes;
        at += r.head.path_bytes + r.head.path2_bytes + r.head.data_bytes;
        if (records_count == room) {
            room = room == 0 ? 1024 : 2 * room;
            records = must(realloc(records, room * sizeof(*records)));
        }
        records[records_count++] = r;
    }
    close(fd);
}

static int is_name(const struct record *r) {
    return r->head.kind == UNDO_CREATE || r->head.kind == UNDO_REMOVE ||
           r->head.kind == UNDO_RENAME;
}

static int is_bytes(const struct record *r) {
    return r->head.kind == UNDO_WRITE || r->head.kind == UNDO_TRUNCATE;
}

/* From the newest to the oldest, remembering which inodes were synced since: linear in the log. */
static void mark_durable(void) {
    enum { BYTES_SYNCED = 1, DIR_SYNCED = 2 };
    int all = 0;
    for (size_t i = records_count; i-- > 0;) {
        struct record *r = &records[i];
        if (r->head.kind == UNDO_SYNC_ALL) all = 1;
        if (r->head.kind == UNDO_SYNC) file_of(r->head.inode)->touched |= BYTES_SYNCED;
        if (r->head.kind == UNDO_SYNC_DIR) file_of(r->head.inode)->touched |= DIR_SYNCED;
        if (all) {
            r->durable = 1;
        } else if (is_bytes(r)) {
            r->durable = (file_of(r->head.inode)->touched & BYTES_SYNCED) != 0;
        } else if (is_name(r)) {
            r->durable =
                (file_of(r->head.dir)->touched & file_of(r->head.dir2)->touched & DIR_SYNCED) != 0;
            if (ext4 && r->head.kind == UNDO_CREATE &&
                (file_of(r->head.inode)->touched & BYTES_SYNCED) != 0)
                r->durable = 1;
        }
    }
    for (size_t i = 0; i < files_room; i++) files[i].touched = 0;
}

/* Chooses what survives by chance, and follows where each inode ends up and how long it is. */
static void choose(double keep) {
    size_t names = 0, cut = 0;
    for (size_t i = 0; i < records_count; i++) names += is_name(&records[i]) && !records[i].durable;
    if (keep > 0) cut = (size_t)(chance() * (double)(names + 1));
    names = 0;
    for (size_t i = 0; i < records_count; i++) {
        struct record *r = &records[i];
        struct file *f = file_of(r->head.inode);
        if (is_name(r)) {
            if (!r->durable) r->survives = names++ < cut;
            if (r->head.kind == UNDO_RENAME ||
                (r->head.kind == UNDO_REMOVE && r->head.path2_bytes > 0)) {
                put_path(f, r->path2, r->head.path2_bytes);
            } else if (r->head.kind == UNDO_CREATE) {
                put_path(f, r->path, r->head.path_bytes);
            }
            /* What the rename replaced lives on under its second name. */
            if (r->head.kind == UNDO_RENAME && r->head.data_bytes > 0) {
                char name[PATH_BYTES_MAX];
                struct stat st;
                snprintf(name, sizeof(name), "%.*s", (int)r->head.data_bytes,
                         (const char *)r->data);
                if (lstat(name, &st) == 0)
                    put_path(file_of((uint64_t)st.st_ino), r->data, r->head.data_bytes);
            }
        } else if (is_bytes(r)) {
            if (f->path == NULL) put_path(f, r->path, r->head.path_bytes);
            if (r->durable) continue;
            if (!f->touched) f->size = r->head.old_size;
            f->touched = 1;
            r->survives = chance() < keep;
            if (!r->survives) continue;
            uint64_t end = r->head.offset + r->head.length;
            if (r->head.kind == UNDO_TRUNCATE)
                f->size = r->head.offset;
            else if (end > f->size)
                f->size = end;
        }
    }
}

/* ---- Taking back --------------------------------------------------------------------------- */

static void text_of(char out[PATH_BYTES_MAX], const unsigned char *text, uint64_t bytes) {
    snprintf(out, PATH_BYTES_MAX, "%.*s", (int)bytes, (const char *)text);
}

static void say(const char *what, const char *a, const char *b) {
    if (verbose) printf("%s %s %s\n", what, a, b);
}

/* The old bytes again; what was beyond the old end becomes zeros until the size is cut. A write
 * that survives loses a part of its sectors now and then: a torn write. */
static void bytes_undo(const struct record *r, const struct file *f) {
    if (f->path == NULL) return;
    int fd = open(f->path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    static const unsigned char zeros[SECTOR_BYTES];
    uint64_t end = r->head.offset +
                   (r->head.kind == UNDO_WRITE ? r->head.length : r->head.data_bytes);
    int torn = r->survives && r->head.kind == UNDO_WRITE && chance() < 0.25;
    if (!r->survives || torn) {
        for (uint64_t at = r->head.offset; at < end;) {
            uint64_t next = (at / SECTOR_BYTES + 1) * SECTOR_BYTES;
            if (next > end) next = end;
            uint64_t from = at - r->head.offset;
            uint64_t old = from < r->head.data_bytes ? r->head.data_bytes - from : 0;
            size_t n = (size_t)(next - at < old ? next - at : old);
            ssize_t done = 0;
            if (!torn || chance() < 0.5) {
                if (n > 0) done = pwrite(fd, r->data + from, n, (off_t)at);
                if (done >= 0 && n < next - at)
                    done = pwrite(fd, zeros, (size_t)(next - at) - n, (off_t)(at + n));
            }
            if (done < 0) perror(f->path);
            at = next;
        }
    }
    close(fd);
    if (r->survives)
        kept++;
    else
        undone++;
    say(torn ? "torn" : r->survives ? "kept" : "bytes", f->path, "");
}

static void name_undo(const struct record *r, struct file *f) {
    char path[PATH_BYTES_MAX], path2[PATH_BYTES_MAX], data[PATH_BYTES_MAX];
    text_of(path, r->path, r->head.path_bytes);
    text_of(path2, r->path2, r->head.path2_bytes);
    text_of(data, r->data, r->head.data_bytes);
    int rc = 0;
    if (r->head.kind == UNDO_CREATE) {
        rc = remove(path);
        free(f->path);
        f->path = NULL;
        if (path2[0] != '\0') put_path(f, r->path2, r->head.path2_bytes);
    } else if (r->head.kind == UNDO_RENAME) {
        rc = rename(path2, path);
        put_path(f, r->path, r->head.path_bytes);
        struct stat st;
        if (data[0] != '\0' && lstat(data, &st) == 0) {
            rc |= link(data, path2);
            put_path(file_of((uint64_t)st.st_ino), r->path2, r->head.path2_bytes);
        }
    } else {
        rc = path2[0] != '\0' ? link(path2, path) : mkdir(path, 0700);
        put_path(f, r->path, r->head.path_bytes);
    }
    if (rc != 0 && errno != ENOENT && errno != EEXIST) perror(path);
    undone++;
    say("name", path, path2);
}

static void walk_back(void) {
    for (size_t i = records_count; i-- > 0;) {
        struct record *r = &records[i];
        struct file *f = file_of(r->head.inode);
        if (is_bytes(r) && !r->durable) {
            bytes_undo(r, f);
        } else if (is_name(r)) {
            if (!r->durable && !r->survives) name_undo(r, f);
            /* A name that stays keeps its inode where it is: older writes find it there. */
        }
    }
    for (size_t i = 0; i < files_room; i++) {
        if (files[i].touched && files[i].path != NULL &&
            truncate(files[i].path, (off_t)files[i].size) != 0 && errno != ENOENT) {
            perror(files[i].path);
        }
    }
}

/* The second names have served. */
static void clean(const char *log) {
    for (size_t i = 0; i < records_count; i++) {
        char name[PATH_BYTES_MAX];
        if (records[i].head.kind == UNDO_RENAME)
            text_of(name, records[i].data, records[i].head.data_bytes);
        else if (records[i].head.kind == UNDO_REMOVE)
            text_of(name, records[i].path2, records[i].head.path2_bytes);
        else
            continue;
        if (name[0] != '\0') unlink(name);
    }
    if (truncate(log, 0) != 0) perror(log);
}

int main(int argc, char **argv) {
    double keep = 0;
    const char *log = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--keep") == 0 && i + 1 < argc)
            keep = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            rng ^= strtoull(argv[++i], NULL, 10) * 2654435761u;
        else if (strcmp(argv[i], "--ext4") == 0)
            ext4 = 1;
        else if (strcmp(argv[i], "--verbose") == 0)
            verbose = 1;
        else
            log = argv[i];
    }
    if (log == NULL) {
        fprintf(stderr, "usage: powercut LOG [--keep P] [--seed N] [--ext4] [--verbose]\n");
        return 2;
    }
    for (int i = 0; i < 20; i++) chance();
    records_read(log);
    for (files_room = 64; files_room < 8 * records_count; files_room *= 2) continue;
    files = must(calloc(files_room, sizeof(*files)));
    mark_durable();
    choose(keep);
    walk_back();
    clean(log);
    printf("records=%zu undone=%lu kept=%lu\n", records_count, undone, kept);
    return 0;
}
