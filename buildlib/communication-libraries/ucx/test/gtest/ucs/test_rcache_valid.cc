/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */

#include <common/test.h>
extern "C" {
#include <ucs/memory/rcache.h>
#include <ucs/memory/rcache_int.h>
#include <ucs/sys/sys.h>
}
#include <set>
#include <vector>

/* A cache whose regions are asked whether they are valid, without memory events */
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
        EXPECT_EQ(UCS_ERR_IO_ERROR,
                  ucs_rcache_get(m_rcache, (void*)start, length,
                                 PROT_READ | PROT_WRITE, NULL, &found));
        m_fail = false;
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
    ucs::handle<ucs_rcache_t*>  m_rcache;

private:
    static ucs_status_t reg(void *context, ucs_rcache_t *rcache, void *arg,
                            ucs_rcache_region_t *r, uint16_t flags)
    {
        test_rcache_valid *self = reinterpret_cast<test_rcache_valid*>(context);
        int id                  = self->m_next_id++;

        if (self->m_fail) {
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

    EXPECT_LE(m_rcache.get()->num_regions, size_t(UCS_RCACHE_SWEEP_MIN));
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

    EXPECT_LE(m_registered.size(), size_t(4 * live));
    for (int i = 0; i < live; ++i) {
        EXPECT_TRUE(m_registered.count(i + 1)) << i;
    }
}
