/* SPDX-License-Identifier: Apache-2.0 */
/* darl.pml - leases, commits and merges of one hub: safety, for every order of events.
 *
 * - No time. The hub may reclaim a lease at any moment: what holds here holds for every clock.
 * - Sites and network are one adversary: COMMIT(lease, manifest) may arrive for any lease and any
 *   manifest, any number of times, in any order (loss, doubling, a zombie after a partition, an old
 *   checkpoint, several deltas under one lease, a broken promise to shrink). The one assumption: a
 *   manifest lists truthfully what its delta holds.
 * - atomic{} is one durable transaction; the hub may crash between any two of them.
 *
 * KEEP_REST  a commit may give the unconsumed rest to a fresh lease in the same transaction; the
 *            fresh lease may do so again: chains.
 * EPOCHS     blocks belong to epoch e (E0) or e+1 (E1). A lease is of one epoch; e+1 is granted only
 *            when e has nothing available; a delta may hold a lease of each; a seal per epoch.
 * REACH=n    scene n is reported as an error: the proof that it can be reached.
 * M_*        mutants: one rule broken each; README.md has the table. */
#ifndef NB
#define NB 4
#endif
#ifndef NT
#define NT 4
#endif
#ifdef EPOCHS
#define E0 ((1 << (NB / 2)) - 1)
#define E1 (ALL & ~E0)
byte sealed = 0;
byte par[NT];            /* slot + 1 of the other lease in the same delta; 0: none */
#endif
#include "common.pml"
byte lastr = 0;          /* leases merged by the newest round: what a rollback takes back */
#if defined(M_PARTIAL) || defined(M_PAIR_HALF)
#define PHYS
byte lphys[NT];          /* what the delta physically holds */
#endif
#ifdef M_BLOB_NOSYNC
byte unsynced = 0;       /* staged deltas whose blob a crash would lose */
#endif
#ifdef REACH
byte rests = 0;          /* leases that are the rest of another */
#endif
byte lost = 0;           /* staged deltas without a blob: only mutants have any */

/* A slot nothing can be asked of any more. */
#ifdef M_TOKEN_VOLATILE
#define FREE(t) true     /* the counter went back: tokens in use are issued again */
#else
#define FREE(t) (lst[t] == DEAD || (lst[t] == MERGED && !((lastr >> t) & 1)))
#endif
#ifdef EPOCHS
#define LINK(t) par[t]
#else
#define LINK(t) 0
#endif

inline kill(t) {
    lst[t] = DEAD; lext[t] = 0; old = old & ~(1 << t); lost = lost & ~(1 << t)
#ifdef REACH
    ; rests = rests & ~(1 << t)
#endif
#ifdef EPOCHS
    ; par[t] = 0
#endif
#ifdef PHYS
    ; lphys[t] = 0
#endif
}
inline activate(t, set) { kill(t); lst[t] = ACTIVE; lext[t] = set }
inline stage(t, set) {
    lst[t] = STAGED; lext[t] = set; avail = avail & ~(set)
#ifdef PHYS
    ; lphys[t] = set
#endif
#ifdef M_BLOB_NOSYNC
    ; unsynced = unsynced | (1 << t)
#endif
}
/* Back to the pool: reclaim, return, discard, fence. */
inline release(t) { avail = avail | lext[t]; kill(t) }

inline crash() {
    plan = 0
#ifdef M_BLOB_NOSYNC
    ; lost = lost | unsynced; unsynced = 0
#endif
#ifdef M_GC_STAGED   /* the collection of orphans at start takes blobs of staged deltas */
    ; t_ = 0; do :: t_ < NT -> if :: lst[t_] == STAGED -> lost = lost | (1 << t_) :: else -> skip fi; t_++
                 :: else -> break od
#endif
}

/* T5: the rest of lease t after set was consumed */
inline rest(t, set) {
    acc_ = lext[t] & ~(set);
#ifdef KEEP_REST
    pick_lease(u_);
    if
#ifdef M_REST_REUSE
    :: acc_ != 0 && u_ != t ->                      /* the fresh id may be one in use */
#else
    :: acc_ != 0 && u_ != t && FREE(u_) ->
#endif
        SEE(2);
#ifdef M_REST_OVERLAP
        acc_ = lext[t];
#endif
        activate(u_, acc_)
#ifdef REACH
        ; if :: (rests >> t) & 1 -> SEE(7) :: else -> skip fi;
        rests = rests | (1 << u_)
#endif
    :: skip ->
#ifndef M_REST_LOST
        avail = avail | acc_
#endif
    fi
#else
    avail = avail | acc_
#endif
}

