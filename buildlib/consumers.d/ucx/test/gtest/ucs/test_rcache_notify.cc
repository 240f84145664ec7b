/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */

#include <common/test.h>
extern "C" {
#include <ucm/api/ucm.h>
#include <ucp/core/ucp_context.h>
#include <ucp/core/ucp_mm.inl>
#include <uct/base/uct_md.h>
#include <ucs/memory/rcache.h>
#include <ucs/memory/rcache_int.h>
#include <ucs/arch/atomic.h>
#include <ucs/sys/sys.h>
}
#include <errno.h>
#include <map>
#include <memory>
#include <set>

/* A cache whose regions have words. The test writes the words as the kernel does */
class test_rcache_notify : public ucs::test {
protected:
    struct region {
        ucs_rcache_region_t super;
        int                 id;
    };

    virtual void init()
    {
        static const ucs_rcache_ops_t ops = {reg, dereg, dump, is_valid};
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
        params.flags              = UCS_RCACHE_FLAG_NOTIFY;
        UCS_TEST_CREATE_HANDLE(ucs_rcache_t*, m_rcache, ucs_rcache_destroy,
                               ucs_rcache_create, &params, "test",
                               ucs_stats_get_root());
    }

    virtual void cleanup()
    {
        m_rcache.reset();
        EXPECT_TRUE(m_words.empty());
        ucs::test::cleanup();
    }

    ucs_status_t try_get(uintptr_t start, size_t length, region **region_p)
    {
        ucs_rcache_region_t *found = NULL;
        ucs_status_t status;

        status    = ucs_rcache_get(m_rcache, (void*)start, length,
                                   PROT_READ | PROT_WRITE, NULL, &found);
        *region_p = ucs_derived_of(found, region);
        return status;
    }

    region *get(uintptr_t start, size_t length)
    {
        region *r;

        ASSERT_UCS_OK(try_get(start, length, &r));
        return r;
    }

    void put(region *r)
    {
        ucs_rcache_region_put(m_rcache, &r->super);
    }

    /* Get and put a region; return the region and its start */
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

    void invalidate(int id)
    {
        *m_words.at(id) |= UCS_RCACHE_WORD_INVALID;
        ucs_atomic_add64(ucs_rcache_changes(), 1);
    }

    static const uintptr_t START = 0x100000;
    static const size_t    SIZE  = 0x1000;

    std::map<int, std::unique_ptr<uint64_t>> m_words; /* the word of each registration */
    int                        m_next_id   = 1;
    int                        m_asked     = 0;
    bool                       m_valid     = true; /* what is_valid() returns */
    size_t                     m_max       = SIZE_MAX; /* limit of registrations */
    bool                       m_fail      = false;
    int                        m_not_hidden = 0; /* number of reported failures */
    ucs::handle<ucs_rcache_t*> m_rcache;

private:
    static ucs_status_t reg(void *context, ucs_rcache_t *rcache, void *arg,
                            ucs_rcache_region_t *r, uint16_t flags)
    {
        test_rcache_notify *self = reinterpret_cast<test_rcache_notify*>(context);
        int id                   = self->m_next_id++;

        if (self->m_fail || (self->m_words.size() >= self->m_max)) {
            self->m_not_hidden += !(flags & UCS_RCACHE_MEM_REG_HIDE_ERRORS);
            return UCS_ERR_IO_ERROR;
        }

        self->m_words[id].reset(new uint64_t(0x100));
        ucs_derived_of(r, region)->id = id;
        r->word                       = self->m_words[id].get();
        return UCS_OK;
    }

    static void
    dereg(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *r)
    {
        test_rcache_notify *self = reinterpret_cast<test_rcache_notify*>(context);

        EXPECT_EQ(1u, self->m_words.erase(ucs_derived_of(r, region)->id));
    }

    static void dump(void *context, ucs_rcache_t *rcache,
                     ucs_rcache_region_t *r, char *buf, size_t max)
    {
        snprintf(buf, max, "id %d", ucs_derived_of(r, region)->id);
    }

    static int is_valid(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *r)
    {
        test_rcache_notify *self = reinterpret_cast<test_rcache_notify*>(context);

        ++self->m_asked;
        return self->m_valid;
    }
};

UCS_TEST_F(test_rcache_notify, valid_is_found) {
    int id = use(START, SIZE);

    EXPECT_EQ(id, use(START, SIZE));
    EXPECT_EQ(id, use(START + 64, SIZE / 2));
    EXPECT_EQ(1u, m_words.size());
    EXPECT_EQ(0, m_asked);
}

