/* SPDX-License-Identifier: Apache-2.0 */
/* All operations, by name. */
#ifndef FSDP_TRAIN_OPERATIONS_H
#define FSDP_TRAIN_OPERATIONS_H

#define OPERATIONS(X)                                                                                                  \
    X(embed)                                                                                                           \
    X(embed_dw)                                                                                                        \
    X(norm_scale)                                                                                                      \
    X(norm)                                                                                                            \
    X(norm_dx)                                                                                                         \
    X(norm_dw)                                                                                                         \
    X(linear)                                                                                                          \
    X(linear_dx)                                                                                                       \
    X(linear_dw)                                                                                                       \
    X(silu)                                                                                                            \
    X(silu_dx)                                                                                                         \
    X(scores)                                                                                                          \
    X(mix)                                                                                                             \
    X(scores_dx)                                                                                                       \
    X(attention_dx)                                                                                                    \
    X(choose)                                                                                                          \
    X(route)                                                                                                           \
    X(gated)                                                                                                           \
    X(route_dx)                                                                                                        \
    X(loss)                                                                                                            \
    X(normaliser)                                                                                                      \
    X(loss_dx)                                                                                                         \
    X(widen)                                                                                                           \
    X(narrow)                                                                                                          \
    X(adam)

#define OPERATION_NUMBER(name) OPERATION_##name,
enum { OPERATIONS(OPERATION_NUMBER) OPERATION_COUNT };

#endif