inline commit_one() {
    if
    :: lst[t_] == STAGED || lst[t_] == MERGED ->    /* a retry: the recorded answer */
#ifdef M_NODEDUP
        if :: lst[t_] == MERGED -> model_add(m_) :: else -> skip fi
#else
        skip
#endif
#ifdef M_NOFENCE
    :: (lst[t_] == ACTIVE || lst[t_] == DEAD) && m_ != 0 ->
#elif defined(M_NOCONTAIN)
    :: lst[t_] == ACTIVE && m_ != 0 ->
#else
    :: lst[t_] == ACTIVE && m_ != 0 && (m_ & ~lext[t_]) == 0 ->
#endif
#ifdef M_REST_NOCONSUME                             /* the rest is granted, the lease stays */
        pick_lease(u_);
        if :: u_ != t_ && FREE(u_) && lext[t_] != m_ -> activate(u_, lext[t_] & ~m_)
           :: else -> rest(t_, m_); stage(t_, m_) fi
#else
        if :: lst[t_] == ACTIVE -> rest(t_, m_) :: else -> skip fi;
        stage(t_, m_)
#endif
#ifdef M_PARTIAL                                    /* keep the delta, mark what it still owns */
    :: lst[t_] == DEAD && (m_ & avail) != 0 ->
        acc_ = m_; stage(t_, m_ & avail); lphys[t_] = acc_
#endif
#ifdef M_SEAL_FORGETS                               /* rows of a sealed epoch are gone: accepted */
    :: lst[t_] == DEAD && m_ != 0 && (sealed & 1) && (m_ & ~E0) == 0 -> stage(t_, m_)
#endif
    :: else ->                                      /* the whole delta is rejected */
        if :: lst[t_] == ACTIVE -> release(t_) :: else -> skip fi
    fi
}

#ifdef EPOCHS
#define FITS(t, E) (lst[t] == ACTIVE && (m_ & E) != 0 && ((m_ & E) & ~lext[t]) == 0)
/* a delta that holds lease t_ of e and lease u_ of e+1: all of it or none of it */
inline commit_two() {
    if
    :: FITS(t_, E0) && FITS(u_, E1) ->
        avail = avail | (lext[t_] & ~m_) | (lext[u_] & ~m_);
        stage(t_, m_ & E0); stage(u_, m_ & E1); par[t_] = u_ + 1; par[u_] = t_ + 1;
        SEE(3)
#ifdef M_PAIR_HALF                                  /* stages the part whose lease still stands */
    :: FITS(t_, E0) && lst[u_] == DEAD ->
        avail = avail | (lext[t_] & ~m_); acc_ = m_; stage(t_, m_ & E0); lphys[t_] = acc_
#endif
    :: else ->
        if :: lst[t_] == ACTIVE -> release(t_) :: else -> skip fi;
        if :: lst[u_] == ACTIVE -> release(u_) :: else -> skip fi
    fi
}
#endif

/* merge: the delta of lease t enters the model, its manifest the ledger */
inline flip(t) {
    assert(!((old >> t) & 1));                      /* its base is in the head's ancestry */
    if
    :: (lost >> t) & 1 -> skip                      /* a blob that is gone adds nothing */
#ifdef PHYS
    :: else -> model_add(lphys[t])
#elif defined(M_PAIR_SPLIT)                         /* lease by lease, though a delta is whole */
    :: else -> model_add(lext[t]); if :: LINK(t) != 0 -> model_add(lext[par[t] - 1]) :: else -> skip fi
#else
    :: else -> model_add(lext[t])
#endif
    fi
}
inline book(t) { merged = merged | lext[t]; lst[t] = MERGED }

