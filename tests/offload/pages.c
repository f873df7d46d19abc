#include "pages.h"

pages open_pages(bp_device *device, const bp_offload_config *config)
{
    char units[64];
    snprintf(units, sizeof units, "%zu %zu %zu", (size_t)(13 * PAGE), (size_t)(13 * PAGE), (size_t)(18 * PAGE) - 77);
    pages p = {.k = begin_kit(device, units, TRAINING, BP_POLICY_MAX, 0)};
    bp_pool_config pool = pool_config();
    open_pool(&p.k, &pool);
    assert_ok(bp_offload_create(p.k.pool, config, &p.offload));
    assert_int_equal(bp_pool_get_info(p.k.pool)->slab_count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        p.slabs[i] = bp_pool_get_info(p.k.pool)->slabs[i];
        assert_true(p.slabs[i].bytes > 20 * PAGE);
        write_pages(&p.slabs[i], i);
    }
    assert_string_equal(p.slabs[0].group, "param");
    return p;
}

void close_pages(pages *p)
{
    bp_offload_destroy(&p->offload);
    assert_null(p->offload);
    end_kit(&p->k);
}

bp_offload_config config_with(bp_backing backing, uint64_t chunk_bytes)
{
    bp_offload_config config;
    assert_ok(bp_offload_config_init(&config, sizeof config));
    config.backing = backing;
    config.chunk_bytes = chunk_bytes;
    return config;
}

bp_offload_group group_in(const bp_offload *offload, const char *name)
{
    bp_offload_group groups[8] = {{.size = sizeof groups[0]}};
    size_t count = 0;
    assert_ok(bp_offload_groups(offload, groups, 8, &count));
    for (size_t i = 0; i < count; i++) {
        if (strcmp(groups[i].name, name) == 0)
            return groups[i];
    }
    fail_msg("unknown group %s", name);
    return groups[0];
}

static uint32_t word_at(uint64_t index, uint32_t seed)
{
    return (uint32_t)index * 2654435761u + seed * 97u + 1;
}

void write_pages(const bp_pool_slab *slab, uint32_t seed)
{
    uint32_t *words = slab->address;
    for (uint64_t i = 0; i < slab->bytes / 4; i++)
        words[i] = word_at(i, seed);
}

void assert_pages(const bp_pool_slab *slab, uint32_t seed)
{
    const uint32_t *words = slab->address;
    for (uint64_t i = 0; i < slab->bytes / 4; i++) {
        if (words[i] != word_at(i, seed))
            fail_msg("group %s: word %llu of %llu is wrong", slab->group, (unsigned long long)i,
                     (unsigned long long)slab->bytes / 4);
    }
}
