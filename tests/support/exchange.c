/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges between threads. */
#include "exchange.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { PATIENCE_S = 180 };

void exchange_begin(exchange_room *room, uint32_t ranks)
{
    memset(room, 0, sizeof *room);
    pthread_mutex_init(&room->lock, NULL);
    pthread_cond_init(&room->changed, NULL);
    room->ranks = ranks;
}

void exchange_end(exchange_room *room)
{
    pthread_cond_destroy(&room->changed);
    pthread_mutex_destroy(&room->lock);
}

/* Under the lock. */
static void await(exchange_room *room, const uint32_t *count)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += room->timeout_ms > 0 ? room->timeout_ms / 1000 : PATIENCE_S;
    until.tv_nsec += (long)(room->timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while (*count < room->ranks && !room->given_up)
        if (pthread_cond_timedwait(&room->changed, &room->lock, &until) == ETIMEDOUT) {
            room->given_up = true;
            pthread_cond_broadcast(&room->changed);
        }
}

static void arrive(exchange_room *room, uint32_t rank, const void *mine, uint64_t bytes)
{
    room->given[rank] = mine;
    room->bytes[rank] = bytes;
    room->here++;
    pthread_cond_broadcast(&room->changed);
    await(room, &room->here);
}

static void leave(exchange_room *room)
{
    uint64_t round = room->round;
    if (++room->leaving == room->ranks) {
        memset(room->given, 0, sizeof room->given);
        room->here = room->leaving = 0;
        room->round++;
        room->exchanges++;
        pthread_cond_broadcast(&room->changed);
    }
    while (room->round == round && !room->given_up)
        pthread_cond_wait(&room->changed, &room->lock);
}

/* A rank that arrived is not missing, even if it has left the wait since. */
static bp_status fail(const exchange_room *room)
{
    char words[128] = "missing:";
    if (room->timeout_ms == 0)
        return bp_error_record(BP_ERR_IO, "ranks do not exchange the same number of bytes, or not all came");
    for (uint32_t i = 0; i < room->ranks; i++)
        if (room->given[i] == NULL)
            snprintf(words + strlen(words), sizeof words - strlen(words), " %u", i);
    return bp_error_record(BP_ERR_TIMEOUT, words);
}

static bp_status exchange(void *user, const void *mine, uint64_t bytes, void *all)
{
    exchange_seat *seat = user;
    exchange_room *room = seat->room;
    pthread_mutex_lock(&room->lock);
    if (seat->fails_nth > 0 && --seat->fails_nth == 0) {
        room->given_up = true;
        pthread_cond_broadcast(&room->changed);
        pthread_mutex_unlock(&room->lock);
        return bp_error_record(BP_ERR_IO, "the exchange was asked to fail");
    }
    arrive(room, seat->rank, mine, bytes);
    bool equal = !room->given_up;
    for (uint32_t i = 0; i < room->ranks && equal; i++) {
        equal = room->bytes[i] == bytes;
        if (equal)
            memcpy((char *)all + i * bytes, room->given[i], bytes);
    }
    leave(room);
    bp_status status = equal && !room->given_up ? BP_OK : fail(room);
    pthread_mutex_unlock(&room->lock);
    return status;
}

static bp_status count_abort(void *user)
{
    exchange_seat *seat = user;
    seat->aborts++;
    return BP_OK;
}

static void count_destroy(void *user)
{
    exchange_seat *seat = user;
    seat->destroys++;
}

bp_comm_callbacks exchange_callbacks(const exchange_seat *seat)
{
    return (bp_comm_callbacks){.size = sizeof(bp_comm_callbacks),
                               .rank = seat->rank,
                               .ranks = seat->room->ranks,
                               .exchange = exchange,
                               .abort = count_abort,
                               .destroy = count_destroy};
}
