/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */

#include <common/test.h>
extern "C" {
#include <ucp/core/ucp_context.h>
#include <ucp/core/ucp_mm.inl>
#include <uct/base/uct_md.h>
#include <ucs/memory/rcache.h>
#include <ucs/memory/rcache_int.h>
#include <ucs/sys/sys.h>
}
#include <set>
#include <vector>

/* A cache whose regions are asked whether they are valid, without events */
class test_rcache_valid : public ucs::test {
protected:
    struct region {
        ucs_rcache_region_t super;
        int                 id;
    };

    virtual void init()
    {
        static const ucs_rcache_ops_t ops = {reg, dereg, dump, valid};
        ucs_rcache_params_t params        = {};

        ucs::test::init();
        params.region_struct_size = sizeof(region);
        params.alignment          = UCS_PGT_ADDR_ALIGN;
        params.max_alignment      = ucs_get_page_size();
        params.ops                = &ops;
        params.context            = this;
        params.max_regions        = ULONG_MAX;
        params.max_size           = SIZE_MAX;
        params.max_unreleased     = SIZE_MAX;
        UCS_TEST_CREATE_HANDLE(ucs_rcache_t*, m_rcache, ucs_rcache_destroy,
                               ucs_rcache_create, &params, "test",
                               ucs_stats_get_root());
    }

    virtual void cleanup()
    {
        m_rcache.reset();
        EXPECT_TRUE(m_registered.empty());
        ucs::test::cleanup();
    }

    void fail(uintptr_t start, size_t length)
    {
        ucs_rcache_region_t *found = NULL;

        m_fail = true;
        m_told = 0;
        EXPECT_EQ(UCS_ERR_IO_ERROR,
                  ucs_rcache_get(m_rcache, (void*)start, length,
                                 PROT_READ | PROT_WRITE, NULL, &found));
        m_fail = false;
        EXPECT_EQ(1, m_told);
    }

    region *get(uintptr_t start, size_t length)
    {
        ucs_rcache_region_t *found = NULL;

        ASSERT_UCS_OK(ucs_rcache_get(m_rcache, (void*)start, length,
                                     PROT_READ | PROT_WRITE, NULL, &found));
        return ucs_derived_of(found, region);
    }

    void put(region *r)
    {
        ucs_rcache_region_put(m_rcache, &r->super);
    }

    /* Get and put; which region it was, and where it starts */
    int use(uintptr_t start, size_t length, uintptr_t *region_start = NULL)
    {
        region *r = get(start, length);
        int id    = r->id;

        if (region_start != NULL) {
            *region_start = r->super.super.start;
        }
        put(r);
        return id;
    }

    static const uintptr_t START = 0x100000;
    static const size_t    SIZE  = 0x1000;

    std::set<int>               m_registered;
    std::set<int>               m_stale;
    int                         m_next_id = 1;
    bool                        m_fail    = false;
    int                         m_fails   = 0; /* while it is registered */
    int                         m_told    = 0; /* failures not hidden */
    ucs::handle<ucs_rcache_t*>  m_rcache;

private:
    static ucs_status_t reg(void *context, ucs_rcache_t *rcache, void *arg,
                            ucs_rcache_region_t *r, uint16_t flags)
    {
        test_rcache_valid *self = reinterpret_cast<test_rcache_valid*>(context);
        int id                  = self->m_next_id++;

        if (self->m_fail || self->m_registered.count(self->m_fails)) {
            self->m_told += !(flags & UCS_RCACHE_MEM_REG_HIDE_ERRORS);
            return UCS_ERR_IO_ERROR;
        }

        ucs_derived_of(r, region)->id = id;
        self->m_registered.insert(id);
        return UCS_OK;
    }

    static void
    dereg(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *r)
    {
        reinterpret_cast<test_rcache_valid*>(context)->m_registered.erase(
                ucs_derived_of(r, region)->id);
    }

    static void dump(void *context, ucs_rcache_t *rcache,
                     ucs_rcache_region_t *r, char *buf, size_t max)
    {
        snprintf(buf, max, "id %d", ucs_derived_of(r, region)->id);
    }

    static int valid(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *r)
    {
        return !reinterpret_cast<test_rcache_valid*>(context)->m_stale.count(
                ucs_derived_of(r, region)->id);
    }
};

UCS_TEST_F(test_rcache_valid, valid_is_found) {
    int id = use(START, SIZE);

    EXPECT_EQ(id, use(START, SIZE));
    EXPECT_EQ(id, use(START + 64, SIZE / 2));
    EXPECT_EQ(1u, m_registered.size());
}

UCS_TEST_F(test_rcache_valid, stale_is_replaced) {
    int id = use(START, SIZE);

    m_stale.insert(id);
    EXPECT_NE(id, use(START, SIZE));
    EXPECT_FALSE(m_registered.count(id));
    EXPECT_EQ(1u, m_registered.size());
}

UCS_TEST_F(test_rcache_valid, stale_in_use_stays_registered) {
    region *first = get(START, SIZE);
    int id        = first->id;

    m_stale.insert(id);
    EXPECT_NE(id, use(START, SIZE));
    EXPECT_TRUE(m_registered.count(id));
    put(first);
    EXPECT_FALSE(m_registered.count(id));
}

