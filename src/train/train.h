/* SPDX-License-Identifier: Apache-2.0 */
/* train.h - the native trainer: Qwen3 forward and backward, AdamW or Muon, its own state. It knows nothing of
 * hubs and sites: weights and token rows come in, a loss and new weights come out.
 *
 * All parameters are one flat vector theta[P] in canonical order (Hugging Face names: model.embed_tokens,
 * then layer by layer input_layernorm, q_proj, k_proj, v_proj, o_proj, q_norm, k_norm,
 * post_attention_layernorm, gate_proj, up_proj, down_proj, then model.norm, then lm_head where
 * untied); gradients and the two AdamW moments are vectors of the same layout.
 *
 * Determinism: bit-equal for one build whatever the number of threads (fixed chunks, fixed order).
 * Shapes in comments: B sequences, T positions, C hidden, V vocabulary. Threads: one trainer belongs to
 * one calling thread; it runs its own workers. */
#ifndef TRAIN_TRAIN_H
#define TRAIN_TRAIN_H

#include "base/base.h"
#include "store/store.h"
#include "train/device.h"

struct model_config { /* config.json of Hugging Face's Qwen3ForCausalLM */
    uint32_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim, max_position_embeddings;
    double rms_norm_eps, rope_theta, initializer_range;
    bool tie_word_embeddings;
};
enum brg_status model_config_parse(const char *json, size_t bytes, const char *path,
                                   struct model_config *out, struct err *e) MUST_USE;
enum brg_status model_config_load(const char *path, struct model_config *out, struct err *e)
    MUST_USE;
/* The config.json text (complete: architectures, model_type "qwen3", torch_dtype ...). */
void model_config_json(const struct model_config *c, struct buf *out);
/* Fills the tensor table (types F32, canonical order); P = sum of elements. */
void model_tensors(const struct model_config *c, struct tensors *out);
uint64_t model_parameters(const struct model_config *c);
/* Floating-point operations of forward and backward for one token at sequence length T. */
double model_flops_per_token(const struct model_config *c, uint32_t seq_len);
/* Linear and embedding N(0, initializer_range), norms 1; a pure function of (config, seed). */
void model_init(const struct model_config *c, uint64_t seed, float *theta);
/* The first field that makes two configurations different models, NULL where none does. What only bounds
 * or begins a training (max_position_embeddings, initializer_range) may differ. */
const char *model_config_differs(const struct model_config *a, const struct model_config *b);
/* Reads weights into theta[P] (half written on failure): of a Hugging Face directory (model.safetensors,
 * or shards with their index) or of one safetensors file, which may be a run's checkpoint; F32, BF16 or
 * F16. Unknown, missing or misshapen tensors are errors that name file and tensor, and so is
 * (E_NONFINITE) a number that is not finite. */
enum brg_status model_load_weights(const char *path, const struct model_config *c, float *theta,
                                   struct err *e) MUST_USE;

struct adamw {
    double beta1, beta2, eps, weight_decay,
        clip; /* clip 0 = off; decay on tensors of 2 dimensions */
};
struct adamw adamw_default(void); /* 0.9, 0.95, 1e-8, 0.1, 1.0 */

/* Muon: a matrix moves along the orthogonalised momentum of its gradient (muon.c has the equations).
 * Embeddings, the head and norms stay with AdamW, at the plain rate. */
struct muon {
    double momentum; /* in [0, 1) */
    double lr_ratio; /* of the matrices' rate to the plain one */
};
struct muon muon_default(void); /* 0.95, 1 */
enum optimizer { OPTIMIZER_ADAMW = 0, OPTIMIZER_MUON = 1 };
const char *optimizer_name(enum optimizer o); /* "adamw", "muon" */
bool optimizer_parse(const char *word, enum optimizer *out);
/* The largest side of a matrix that Muon moves: with it outer_muon_bound says how far a step can go. */
uint64_t muon_side(const struct tensors *model);