active proctype world() {
    do
    /* T3 grant: any part of what is free */
    :: atomic { avail != 0 -> pick_lease(t_);
        if
        :: FREE(t_) ->
#ifdef EPOCHS
#ifdef M_EARLY
            if :: pick_subset(avail & E0) :: pick_subset(avail & E1) fi;
#else
            if :: (avail & E0) != 0 -> pick_subset(avail & E0)
               :: else -> pick_subset(avail & E1) fi;
#endif
            assert((m_ & E1) == 0 || (avail & E0) == 0);   /* what came back of e goes first */
#else
            pick_subset(avail);
#endif
            if :: m_ != 0 -> avail = avail & ~m_; activate(t_, m_) :: else -> skip fi
        :: else -> skip
        fi; check() }
    /* T4 reclaim, return, fence of a site: at any time */
    :: atomic { pick_lease(t_);
        if
        :: lst[t_] == ACTIVE -> release(t_)
#ifdef M_RECLAIM_STAGED
        :: lst[t_] == STAGED -> avail = avail | lext[t_]
#endif
        :: else -> skip
        fi; check() }
    /* T4 shrink, also forced: cut to a part */
    :: atomic { pick_lease(t_);
        if
        :: lst[t_] == ACTIVE -> pick_subset(lext[t_]);
            if :: m_ != 0 -> avail = avail | (lext[t_] & ~m_); lext[t_] = m_ :: else -> skip fi
        :: else -> skip
        fi; check() }
    /* T5 commit: the blob is durable, then one transaction. A crash between the two leaves an
     * orphan blob, which start collects: the state of a crash alone. */
    :: atomic { pick_lease(t_); pick_subset(ALL); commit_one(); check() }
#ifdef EPOCHS
    :: atomic { pick_lease(t_); pick_lease(u_);
        if
        :: t_ != u_ && (lst[t_] == ACTIVE || lst[u_] == ACTIVE) -> pick_subset(ALL); commit_two()
        :: else -> skip
        fi; check() }
    /* T8 seal */
    :: atomic { (sealed & 1) == 0 ->
        if
#ifdef M_SEAL_LEASED
        :: (avail & E0) == 0 -> sealed = sealed | 1
#else
        :: (merged & E0) == E0 -> sealed = sealed | 1; if :: avail != 0 -> SEE(4) :: else -> skip fi
#endif
        :: else -> skip
        fi; check() }
    :: atomic { (sealed & 2) == 0 && (merged & E1) == E1 -> sealed = sealed | 2;
        if :: !(sealed & 1) -> SEE(5) :: else -> skip fi; check() }
#endif
    /* T6, first half: choose staged deltas and compute; nothing durable */
    :: atomic { plan == 0 -> t_ = 0;
        do
        :: t_ < NT ->
            if
            :: lst[t_] == STAGED ->
#ifdef M_PAIR_SPLIT
                if :: plan = plan | (1 << t_) :: skip fi
#else
                if :: LINK(t_) == 0 -> if :: plan = plan | (1 << t_) :: skip fi
#ifdef EPOCHS
                   :: LINK(t_) > t_ -> if :: plan = plan | (1 << t_) | (1 << (par[t_] - 1)) :: skip fi
#endif
                   :: else -> skip fi
#endif
            :: else -> skip
            fi; t_++
        :: else -> break
        od; t_ = 0 }
    /* T6, second half: head and ledger flip in one transaction */
    :: atomic { plan != 0 -> t_ = 0;
        do :: t_ < NT -> if :: (plan >> t_) & 1 -> flip(t_) :: else -> skip fi; t_++ :: else -> break od;
#ifdef M_NONATOMIC
        if :: crash(); t_ = NT :: t_ = 0 fi;        /* the model is new, the ledger old */
#else
        t_ = 0;
#endif
        if
        :: t_ == 0 ->
            do :: t_ < NT -> if :: (plan >> t_) & 1 -> book(t_) :: else -> skip fi; t_++ :: else -> break od;
            lastr = plan; plan = 0;
            if :: merged == ALL -> SEE(1) :: else -> skip fi
        :: else -> skip
        fi; check() }
    /* T7 discard: not finite, too far, too old */
    :: atomic { pick_lease(t_);
        if
        :: lst[t_] == STAGED && !((plan >> t_) & 1) ->
            u_ = LINK(t_);
#ifdef M_DISCARD_LOSES
            kill(t_);
#else
            release(t_);
#endif
            if :: u_ != 0 -> release(u_ - 1) :: else -> skip fi
        :: else -> skip
        fi; check() }
    :: atomic { crash(); check() }
    /* T9: one round back. Its ledger goes with the model; every lease is fenced, all staged go. */
    :: atomic { lastr != 0 -> plan = 0; t_ = 0; SEE(6);
        do
        :: t_ < NT ->
            if
            :: (lastr >> t_) & 1 -> model_sub(lext[t_]);
#ifdef M_RB_NOLEDGER
                kill(t_)
#else
                merged = merged & ~lext[t_]; release(t_)
#endif
#ifdef M_RB_KEEPS_STAGED
            :: lst[t_] == STAGED -> old = old | (1 << t_)
#endif
#ifdef M_RB_KEEPS_LEASES
            :: lst[t_] == ACTIVE -> old = old | (1 << t_)
#endif
            :: else -> if :: lst[t_] == ACTIVE || lst[t_] == STAGED -> release(t_) :: else -> skip fi
            fi; t_++
        :: else -> break
        od; lastr = 0;
#if defined(EPOCHS) && !defined(M_RB_KEEPS_SEAL)
        if :: (merged & E0) != E0 -> sealed = sealed & ~1 :: else -> skip fi;
        if :: (merged & E1) != E1 -> sealed = sealed & ~2 :: else -> skip fi;
#endif
        check() }
#ifdef REACH
    :: scene -> assert(false)
#endif
    od
}