/* The kernel has set the word, but has not incremented the counter yet */
UCS_TEST_F(test_rcache_notify, invalid_is_replaced) {
    int id = use(START, SIZE);

    *m_words.at(id) |= UCS_RCACHE_WORD_INVALID;
    EXPECT_NE(id, use(START, SIZE));
    EXPECT_FALSE(m_words.count(id));
    EXPECT_EQ(1u, m_words.size());
    EXPECT_EQ(0, m_asked);
}

UCS_TEST_F(test_rcache_notify, suspect_is_asked) {
    int id = use(START, SIZE);

    *m_words.at(id) |= 2;
    EXPECT_EQ(id, use(START, SIZE));
    EXPECT_EQ(1, m_asked);
    m_valid = false;
    EXPECT_NE(id, use(START, SIZE));
    EXPECT_EQ(2, m_asked);
    EXPECT_EQ(1u, m_words.size());
}

UCS_TEST_F(test_rcache_notify, other_bits_do_not_count) {
    int id = use(START, SIZE);

    *m_words.at(id) = ~(uint64_t)UCS_RCACHE_WORD_MASK;
    EXPECT_EQ(id, use(START, SIZE));
    EXPECT_EQ(0, m_asked);
}

UCS_TEST_F(test_rcache_notify, invalid_in_use_stays_registered) {
    region *first = get(START, SIZE);
    int id        = first->id;

    invalidate(id);
    EXPECT_NE(id, use(START, SIZE));
    use(START + 2 * SIZE, SIZE);
    EXPECT_TRUE(m_words.count(id));
    put(first);
    EXPECT_FALSE(m_words.count(id));
}

/* UCP's cache may never request the region from UCT's cache again */
UCS_TEST_F(test_rcache_notify, last_user_deregisters_invalid) {
    region *first = get(START, SIZE), *second = get(START, SIZE);

    EXPECT_EQ(first, second);
    *m_words.at(first->id) |= UCS_RCACHE_WORD_INVALID;
    put(first);
    EXPECT_EQ(1u, m_words.size());
    put(second);
    EXPECT_TRUE(m_words.empty());
}

UCS_TEST_F(test_rcache_notify, invalid_is_not_merged) {
    uintptr_t start;
    int id = use(START, SIZE);

    *m_words.at(id) |= UCS_RCACHE_WORD_INVALID;
    use(START + SIZE / 2, SIZE, &start);
    EXPECT_EQ(START + SIZE / 2, start);
    EXPECT_FALSE(m_words.count(id));

    use(START, SIZE, &start);
    EXPECT_EQ(uintptr_t(START), start);
    EXPECT_EQ(1u, m_words.size());
}

/* The program never uses these regions again, and no memory event removes them */
UCS_TEST_F(test_rcache_notify, invalid_do_not_pile_up_with_misses) {
    static const int live = 100, all = 10000;

    for (int i = 0; i < all; ++i) {
        int id = use(START + i * SIZE, SIZE / 2);
        if (i >= live) {
            invalidate(id);
        }
        EXPECT_LE(m_words.size(), size_t(live + live / 8 + 2));
    }

    for (int i = 0; i < live; ++i) {
        EXPECT_TRUE(m_words.count(i + 1)) << i;
    }
}

UCS_TEST_F(test_rcache_notify, invalid_do_not_pile_up_with_hits) {
    for (int i = 0; i < 100; ++i) {
        use(START + i * SIZE, SIZE / 2);
    }

    for (int i = 1; i < 100; ++i) {
        invalidate(i + 1);
    }

    EXPECT_EQ(1, use(START, SIZE / 2));
    EXPECT_EQ(1u, m_words.size());
}

/* A few invalid regions may keep much memory pinned */
UCS_TEST_F(test_rcache_notify, large_invalid_do_not_pile_up) {
    static const size_t large = 1ul << 30;

    for (int i = 0; i < 1000; ++i) {
        use(START + i * SIZE, SIZE / 2);
    }

    for (int i = 1; i < 50; ++i) {
        EXPECT_LE(m_rcache.get()->total_size, 2 * large);
        invalidate(use(i * 2 * large, large));
    }
}

/* A search looks at all regions, so the cache waits until many regions have changed */
UCS_TEST_F(test_rcache_notify, few_changes_wait_for_a_search) {
    for (int i = 0; i < 1600; ++i) {
        use(START + i * SIZE, SIZE / 2);
    }

    invalidate(1);
    use(START + 1599 * SIZE, SIZE / 2);
    EXPECT_EQ(1599u, m_words.size());
    for (int i = 1; i < 90; ++i) {
        invalidate(i + 1);
        use(START + 1599 * SIZE, SIZE / 2);
        EXPECT_TRUE(m_words.count(i + 1));
    }

    for (int i = 90; i < 110; ++i) {
        invalidate(i + 1);
    }

    use(START + 1599 * SIZE, SIZE / 2);
    EXPECT_EQ(1600u - 110, m_words.size());
}

