/* SPDX-License-Identifier: Apache-2.0 */
/* data.h - the face of the data room: text -> tokens -> shards + manifest -> samples -> positions.
 *
 * A data set is a directory:
 *   manifest.json    counts, sequence length, tokenizer hash, and one entry a shard with its SHA-256
 *   tokenizer.json   a copy of the file packed with (absent for the bytes tokenizer, whose kind is in
 *                    the manifest)
 *   train-00000.tok  tokens as one stream, the end-of-text token behind each document
 *   heldout-00000.tok  the same for documents split off before packing
 *
 * Shard, little-endian: "BRGTOK1\0" | u32 token_bytes (2 or 4) | u32 reserved 0 | u64 samples |
 *   u64 tokens | 32 zero bytes -> 64 bytes, then tokens. A shard of s samples of length T holds
 *   exactly s*T+1 tokens (0 tokens where s = 0): sample i of the shard is tokens [i*T, i*T+T],
 *   that is T inputs and T targets shifted by one. The tail of the text that fills no whole sample
 *   is dropped and counted in the manifest.
 * Global sample index: shards in manifest order, samples in shard order.
 *
 * Fingerprint: SHA-256 over the manifest's canonical fields and the order's version and seed; two
 * sites with equal fingerprints see the same tokens at the same positions. */
#ifndef DATA_DATA_H
#define DATA_DATA_H

#include "base/base.h"

/* ---- The order of samples (pure): position -> sample, computed by everyone alone
 * ------------------ order version 1: two-level Feistel permutation with cycle walking. Blocks of
 * `block` samples are permuted over the epoch, then samples within groups of `group` blocks; the
 * short last block keeps the last positions. */
enum { ORDER_VERSION = 1, ORDER_BLOCK = 1024, ORDER_GROUP = 64 };
struct order {
    uint64_t seed, samples_count;
    uint32_t block, group, epoch;
    uint64_t key_outer, blocks_count; /* derived by order_init */
};
/* block and group of 0 take the defaults; the default block shrinks in small sets, so that there
 * are at least 16 blocks. Other values are taken as they are. */
void order_init(struct order *o, uint64_t seed, uint32_t epoch, uint64_t samples_count,
                uint32_t block, uint32_t group);
uint64_t order_sample(const struct order *o, uint64_t position); /* position < samples_count */
uint64_t order_position(const struct order *o, uint64_t sample); /* the inverse */
/* order_sample of count positions in a row, at a fraction of the cost of as many calls. */
void order_samples(const struct order *o, uint64_t first, uint64_t count, uint64_t *out);

/* ---- Tokenizers -------------------------------------------------------------------------------
 * */
struct tokenizer;
enum { TOKENIZER_BYTES_VOCAB = 257, TOKENIZER_BYTES_EOT = 256 }; /* 256 bytes + end of text */

struct tokenizer *tokenizer_bytes(void); /* gives (free with tokenizer_free) */
/* Learns byte-level BPE with vocab_size ids: 256 bytes, merges, then the one special token
 * <|endoftext|> last. texts are borrowed. Deterministic: ties go to the pair with the smaller ids.
 * Words are split by the Qwen/GPT pattern (PCRE2); see tokenizer.c. */
enum brg_status tokenizer_train(const char *const *texts, const size_t *texts_bytes, size_t count,
                                uint32_t vocab_size, struct tokenizer **out, struct err *e)
    MUST_USE;
enum brg_status tokenizer_load(const char *path, struct tokenizer **out, struct err *e) MUST_USE;
/* The same texts from files, cut into documents as data_pack does. */
enum brg_status tokenizer_train_files(const char *const *paths, size_t count, uint32_t vocab_size,
                                      struct tokenizer **out, struct err *e) MUST_USE;
enum brg_status tokenizer_save(const struct tokenizer *t, const char *path, struct err *e) MUST_USE;
void tokenizer_free(struct tokenizer *t);
uint32_t tokenizer_vocab(const struct tokenizer *t); /* ids are < vocab */
/* The id between documents; UINT32_MAX where the file has no token that is known to end a text. */
uint32_t tokenizer_eot(const struct tokenizer *t);
const char *tokenizer_kind(const struct tokenizer *t); /* "bytes" or "bpe" */
struct hash tokenizer_hash(
    const struct tokenizer *t); /* of the canonical content, not of the file */
/* Special tokens (<|endoftext|>, <|im_start|>, ...) that stand in a text: either plain text like any
 * other, so that no text can end a document, or the ids they name, as Hugging Face's tokenizers have
 * it. Added tokens that are not special (<think>) are ids in both cases. */