UCS_TEST_F(test_rcache_valid, stale_is_not_merged) {
    uintptr_t start;
    int id = use(START, SIZE);

    m_stale.insert(id);
    use(START + SIZE / 2, SIZE, &start);
    EXPECT_EQ(START + SIZE / 2, start);
    EXPECT_FALSE(m_registered.count(id));

    /* A valid one is */
    use(START, SIZE, &start);
    EXPECT_EQ(START + 0, start);
    EXPECT_EQ(1u, m_registered.size());
}

/* The memory that could not be registered may be gone by now */
UCS_TEST_F(test_rcache_valid, failed_is_not_merged) {
    uintptr_t start;

    fail(START, SIZE);
    use(START + SIZE / 2, SIZE, &start);
    EXPECT_EQ(START + SIZE / 2, start);
}

UCS_TEST_F(test_rcache_valid, failed_do_not_pile_up) {
    for (int i = 0; i < 1000; ++i) {
        fail(START + i * SIZE, SIZE / 2);
    }

    EXPECT_LE(m_rcache.get()->num_regions, 8u);
}

/* Nobody asks for them again, and no event tells of them */
UCS_TEST_F(test_rcache_valid, stale_do_not_pile_up) {
    static const int live = 100, all = 10000;

    for (int i = 0; i < all; ++i) {
        int id = use(START + i * SIZE, SIZE / 2);
        if (i >= live) {
            m_stale.insert(id);
        }
    }

    EXPECT_LE(m_registered.size(), size_t(live + live / 4));
    for (int i = 0; i < live; ++i) {
        EXPECT_TRUE(m_registered.count(i + 1)) << i;
    }
}

/* A few may be much memory */
UCS_TEST_F(test_rcache_valid, large_stale_do_not_pile_up) {
    static const size_t live = 1000 * SIZE / 2, large = 1ul << 30;
    size_t most = 0;

    for (int i = 0; i < 1000; ++i) {
        use(START + i * SIZE, SIZE / 2);
    }

    for (int i = 1; i < 50; ++i) {
        m_stale.insert(use(i * 2 * large, large));
        most = ucs_max(most, m_rcache.get()->total_size - live);
    }

    EXPECT_LE(most, 2 * large);
    EXPECT_LE(m_registered.size(), 1002u);
}

/* What was much at once goes soon, not only when there is as much again */
UCS_TEST_F(test_rcache_valid, stale_of_a_peak_go) {
    static const int peak = 600;

    for (int i = 0; i < peak; ++i) {
        use(START + i * SIZE, SIZE / 2);
    }

    for (int i = 0; i < peak; ++i) {
        m_stale.insert(i + 1);
    }

    for (int i = 0; i < peak / 4; ++i) {
        use(START + (peak + i) * SIZE, SIZE / 2);
    }

    EXPECT_EQ(size_t(peak / 4), m_registered.size());
}

/* It could be for want of what they keep */
UCS_TEST_F(test_rcache_valid, failed_drops_stale) {
    static const int live = 100;

    for (int i = 0; i < live; ++i) {
        use(START + i * SIZE, SIZE / 2);
    }

    for (int i = 0; i < live; ++i) {
        m_stale.insert(i + 1);
        m_fails = i + 1;
        use(START + (live + i) * SIZE, SIZE / 2);
        EXPECT_FALSE(m_registered.count(i + 1));
    }

    EXPECT_EQ(size_t(live), m_registered.size());
    EXPECT_EQ(0, m_told);
}

/* One that is in use is dropped, and does not become free: it fails then */
UCS_TEST_F(test_rcache_valid, failed_keeps_what_is_in_use) {
    region *r                  = get(START, SIZE / 2);
    ucs_rcache_region_t *found = NULL;

    m_stale.insert(r->id);
    m_fails = r->id;
    EXPECT_EQ(UCS_ERR_IO_ERROR,
              ucs_rcache_get(m_rcache, (void*)(START + SIZE), SIZE / 2,
                             PROT_READ | PROT_WRITE, NULL, &found));
    EXPECT_TRUE(m_registered.count(r->id));
    put(r);
    use(START + SIZE, SIZE / 2);
    EXPECT_EQ(1u, m_registered.size());
}

/* UCP's cache, over a memory domain that registers what the test lets it */
class test_ucp_rcache_valid : public ucs::test {
protected:
    struct range {
        uintptr_t start, end;
    };

    virtual void init()
    {
        ucp_params_t params = {};
        ucp_config_t *config;
        ucp_context_h context;

        ucs::test::init();
        m_notify                      = ucs_global_opts.rcache_notify;
        ucs_global_opts.rcache_notify = UCS_TRY;
        ASSERT_UCS_OK(ucp_config_read(NULL, NULL, &config));
        ASSERT_UCS_OK(ucp_config_modify(config, "TLS", "self"));
        ASSERT_UCS_OK(ucp_config_modify(config, "NET_DEVICES", "all"));
        params.field_mask = UCP_PARAM_FIELD_FEATURES;
        params.features   = UCP_FEATURE_RMA;
        ASSERT_UCS_OK(ucp_init(&params, config, &context));
        ucp_config_release(config);
        m_context.reset(context, ucp_cleanup);
        ASSERT_TRUE(context->rcache != NULL);

        m_self             = this;
        m_ops              = *context->tl_mds[0].md->ops;
        m_ops.mem_reg      = reg;
        m_ops.mem_dereg    = dereg;
        m_ops.mem_is_valid = is_valid;
        context->tl_mds[0].md->ops = &m_ops;
    }