/* A registration may need the resources that invalid regions hold */
UCS_TEST_F(test_rcache_notify, failed_drops_invalid) {
    static const int live = 100;

    for (int i = 0; i < live; ++i) {
        use(START + i * SIZE, SIZE / 2);
    }

    m_max = live;
    for (int i = 0; i < live; ++i) {
        invalidate(i + 1);
        use(START + (live + i) * SIZE, SIZE / 2);
    }

    EXPECT_EQ(size_t(live), m_words.size());
    EXPECT_EQ(0, m_not_hidden);
}

UCS_TEST_F(test_rcache_notify, failed_in_vain_is_told) {
    region *r;

    invalidate(use(START, SIZE));
    m_fail = true;
    EXPECT_EQ(UCS_ERR_IO_ERROR, try_get(START + SIZE, SIZE, &r));
    EXPECT_EQ(1, m_not_hidden);
    EXPECT_EQ(UCS_ERR_IO_ERROR, try_get(START + SIZE, SIZE / 2, &r));
    m_fail = false;
    use(START + SIZE, SIZE);
}

UCS_TEST_F(test_rcache_notify, drop_invalid) {
    int id = use(START, SIZE);

    ucs_rcache_drop_invalid(m_rcache);
    EXPECT_EQ(1u, m_words.size());
    use(START + SIZE, SIZE);
    invalidate(id);
    ucs_rcache_drop_invalid(m_rcache);
    EXPECT_FALSE(m_words.count(id));
    EXPECT_EQ(1u, m_words.size());
}

/* UCP's cache, over a memory domain whose registrations the test controls */
class test_ucp_rcache_notify : public ucs::test {
protected:
    struct handle {
        uintptr_t start, end;
        uint64_t  word;
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
        EXPECT_FALSE(context->mem_notify); /* the domain registers nothing */

        m_self          = this;
        m_ops           = *context->tl_mds[0].md->ops;
        m_ops.mem_reg   = reg;
        m_ops.mem_dereg = dereg;
        m_ops.mem_word  = word;
        context->tl_mds[0].md->ops = &m_ops;
        flags() = (flags() & ~UCT_MD_FLAG_REG_DUMMY) | UCT_MD_FLAG_NOTIFY;
        renew();
        EXPECT_TRUE(context->mem_notify);
    }

    /* Replace the cache by a cache for the current flags */
    void renew()
    {
        ucp_mem_rcache_cleanup(m_context);
        ASSERT_UCS_OK(ucp_mem_rcache_init(m_context));
    }