enum tokenizer_special { SPECIAL_AS_TEXT, SPECIAL_AS_IDS };
/* Appends ids (u32 each, via buf_u32) for text; any bytes are accepted. With SPECIAL_AS_TEXT the
 * end-of-text id never comes out, whatever the text says. Without a normalizer decode gives the bytes
 * back; with one, the normalized text, in which each maximal ill-formed part is U+FFFD. (A blank that
 * add_prefix_space puts before a text, and what a pattern removes, stay so.) The post-processor's ids
 * are not added: see tokenizer_around. E_LIMIT: a pattern of the tokenizer takes too many steps on
 * this text, or the ids more room than out_ids has. */
enum brg_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t bytes,
                                 enum tokenizer_special special, struct buf *out_ids, struct err *e)
    MUST_USE;
/* Appends the bytes; E_TOKENIZER: an id stands for nothing in this vocabulary. */
enum brg_status tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t count,
                                 struct buf *out_text, struct err *e) MUST_USE;
/* The ids that the post-processor puts before and behind a text (Llama 3: <|begin_of_text|> before);
 * borrowed. */
void tokenizer_around(const struct tokenizer *t, const uint32_t **out_before,
                      uint32_t *out_before_count, const uint32_t **out_behind,
                      uint32_t *out_behind_count);

/* ---- Packing
 * ------------------------------------------------------------------------------------ */
struct pack_options {
    const char *const
        *inputs; /* text files: *.jsonl: field "text" of each line; others: plain text,
                                  cut into documents at lines that hold only "\f" or
                                  "<|endoftext|>". Compressed files are refused. */
    size_t inputs_count;
    const char *out_dir;
    const char *tokenizer; /* "bytes", or the path of a tokenizer.json */
    uint32_t seq_len;      /* 1..SEQ_LEN_MAX */
    double heldout_share;  /* [0, 1): share of documents, chosen by hash of the document's bytes */
    uint64_t shard_samples_max; /* 0: as many as fill 64 MiB */
    uint64_t train_samples_max; /* no further training document is taken once there are this many
                                   samples (the last document is taken whole); 0: no limit */
    uint64_t seed;              /* of the order; at most DATA_SEED_MAX */
    unsigned threads;           /* 0: as many as there are processors; the result is the same */
    bool special_ids;           /* special tokens in a text become their ids; else they are text */
    bool around;                /* put the post-processor's ids around each document */
    bool force;                 /* replace a data set that is at out_dir */
};
enum { SEQ_LEN_MAX = 1 << 20 };
#define DATA_SEED_MAX ((UINT64_C(1) << 53) - 1) /* what every JSON reader keeps exactly */
/* Everything is written into OUT_DIR.partial-XXXXXX and renamed at the end: whatever fails,
 * OUT_DIR is untouched and the partial directory removed (only a kill leaves it). E_EXISTS where
 * out_dir is there and not empty, unless it is a data set and force is set. The same inputs and
 * options give the same bytes, for every number of threads. */
enum brg_status data_pack(const struct pack_options *o, struct err *e) MUST_USE;

/* ---- Reading
 * ------------------------------------------------------------------------------------ */
struct dataset; /* shards mapped read-only; every function may be called from any thread */
/* verify: hash every shard against the manifest and look at every id (else sizes and headers only).
 * E_MISSING: a file is not there; E_MANIFEST: the manifest is wrong; E_SHARD: a shard is truncated
 * or altered; E_TOKENIZER: tokenizer.json is not the one the manifest names. */
enum brg_status data_open(const char *dir, bool verify, struct dataset **out, struct err *e)
    MUST_USE;
void data_close(struct dataset *d);
uint64_t data_samples(const struct dataset *d); /* training samples = positions of an epoch */
uint64_t data_heldout_samples(const struct dataset *d);
uint32_t data_seq_len(const struct dataset *d);
uint32_t data_vocab(const struct dataset *d);
uint64_t data_order_seed(const struct dataset *d);
/* order_init with the data set's seed and count and the default block and group. */
void data_order(const struct dataset *d, uint32_t epoch, struct order *out);
struct hash data_fingerprint(const struct dataset *d);
struct hash data_tokenizer_hash(const struct dataset *d);
const struct tokenizer *data_tokenizer(const struct dataset *d); /* lives as long as d */
/* out[T+1]: T inputs and the T targets behind them. sample < count. Every id is below data_vocab: a
 * shard that breaks this (it was altered after data_open) stops the process with E_SHARD's status.
 * */
void data_sample(const struct dataset *d, uint64_t sample, int32_t *out);
void data_heldout_sample(const struct dataset *d, uint64_t sample, int32_t *out);
/* Bytes of UTF-8 text behind the held-out samples' predicted tokens: for bits per byte. */
uint64_t data_heldout_text_bytes(const struct dataset *d);

struct data_counts { /* of one half, for people */
    uint64_t documents, samples, tokens, tokens_dropped, text_bytes, shards;
};
void data_counts(const struct dataset *d, struct data_counts *out_train,
                 struct data_counts *out_heldout);

#endif