    virtual void cleanup()
    {
        m_context.reset();
        ucs_global_opts.rcache_notify = m_notify;
        EXPECT_TRUE(m_registered.empty());
        ucs::test::cleanup();
    }

    ucs_status_t get(uintptr_t start, size_t length, ucp_md_map_t md_map,
                     ucp_mem_h *memh_p)
    {
        return ucp_memh_get(m_context, (void*)start, length,
                            UCS_MEMORY_TYPE_HOST, md_map,
                            UCT_MD_MEM_ACCESS_ALL, memh_p);
    }

    void put(ucp_mem_h memh)
    {
        ucp_memh_put(m_context, memh, 0);
    }

    /* Get and put; the length of the region, 0 if it failed */
    size_t use(uintptr_t start, size_t length, ucp_md_map_t md_map)
    {
        ucp_mem_h memh;
        size_t found;

        if (get(start, length, md_map, &memh) != UCS_OK) {
            return 0;
        }

        found = ucp_memh_length(memh);
        put(memh);
        return found;
    }

    static const uintptr_t START = 0x100000;
    static const size_t    SIZE  = 0x10000;

    static test_ucp_rcache_valid *m_self;
    std::set<range*>             m_registered;
    uintptr_t                    m_gone  = 0; /* can't be registered */
    uintptr_t                    m_stale = 0; /* not what was registered */
    bool                         m_full  = false;
    ucs_ternary_auto_value_t     m_notify;
    uct_md_ops_t                 m_ops;
    ucs::handle<ucp_context_h>   m_context;

private:
    static ucs_status_t reg(uct_md_h md, void *address, size_t length,
                            unsigned flags, uct_mem_h *memh_p)
    {
        uintptr_t start = (uintptr_t)address;
        range r         = {start, start + length};

        if (has(&r, m_self->m_gone)) {
            return UCS_ERR_IO_ERROR;
        }

        for (range *other : m_self->m_registered) {
            if (m_self->m_full && has(other, m_self->m_stale)) {
                return UCS_ERR_IO_ERROR;
            }
        }

        *memh_p = new range(r);
        m_self->m_registered.insert((range*)*memh_p);
        return UCS_OK;
    }

    static ucs_status_t
    dereg(uct_md_h md, const uct_md_mem_dereg_params_t *params)
    {
        m_self->m_registered.erase((range*)params->memh);
        delete (range*)params->memh;
        return UCS_OK;
    }

    static int is_valid(uct_md_h md, uct_mem_h memh)
    {
        return !has((range*)memh, m_self->m_stale);
    }

    static bool has(const range *r, uintptr_t address)
    {
        return (r->start <= address) && (address < r->end);
    }
};

test_ucp_rcache_valid *test_ucp_rcache_valid::m_self;

/* As memory that TCP sends, which needs no memory handle */
UCS_TEST_F(test_ucp_rcache_valid, nothing_registered_is_found) {
    ucp_mem_h first, second;

    ASSERT_UCS_OK(get(START, SIZE, 0, &first));
    ASSERT_UCS_OK(get(START, SIZE, 0, &second));
    EXPECT_EQ(first, second);
    put(second);
    put(first);
    EXPECT_TRUE(m_registered.empty());
    EXPECT_EQ(size_t(SIZE), use(START, SIZE / 2, 1));
}

/* Nobody told that a part of it is gone */
UCS_TEST_F(test_ucp_rcache_valid, nothing_registered_is_not_extended) {
    EXPECT_EQ(size_t(SIZE), use(START, SIZE, 0));
    m_gone = START + SIZE - 1;
    EXPECT_EQ(size_t(SIZE / 2), use(START, SIZE / 2, 1));
    EXPECT_EQ(1u, m_registered.size());
}

UCS_TEST_F(test_ucp_rcache_valid, failed_is_not_found) {
    m_gone = START + SIZE - 1;
    {
        scoped_log_handler slh(wrap_errors_logger);
        EXPECT_EQ(0u, use(START, SIZE, 1));
    }
    EXPECT_EQ(1u, m_errors.size());
    m_gone = 0;
    EXPECT_EQ(size_t(SIZE / 2), use(START, SIZE / 2, 1));
}

UCS_TEST_F(test_ucp_rcache_valid, failed_drops_stale) {
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(size_t(SIZE / 2), use(START + i * SIZE, SIZE / 2, 1));
    }

    m_full = true;
    for (int i = 0; i < 100; ++i) {
        m_stale = START + i * SIZE;
        EXPECT_EQ(size_t(SIZE / 2), use(START + (100 + i) * SIZE, SIZE / 2, 1));
    }
}
