/* SPDX-License-Identifier: Apache-2.0 */
/* dp_mpi.c - dp.h's calls by MPI; built as beringia-mpi.so with the mpicc of the place, because MPI
 * libraries share no binary interface. It uses nothing of the program but dp.h's types.
 *
 * Only the thread that opened it calls MPI (MPI_THREAD_FUNNELED is asked for). All waits are tests in
 * a loop that first spins, then yields, then sleeps, so that ranks that wait do not take processors
 * from those that work, and a lost rank is noticed by time where the library does not tell.
 * Whatever goes wrong ends the job by MPI_Abort with status E_RANK. */
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "train/dp.h"

enum {
    TAG_LETTER = 1,
    TAG_SWAP = 2,
    TAG_SLOT = 16,
    COUNT_MAX = 1 << 30, /* MPI counts are ints */
    SPIN_NS = 200 * 1000,
    YIELD_NS = 20 * 1000 * 1000,
    NAP_NS = 100 * 1000,
    IDLE_NAP_NS = 2 * 1000 * 1000
};

struct slot {
    MPI_Request *requests; /* [2 * ranks]; of a swap as many as it takes */
    int requests_count;
    int *counts, *places; /* [ranks] */
};

struct mpi {
    struct dp_net net;
    MPI_Comm comm;
    pthread_t owner; /* the one thread that may be here (MPI_THREAD_FUNNELED) */
    int64_t timeout_ns;
    struct slot slots[DP_SLOTS_ALL];
};

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

static void *get(size_t count, size_t bytes) {
    void *p = calloc(count, bytes);
    if (p) return p;
    fprintf(stderr, "beringia: no memory for the requests of MPI\n");
    abort();
}

static void net_abort(void *self, int status) {
    struct mpi *m = self;
    fflush(NULL);
    MPI_Abort(m->comm, status);
    _Exit(status);
}

static void lost(struct mpi *m, const char *what) {
    fprintf(stderr,
            "beringia: rank %u of %u: %s; the job ends here. Start it again with the same "
            "directories: it goes on from its last checkpoint (E_RANK)\n",
            m->net.rank, m->net.ranks, what);
    net_abort(m, BRG_E_RANK);
}

/* Every call of MPI goes through here. */
static void must(struct mpi *m, int rc, const char *call) {
    char text[MPI_MAX_ERROR_STRING + 100], why[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (!pthread_equal(m->owner, pthread_self())) {
        fprintf(stderr, "beringia: %s: called from another thread than the one that opened MPI\n",
                call);
        abort();
    }
    if (rc == MPI_SUCCESS) return;
    MPI_Error_string(rc, why, &n);
    snprintf(text, sizeof text, "%s failed: %s", call, why);
    lost(m, text);
}

static void wait_all(struct mpi *m, MPI_Request *requests, int count, bool idle) {
    int64_t began = now_ns();
    for (;;) {
        int done = 0;
        must(m, MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE), "MPI_Testall");
        if (done) return;
        int64_t waited = now_ns() - began;
        if (waited < SPIN_NS) continue;
        if (waited < YIELD_NS) {
            sched_yield();
            continue;
        }
        if (!idle && waited > m->timeout_ns) {
            char text[100];
            snprintf(text, sizeof text, "no word of another rank for %lld s",
                     (long long)(waited / NS_PER_S));
            lost(m, text);
        }
        nanosleep(&(struct timespec){.tv_nsec = idle ? IDLE_NAP_NS : NAP_NS}, NULL);
    }
}

static void net_bcast(void *self, void *data, size_t bytes, bool idle) {
    struct mpi *m = self;
    for (size_t at = 0; at < bytes; at += COUNT_MAX) {
        int n = bytes - at < COUNT_MAX ? (int)(bytes - at) : COUNT_MAX;
        MPI_Request r;
        must(m, MPI_Ibcast((char *)data + at, n, MPI_BYTE, 0, m->comm, &r), "MPI_Ibcast");
        wait_all(m, &r, 1, idle);
    }
}

static void net_allgather(void *self, const void *mine, void *all, size_t bytes) {
    struct mpi *m = self;
    MPI_Request r;
    must(m, MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, m->comm, &r),
         "MPI_Iallgather");
    wait_all(m, &r, 1, false);
}

static void net_send(void *self, uint32_t to, const float *data, size_t count) {
    struct mpi *m = self;
    for (size_t at = 0; at < count; at += COUNT_MAX) {
        int n = count - at < COUNT_MAX ? (int)(count - at) : COUNT_MAX;
        MPI_Request r;
        must(m, MPI_Isend(data + at, n, MPI_FLOAT, (int)to, TAG_LETTER, m->comm, &r), "MPI_Isend");
        wait_all(m, &r, 1, false);
    }
}

static void net_recv(void *self, uint32_t from, float *data, size_t count) {
    struct mpi *m = self;
    for (size_t at = 0; at < count; at += COUNT_MAX) {
        int n = count - at < COUNT_MAX ? (int)(count - at) : COUNT_MAX;
        MPI_Request r;
        must(m, MPI_Irecv(data + at, n, MPI_FLOAT, (int)from, TAG_LETTER, m->comm, &r),
             "MPI_Irecv");
        wait_all(m, &r, 1, false);
    }
}

/* Buckets are at most 2^20 elements a rank, far below what an int counts. Each rank begins with its
 * neighbour, so that not all send to the same one at a time. */