struct trainer;
struct trainer_options {
    const struct model_config *model; /* borrowed while creating */
    uint32_t seq_len, batch_max;      /* rows a step may have at most */
    uint32_t micro_batch;     /* rows in memory at once; 0 = batch_max (gradient accumulation) */
    uint32_t threads;         /* 0 = the processors this process may use */
    const char *device;       /* a name of device.h; NULL: the fastest here */
    enum precision precision; /* of the operands of matrix products; weights and sums are f32 */
    bool
        recompute; /* keep only the inputs of layers, run each again in backward: a third more work */
    double z_loss; /* adds z_loss * (log sum exp logits)^2 to each loss; 0 = off */
    /* NULL: AdamW for all; borrowed while creating. With other ranks E_CONFIG: a matrix is needed as a whole. */
    const struct muon *muon;
    /* The ranks that train this model together (dp.h); batch_max and micro_batch are this rank's own.
     * NULL: alone. Borrowed until trainer_destroy. trainer_gradient and trainer_update are then
     * collective, and every rank must begin with the same weights. */
    const struct dp_net *net;
};
/* E_MEMORY says what was asked and which settings shrink it. */
enum brg_status trainer_create(const struct trainer_options *o, struct trainer **out, struct err *e)
    MUST_USE;
void trainer_destroy(struct trainer *t);
uint64_t trainer_parameters(const struct trainer *t);
float *trainer_theta(struct trainer *t); /* [P], borrowed, may be written between steps */
/* [P] of the last trainer_gradient; with other ranks only this one's parts are the sum over all. */
float *trainer_grad(struct trainer *t);
/* AdamW's moments [trainer_moments]: all P where this trainer is alone, this rank's parts otherwise. Of
 * Muon's matrices m is their momentum, and there is no v: NULL then; trainer_moment_get has zeros in their places. */
float *trainer_m(struct trainer *t);
float *trainer_v(struct trainer *t);
uint64_t trainer_moments(const struct trainer *t);
enum moment { MOMENT_M = 0, MOMENT_V = 1 };
/* Elements [at, at + count) of a moment as one vector of P: out of the trainer, into it. Collective;
 * `values` is of interest on rank 0 only. */
void trainer_moment_get(struct trainer *t, enum moment which, uint64_t at, uint64_t count,
                        float *values);
void trainer_moment_put(struct trainer *t, enum moment which, uint64_t at, uint64_t count,
                        const float *values);
/* What a rank alone can give back after the others are lost: its parts of weights and moments, of
 * trainer_part elements each (rank: any), one after another in parts[3 * own]. With as many ranks and the same
 * trainer_bucket the parts are the same elements. get: of this rank; not collective. put: all ranks give their
 * own, and then each has all weights; collective. clear: the moments are zero, as at the beginning. */
uint64_t trainer_part(const struct trainer *t, uint32_t rank);
uint64_t trainer_bucket(const struct trainer *t); /* 0: alone */
void trainer_part_get(struct trainer *t, float *parts);
void trainer_part_put(struct trainer *t, const float *parts);
void trainer_part_clear(struct trainer *t);
/* Gives all ranks rank 0's weights. Collective; nothing to do where the trainer is alone. */
void trainer_theta_share(struct trainer *t);
uint64_t trainer_steps(const struct trainer *t); /* AdamW's t, for bias correction */
void trainer_steps_set(struct trainer *t, uint64_t steps);
/* One line: how much memory was taken, by what it is for. MiB. */
void trainer_memory(const struct trainer *t, struct buf *out);
/* Mean next-token cross-entropy over rows*T predictions; tokens[rows][T+1]. No gradient. Of this rank's
 * rows alone. */
double trainer_loss(struct trainer *t, const int32_t *tokens, uint32_t rows);
/* Loss and gradient (mean over rows*T predictions) into trainer_grad. rows <= batch_max. */
double trainer_gradient(struct trainer *t, const int32_t *tokens, uint32_t rows);
/* The same where these rows (0 are possible) are one rank's of rows_total: loss and gradient are the
 * means over all ranks' rows, the loss with the same bits on all ranks. */
double trainer_gradient_part(struct trainer *t, const int32_t *tokens, uint32_t rows,
                             uint32_t rows_total);
/* AdamW, and Muon where the trainer was made with it, on the gradient there; gives the gradient's norm
 * before clipping. E_NONFINITE (nothing changed) where it is not finite. */
enum brg_status trainer_update(struct trainer *t, const struct adamw *a, double lr,
                               double *out_norm, struct err *e) MUST_USE;
/* Instead of an update: the whole gradient to all ranks, and its norm. E_NONFINITE where it is not finite. Collective. */
enum brg_status trainer_gradient_share(struct trainer *t, double *out_norm, struct err *e) MUST_USE;

#endif