    uint64_t &flags()
    {
        return m_context.get()->tl_mds[0].attr.cap.flags;
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

    /* Get and put a region; return its length, or 0 on failure */
    size_t use(uintptr_t start, size_t length)
    {
        ucp_mem_h memh;
        size_t found;

        if (get(start, length, 1, &memh) != UCS_OK) {
            return 0;
        }

        found = ucp_memh_length(memh);
        put(memh);
        return found;
    }

    /* Act as the kernel when the memory at this address changes: set a bit */
    void change(uintptr_t address, uint64_t bit)
    {
        for (handle *h : m_registered) {
            if (has(h, address)) {
                h->word |= bit;
                ucs_atomic_add64(ucs_rcache_changes(),
                                 bit == UCS_RCACHE_WORD_INVALID);
            }
        }
    }

    static const uintptr_t START = 0x100000;
    static const size_t    SIZE  = 0x10000;

    static test_ucp_rcache_notify *m_self;
    std::set<handle*>            m_registered;
    uintptr_t                    m_gone     = 0; /* address that can't be registered */
    size_t                       m_max      = SIZE_MAX; /* limit of registrations */
    bool                         m_has_word = true;
    ucs_ternary_auto_value_t     m_notify;
    uct_md_ops_t                 m_ops;
    ucs::handle<ucp_context_h>   m_context;

private:
    static ucs_status_t reg(uct_md_h md, void *address, size_t length,
                            unsigned flags, uct_mem_h *memh_p)
    {
        uintptr_t start = (uintptr_t)address;
        handle h        = {start, start + length, 0};

        if (has(&h, m_self->m_gone) ||
            (m_self->m_registered.size() >= m_self->m_max)) {
            return UCS_ERR_IO_ERROR;
        }

        *memh_p = new handle(h);
        m_self->m_registered.insert((handle*)*memh_p);
        return UCS_OK;
    }

    static ucs_status_t
    dereg(uct_md_h md, const uct_md_mem_dereg_params_t *params)
    {
        m_self->m_registered.erase((handle*)params->memh);
        delete (handle*)params->memh;
        return UCS_OK;
    }

    static const volatile uint64_t *word(uct_md_h md, uct_mem_h memh)
    {
        return m_self->m_has_word ? &((handle*)memh)->word : NULL;
    }

    static bool has(const handle *h, uintptr_t address)
    {
        return (h->start <= address) && (address < h->end);
    }
};

test_ucp_rcache_notify *test_ucp_rcache_notify::m_self;

UCS_TEST_F(test_ucp_rcache_notify, invalid_is_replaced) {
    EXPECT_EQ(size_t(SIZE), use(START, SIZE));
    EXPECT_EQ(size_t(SIZE), use(START, SIZE / 2));
    change(START + SIZE - 1, UCS_RCACHE_WORD_INVALID);
    EXPECT_EQ(size_t(SIZE / 2), use(START, SIZE / 2));
    EXPECT_EQ(1u, m_registered.size());
}

/* UCP's cache registers again, and UCT's cache settles its own region */
UCS_TEST_F(test_ucp_rcache_notify, suspect_is_replaced) {
    EXPECT_EQ(size_t(SIZE), use(START, SIZE));
    change(START, 2);
    EXPECT_EQ(size_t(SIZE / 2), use(START, SIZE / 2));
    EXPECT_EQ(1u, m_registered.size());
}

UCS_TEST_F(test_ucp_rcache_notify, without_a_word_it_serves_one_request) {
    ucp_mem_h first, second;

    m_has_word = false;
    ASSERT_UCS_OK(get(START, SIZE, 1, &first));
    ASSERT_UCS_OK(get(START, SIZE, 1, &second));
    EXPECT_NE(first, second);
    put(second);
    put(first);
    EXPECT_TRUE(m_registered.empty());
}

/* This memory has no memory handles, like memory that TCP sends */
UCS_TEST_F(test_ucp_rcache_notify, without_memory_handles_nothing_is_kept) {
    ucp_mem_h memh;

    for (int i = 0; i < 1000; ++i) {
        ASSERT_UCS_OK(get(START + i * SIZE, SIZE / 2, 0, &memh));
        put(memh);
    }

    EXPECT_EQ(0u, m_context.get()->rcache->num_regions);
}

UCS_TEST_F(test_ucp_rcache_notify, failed_is_not_found) {
    m_gone = START + SIZE - 1;
    {
        scoped_log_handler slh(wrap_errors_logger);
        EXPECT_EQ(0u, use(START, SIZE));
    }
    EXPECT_EQ(1u, m_errors.size());
    m_gone = 0;
    EXPECT_EQ(size_t(SIZE / 2), use(START, SIZE / 2));
}

UCS_TEST_F(test_ucp_rcache_notify, failed_drops_invalid) {
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(size_t(SIZE / 2), use(START + i * SIZE, SIZE / 2));
    }

    m_max = 100;
    for (int i = 0; i < 100; ++i) {
        change(START + i * SIZE, UCS_RCACHE_WORD_INVALID);
        EXPECT_EQ(size_t(SIZE / 2), use(START + (100 + i) * SIZE, SIZE / 2));
    }
}

/* Memory events are needed if one memory domain does not notify */
UCS_TEST_F(test_ucp_rcache_notify, events) {
    EXPECT_EQ(0, m_context.get()->rcache->params.ucm_events);
    flags() &= ~UCT_MD_FLAG_NOTIFY;
    renew();
    EXPECT_FALSE(m_context.get()->mem_notify);
    EXPECT_TRUE(m_context.get()->rcache->params.ucm_events &
                UCM_EVENT_VM_UNMAPPED);

    flags() |= UCT_MD_FLAG_NOTIFY;
    ucs_global_opts.rcache_notify = UCS_NO;
    renew();
    EXPECT_FALSE(m_context.get()->mem_notify);

    ucs_global_opts.rcache_notify = UCS_YES;
    renew();
    EXPECT_TRUE(m_context.get()->mem_notify);
    flags() &= ~UCT_MD_FLAG_NOTIFY;
    ucp_mem_rcache_cleanup(m_context);
    m_context.get()->rcache = NULL;
    EXPECT_EQ(UCS_ERR_UNSUPPORTED, ucp_mem_rcache_init(m_context));
}