static void net_exchange(void *self, uint32_t slot, const float *data, const size_t *at,
                         float *parts) {
    struct mpi *m = self;
    struct slot *s = &m->slots[slot];
    uint32_t me = m->net.rank, ranks = m->net.ranks;
    size_t own = at[me + 1] - at[me];
    s->requests_count = 0;
    for (uint32_t i = 1; i < ranks && own > 0; i++) {
        uint32_t from = (me + ranks - i) % ranks;
        must(m,
             MPI_Irecv(parts + from * own, (int)own, MPI_FLOAT, (int)from, TAG_SLOT + (int)slot,
                       m->comm, &s->requests[s->requests_count++]),
             "MPI_Irecv");
    }
    for (uint32_t i = 1; i < ranks; i++) {
        uint32_t to = (me + i) % ranks;
        size_t n = at[to + 1] - at[to];
        if (n == 0) continue;
        must(m,
             MPI_Isend(data + at[to], (int)n, MPI_FLOAT, (int)to, TAG_SLOT + (int)slot, m->comm,
                       &s->requests[s->requests_count++]),
             "MPI_Isend");
    }
}

static void net_spread(void *self, uint32_t slot, float *data, const size_t *at) {
    struct mpi *m = self;
    struct slot *s = &m->slots[slot];
    for (uint32_t r = 0; r < m->net.ranks; r++) {
        s->counts[r] = (int)(at[r + 1] - at[r]);
        s->places[r] = (int)(at[r] - at[0]);
    }
    s->requests_count = 1;
    must(m,
         MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, data + at[0], s->counts, s->places, MPI_FLOAT,
                         m->comm, &s->requests[0]),
         "MPI_Iallgatherv");
}

/* In pieces, as counts are ints. */
static void net_swap(void *self, uint32_t to, const float *data, size_t count, uint32_t from,
                     float *into, size_t into_count) {
    struct mpi *m = self;
    struct slot *s = &m->slots[DP_SLOT_SWAP];
    free(s->requests);
    s->requests = get(count / COUNT_MAX + into_count / COUNT_MAX + 2, sizeof(MPI_Request));
    s->requests_count = 0;
    for (size_t at = 0; at < into_count; at += COUNT_MAX) {
        int n = into_count - at < COUNT_MAX ? (int)(into_count - at) : COUNT_MAX;
        must(m,
             MPI_Irecv(into + at, n, MPI_FLOAT, (int)from, TAG_SWAP, m->comm,
                       &s->requests[s->requests_count++]),
             "MPI_Irecv");
    }
    for (size_t at = 0; at < count; at += COUNT_MAX) {
        int n = count - at < COUNT_MAX ? (int)(count - at) : COUNT_MAX;
        must(m,
             MPI_Isend(data + at, n, MPI_FLOAT, (int)to, TAG_SWAP, m->comm,
                       &s->requests[s->requests_count++]),
             "MPI_Isend");
    }
}

static bool net_done(void *self, uint32_t slot) {
    struct mpi *m = self;
    struct slot *s = &m->slots[slot];
    int done = 0;
    must(m, MPI_Testall(s->requests_count, s->requests, &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    return done != 0;
}

static void net_wait(void *self, uint32_t slot) {
    struct mpi *m = self;
    wait_all(m, m->slots[slot].requests, m->slots[slot].requests_count, false);
}

static void net_close(void *self) {
    struct mpi *m = self;
    for (int i = 0; i < DP_SLOTS_ALL; i++) {
        free(m->slots[i].requests);
        free(m->slots[i].counts);
        free(m->slots[i].places);
    }
    MPI_Comm_free(&m->comm);
    MPI_Finalize();
    free(m);
}

__attribute__((visibility("default"))) dp_open_fn beringia_mpi_open;

int beringia_mpi_open(uint32_t net_version, int64_t timeout_ns, struct dp_net **out, char *why,
                      size_t why_bytes) {
    int level = 0, rank = 0, ranks = 0;
    if (net_version != DP_NET_VERSION) {
        snprintf(why, why_bytes, "it is of version %d, the program of %u: build it again: make mpi",
                 DP_NET_VERSION, net_version);
        return BRG_E_CONFIG;
    }
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS ||
        level < MPI_THREAD_FUNNELED) {
        snprintf(why, why_bytes,
                 "MPI does not start, or not with MPI_THREAD_FUNNELED (level %d): use an MPI "
                 "library that was built with threads",
                 level);
        return BRG_E_CONFIG;
    }
    struct mpi *m = get(1, sizeof *m);
    MPI_Comm_dup(MPI_COMM_WORLD, &m->comm);
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(m->comm, &rank);
    MPI_Comm_size(m->comm, &ranks);
    m->owner = pthread_self();
    m->timeout_ns = timeout_ns;
    m->net = (struct dp_net){.rank = (uint32_t)rank,
                             .ranks = (uint32_t)ranks,
                             .self = m,
                             .bcast = net_bcast,
                             .allgather = net_allgather,
                             .send = net_send,
                             .recv = net_recv,
                             .exchange = net_exchange,
                             .spread = net_spread,
                             .swap = net_swap,
                             .done = net_done,
                             .wait = net_wait,
                             .abort = net_abort,
                             .close = net_close};
    for (int i = 0; i < DP_SLOTS_ALL; i++) {
        m->slots[i].requests = get(2 * (size_t)ranks, sizeof(MPI_Request));
        m->slots[i].counts = get((size_t)ranks, sizeof(int));
        m->slots[i].places = get((size_t)ranks, sizeof(int));
    }
    *out = &m->net;
    return BRG_OK;
}
